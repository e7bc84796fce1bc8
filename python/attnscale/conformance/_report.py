# SPDX-License-Identifier: BSD-3-Clause
"""The outcome of an engine for each case, and the report of its differences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from .._base.text import grouped, some_of
from .._core import __version__, simd_level
from ..exact.lse import LseConvention, departures, engines_of
from ._call import Case
from ._statistics import StatisticOutcome

Kind = Literal["right", "wrong", "error", "not served"]


@dataclass(frozen=True)
class Outcome:
    """Result of an engine for one case.

    Attributes
    ----------
    kind : {"right", "wrong", "error", "not served"}
        "error": the engine raised something; "not served": it raised NotImplementedError.
    difference : float
        The largest error of the output, in units of the row's mass: its weights times abs(value). NaN if
        nothing was compared.
    slips : tuple of str
        For a wrong output, the known slips that explain it together; empty if none do.
    why : str
        ``slips`` in one line, or the message of an error.
    lse : tuple of LseConvention
        Conventions that fit the lse of the case, the simplest first; empty if none fits or no lse was
        returned.
    lse_is_wrong : bool
        Whether an lse was returned that no convention explains.
    statistics : dict of str to StatisticOutcome
        Judgement of what the engine returned beside the output, by name, where the output is right.
    """

    kind: Kind
    difference: float = math.nan
    slips: tuple[str, ...] = ()
    why: str = ""
    lse: tuple[LseConvention, ...] = ()
    lse_is_wrong: bool = False
    statistics: Mapping[str, StatisticOutcome] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Conformance:
    """The outcomes of all cases by name; prints an engine's differences.

    Attributes
    ----------
    outcomes : dict of str to Outcome
    tolerance : float
        The largest error of a right output.
    seed : int
        Seed of the cases, their order and their numbers: ``check(engine, seed=report.seed)`` repeats them.
    cases : dict of str to Case
        The calls, by name.
    engine : str
        Name and version of a ready adapter's package; "" for a function.
    """

    outcomes: Mapping[str, Outcome]
    tolerance: float
    seed: int = 0
    cases: Mapping[str, Case] = field(default_factory=dict)
    engine: str = ""

    def _of(self, kind: Kind) -> dict[str, Outcome]:
        return {name: each for name, each in self.outcomes.items() if each.kind == kind}

    @property
    def right(self) -> dict[str, Outcome]:
        """Cases whose output is right."""
        return self._of("right")

    @property
    def wrong(self) -> dict[str, Outcome]:
        """Cases with a wrong output, the largest error first."""
        return dict(sorted(self._of("wrong").items(), key=lambda item: -_size(item[1].difference)))

    @property
    def errors(self) -> dict[str, Outcome]:
        """Cases in which the engine failed."""
        return self._of("error")

    @property
    def not_served(self) -> dict[str, Outcome]:
        """Cases that the engine says it does not support."""
        return self._of("not served")

    @property
    def passed(self) -> bool:
        """Whether some case is right, none is wrong or an error, and no statistic is wrong."""
        wrong = any(x.kind == "wrong" for each in self.outcomes.values() for x in each.statistics.values())
        lse = any(each.lse_is_wrong for each in self.outcomes.values())
        return bool(self.right) and not (self.wrong or self.errors or wrong or lse)

    @property
    def slips(self) -> tuple[str, ...]:
        """Every slip that was named, the most frequent first."""
        counts = Counter(slip for each in self.wrong.values() for slip in each.slips)
        return tuple(slip for slip, _ in counts.most_common())

    @cached_property
    def lse(self) -> LseConvention | None:
        """The convention that fits every lse of the engine; None without one, or without an lse."""
        given = [each.lse for each in self.outcomes.values() if each.lse]
        if not given or any(each.lse_is_wrong for each in self.outcomes.values()):
            return None
        plain = [{replace(of, empty=None) for of in each} for each in given]
        common = set.intersection(*plain)
        if not common:
            return None
        found = min(common, key=departures)
        empties = {of.empty for each in given for of in each if replace(of, empty=None) == found} - {None}
        return replace(found, empty=empties.pop() if len(empties) == 1 else None)

    def __str__(self) -> str:
        counts = f"{len(self.right)} right, {len(self.wrong)} wrong, {len(self.errors)} errors, "
        how = f"(tolerance {self.tolerance:.0e}, seed {self.seed})"
        of = f"{self.engine}: " if self.engine else ""
        lines = [f"{of}{counts}{len(self.not_served)} not served {how}"]
        if self.outcomes and len(self.not_served) == len(self.outcomes):
            lines.append("  nothing was judged: every call was refused")
        told = {name: each.why or "not explained" for name, each in (self.wrong | self.errors).items()}
        alike = grouped(told, told.__getitem__)
        for reason, names in sorted(alike.items(), key=lambda item: (-len(item[1]), item[0])):
            largest = max(_size(self.outcomes[name].difference) for name in names)
            size = "" if largest < 0 else f", up to {largest:.2g}"
            lines.append(f"  {reason}{size}: {some_of(sorted(names), 3)}")
        return "\n".join([*lines, *self._unserved_line(), *self._lse_lines(), *self._statistic_lines()])

    __repr__ = __str__

    def _unserved_line(self) -> Iterator[str]:
        """The options that no served case has."""
        asked = {name: set(self.cases[name].options) for name in self.outcomes if name in self.cases}
        served = set().union(*(asked[name] for name in asked if name not in self.not_served))
        never = sorted(set().union(*asked.values()) - served)
        if never:
            yield f"  options that are not served: {', '.join(never)}"

    def _lse_lines(self) -> list[str]:
        given = {name: each for name, each in self.outcomes.items() if each.lse or each.lse_is_wrong}
        if not given:
            return ["  lse: none returned"]
        if self.lse is not None:
            known = "" if self.lse.empty is None else ", ".join(engines_of(self.lse))
            return [f"  lse: {self.lse}{f' ({known})' if known else ''}"]
        wrong = [name for name, each in given.items() if each.lse_is_wrong]
        if wrong:
            return [f"  lse: no convention for {len(wrong)} cases, such as {', '.join(sorted(wrong)[:3])}"]
        first = {str(replace(each.lse[0], empty=None)): name for name, each in given.items()}
        return [
            "  lse: another convention in other cases",
            *(f"    {of}: {name}" for of, name in first.items()),
        ]

    def _statistic_lines(self) -> Iterator[str]:
        """A line for each statistic but lse, and one for each slip in it."""
        given = [(case, each) for case, at in self.outcomes.items() for each in at.statistics.values()]
        for name, rows in grouped(given, lambda row: row[1].name).items():
            if name == "lse":
                continue
            right = Counter(each.says or "right" for _, each in rows if each.kind == "right")
            if right:
                told = ", ".join(f"{says} ({count})" for says, count in right.most_common(3))
                yield f"  {name}: {told}"
            wrong = grouped([row for row in rows if row[1].kind == "wrong"], lambda row: row[1].says)
            for says, cases in wrong.items():
                yield f"  {name}: wrong: {says}: {some_of(sorted(case for case, _ in cases), 3)}"

    def to_dict(self) -> dict[str, Any]:
        """The report as plain data for JSON."""
        outcomes = {
            name: {
                "kind": each.kind,
                "difference": _plain(each.difference),
                "why": each.why,
                "statistics": {of: {"kind": x.kind, "says": x.says} for of, x in each.statistics.items()},
            }
            for name, each in sorted(self.outcomes.items())
        }
        lse = None if self.lse is None else str(self.lse)
        by = {"attnscale": __version__, "simd_level": simd_level()}
        how = {"engine": self.engine, "seed": self.seed, "tolerance": self.tolerance, "passed": self.passed}
        return {**by, **how, "lse": lse, "slips": list(self.slips), "cases": outcomes}


def _size(difference: float) -> float:
    """Sort key: -1 where nothing was compared."""
    return -1.0 if math.isnan(difference) else difference


def _plain(number: float) -> float | str | None:
    """A number as JSON has it."""
    return None if math.isnan(number) else number if math.isfinite(number) else str(number)
