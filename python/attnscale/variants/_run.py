# SPDX-License-Identifier: BSD-3-Clause
"""From features and running sums to the output, in blocks: memory does not grow with n."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .._options import read_num_threads
from .._runtime import get_num_threads
from ._heads import Heads, parts
from ._prefix import Prefix

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CAUSAL_ROWS", "ROWS", "Features", "run"]

# Rows of a block: long enough that Python's part in it is small, short enough for the caches, which hold
# some arrays of so many elements. Sums within a causal block are of the input's type.
CAUSAL_ROWS, ROWS = 512, 1024
_ELEMENTS = 1 << 16


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
    alone = heads.output.shape[-2] >= ROWS or heads.key.shape[-2] >= ROWS
    pieces = list(parts(heads, max(heads.output.shape) if alone else threads))
    if len(pieces) == 1:
        _run_part(pieces[0], features, prefix(), offset, dtype)
        return
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(_run_part, piece, features, prefix(), offset, dtype) for piece in pieces]:
            done.result()


def _run_part(
    heads: Heads, features: Features, sums: Prefix, offset: int | None, dtype: np.dtype[Any]
) -> None:
    q, k, v, out = heads
    n_queries, n_keys = q.shape[-2], k.shape[-2]
    entries = q.shape[-1] * int(np.prod(out.shape[:-2]))
    most = max(64, _ELEMENTS // max(entries, 1))
    # Infinities and NaN of the inputs are answered in the output, not by warnings.
    with np.errstate(all="ignore"):
        # Keys before the first aligned pair, pairs, and queries that see all keys.
        first = n_keys if offset is None else min(max(offset, 0), n_keys)
        skipped = 0 if offset is None else min(max(-offset, 0), n_queries)
        pairs = 0 if offset is None else min(n_queries - skipped, n_keys - first)
        out[..., :skipped, :] = 0
        for rows in _blocks(0, first, min(most, ROWS)):
            sums.add(features.key(_rows(k, rows, dtype), rows.start), _rows(v, rows, dtype))
        for rows in _blocks(0, pairs, min(most, CAUSAL_ROWS)):
            at, seen = _shift(rows, skipped), _shift(rows, first)
            phi_q = features.query(_rows(q, at, dtype), at.start + (offset or 0))
            phi_k = features.key(_rows(k, seen, dtype), seen.start)
            out[..., at, :] = sums.step(phi_q, phi_k, _rows(v, seen, dtype))
        for rows in _blocks(skipped + pairs, n_queries, min(most, ROWS)):
            if first + pairs == 0:
                out[..., rows, :] = 0
                continue
            out[..., rows, :] = sums.read(features.query(_rows(q, rows, dtype), rows.start + (offset or 0)))


def _blocks(begin: int, end: int, rows: int) -> Iterator[slice]:
    for start in range(begin, end, rows):
        yield slice(start, min(start + rows, end))


def _shift(rows: slice, by: int) -> slice:
    return slice(rows.start + by, rows.stop + by)


def _rows(array: NDArray[Any], rows: slice, dtype: np.dtype[Any]) -> NDArray[Any]:
    return array[..., rows, :].astype(dtype, copy=False)
