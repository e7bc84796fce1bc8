# SPDX-License-Identifier: BSD-3-Clause
"""The figure of a diagnosis: entropy against length, and maps of the heads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._heads import draw_head_maps
from ._length import entropy_vs_length
from ._names import subtitle
from ._style import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .._base.tabled import Unit

_MOST_MAPS = 4  # side by side
_SIDE = 0.14  # inches of a cell of a map
_LINES = 3.2  # inches of the axes with lines


def diagnosis(found: Any, figure: Figure | None, unit: Unit, about: str) -> Axes:
    """Draw the mean entropy against length, and below it each head of each layer.

    With several towers or kinds of layers, or without a text, draw only a map of the heads.
    """
    with style():
        if figure is None:
            import matplotlib.pyplot as plt

            figure = plt.figure(layout="constrained")
        return _draw(found, figure, unit, about)


def _draw(found: Any, figure: Figure, unit: Unit, about: str) -> Axes:
    lengths, labels = found.lengths, found._labels()
    shown = np.unique(np.linspace(0, len(lengths) - 1, min(_MOST_MAPS, len(lengths))).round().astype(int))
    hidden = np.isin(found.modules, found.without_heads)
    # A mean over texts and heads belongs to no head.
    of_heads = {law: np.where(hidden[:, None], np.nan, each) for law, each in found.entropy.items()}
    maps = {labels[law]: values[shown] for law, values in of_heads.items()}
    n_layers, n_heads = next(iter(found.entropy.values())).shape[1:]
    height = len(maps) * (0.45 + max(_SIDE * n_layers, 0.8)) + 0.75
    width = max(4.6, 1.6 + len(shown) * (0.25 + max(_SIDE * n_heads, 0.8)))
    has_lines = len(found.groups) == 1 and 0 not in lengths
    figure.set_size_inches(width, _LINES * has_lines + height)
    below: Any = figure
    if has_lines:
        parts: Any = figure.subfigures(2, 1, height_ratios=[_LINES, height])
        top, below = parts
        ax = top.subplots()
        there = ~np.isnan(next(iter(of_heads.values()))).all(axis=0)
        heads = {law: values[:, there] for law, values in of_heads.items()}
        equal = np.nanmean(found.uniform_entropy, axis=1)
        entropy_vs_length(heads, lengths, ax=ax, uniform=equal, labels=labels, unit=unit)
        ax.set_xlabel("tokens, $n$")
        subtitle(ax, about)
    titles = [f"$n = {lengths[index]}$" if lengths[index] else about for index in shown]
    most = float(np.nanmax(found.uniform_entropy))
    draw_head_maps(below, maps, titles, most=most, modules=found.modules, unit=unit)
    first: Axes = figure.get_axes()[0]
    return first
