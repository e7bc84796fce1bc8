# SPDX-License-Identifier: BSD-3-Clause
"""The function that measures a folder of layers: here, in processes, on a cluster, or part by part."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .._base.checks import shown
from .._base.hints import hinted
from .._grid.complete import choose_runner, complete, missing
from .._grid.part import Part
from .._grid.progress import check_progress
from .._grid.store import Store
from .._sweep.plan import Kept
from .folder import PartTask, Work, read_folder
from .joined import joined

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from .._call.types import Layout
    from .._grid.case import Case
    from .._grid.complete import Outcome, Runner
    from .._grid.fields import Fields
    from .._grid.progress import Progress
    from ..laws import Law
    from .result import Report


@dataclass(frozen=True)
class Ways:
    """How the cases of a folder are computed and kept."""

    n_jobs: int = 1
    executor: Executor | None = None
    store: str | os.PathLike[str] | None = None
    part: str | tuple[int, int] | None = None
    progress: Progress = True
    kept: Kept = Kept()  # noqa: RUF009 - it cannot change
    #: Called with the numbers of missing and of all cases, before the first one is computed.
    begin: Callable[[int, int], object] = lambda left, cases: None


@hinted
def report_folder(
    folder: str | os.PathLike[str],
    *,
    lengths: Sequence[int] | None = None,
    laws: Iterable[Law | str | float] | None = None,
    rows: int | None = None,
    heads: Sequence[int] | None = None,
    is_causal: bool = False,
    about: Mapping[str, str] | None = None,
    layout: Layout = "bhsd",
    num_threads: int | None = None,
    n_jobs: int = 1,
    executor: Executor | None = None,
    store: str | os.PathLike[str] | None = None,
    part: str | tuple[int, int] | None = None,
    progress: Progress = True,
) -> Report:
    """Measure every layer of a folder of files of queries and keys, for one page.

    The files are mapped and read a head at a time: memory does not grow with their number or size.

    Parameters
    ----------
    folder : path
        A file of queries and keys, or a pair of ``.npy`` files, for each layer, in the order of the numbers
        in their names. All have the same tokens and head_dim.
    lengths, laws, rows, is_causal, about, layout, num_threads
        As for :func:`attnscale.report`.
    heads : sequence of int, optional
        The heads of each layer to measure, counted from 0. Default: all.
    n_jobs, executor, progress
        As for :func:`attnscale.sweep`. A case is a layer, or some heads of a long one.
    store : path, optional
        Directory that keeps each finished case. It recognizes a file by its size and a sample of its bytes: a
        file that was replaced is measured again.
    part : str or pair of int, optional
        "k/N" or (k, N): measure only the k-th of N parts of the cases, counted from 1, for a store that the
        parts share. The report has the heads then stored: the part that ends last, and the same call without
        `part`, have all of them, bit for bit.

    Returns
    -------
    Report
        As of :func:`attnscale.report`. If heads are missing, ``about["heads"]`` says how many are there.

    Raises
    ------
    TypeError, ValueError
        If the layers do not fit each other, an argument is wrong, or the store is of other lengths or laws.
    SweepError
        If some layers could not be measured, after all others are finished; the message names them.
    SweepInterrupted
        On Ctrl-C: a KeyboardInterrupt with the report so far.

    Examples
    --------
    >>> import tempfile, pathlib, numpy as np, attnscale as at
    >>> folder, data = pathlib.Path(tempfile.mkdtemp()), at.datasets.minilm_qk()
    >>> for layer in range(3):
    ...     heads = slice(6 * layer, 6 * layer + 6)
    ...     np.savez(folder / f"layer_{layer}.npz", query=data.query[heads], key=data.key[heads])
    >>> found = at.report_folder(folder, lengths=[64, 256], laws=["log_n"])
    >>> found.entropy.shape, int(found.layers.max())
    ((18, 2, 2), 2)
    """
    work = read_folder(
        folder,
        lengths=lengths,
        laws=laws,
        rows=rows,
        heads=heads,
        is_causal=is_causal,
        layout=layout,
        num_threads=num_threads,
    )
    return measure_folder(work, Ways(n_jobs, executor, store, part, progress), about)


def measure_folder(work: Work, ways: Ways, about: Mapping[str, str] | None) -> Report:
    """Compute the wanted cases that the store lacks; the report of all heads then present."""
    if not isinstance(about, (Mapping, type(None))):
        raise TypeError(f"about must be a mapping of str to str, got {shown(about)}")
    run, num_threads = choose_runner(ways.n_jobs, ways.executor)
    check_progress(ways.progress)
    part = Part.read(ways.part, ways.store)
    store = None if ways.store is None else Store(ways.store, "report")
    cases = work.cases(stored=store is not None)
    wanted = cases if part is None else part.choose(cases)
    task = PartTask.of(work, num_threads)
    if store is None:
        finished = _complete(work, ways, about or {}, wanted, None, run, task)
    else:
        with store.locked(part):
            store.claim(work.identity, part=part)
            finished = _complete(work, ways, about or {}, wanted, store, run, task)
            finished = store.with_others(finished, cases)
    found = joined(work, finished, about or {})
    assert found is not None
    return found


def _complete(
    work: Work,
    ways: Ways,
    about: Mapping[str, str],
    wanted: Sequence[Case],
    store: Store | None,
    run: Runner,
    task: PartTask,
) -> dict[Case, Fields]:
    """The results of the wanted cases; each goes into the store as it comes."""

    def accept(case: Case, fields: Fields, before: Mapping[Case, Fields]) -> Outcome:
        return fields if store is None else store.keep(case, fields)

    finished = {} if store is None else store.finished(wanted)
    left = missing(wanted, finished)
    if store is not None:
        store.check_room_for(left)
    ways.begin(len(left), len(wanted))
    done = complete(run(task, left), wanted, finished, progress=ways.progress, accept=accept)
    where = ways.kept[:2] if store is None else (ways.kept.in_store.format(str(store)),)
    noun = "cases" if any("heads" in case.parameters for case in wanted) else "layers"
    done.require(lambda: joined(work, done.finished, about), noun, *where)
    return done.finished
