# SPDX-License-Identifier: BSD-3-Clause
"""Many curves as small panels: which axes get a panel for each of their labels, and one key for all."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._style import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ONE_PANEL = 8  # lines that are told apart without panels
_MOST_LINES = 12
_MOST_COLUMNS = 4
_WIDTH, _HEIGHT, _LINE = 2.0, 1.75, 0.16  # inches of a panel, and of a line of the key
_MARKUP = re.compile(r"\\[a-z]+|[${}_\\,]")  # of a formula, which takes no room
_LETTERS = 96  # of a line of the key that is as wide as four panels


def panel_axes(axes: Mapping[str, Sequence[Any]], along: str) -> list[str]:
    """The axes that get a panel for each label, in their order; none where one panel holds all lines.

    Of the choices that leave a panel at most 12 lines, the one with the least sum of panels and lines.
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
    # The first of equals: axes come from the coarse to the fine, and the first ones are split first.
    return choices[min(cost, key=lambda index: (cost[index], [*others].index(choices[index][0])))]


def draw_panels(
    figure: Figure,
    axes: Mapping[str, Sequence[Any]],
    split: Sequence[str],
    draw: Callable[[Axes, dict[str, Any]], None],
    note: str,
) -> Axes:
    """Draw a panel for each combination of the labels of `split`, and one key below; the first panel.

    ``draw(panel, labels)`` draws the lines of one combination, and the `note` says what their points are. A
    combination for which nothing is known leaves its place empty.
    """
    points = [dict(zip(split, each, strict=True)) for each in itertools.product(*(axes[a] for a in split))]
    last = len(axes[split[-1]])
    columns = last if len(split) > 1 and last <= _MOST_COLUMNS else min(len(points), _MOST_COLUMNS)
    rows = -(-len(points) // columns)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    named: dict[str, Any] = {}
    for index, (panel, labels) in enumerate(zip(grid.flat, points, strict=False)):
        draw(panel, labels)
        panel.set_title(_title(labels), fontsize=8)
        if index % columns:
            panel.set_ylabel("")
        panel.set_visible(any(np.isfinite(line.get_ydata(orig=True)).any() for line in panel.get_lines()))
        handles, texts = panel.get_legend_handles_labels()
        named |= {text: handle for handle, text in zip(handles, texts, strict=True) if text not in named}
    for panel in grid.flat[len(points) :]:
        panel.set_visible(False)
    for column in grid.T:
        *above, lowest = [panel for panel in column if panel.get_visible()] or [column[-1]]
        lowest.tick_params(labelbottom=True)
        for panel in above:
            panel.set_xlabel("")
    lines = _key(figure, named, note, columns)
    figure.set_size_inches(_WIDTH * columns + 0.6, _HEIGHT * rows + _LINE * lines + 0.3)
    first: Axes = grid[0, 0]
    return first


def _title(labels: Mapping[str, Any]) -> str:
    return ", ".join(label if isinstance(label, str) else f"{axis} {label}" for axis, label in labels.items())


def _key(figure: Figure, named: Mapping[str, Any], note: str, columns: int) -> int:
    """Draw the key below all panels; the number of its lines."""
    longest = max(len(_MARKUP.sub("", text)) for text in named) + 6
    across = max(1, min(len(named), _LETTERS * columns // _MOST_COLUMNS // longest))
    key = figure.legend(
        list(named.values()),
        list(named),
        title=note,
        loc="outside lower left",
        alignment="left",
        ncols=across,
        fontsize=7.5,
        title_fontsize=7.5,
        handlelength=2.6,
    )
    key.get_title().set_color(GREY)
    return -(-len(named) // across) + 1
