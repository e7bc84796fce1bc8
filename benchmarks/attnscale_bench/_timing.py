# SPDX-License-Identifier: BSD-3-Clause
"""Times of candidates that take turns, A B C A B C, so that a disturbance affects them all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from typing import NamedTuple

__all__ = ["Action", "Estimate", "Samples", "Stopwatch", "estimate", "interleave"]

Action = Callable[[], object]

# The most calls of one sample, so that it ends even if the clock stands still.
_MOST_CALLS = 1_000_000


class Stopwatch(NamedTuple):
    """The clocks; tests replace them."""

    wall: Callable[[], float] = time.perf_counter
    cpu: Callable[[], float] = time.process_time
    sleep: Callable[[float], None] = time.sleep


class Estimate(NamedTuple):
    """A median over the rounds, and half the distance between their quartiles."""

    value: float
    spread: float


class _Sample(NamedTuple):
    wall: float
    cpu: float


@dataclass(frozen=True)
class Samples:
    """Seconds of one call, and CPU seconds, per candidate and round."""

    wall: Mapping[str, list[float]]
    cpu: Mapping[str, list[float]]

    def seconds(self, name: str) -> float:
        """Median time of one call."""
        return median(self.wall[name])

    def ratio(self, over: str, under: str) -> Estimate:
        """Time of one candidate over that of another.

        Divided round by round, so that a slow round affects both.
        """
        pairs = zip(self.wall[over], self.wall[under], strict=True)
        return estimate([a / b if b else math.nan for a, b in pairs])

    def cpus(self, name: str) -> float:
        """Number of CPUs used by the process while this candidate ran."""
        return median(c / w for c, w in zip(self.cpu[name], self.wall[name], strict=True))

    def on_cpu_time(self) -> Samples:
        """Samples of CPU time, which does not include other processes."""
        return Samples(self.cpu, self.cpu)


def estimate(values: list[float]) -> Estimate:
    """Median and spread of one value per round."""
    if len(values) < 2:
        return Estimate(values[0], 0.0)
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return Estimate(middle, (high - low) / 2)


def interleave(
    candidates: Mapping[str, Action],
    rounds: int,
    *,
    min_seconds: float,
    pause: float = 0.1,
    stopwatch: Stopwatch | None = None,
) -> Samples:
    """Time all candidates, in turns.

    Parameters
    ----------
    candidates : mapping of str to callable
    rounds : int
        Samples of each candidate.
    min_seconds : float
        A sample repeats the call until it takes about this long.
    pause : float
        Seconds between samples, or several times that while the process still uses its CPUs: threads of other
        libraries spin for 25 to 90 ms after a call, and JAX cleans up for 300 ms after a long one, on the
        cores of the next candidate.
    stopwatch : Stopwatch, optional

    Returns
    -------
    Samples
    """
    watch = stopwatch or Stopwatch()
    calls = {name: _calls_needed(action, min_seconds, watch) for name, action in candidates.items()}
    wall: dict[str, list[float]] = {name: [] for name in candidates}
    cpu: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, action in candidates.items():
            _rest(watch, pause)
            if calls[name] > 1:
                action()  # a short call first wakes the threads that slept in the pause
            sample = _sample(action, calls[name], watch)
            wall[name].append(sample.wall)
            cpu[name].append(sample.cpu)
    return Samples(wall, cpu)


def _rest(watch: Stopwatch, pause: float) -> None:
    """Sleep until all threads of the process are idle, for ten pauses at most."""
    for _ in range(10):
        before = watch.cpu()
        watch.sleep(pause)
        if watch.cpu() - before <= pause / 10:
            return


def _sample(action: Action, calls: int, watch: Stopwatch) -> _Sample:
    """Seconds of one call, averaged over `calls` of them."""
    cpu, wall = watch.cpu(), watch.wall()
    for _ in range(calls):
        action()
    return _Sample((watch.wall() - wall) / calls, (watch.cpu() - cpu) / calls)


def _calls_needed(action: Action, min_seconds: float, watch: Stopwatch) -> int:
    action()  # the first call touches new pages and starts threads
    calls = 1
    while True:
        total = calls * _sample(action, calls, watch).wall
        if total >= min_seconds / 2 or calls >= _MOST_CALLS:
            return max(1, round(calls * min_seconds / total)) if total > 0 else calls
        calls *= 4
