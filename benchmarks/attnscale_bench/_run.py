# SPDX-License-Identifier: BSD-3-Clause
"""A run of the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from attnscale import get_num_threads
from attnscale._base.checks import positive_int

from ._cases import CASES
from ._machine import FmaPeak, MemoryRead, describe_machine
from ._peers import limit_threads, load_torch
from ._report import Report
from ._rows import Row
from ._session import Session
from ._sets import SETS
from ._timing import Estimate, estimate, interleave

__all__ = ["run"]


def run(
    names: Iterable[str] | None = None,
    *,
    sets: Iterable[str] = (),
    full: bool = False,
    threads: int | None = None,
    rounds: int | None = None,
    progress: Callable[[str], None] = lambda name: None,
    measured: Callable[[Row], None] = lambda row: None,
) -> Report:
    """Measure cases.

    Parameters
    ----------
    names : iterable of str, optional
        Keys of ``CASES``. By default, without `sets`, all except those that run only if named.
    sets : iterable of str
        Keys of ``SETS``, whose cases are added in front.
    full : bool, default False
        More and longer rounds, and also the cases that take longer than a few seconds.
    threads : int, optional
        For this package, PyTorch and (through threadpoolctl, if installed) the BLAS of NumPy.
        None: as :func:`attnscale.get_num_threads`.
    rounds : int, optional
        Number of turns of each candidate. None: 3, or 9 if full.
    progress : callable, optional
        Called with the name of each case before it runs.
    measured : callable, optional
        Called with each row as soon as it is there.

    Returns
    -------
    Report

    Raises
    ------
    ValueError
        If a name is not a case or a set, or a number is not positive.

    Examples
    --------
    >>> import attnscale_bench as bench
    >>> report = bench.run(["overhead"])
    >>> report.rows[0].name
    'overhead'
    """
    chosen = _choose(names, tuple(sets), full=full)
    threads = get_num_threads() if threads is None else positive_int("threads", threads)
    rounds = (9 if full else 3) if rounds is None else positive_int("rounds", rounds)
    machine = describe_machine(threads)
    torch = load_torch()
    with limit_threads(threads, torch):
        session = Session(threads, rounds, quick=not full, torch=torch)
        yardsticks = _yardsticks(session)
        rows: list[Row] = []
        finished: list[str] = []
        interrupted = False
        try:
            for name in chosen:
                progress(name)
                for row in CASES[name].run(session, name):
                    rows.append(row)
                    measured(row)
                finished.append(name)
        except KeyboardInterrupt:  # the rows measured so far are kept
            interrupted = True
            if not rows:
                raise
    settings = {"cases": finished, "full": full, "rounds": rounds}
    return Report(machine, settings, yardsticks, rows, interrupted)


def _choose(names: Iterable[str] | None, sets: tuple[str, ...], *, full: bool) -> list[str]:
    if names is None and not sets:
        return [name for name, case in CASES.items() if (full or not case.slow) and not case.asked]
    for name in sets:
        if name not in SETS:
            known = ", ".join(SETS)
            raise ValueError(f"there is no set of cases named {name!r}; the sets are {known}")
    named = [*(case for name in sets for case in SETS[name].cases), *(names or ())]
    chosen = list(dict.fromkeys(named))
    unknown = [name for name in chosen if name not in CASES]
    if unknown:
        raise ValueError(f"there is no case named {unknown[0]!r}; the cases are {', '.join(CASES)}")
    return chosen


def _yardsticks(session: Session) -> dict[str, Estimate]:
    """Operations per second by float type, and bytes per second from memory outside the caches."""
    peaks = {dtype: FmaPeak(dtype, session.threads) for dtype in ("float32", "float64")}
    read = MemoryRead(np.zeros(1 << 28, np.uint8) + np.uint8(1), session.threads)
    samples = interleave(
        {**peaks, "read": read}, session.rounds, min_seconds=0.03, stopwatch=session.stopwatch
    )
    work = {**{dtype: peak.flops for dtype, peak in peaks.items()}, "read": float(read.bytes)}
    return {name: estimate([amount / s for s in samples.wall[name]]) for name, amount in work.items()}
