# SPDX-License-Identifier: BSD-3-Clause
"""Figures of trained models: means over seeds with error bars, in panels if there are many curves."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import shown
from ._curves import AXIS_LABELS, Curve, curves_of, draw_curves, points_key
from ._names import columns_of, key_below, label_axes, length_ticks, name_lines
from ._style import GREY, figure_size, new_axes, style, wanted_width
from ._text import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .._grid.table import Column

_POINTS = "mean over the seeds, one standard error"
_LETTERS = 50  # letters of labels that fit side by side below an axis
_MOST_TICKS = 8
_APART = 0.3  # of the distance between two labels, over which the curves' points are spread
_ONE_PANEL = 8  # lines that can be told apart without panels
_MOST_LINES = 12
_MOST_COLUMNS = 4
_WIDTH, _HEIGHT, _LINE = 2.0, 1.75, 0.16  # inches of a panel, and of a line of the key
_NARROWEST = 1.6  # inches of a panel in a figure of a given width
_MARKUP = re.compile(r"\\[a-z]+|[${}_\\,]")  # of a formula, without width
_LETTERS_OF_KEY = 96  # on a line as wide as four panels


def training(name: str, column: Column, x: str | None, where: Axes | Figure | None) -> Axes:
    """Draw a curve along `x`, the last axis by default, for each point of the other axes.

    Labels other than numbers stand at equal distances, in their order. A figure, a new one for None, gets
    panels if there are many curves, and the first panel is returned; given axes take all curves.
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
        below = name_lines(ax, lines, grow=where is None)
        key = [*below, *points_key(curves, _POINTS)]
        key_below(ax, key, columns=columns_of(below), ticks=rows, grow=where is None)
    return ax


def _figure(where: Any) -> Figure | None:
    """The figure to draw on; None if axes are given."""
    from matplotlib.figure import Figure

    if where is None:
        import matplotlib.pyplot as plt

        return plt.figure()
    return where if isinstance(where, Figure) else None


def _curves(column: Column, along: str, *, told_apart: Sequence[str] = ()) -> list[Curve]:
    """The curves, shifted a little apart along labels other than numbers, so that no point hides another."""
    labels = column.axes[along]
    if _is_numeric(labels):
        return curves_of(column, along, told_apart=told_apart)
    places = replace(column, axes={**column.axes, along: tuple(range(len(labels)))})
    curves = curves_of(places, along, told_apart=told_apart)
    shifts = _APART * (np.arange(len(curves)) - (len(curves) - 1) / 2) / max(len(curves), 4)
    return [replace(curve, x=curve.x + shift) for curve, shift in zip(curves, shifts, strict=True)]


def _finish(ax: Axes, name: str, column: Column, along: str) -> int:
    """Set ticks and labels of the axes; returns the number of lines of the tick labels."""
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
    text = f"{name.replace('_', ' ')}{f' ({column.unit})' if column.unit else ''}"
    label_axes(ax, AXIS_LABELS.get(along, along.replace("_", " ")), text)
    return rows


def _is_numeric(labels: Sequence[Any]) -> bool:
    return all(isinstance(each, (int, float)) and not isinstance(each, bool) for each in labels)


def panel_axes(axes: Mapping[str, Sequence[Any]], along: str) -> list[str]:
    """The axes with a panel for each label, in order; none if one panel holds all lines.

    Of the choices with at most 12 lines a panel, the one with the least sum of panels and lines.
    """
    others = {axis: len(labels) for axis, labels in axes.items() if axis != along and len(labels) > 1}
    lines = math.prod(others.values())
    if lines <= _ONE_PANEL:
        return []
    choices = [
        list(split) for size in range(1, len(others) + 1) for split in itertools.combinations(others, size)
    ]
    panels = [math.prod(others[axis] for axis in split) for split in choices]
    cost = {
        index: count + lines // count for index, count in enumerate(panels) if lines // count <= _MOST_LINES
    }
    # The first of equals: axes go from coarse to fine, and the first ones are split first.
    return choices[min(cost, key=lambda index: (cost[index], [*others].index(choices[index][0])))]


def _panels(name: str, column: Column, along: str, figure: Figure, split: Sequence[str]) -> Axes:
    """Draw a panel for each combination of the labels of `split`, and one key below; returns the first panel.

    A combination without values leaves its place empty.
    """
    every = itertools.product(*(column.axes[axis] for axis in split))
    points = [dict(zip(split, each, strict=True)) for each in every]
    last = len(column.axes[split[-1]])
    most = _MOST_COLUMNS if wanted_width() is None else max(int(figure_size()[0] / _NARROWEST), 1)
    columns = last if len(split) > 1 and last <= most else min(len(points), most)
    rows = -(-len(points) // columns)
    # Labels depend on the available room.
    figure.set_size_inches(figure_size(_WIDTH * columns + 0.6, _HEIGHT * rows + 0.3))
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    named: dict[str, Any] = {}
    for index, (panel, labels) in enumerate(zip(grid.flat, points, strict=False)):
        part = column.at(name, **labels)
        draw_curves(panel, _curves(part, along, told_apart=tuple(part.axes)))
        _finish(panel, name, column, along)
        words = [each if isinstance(each, str) else f"{axis} {each}" for axis, each in labels.items()]
        panel.set_title(", ".join(words), fontsize=8)
        if index % columns:
            panel.set_ylabel("")
        panel.set_visible(any(np.isfinite(line.get_ydata(orig=True)).any() for line in panel.get_lines()))
        handles, texts = panel.get_legend_handles_labels()
        named |= {text: handle for handle, text in zip(handles, texts, strict=True) if text not in named}
    for panel in grid.flat[len(points) :]:
        panel.set_visible(False)
    for stack in grid.T:
        *above, lowest = [panel for panel in stack if panel.get_visible()] or [stack[-1]]
        lowest.tick_params(labelbottom=True)
        for panel in above:
            panel.set_xlabel("")
    lines = _key(figure, named, columns)
    figure.set_size_inches(figure_size(_WIDTH * columns + 0.6, _HEIGHT * rows + _LINE * lines + 0.3))
    first: Axes = grid[0, 0]
    return first


def _key(figure: Figure, named: Mapping[str, Any], columns: int) -> int:
    """Draw the key below all panels; returns its number of lines."""
    longest = max(len(_MARKUP.sub("", text)) for text in named) + 6
    across = max(1, min(len(named), _LETTERS_OF_KEY * columns // _MOST_COLUMNS // longest))
    key = figure.legend(
        list(named.values()),
        list(named),
        title=f"points: {_POINTS}",
        loc="outside lower left",
        alignment="left",
        ncols=across,
        fontsize=7.5,
        title_fontsize=7.5,
        handlelength=2.6,
    )
    key.get_title().set_color(GREY)
    return -(-len(named) // across) + 1
