# SPDX-License-Identifier: BSD-3-Clause
"""Figures that a command saves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .._io import InputError
from ._output import bad_input

__all__ = ["save_figure"]


def save_figure(
    path: Path,
    draw: Callable[[Any], Any],
    *,
    size: tuple[float, float] | None = None,
    panels: tuple[int, int] = (1, 1),
) -> None:
    """Draw on the axes of a new figure and save it; bad input where matplotlib or the format is missing.

    With more than one panel `draw` is given an array of axes.
    """
    try:
        from matplotlib.figure import Figure

        from .. import plot
    except ImportError:
        raise InputError("--plot needs matplotlib: pip install matplotlib") from None
    # A Figure of its own, not pyplot: no window, no backend, nothing left open.
    with plot.style():
        figure = Figure(figsize=size)
        with bad_input(f"--plot {path}"):  # nothing to put along x, or a suffix that matplotlib does not know
            draw(figure.subplots(*panels))
            figure.savefig(path)
