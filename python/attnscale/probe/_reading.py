# SPDX-License-Identifier: BSD-3-Clause
"""The reading of the answers to a probe, as a table and a figure."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import InputError
from .._base.drawing import drawn_by
from .._base.tabled import Labelled, Sheet, Tabled
from ..audit._text import named
from ._answers import Answered, read_answers
from ._measure import Measured, measure
from ._verdict import AS_ASKED, UNRESOLVED, WRONG, Row, judge

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Largest difference of two answers to the same prompt.
_REPEAT = 0.05
_PAIR = "pair "


@dataclass(frozen=True)
class CheckpointReading:
    """The reading of one checkpoint, that is of one kind of layer.

    Attributes
    ----------
    engine : str
        The engine, as the file of answers names it.
    model_type, kind : str
        The type of the model and the kind of the layer.
    layer : int
        The layer that speaks.
    layers : tuple of int
        Layers of the model that multiply as this one.
    rows : tuple of Row
        Numbers asked and answered.
    slips : tuple of str
        Names of what the engine does otherwise; empty if it does as asked.
    front : int
        Words that the engine puts before a prompt, as one more BOS.
    skipped : tuple of str
        Questions that were not asked, with the reason.
    expected : mapping
        The content of expected.json.
    measured : Measured
    """

    engine: str
    model_type: str
    kind: str
    layer: int
    layers: tuple[int, ...]
    rows: tuple[Row, ...]
    slips: tuple[str, ...]
    front: int
    skipped: tuple[str, ...]
    expected: Mapping[str, Any]
    measured: Measured

    @property
    def wrong(self) -> bool:
        """Whether a number is not as asked."""
        return any(row.verdict == WRONG for row in self.rows)


@dataclass(frozen=True, repr=False)
class ProbeReading(Tabled):
    """An engine's multipliers beside those that a config asks for; :func:`attnscale.probe.read` makes it.

    Attributes
    ----------
    checkpoints : tuple of CheckpointReading
        One for each kind of layer.

    """

    checkpoints: tuple[CheckpointReading, ...]

    @property
    def wrong(self) -> bool:
        """Whether a number of any checkpoint is not as asked."""
        return any(each.wrong for each in self.checkpoints)

    @property
    def told(self) -> bool:
        """Whether the answers tell any number."""
        return any(row.answered is not None or row.slip for each in self.checkpoints for row in each.rows)

    @property
    def slips(self) -> tuple[str, ...]:
        """Names of what the engine does otherwise, over all checkpoints."""
        return tuple(dict.fromkeys(slip for each in self.checkpoints for slip in each.slips))

    def rows(self) -> list[dict[str, Any]]:
        """One row for each number of each checkpoint."""
        return [
            {"engine": each.engine, "layer": each.layer, "kind": each.kind, **row._asdict()}
            for each in self.checkpoints
            for row in each.rows
        ]

    def to_dict(self) -> dict[str, Any]:
        """The reading in types of JSON."""
        return {
            "wrong": self.wrong,
            "told": self.told,
            "slips": list(self.slips),
            "checkpoints": [
                {
                    "engine": each.engine,
                    "model_type": each.model_type,
                    "kind": each.kind,
                    "layer": each.layer,
                    "layers": list(each.layers),
                    "words_in_front": each.front,
                    "not_asked": list(each.skipped),
                    "rows": [_finite(row._asdict()) for row in each.rows],
                }
                for each in self.checkpoints
            ],
        }

    def plot(self, *, figure: Figure | None = None) -> Axes:
        """Draw asked and answered multipliers and angles, a panel for each checkpoint; return the first.

        Parameters
        ----------
        figure : matplotlib Figure, optional
            The figure to draw on; default: a new one.

        Raises
        ------
        ImportError
            matplotlib is not installed.
        """
        axes: Axes = drawn_by("_probe.probe_panels")(self.checkpoints, figure)
        return axes

    def _verdict(self) -> str:
        """The last line of the table."""
        if self.wrong:
            return ": ".join(("wrong", "; ".join(self.slips))) if self.slips else "wrong"
        rows = [row for each in self.checkpoints for row in each.rows]
        return AS_ASKED if self.told else UNRESOLVED if rows else "nothing was asked"

    def _variables(self) -> dict[str, Labelled]:
        rows = self.rows()
        columns = {
            name: [row[name] for row in rows]
            for name in ("layer", "what", "asked", "answered", "error", "verdict", "slip")
        }
        numbers = {"asked", "answered", "error"}
        return {
            name: Labelled(
                ("line",),
                np.array(
                    [np.nan if each is None else each for each in column] if name in numbers else column
                ),
            )
            for name, column in columns.items()
        }

    def _sheet(self, nats: float, unit: str) -> Sheet:
        rows, notes = [], []
        for each in self.checkpoints:
            where = named(list(each.layers))
            rows += [(where, *_cells(row)) for row in _shortened(each.rows)]
            notes += [f"  layers {where}: not asked: {reason}" for reason in each.skipped]
            if each.front:
                notes.append(f"  layers {where}: the engine puts {each.front} word(s) before a prompt")
        engines = ", ".join(dict.fromkeys(each.engine for each in self.checkpoints if each.engine))
        title = f"{self.checkpoints[0].model_type} in {engines or 'an engine'}"
        verdict = f"  {self._verdict()}"
        header = ("layers", "what", "asked", "answered", "error", "verdict")
        return Sheet(title, header, rows, (verdict, *notes))


def read(answers: str | os.PathLike[str]) -> ProbeReading:
    """Read the answers of an engine.

    Parameters
    ----------
    answers : path
        The file that :func:`ask` or ``ask.py`` has written.

    Returns
    -------
    ProbeReading

    Raises
    ------
    ValueError
        If the file has no answers or too few, or they come from another model, another probe, or a sampler
        that does not repeat itself: one line says which.
    """
    found = [_read_one(each) for each in read_answers(answers)]
    return ProbeReading(tuple(sorted(found, key=lambda each: each.layer)))


def _read_one(answered: Answered) -> CheckpointReading:
    expected = answered.expected
    name = f"layer {expected['layer']}"
    missing = expected["prompts"].keys() - answered.rows.keys() - answered.refused.keys()
    if missing:
        many = f"{len(expected['prompts'])} prompts, got {len(answered.rows)}"
        raise InputError(f"answers of {name} must be to all {many}: ask again, it goes on where it stopped")
    try:
        measured = measure(expected, answered.rows)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
    if measured.repeats > _REPEAT:
        raise InputError(
            f"{name}: two answers to one prompt must agree, but they differ by {measured.repeats:.2g}: the "
            "log-probabilities are of a sampler, or of a model that changes"
        )
    rows, slips = judge(expected, measured)
    skipped = [*expected["skipped"], *(f"{prompt}: {reason}" for prompt, reason in answered.refused.items())]
    return CheckpointReading(
        answered.engine,
        expected["model_type"],
        expected["kind"],
        expected["layer"],
        tuple(expected["layers"]),
        tuple(rows),
        tuple(slips),
        measured.front,
        tuple(skipped),
        expected,
        measured,
    )


def _shortened(rows: tuple[Row, ...]) -> list[Row]:
    """The rows with one line for all pairs: the one that differs most."""
    pairs = [row for row in rows if row.what.startswith(_PAIR)]
    out = [row for row in rows if row not in pairs]
    if pairs:
        told = [row for row in pairs if row.answered is not None]
        count = (
            f"angles of {len(told)} of {len(pairs)} pairs"
            if len(told) < len(pairs)
            else f"angles of {len(pairs)} pairs"
        )
        worst = max(told, key=_relative, default=None)
        wrong = sum(row.verdict == WRONG for row in pairs)
        place = next((number for number, row in enumerate(rows) if row in pairs), 0)
        if worst is None:
            line = pairs[0]._replace(what=count, asked=None, verdict=UNRESOLVED)
        else:
            verdict = f"{wrong} wrong" if wrong else AS_ASKED
            line = worst._replace(what=f"{count}, most: {worst.what}", verdict=verdict)
        out.insert(place, line)
    return out


def _relative(row: Row) -> float:
    if row.answered is None or row.asked is None:
        return 0.0
    return abs(row.answered - row.asked) / (row.error or 1.0)


def _cells(row: Row) -> tuple[str, ...]:
    verdict = f"{row.verdict}: {row.slip}" if row.slip else row.verdict
    return (
        row.what,
        _number(row.asked),
        _number(row.answered),
        "-" if row.error is None else f"{row.error:.1e}",
        verdict,
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return "none" if math.isinf(value) else f"{value:.7g}"


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """The row with texts for numbers that JSON does not have."""
    return {
        name: "none" if isinstance(each, float) and math.isinf(each) else each for name, each in row.items()
    }
