# SPDX-License-Identifier: BSD-3-Clause
"""Settings shared by all cases of a run, and times taken in turns with the peak of the machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ._machine import FmaPeak
from ._peers import Torch
from ._rows import Row, Target, Unit
from ._timing import Action, Estimate, Samples, Stopwatch, interleave

__all__ = ["Measured", "Session", "random_heads"]

OURS, PEAK = "attnscale", "peak"


@dataclass(frozen=True)
class Measured:
    """Samples taken in turns with the FMA peak of the type and threads in use."""

    samples: Samples
    peak_flops: float
    threads: int

    def share_of_peak(self, flops: float, name: str = OURS) -> Estimate:
        """Operations per second of a candidate over those of the peak, round by round."""
        peak_over_call = self.samples.ratio(PEAK, name)
        return Estimate(*(flops / self.peak_flops * part for part in peak_over_call))

    def speedup(self, other: str) -> Estimate:
        """Time of another candidate over ours."""
        return self.samples.ratio(other, OURS)

    @property
    def cores(self) -> float:
        """Share of its cores that this process had, measured while the peak keeps every thread busy."""
        return self.samples.cpus(PEAK) / self.threads

    @property
    def disturbed(self) -> bool:
        """Whether other processes took a good part of the cores."""
        return self.cores < 0.95

    def on_cpu_time(self) -> Measured:
        """The measurement by CPU time, which does not include other processes."""
        return replace(self, samples=self.samples.on_cpu_time())

    def row(
        self,
        name: str,
        what: str,
        unit: Unit,
        find: Callable[[Measured], Estimate],
        target: Target | None = None,
        *,
        flops: float | None = None,
        of: str = OURS,
        note: str = "",
    ) -> Row:
        """The row of candidate `of`, with the times of all candidates; `find` computes its value.

        Without `flops` there is no share of the peak.
        """
        wall = dict(self.samples.wall)
        seconds = {candidate: self.samples.seconds(candidate) for candidate in wall}
        return Row(
            name,
            what,
            unit,
            find(self),
            target,
            seconds=seconds[of],
            flops=flops,
            share=None if flops is None else self.share_of_peak(flops, of).value,
            others={who: seconds[who] for who in ("torch", "numpy") if who in wall},
            cores=self.cores,
            disturbed=self.disturbed,
            on_cpu_time=find(self.on_cpu_time()).value,
            note=note,
            samples=wall,
        )


@dataclass(frozen=True)
class Session:
    """Settings of one run of the benchmark."""

    threads: int
    rounds: int = 9
    quick: bool = False
    torch: Torch | None = None
    stopwatch: Stopwatch | None = None

    def measure(
        self,
        candidates: Mapping[str, Action],
        *,
        dtype: npt.DTypeLike = np.float32,
        rounds: int | None = None,
    ) -> Measured:
        """Time the candidates in turns with the FMA peak."""
        peak = FmaPeak(dtype, self.threads)
        samples = interleave(
            {PEAK: peak, **candidates},
            rounds or self.rounds,
            min_seconds=0.02 if self.quick else 0.05,
            stopwatch=self.stopwatch,
        )
        return Measured(samples, peak.flops, self.threads)


def random_heads(heads: int, n: int, head_dim: int, dtype: Any = np.float32) -> npt.NDArray[Any]:
    """Standard normal query, key and value, each (heads, n, head_dim)."""
    return np.random.default_rng(0).standard_normal((3, heads, n, head_dim), dtype)
