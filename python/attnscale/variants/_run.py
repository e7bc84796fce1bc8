# SPDX-License-Identifier: BSD-3-Clause
"""From features and running sums to the output, in blocks of rows that are divided among threads.

What is a block, and in what order blocks merge, follows from the shapes alone: results do not depend on the
number of threads.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from .._call.call import read_num_threads
from .._runtime import get_num_threads
from ._heads import Heads, parts
from ._prefix import Apart, Prefix

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ROWS", "Features", "run"]

# Rows of a block: long enough that Python's part in it is small, short enough for the caches, which hold
# some arrays of so many elements.
ROWS = 2048
_ELEMENTS = 1 << 17
# Heads with fewer rows share a block.
_FEW_ROWS = 1024
# Blocks of one task: a thread that takes the next one waits for the others to let it.
_BLOCKS_OF_TASK = 4
# Fewer elements of the output are done before other threads are awake: of several heads, of one alone.
_LEAST_SHARED, _LEAST_DIVIDED = 1 << 19, 1 << 20
# Time to sum a block's keys, over the time to answer its queries as well.
_SHARE_OF_SUMS = 1 / 3


class Features(Protocol):
    """Rows (..., n, dim), of which the first is number `first`, to (..., n, features)."""

    def query(self, rows: NDArray[Any], first: int) -> NDArray[Any]:
        """Features of queries."""

    def key(self, rows: NDArray[Any], first: int) -> NDArray[Any]:
        """Features of keys."""


def run(
    heads: Heads,
    features: Features,
    prefix: Callable[[], Prefix],
    offset: int | None,
    dtype: np.dtype[Any],
    num_threads: Any,
) -> None:
    """Write the output of every query: over all keys, or (with an offset) over the keys 0 ... i + offset."""
    threads = read_num_threads(num_threads) or get_num_threads()
    if not heads.output.size or not heads.query.shape[-1]:
        heads.output[...] = 0
        return
    # Long heads one by one: a block of one head stays in a core's cache.
    long = max(heads.output.shape[-2], heads.key.shape[-2]) >= _FEW_ROWS
    pieces = list(
        _single(heads, offset is None) if long else parts(heads, math.ceil(heads.output.size / _ELEMENTS))
    )
    stop = threading.Event()
    calls = [_Piece(piece, features, prefix, offset, dtype, stop) for piece in pieces]
    divided = long and len(calls) < threads
    least = _LEAST_DIVIDED if divided else _LEAST_SHARED
    if threads == 1 or max(heads.output.size, heads.key.size) < least:
        for call in calls:
            call.run()
        return
    with _Workers(threads, stop) as pool:
        if divided:
            for call in calls:
                call.divided(pool, threads)
            return
        for done in [pool.submit(call.run) for call in calls]:
            done.result()


def _single(heads: Heads, shared: bool = False) -> Iterator[Heads]:
    """Every head alone; `shared`: with the heads that share its keys, which are then summed once."""
    lead = heads.output.shape[:-2]
    if shared:
        lead = np.broadcast_shapes(heads.key.shape[:-2], heads.value.shape[:-2])
    if max(lead, default=1) == 1:
        yield heads
        return
    axis = int(np.argmax(lead)) - len(lead)
    for part in parts(heads, lead[axis], axis):
        yield from _single(part, shared)


# Threads stay: their start, and the memory that they touch first, cost more than a short call.
_pools: dict[int, ThreadPoolExecutor] = {}
os.register_at_fork(after_in_child=_pools.clear)  # threads do not survive a fork


class _Workers:
    """The threads of one call; leaving it waits for its tasks, which end at their next block if it failed."""

    def __init__(self, threads: int, stop: threading.Event) -> None:
        if threads not in _pools:
            _pools[threads] = ThreadPoolExecutor(threads, "attnscale")
        self.pool = _pools[threads]
        self.stop = stop
        self.tasks: list[Future[Any]] = []

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        task = self.pool.submit(call, *arguments)
        self.tasks.append(task)
        return task

    def map(self, call: Callable[..., Any], *arguments: Iterable[Any]) -> Iterator[Any]:
        """Results in order, of tasks that are all under way when it returns."""
        tasks = [self.submit(call, *each) for each in zip(*arguments, strict=True)]
        return (task.result() for task in tasks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.stop.set()
            for task in self.tasks:
                task.cancel()
        wait(self.tasks)


class _Piece:
    """Some heads of a call."""

    def __init__(
        self,
        heads: Heads,
        features: Features,
        prefix: Callable[[], Prefix],
        offset: int | None,
        dtype: np.dtype[Any],
        stop: threading.Event,
    ) -> None:
        self.how = features, prefix, offset, dtype, stop
        self.heads, self.features, self.prefix = heads, features, prefix
        self.dtype, self.stop = dtype, stop
        n_queries, n_keys = heads.output.shape[-2], heads.key.shape[-2]
        self.most = min(ROWS, max(64, _ELEMENTS // heads.query.shape[-1]))
        self.first_position = offset or 0
        # Keys before the first aligned pair, pairs, and queries that see all keys.
        self.first = n_keys if offset is None else min(max(offset, 0), n_keys)
        self.skipped = 0 if offset is None else min(max(-offset, 0), n_queries)
        self.pairs = 0 if offset is None else min(n_queries - self.skipped, n_keys - self.first)

    # Infinities and NaN of the inputs are answered in the output, not by warnings: in every thread.
    @np.errstate(all="ignore")
    def run(self) -> None:
        """All outputs, on this thread."""
        try:
            self._run(map, None, 1)
        except Apart:
            for piece in _single(self.heads):
                _Piece(piece, *self.how).run()

    @np.errstate(all="ignore")
    def divided(self, pool: _Workers, threads: int) -> None:
        """The same for one head, with the blocks divided among the threads of a pool."""
        self._run(pool.map, pool, threads)

    def _run(self, each: Callable[..., Any], pool: _Workers | None, threads: int) -> None:
        out = self.heads.output
        out[..., : self.skipped, :] = 0
        sums, task = self.prefix(), self.most * _BLOCKS_OF_TASK
        for part in each(self._sums, _blocks(0, self.first, task)):
            sums = sums.merge(part)
        if self.pairs:
            sums = self._causal(sums, list(_blocks(0, self.pairs, self.most)), pool, threads)
        rest = self.skipped + self.pairs
        if self.first + self.pairs == 0:
            out[..., rest:, :] = 0
            return
        for _ in each(lambda rows: self._read(sums, rows), _blocks(rest, out.shape[-2], task)):
            pass

    def _causal(self, sums: Prefix, blocks: list[slice], pool: _Workers | None, threads: int) -> Prefix:
        """Blocks one after the other; divided: each part starts from the sums over all blocks before."""
        bounds = _bounds(len(blocks), threads)
        if pool is None or len(bounds) < 3:
            return self._steps(sums, blocks)
        running = [pool.submit(self._steps, sums, blocks[: bounds[1]])]
        before = blocks[: bounds[-2]]
        tops = self._tops(sums, before, pool)
        for number, own in enumerate(pool.map(self._block, before, tops), 1):
            sums = sums.merge(own)
            if number in bounds:
                end = bounds[bounds.index(number) + 1]
                running.append(pool.submit(self._steps, sums, blocks[number:end]))
        last: Prefix = [part.result() for part in running][-1]
        return last

    def _tops(self, sums: Prefix, blocks: list[slice], pool: _Workers) -> list[Any]:
        """What the sums over each block refer to: the maxima of all keys up to its end."""
        if not sums.has_top:
            return [None] * len(blocks)
        top: Any = sums.top
        tops = []
        for own in pool.map(self._top, blocks):
            top = own if top is None else np.maximum(own, top)
            tops.append(top)
        return tops

    @np.errstate(all="ignore")
    def _steps(self, sums: Prefix, blocks: list[slice]) -> Prefix:
        for rows in blocks:
            self._check()
            at = _shift(rows, self.skipped)
            phi_q = self.features.query(self._rows(self.heads.query, at), at.start + self.first_position)
            with self._output(at) as out:
                own = sums.step(phi_q, *self._keys(_shift(rows, self.first)), out)
            sums = sums.merge(own)
        return sums

    @np.errstate(all="ignore")
    def _sums(self, rows: slice) -> Prefix:
        """Over the keys of a task."""
        sums = self.prefix()
        for block in _blocks(rows.start, rows.stop, self.most):
            self._check()
            sums.add(*self._keys(block))
        return sums

    @np.errstate(all="ignore")
    def _top(self, rows: slice) -> Any:
        self._check()
        return self.prefix().top_with(self._keys(_shift(rows, self.first))[0])

    @np.errstate(all="ignore")
    def _block(self, rows: slice, top: NDArray[Any] | None) -> Prefix:
        self._check()
        return self.prefix().block(*self._keys(_shift(rows, self.first)), top)

    @np.errstate(all="ignore")
    def _read(self, sums: Prefix, rows: slice) -> None:
        """Outputs of the queries of a task."""
        for block in _blocks(rows.start, rows.stop, self.most):
            self._check()
            query = self._rows(self.heads.query, block)
            with self._output(block) as out:
                sums.read(self.features.query(query, block.start + self.first_position), out)

    def _keys(self, rows: slice) -> tuple[NDArray[Any], NDArray[Any]]:
        key = self.features.key(self._rows(self.heads.key, rows), rows.start)
        return key, self._rows(self.heads.value, rows)

    def _rows(self, array: NDArray[Any], rows: slice) -> NDArray[Any]:
        return array[..., rows, :].astype(self.dtype, copy=False)

    @contextmanager
    def _output(self, rows: slice) -> Iterator[NDArray[Any]]:
        """Rows of the output, in the type of the arithmetic."""
        out = self.heads.output[..., rows, :]
        wide = out if out.dtype == self.dtype else np.empty(out.shape, self.dtype)
        yield wide
        if wide is not out:
            out[...] = wide

    def _check(self) -> None:
        if self.stop.is_set():
            raise RuntimeError("the call that this block belongs to was interrupted")


def _bounds(blocks: int, threads: int) -> list[int]:
    """Where the parts of a causal sequence begin, and its end.

    The first thread answers queries at once, while the others sum the keys of all parts but the last. All
    end together if its part is longer by as much as they have summed.
    """
    parts = min(threads, blocks // 2)
    if parts < 2:
        return [0, blocks]
    extra = _SHARE_OF_SUMS / (parts - 1)
    share = (1 - extra) / (parts - extra)
    inner = [round(blocks * (1 - share * left)) for left in range(parts - 1, 0, -1)]
    return [0, *inner, blocks]


def _blocks(begin: int, end: int, rows: int) -> Iterator[slice]:
    for start in range(begin, end, rows):
        yield slice(start, min(start + rows, end))


def _shift(rows: slice, by: int) -> slice:
    return slice(rows.start + by, rows.stop + by)
