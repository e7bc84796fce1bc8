# SPDX-License-Identifier: BSD-3-Clause
"""The result of a run of the benchmark, as text, rows and JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attnscale._base.text import to_json, to_text

from ._rows import Row
from ._timing import Estimate

__all__ = ["Report"]

_HEADER = (
    *("heads x n x head_dim", "measured", "", "target", "", "time", "GFLOP/s", "of peak", "torch", "NumPy"),
    *("cores", "by CPU time", ""),
)

_LEGEND = """\
Values are medians over the rounds, in which the candidates take turns; +- is half the distance between the
quartiles. time and GFLOP/s (the two products alone) are ours, torch and NumPy are the times of the same work
there. of peak: over multiply-adds in registers at the same level, type and number of threads, measured in the
same rounds. float32 where nothing else is said."""

_DISTURBED = """\
Disturbed: other processes took part of the cores (cores is the share that was left). By CPU time, a ratio of
this package's calls or of the peak is what it might be without them; one to torch or NumPy is not."""


@dataclass(frozen=True)
class Report:
    """Rows of a run, the reference speeds, and their provenance."""

    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    yardsticks: Mapping[str, Estimate]
    rows: Sequence[Row]
    interrupted: bool = False  # Ctrl-C came before the last case

    def to_rows(self) -> list[dict[str, Any]]:
        """The rows for CSV, without fields of more than one value."""
        return [
            {
                name: value
                for name, value in row.as_dict().items()
                if name not in ("others", "samples", "target")
            }
            for row in self.rows
        ]

    def to_dict(self) -> dict[str, Any]:
        """The whole report as a dictionary, with every sample."""
        yardsticks = {name: found._asdict() for name, found in self.yardsticks.items()}
        rows = [row.as_dict() for row in self.rows]
        return {"provenance": self.machine, "settings": self.settings, "yardsticks": yardsticks, "rows": rows}

    def to_json(self) -> str:
        """The whole report as JSON."""
        return to_json(self.to_dict())

    def to_text(self) -> str:
        """The report as a table that marks rows that miss their target."""
        previous = [None, *self.rows]
        cells = [_cells(row, before) for row, before in zip(self.rows, previous, strict=False)]
        return "\n".join(
            [*self._head(), "", to_text(_HEADER, cells), "", self._verdict(), _LEGEND, *self._warning()]
        )

    def _head(self) -> list[str]:
        machine = self.machine
        torch = f", torch {machine['torch']}" if machine["torch"] else ""
        yardsticks = [f"{name} {_yardstick(name, found)}" for name, found in self.yardsticks.items()]
        lines = {
            "machine": f"{machine['cpu']}, {_count(machine['cpus'], 'CPU')}, {machine['architecture']}, "
            f"{machine['system']}",
            "level": f"{machine['simd_level']} (of {', '.join(machine['available_simd_levels'])}), "
            f"{_count(machine['num_threads'], 'thread')}",
            "software": f"Python {machine['python']}, NumPy {machine['numpy']}{torch}, "
            f"{machine['compiler']}, xsimd {machine['xsimd']}",
            "peak": "; ".join(yardsticks),
        }
        return [
            f"attnscale {machine['version']} bench, {machine['date']}",
            *(f"{name:<8}  {text}" for name, text in lines.items()),
        ]

    def _verdict(self) -> str:
        verdicts = [row.meets_target for row in self.rows]
        met, missed = verdicts.count(True), verdicts.count(False)
        rounds = _count(self.settings["rounds"], "round")
        return f"{met} of {met + missed} targets met in {rounds}."

    def _warning(self) -> list[str]:
        return [_DISTURBED] if any(row.disturbed for row in self.rows) else []


def _cells(row: Row, before: Row | None) -> list[str]:
    """The cells of a row, without details equal to those of the previous row."""
    verdict = {True: "ok", False: "MISS", None: ""}[row.meets_target]
    found = row.estimate
    measured = ["-", ""] if found is None else [row.unit.text(found.value), _spread(row, found)]
    details = _details(row)
    if before is not None and details == _details(before):
        details = [""] * len(details)
    return [row.what, *measured, row.target_text(), verdict, *details, *_disturbance(row), row.note]


def _details(row: Row) -> list[str]:
    rate = f"{row.flops / row.seconds / 1e9:.1f}" if row.flops and row.seconds else ""
    share = "" if row.share is None else f"{row.share:.0%}"
    torch, numpy = (_time(row.others.get(name)) for name in ("torch", "numpy"))
    return [_time(row.seconds), rate, share, torch, numpy]


def _disturbance(row: Row) -> list[str]:
    if not row.disturbed or row.on_cpu_time is None:
        return ["", ""]
    return [f"{row.cores:.0%}", row.unit.text(row.on_cpu_time)]


def _spread(row: Row, found: Estimate) -> str:
    return f"+- {row.unit.text(found.spread).lstrip('+')}" if found.spread else ""


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _yardstick(name: str, found: Estimate) -> str:
    unit = "GB/s" if name == "read" else "GFLOP/s"
    return f"{found.value / 1e9:.1f} {unit} (+- {found.spread / found.value:.1%})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
