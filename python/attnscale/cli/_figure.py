# SPDX-License-Identifier: BSD-3-Clause
"""Figures that a command saves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from .._io import InputError


class Drawing(NamedTuple):
    """How a figure is drawn: on axes, on an array of axes for several `panels`, on the figure for None."""

    draw: Callable[[Any], Any]
    size: tuple[float, float] | None = None
    panels: tuple[int, int] | None = (1, 1)

    def save(self, path: Path) -> None:
        """Draw on the axes of a new figure and save it."""
        from matplotlib.figure import Figure

        from .. import plot

        # A Figure of its own, not pyplot: no window, no backend, nothing left open.
        with plot.style():
            figure = Figure(figsize=self.size)
            self.draw(figure if self.panels is None else figure.subplots(*self.panels))
            figure.savefig(path)


def has_matplotlib() -> bool:
    """Whether figures can be drawn here."""
    try:
        from matplotlib.figure import Figure as Figure
    except ImportError:
        return False
    return True


def checked_format(path: Path) -> Path:
    """The file to write, .png by default; bad input if matplotlib is missing or does not know the format."""
    if not has_matplotlib():
        raise InputError("--plot needs matplotlib: pip install matplotlib")
    from matplotlib.backend_bases import FigureCanvasBase

    if not path.suffix:
        return path.with_name(f"{path.name}.png")
    if path.suffix[1:].lower() not in FigureCanvasBase.get_supported_filetypes():
        known = ".png, .pdf, .svg or another that matplotlib knows"
        raise InputError(f"--plot {path}: the suffix must be {known}, got {path.suffix}")
    return path
