# SPDX-License-Identifier: BSD-3-Clause
"""Time and memory of calls against the number of keys, each in a process of its own."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

import numpy as np
from attnscale import get_num_threads
from attnscale._base.checks import number, positive_int

from ._process_cases import resident, run_python

__all__ = ["CallCost", "Prepare", "costs_of", "crossover", "print_cost", "slope"]

Call = Callable[[], object]
#: Makes a call from (heads, n, head_dim).
Prepare = Callable[[int, int, int], Call]


@dataclass(frozen=True)
class CallCost:
    """Cost of one call in a separate process.

    If it was not run, `seconds` and `bytes` are None and `why` has the reason. Bytes are the growth of the
    resident memory at its peak, including the result.
    """

    call: str
    n: int
    seconds: float | None
    bytes: int | None
    why: str = ""


def costs_of(
    table: str,
    names: Sequence[str],
    lengths: Sequence[int],
    *,
    heads: int = 1,
    head_dim: int = 64,
    limit: float = 20.0,
    max_bytes: float = 4e9,
    progress: Callable[[str], None] = lambda name: None,
) -> list[CallCost]:
    """Cost of every call at every length.

    Parameters
    ----------
    table : str
        The module of this package whose ``CALLS`` has the names, each with its Prepare.
    names : sequence of str
    lengths : sequence of int
        Numbers of keys, increasing.
    heads, head_dim : int
    limit : float
        A call predicted to take more seconds, from its last length and slope 2 (or the observed slope), is
        left out.
    max_bytes : float
        The limit of memory, likewise.
    progress : callable
        Called with a description of the next call.

    Raises
    ------
    ValueError
        If the lengths do not increase.
    """
    ns = [positive_int("n", n) for n in lengths]
    if not ns or ns != sorted(set(ns)):
        raise ValueError(f"lengths must increase, got {list(lengths)}")
    shape = positive_int("heads", heads), positive_int("head_dim", head_dim)
    bounds = number("limit", limit), number("max_bytes", max_bytes)
    return [cost for name in names for cost in _lengths_of((table, name), ns, shape, bounds, progress)]


def _lengths_of(
    of: tuple[str, str],
    lengths: list[int],
    shape: tuple[int, int],
    bounds: tuple[float, float],
    progress: Callable[[str], None],
) -> list[CallCost]:
    costs: list[CallCost] = []
    name = of[1]
    for n in lengths:
        why = _too_much(costs, n, bounds)
        if why:
            costs.append(CallCost(name, n, None, None, why))
            continue
        progress(f"{name}, n = {n}")
        found = json.loads(_in_a_process(of, n, shape))
        costs.append(CallCost(name, n, found[1], found[0]))
    return costs


def _too_much(costs: list[CallCost], n: int, bounds: tuple[float, float]) -> str:
    """Reason to leave out the length n, or "". Growth is the last observed one, at most quadratic."""
    if not costs:
        return ""
    last = costs[-1]
    if last.seconds is None or last.bytes is None:
        return last.why
    power = 2.0 if len(costs) == 1 or last.n < 8192 else min(2.0, slope(costs[-2:]) + 0.2)
    factor = (n / last.n) ** power
    if last.seconds * factor > bounds[0] and last.seconds > 0.1:
        return f"it would take more than {bounds[0]:g} s"
    if last.bytes * factor > bounds[1] and last.bytes > bounds[1] / 64:
        return f"it would take more than {bounds[1] / 1e9:g} GB"
    return ""


def _in_a_process(of: tuple[str, str], n: int, shape: tuple[int, int]) -> str:
    script = f"from attnscale_bench._costs import print_cost; print_cost{(*of, n, *shape)}"
    return run_python(get_num_threads(), "-c", script)


def print_cost(table: str, name: str, n: int, heads: int, head_dim: int) -> None:
    """Print [bytes, seconds] of a call: growth of this process, and the median time of its calls."""
    prepare: Prepare = import_module(table).CALLS[name]
    prepare(heads, 64, head_dim)()  # imports and threads do not count as memory of the call
    call = prepare(heads, n, head_dim)
    before = resident("VmRSS")
    seconds = [_timed(call)]
    grown = resident("VmHWM") - before
    while len(seconds) < 5 and sum(seconds) < 1.0:
        seconds.append(_timed(call))
    print(json.dumps([max(grown, 0), float(np.median(seconds))]))


def _timed(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def slope(costs: Sequence[CallCost], what: str = "seconds") -> float:
    """Least-squares slope of ln(cost) against ln(n); NaN with fewer than two measured lengths."""
    points = [(math.log(c.n), math.log(getattr(c, what))) for c in costs if getattr(c, what)]
    if len(points) < 2:
        return math.nan
    x, y = np.transpose(points)
    return float(np.polyfit(x, y, 1)[0])


def crossover(exact: Sequence[CallCost], other: Sequence[CallCost]) -> float | None:
    """The n from which `other` is faster, interpolated on logarithmic scales; None if not seen."""
    theirs = {c.n: c.seconds for c in other if c.seconds}
    gaps = [(c.n, math.log(c.seconds / theirs[c.n])) for c in exact if c.seconds and c.n in theirs]
    if not gaps or gaps[-1][1] <= 0:
        return None
    below = [i for i, (_, gap) in enumerate(gaps) if gap <= 0]
    if not below:
        return float(gaps[0][0])
    (n, low), (m, high) = gaps[below[-1]], gaps[below[-1] + 1]
    return float(n * (m / n) ** (-low / (high - low)))
