# SPDX-License-Identifier: BSD-3-Clause
"""One row of the report: the result of a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple

from ._timing import Estimate

__all__ = ["Row", "Target", "Unit", "at_least", "at_most", "skipped"]


class Unit(Enum):
    """Unit of a value; members hold its format in print: factor, suffix, decimals."""

    SHARE = (100, " %", 1)  # of the FMA peak or of the read bandwidth
    EXTRA = (100, " % ", 1)  # time on top, as a share
    RATIO = (1, "x", 2)  # a ratio
    NANOSECONDS = (1e9, " ns", 2)
    MICROSECONDS = (1e6, " us", 1)
    MILLISECONDS = (1e3, " ms", 1)
    MEGABYTES = (1e-6, " MB", 1)

    def text(self, value: float) -> str:
        """A value of this unit as text."""
        factor, suffix, decimals = self.value
        return f"{factor * value:{'+' if self is Unit.EXTRA else ''}.{decimals}f}{suffix.rstrip()}"

    def bound_text(self, bound: float) -> str:
        """A bound of this unit, a round number, as text."""
        factor, suffix, _ = self.value
        return f"{factor * bound:.4g}{suffix.rstrip()}"


class Target(NamedTuple):
    """A bound for the value."""

    sense: Literal[">=", "<="]
    bound: float

    def met_by(self, value: float) -> bool:
        return value >= self.bound if self.sense == ">=" else value <= self.bound


def at_least(bound: float) -> Target:
    """The target of values that are `bound` or more."""
    return Target(">=", bound)


def at_most(bound: float) -> Target:
    """The target of values that are `bound` or less."""
    return Target("<=", bound)


@dataclass(frozen=True)
class Row:
    """One line of the report.

    Values are in base units: seconds, bytes, and 0.82 for 82 %. `seconds`, `flops` and `share` (of the FMA
    peak at the same level, threads and type) belong to this package's call, `others` are the seconds of the
    same work elsewhere. `cores` is the share of its cores that the process had (`disturbed` if others took
    part of them), and `on_cpu_time` the value by CPU time, an estimate without the disturbance.
    """

    name: str
    what: str
    unit: Unit
    estimate: Estimate | None = None
    target: Target | None = None
    seconds: float | None = None
    flops: float | None = None
    share: float | None = None
    others: Mapping[str, float] = field(default_factory=dict)
    cores: float | None = None
    disturbed: bool = False
    on_cpu_time: float | None = None
    note: str = ""
    samples: Mapping[str, list[float]] = field(default_factory=dict)

    @property
    def meets_target(self) -> bool | None:
        """Whether the value meets its target; None without a target or without a value."""
        if self.target is None or self.estimate is None:
            return None
        return self.target.met_by(self.estimate.value)

    def target_text(self) -> str:
        """The target as text, such as ">= 82 %"."""
        return "" if self.target is None else f"{self.target.sense} {self.unit.bound_text(self.target.bound)}"

    def line(self) -> str:
        """The measurement, its value, and whether it meets the target."""
        value = self.note or "-" if self.estimate is None else self.unit.text(self.estimate.value)
        verdict = {True: "ok", False: "MISS", None: ""}[self.meets_target]
        return f"{self.what}: {value} {verdict}".rstrip()

    def as_dict(self) -> dict[str, Any]:
        """The row as a dictionary, for JSON."""
        entry = asdict(self)
        entry["unit"] = self.unit.name.lower()
        found = entry.pop("estimate")
        entry["value"], entry["spread"] = (None, None) if found is None else found
        entry["target"] = None if self.target is None else self.target._asdict()
        entry["meets_target"] = self.meets_target
        entry["gflops"] = None if not self.flops or not self.seconds else self.flops / self.seconds / 1e9
        return entry


def skipped(name: str, what: str, unit: Unit, why: str, target: Target | None = None) -> Row:
    """A row without a value."""
    return Row(name, what, unit, target=target, note=why)
