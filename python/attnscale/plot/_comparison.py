# SPDX-License-Identifier: BSD-3-Clause
"""The figure of two runs compared: the difference of each head of each layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ._heads import draw_map, layer_names
from ._names import label_axes, subtitle
from ._style import COLOURS, new_axes, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DECADES = 6  # below the largest value; smaller ones have the lowest colour


def comparison(found: Any, ax: Axes | None) -> Axes:
    """Draw the divergence of each head on a logarithmic scale, with the layer of the cause in a frame."""
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Rectangle

    grid = found._grid()
    n_layers, n_heads = grid.shape
    most = float(np.nanmax(grid, initial=0.0)) or 1.0
    with style():
        side = min(0.26, 3.8 / n_heads, 4.5 / n_layers)  # inches
        ax = new_axes(ax, height=max(1.0 + side * n_layers, 2.3), width=max(2.0 + side * n_heads, 3.4))
        pattern, names = layer_names([each.module for each in found.layers], n_layers)
        norm: Any = LogNorm(most / 10**_DECADES, most, clip=True)
        least = np.where(np.isnan(grid), np.nan, np.maximum(grid, norm.vmin))
        image = draw_map(ax, least, norm.vmin, norm.vmax, names)
        image.set_norm(norm)
        cause = found.cause
        if cause is not None:
            row = [each.layer for each in found.layers].index(cause.layer)
            for head in cause.heads or [None]:
                corner, width = (-0.5, n_heads) if head is None else (head - 0.5, 1)
                frame: dict[str, Any] = {
                    "fill": False,
                    "edgecolor": COLOURS[1],
                    "linewidth": 2,
                    "clip_on": False,
                }
                ax.add_patch(Rectangle((corner, row - 0.5), width, 1, **frame))
        subtitle(ax, "\n".join(filter(None, [_said(cause), pattern])))
        bar = ax.figure.colorbar(image, ax=ax, extend="min")
        label_axes(bar.ax, y="divergence (nats)" if found.has_weights else "relative difference of scores")
    return ax


def _said(cause: Any) -> str:
    """The cause in a few words."""
    if cause is None:
        return "no cause"
    times = "" if cause.kind in ("sink", "softcap") else " times"
    factor = "" if cause.factor is None else f", {cause.factor:.5g}{times}"
    return f"layer {cause.layer}: {cause.kind}{factor}"
