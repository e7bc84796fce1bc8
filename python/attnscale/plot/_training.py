# SPDX-License-Identifier: BSD-3-Clause
"""Figures of trained models: means over seeds with error bars."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from typing import TYPE_CHECKING

from .._checks import shown
from ._curves import AXIS_LABELS, curves_of, draw_curves, points_key
from ._names import key_below, name_lines
from ._style import new_axes, style
from ._ticks import length_ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .._grid.table import Column

__all__ = ["training"]

_LETTERS = 50  # letters of labels that have room side by side below an axis


def training(name: str, column: Column, x: str | None, ax: Axes | None) -> Axes:
    """Draw a curve along `x`, the last axis by default, for each point of the other axes.

    Labels that are no numbers stand at equal distances, in their order.
    """
    along = x if x is not None else list(column.axes)[-1]
    if along not in column.axes:
        raise ValueError(f"x must be one of {', '.join(column.axes)}, got {shown(along)}")
    labels, own = column.axes[along], ax is None
    is_numeric = all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in labels)
    places = column if is_numeric else replace(column, axes={**column.axes, along: tuple(range(len(labels)))})
    curves, rows = curves_of(places, along), 1
    with style():
        ax = new_axes(ax)
        lines = draw_curves(ax, curves)
        if not is_numeric:
            width = max(_LETTERS // len(labels), 6)
            words = [textwrap.fill(str(each), width, break_long_words=False) for each in labels]
            ax.set_xticks(range(len(labels)), words)
            rows = max(word.count("\n") for word in words) + 1
        elif min(labels) > 0 and max(labels) >= 16 * min(labels):
            length_ticks(ax, curves[0].x)
        ax.set_xlabel(AXIS_LABELS.get(along, along.replace("_", " ")))
        ax.set_ylabel(f"{name.replace('_', ' ')}{f' ({column.unit})' if column.unit else ''}")
        name_lines(ax, lines, grow=own)
        key_below(ax, points_key(curves, "mean over the seeds, one standard error"), ticks=rows)
    return ax
