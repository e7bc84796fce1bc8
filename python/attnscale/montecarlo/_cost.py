# SPDX-License-Identifier: BSD-3-Clause
"""The expected time of a run, told before it begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from .._checks import shown
from .._grid.progress import MINUTE
from .._runtime import get_num_threads
from .._spelling import as_number
from .._tables.text import duration
from ._experiment import Draws, Prepared
from ._tally import Tally

#: A function that is told a line of text.
Announce = Callable[[str], Any]

# Operations a second, as `Draws.cost` counts them: fewer than any machine does, and about what a thread does.
_LEAST_RATE = 1e7
_USUAL_RATE = 1e10
# Operations of a trial, some milliseconds, and of a case's first rows, some seconds at most; their number.
_TRIAL, _PILOT, _PILOT_ROWS = 4e7, 4e9, 256


def check_announce(announce: Any) -> Announce | None:
    """`announce`, if it is None or can be called."""
    if announce is not None and not callable(announce):
        raise TypeError(f"announce must be None or a function of a text, got {shown(announce)}")
    checked: Announce | None = announce
    return checked


def announcement(
    experiment: Prepared, most_rows: int, target: float | None, tallies: Sequence[Tally], threads: int
) -> str:
    """The expected time of a run and its samples, as text, if that is more than a minute; else nothing.

    The time is measured on the cheapest case's first rows, done once more, or taken as usual where one row
    alone is long. For a target error, the spread of the first rows says how many are expected.
    """
    left = [max(most_rows - tally.rows, 0) for tally in tallies]
    costs = [case.cost for case in experiment.cases]
    if float(np.dot(left, costs)) < MINUTE * _LEAST_RATE:
        return ""
    rate = _rate(min(experiment.cases, key=lambda case: case.cost), threads)
    wanted = None if target is None else _rows_for(experiment, target, rate)
    if wanted is not None:
        left = [max(min(most_rows, wanted) - tally.rows, 0) for tally in tallies]
    seconds = float(np.dot(left, costs)) / rate
    if seconds < MINUTE:
        return ""
    told = f"this takes about {duration(seconds)}: {_count(max(left) * experiment.declared.block)} samples"
    told += f" for each of {len(costs)} cases" if len(costs) > 1 else ""
    aim = "" if target is None else f"target error {as_number(target)}"
    if wanted is None:
        return told + (f", unless the {aim} is reached before" if aim else "")
    needed = _count(wanted * experiment.declared.block)
    if wanted > most_rows:
        return f"{told}, and the {aim} needs about {needed}: it will not be reached"
    return f"{told}, which the {aim} needs"


def _rate(case: Draws, threads: int) -> float:
    """Operations a second, of a trial if a row is short enough for one."""
    if case.cost > _TRIAL:
        return _USUAL_RATE * (threads or get_num_threads())
    count = max(int(min(_TRIAL / case.cost, 1024)), 1)
    case.rows(0, 0, 1)  # the first call does some work that comes only once
    start = perf_counter()
    case.rows(0, 0, count)
    return count * case.cost / max(perf_counter() - start, 1e-6)


def _rows_for(experiment: Prepared, target: float, rate: float) -> int | None:
    """Rows for which the error is the target in the case with the largest spread that is tried."""
    found = []
    for case in experiment.cases:
        if _PILOT_ROWS * case.cost > min(_PILOT, rate):
            continue
        tally = experiment.empty_tally().add(case.rows(0, 0, _PILOT_ROWS))
        error = float(np.max(experiment.estimate(case, tally)[1][..., 0]))
        if math.isfinite(error):
            found.append(math.ceil(_PILOT_ROWS * min((error / target) ** 2, 1e300)))
    return max(found) if found else None


def _count(value: float) -> str:
    return str(int(value)) if value < 1e7 else f"{value:.2g}"
