# SPDX-License-Identifier: BSD-3-Clause
"""Figure of a probe: rotary angles asked and answered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ._style import COLOURS, GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def probe_panels(checkpoints: Sequence[Any], figure: Figure | None = None) -> Axes:
    """Draw the rotation of each pair against that without scaling, a panel for each checkpoint."""
    if figure is None:
        import matplotlib.pyplot as plt

        figure = plt.figure()
    count = len(checkpoints)
    width, height = figure.get_size_inches()
    figure.set_size_inches(max(width, 3.4 * count), height)
    panels = figure.subplots(1, count, squeeze=False, sharey=True)[0]
    for axes, checkpoint in zip(panels, checkpoints, strict=True):
        _panel(axes, checkpoint)
    panels[0].set_ylabel("rotation, share of that without scaling")
    first: Axes = panels[0]
    return first


def _panel(axes: Axes, checkpoint: Any) -> None:
    pairs = checkpoint.expected["pairs"]
    rows = [row for row in checkpoint.rows if row.what.startswith("pair ")]
    unscaled = np.array([pair["unscaled"] for pair in pairs])
    asked = np.array([pair["asked"] for pair in pairs]) / unscaled
    axes.plot(unscaled, asked, color=GREY, linewidth=1.5, label="asked")
    for slip, mark, colour, named in (
        (False, "o", COLOURS[0], "as asked"),
        (True, "X", COLOURS[1], "wrong"),
    ):
        shown = [
            (pair["unscaled"], row.answered / pair["unscaled"], row.error / pair["unscaled"])
            for pair, row in zip(pairs, rows, strict=False)
            if row.answered is not None and (row.verdict == "wrong") == slip
        ]
        if shown:
            x, y, error = np.array(shown).T
            axes.errorbar(x, y, error, fmt=mark, color=colour, markersize=5, linewidth=1, label=named)
    axes.set_xscale("log")
    axes.invert_xaxis()
    axes.set_ylim(bottom=min(0.0, *axes.get_ylim()))
    axes.set_xlabel("rotation without scaling, rad a word")
    said = "; ".join(checkpoint.slips) or "as asked"
    axes.set_title(
        f"layer {checkpoint.layer}, {checkpoint.kind}\n{_scales(checkpoint)}\n{said}", fontsize="small"
    )
    axes.legend(loc="best", fontsize="small")


def _scales(checkpoint: Any) -> str:
    """The multipliers asked and answered, as text."""
    return "\n".join(
        f"{row.what}: {row.answered:.6g} (asked {row.asked:.6g})"
        for row in checkpoint.rows
        if row.what.startswith("scale") and row.answered is not None
    )
