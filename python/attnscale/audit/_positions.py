# SPDX-License-Identifier: BSD-3-Clause
"""Multipliers of queries at some positions, as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._base.spelling import as_number
from .._base.tabled import Labelled, Sheet, Tabled
from ._text import named

_COLUMNS = ("position", "rotated", "unrotated", "softcap", "capped", "window", "sink", "refusal")


@dataclass(frozen=True, repr=False)
class Positions(Tabled):
    """Multipliers of queries at some positions; :meth:`ScalePlan.at` makes it.

    Attributes
    ----------
    alike : tuple of dict
        One entry for each position and group of equal layers: ``layers``, ``position``, and the multipliers
        ``rotated``, ``unrotated`` and ``capped`` (behind the soft-cap) that there are, or the ``refusal``.
    warnings : tuple of str
        Warnings of the plan.
    """

    alike: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...] = ()

    def rows(self) -> list[dict[str, Any]]:
        """One row for each layer and position; None where there is no such number."""
        return [
            {"layer": layer, **{name: row.get(name) for name in _COLUMNS}}
            for row in self.alike
            for layer in row["layers"]
        ]

    def to_dict(self) -> dict[str, Any]:
        """The multipliers in types of JSON."""
        return {"rows": list(self.alike), "warnings": list(self.warnings)}

    def _variables(self) -> dict[str, Labelled]:
        missing = {"sink": False, "refusal": ""}
        columns = {
            name: [missing.get(name, np.nan) if row[name] is None else row[name] for row in self.rows()]
            for name in ("layer", *_COLUMNS)
        }
        return {name: Labelled(("line",), np.array(values)) for name, values in columns.items()}

    def _sheet(self, nats: float, unit: str) -> Sheet:
        header = ("layer", "i", "rotated", "unrotated", "window", "cap", "sink")
        notes = tuple(f"warning: {text}" for text in self.warnings)
        return Sheet("Positions", header, [_cells(row) for row in self.alike], notes)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    start = (named(row["layers"]), str(row["position"]))
    if "refusal" in row:
        return (*start, "?", "?", "-", "-", row["refusal"])
    numbers = (f"{row[kind]:.9g}" if kind in row else "-" for kind in ("rotated", "unrotated"))
    cap = "-" if row["softcap"] is None else as_number(row["softcap"])
    if "capped" in row:
        cap += f", then x {row['capped']:.9g}"
    return (*start, *numbers, str(row["window"] or "-"), cap, "yes" if row["sink"] else "-")
