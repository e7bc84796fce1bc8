# SPDX-License-Identifier: BSD-3-Clause
"""A guard against lost speed: shares and ratios of a run in a file, compared with a later run.

Times are not stored: they depend on the machine and the day. Shares of the peak and ratios to other work in
the same rounds hold until the code, the compiler or the kind of machine changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from attnscale._base.text import to_json, to_text

from ._report import Report
from ._rows import Row, Unit
from ._timing import Estimate

__all__ = ["Baseline", "Change", "compare", "describe", "keep", "read_baseline"]

#: Least difference that counts, as a share of the value: the scatter of a few rounds can be 0.
LEAST_SCATTER = 0.03

_MACHINE = ("cpu", "cpus", "simd_level", "num_threads", "compiler", "numpy", "torch", "version", "date")
_WITHOUT_TIMES = {Unit.SHARE, Unit.EXTRA, Unit.RATIO}

Sense = Literal[">=", "<="]


class Baseline(NamedTuple):
    """Content of a file: the machine, the cases of the run, and the estimate of each row by name."""

    machine: Mapping[str, Any]
    cases: Sequence[str]
    rows: Mapping[str, Estimate]


class Change(NamedTuple):
    """A row of both runs; `worse` is the loss of the new value in units of the joint scatter."""

    row: Row
    before: Estimate
    worse: float

    @property
    def fell(self) -> bool:
        """Whether the new value is worse by more than the scatter."""
        return self.worse > 1


def keep(report: Report) -> str:
    """The shares and ratios of a run as JSON, for :func:`read_baseline`."""
    rows = {
        row.name: {"what": row.what.strip(), "unit": row.unit.name.lower(), **row.estimate._asdict()}
        for row in report.rows
        if row.estimate is not None and _sense(row) is not None
    }
    machine = {name: report.machine[name] for name in _MACHINE}
    return to_json({"machine": machine, "cases": report.settings["cases"], "rows": rows})


def read_baseline(path: Path) -> Baseline:
    """Read a file of :func:`keep`.

    Raises
    ------
    ValueError
        If the file holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        rows = {
            name: Estimate(float(row["value"]), float(row["spread"])) for name, row in content["rows"].items()
        }
        return Baseline(dict(content["machine"]), list(content["cases"]), rows)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a file that `bench.py --keep` wrote: {error!r}") from None


def compare(report: Report, before: Baseline) -> list[Change]:
    """The rows that both runs have, the worst first."""
    changes = []
    for row in report.rows:
        then, sense = before.rows.get(row.name), _sense(row)
        if then is None or sense is None or row.estimate is None:
            continue
        # A cost on top may be 0, so the scatter is taken relative to 1 plus the cost.
        size = 1 + abs(then.value) if row.unit is Unit.EXTRA else abs(then.value)
        scatter = max(then.spread + row.estimate.spread, LEAST_SCATTER * size)
        loss = then.value - row.estimate.value if sense == ">=" else row.estimate.value - then.value
        changes.append(Change(row, then, loss / scatter))
    return sorted(changes, key=lambda change: -change.worse)


def describe(report: Report, before: Baseline) -> str:
    """Report of the changes: each row that fell, and the number of the others."""
    changes = compare(report, before)
    fallen = [change for change in changes if change.fell]
    cells = [
        [change.row.what.strip(), *(_text(change.row, each) for each in (change.before, change.row.estimate))]
        for change in fallen
    ]
    lines = [f"{len(fallen)} of {len(changes)} rows fell by more than their scatter."]
    if fallen:
        lines += ["", to_text(("fell", "before", "now"), cells)]
    if missing := before.rows.keys() - {row.name for row in report.rows if row.estimate is not None}:
        lines.append(f"Not measured now: {', '.join(sorted(missing))}.")
    return "\n".join([*lines, *_other_machine(report, before)])


def _other_machine(report: Report, before: Baseline) -> list[str]:
    names = ("cpu", "simd_level", "num_threads")
    then, now = ({name: machine.get(name) for name in names} for machine in (before.machine, report.machine))
    if then == now:
        return []
    return [f"The file is of another machine ({_listed(then)}; here {_listed(now)}): expect differences."]


def _listed(machine: Mapping[str, Any]) -> str:
    return f"{machine['cpu']}, {machine['simd_level']}, {machine['num_threads']} threads"


def _sense(row: Row) -> Sense | None:
    """Direction of better values; None for a time, and for a ratio whose case does not define it."""
    if row.unit not in _WITHOUT_TIMES:
        return None
    if row.target is not None:
        return row.target.sense
    return {Unit.SHARE: ">=", Unit.EXTRA: "<="}.get(row.unit)  # type: ignore[return-value]  # a Sense


def _text(row: Row, found: Estimate | None) -> str:
    assert found is not None
    return f"{row.unit.text(found.value)} +- {row.unit.text(found.spread).lstrip('+')}"
