# SPDX-License-Identifier: BSD-3-Clause
"""Figures of trained models: means over seeds with error bars."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import shown
from ._curves import AXIS_LABELS, Curve, curves_of, draw_curves, points_key
from ._names import key_below, name_lines
from ._panels import draw_panels, panel_axes
from ._style import new_axes, style
from ._ticks import length_ticks, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .._grid.table import Column

_POINTS = "mean over the seeds, one standard error"
_LETTERS = 50  # letters of labels that have room side by side below an axis
_MOST_TICKS = 8
_APART = 0.3  # of the distance between two labels, over which the curves' points are spread


def training(name: str, column: Column, x: str | None, where: Axes | Figure | None) -> Axes:
    """Draw a curve along `x`, the last axis by default, for each point of the other axes.

    Labels that are no numbers stand at equal distances, in their order. A figure, a new one for None, has
    panels where there are many curves, and the first panel is returned; on axes all curves are drawn there.
    """
    along = x if x is not None else list(column.axes)[-1]
    if along not in column.axes:
        raise ValueError(f"x must be one of {', '.join(column.axes)}, got {shown(along)}")
    with style():
        figure = _figure(where)
        split = [] if figure is None else panel_axes(column.axes, along)
        if figure is not None and split:
            return _panels(name, column, along, figure, split)
        ax = figure.subplots() if figure is not None else new_axes(where)  # type: ignore[arg-type]
        curves = _curves(column, along)
        lines, rows = draw_curves(ax, curves), _finish(ax, name, column, along)
        name_lines(ax, lines, grow=where is None)
        key_below(ax, points_key(curves, _POINTS), ticks=rows)
    return ax


def _figure(where: Any) -> Figure | None:
    """The figure to draw on; None: on given axes."""
    from matplotlib.figure import Figure

    if where is None:
        import matplotlib.pyplot as plt

        return plt.figure()
    return where if isinstance(where, Figure) else None


def _panels(name: str, column: Column, along: str, figure: Figure, split: Sequence[str]) -> Axes:
    """Draw a panel for each combination of the labels of `split`."""

    def draw(panel: Axes, labels: dict[str, Any]) -> None:
        part = column.at(name, **labels)
        draw_curves(panel, _curves(part, along, told_apart=tuple(part.axes)))
        _finish(panel, name, column, along)

    return draw_panels(figure, column.axes, split, draw, f"points: {_POINTS}")


def _curves(column: Column, along: str, *, told_apart: Sequence[str] = ()) -> list[Curve]:
    """The curves, moved a little apart along labels that are no numbers, so that no point hides another."""
    labels = column.axes[along]
    if _is_numeric(labels):
        return curves_of(column, along, told_apart=told_apart)
    places = replace(column, axes={**column.axes, along: tuple(range(len(labels)))})
    curves = curves_of(places, along, told_apart=told_apart)
    shifts = _APART * (np.arange(len(curves)) - (len(curves) - 1) / 2) / max(len(curves), 4)
    return [replace(curve, x=curve.x + shift) for curve, shift in zip(curves, shifts, strict=True)]


def _finish(ax: Axes, name: str, column: Column, along: str) -> int:
    """Set ticks and labels of the axes; the number of lines that the ticks' labels have."""
    labels, rows = column.axes[along], 1
    if not _is_numeric(labels):
        width = max(_LETTERS // len(labels), 6)
        words = [textwrap.fill(str(each), width, break_long_words=False) for each in labels]
        ax.set_xticks(range(len(labels)), words)
        rows = max(word.count("\n") for word in words) + 1
    elif min(labels) > 0 and max(labels) >= 4 * min(labels):
        length_ticks(ax, sorted(labels))
    elif len(labels) <= _MOST_TICKS:
        ax.set_xticks(sorted(labels), [plain(each) for each in sorted(labels)])
    ax.set_xlabel(AXIS_LABELS.get(along, along.replace("_", " ")))
    ax.set_ylabel(f"{name.replace('_', ' ')}{f' ({column.unit})' if column.unit else ''}")
    return rows


def _is_numeric(labels: Sequence[Any]) -> bool:
    return all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in labels)
