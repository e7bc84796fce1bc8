# SPDX-License-Identifier: BSD-3-Clause
"""Figures that a command saves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._io import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["save_figure"]


def save_figure(path: Path, draw: Callable[[Axes], Any], *, size: tuple[float, float] | None = None) -> None:
    """Draw on the axes of a new figure and save it; bad input where matplotlib or the format is missing."""
    try:
        from matplotlib.figure import Figure

        from .. import plot
    except ImportError:
        raise InputError('--plot needs matplotlib: pip install "attnscale[plot]"') from None
    # A Figure of its own, not pyplot: no window, no backend, nothing left open.
    with plot.style():
        figure = Figure(figsize=size)
        try:
            draw(figure.subplots())
            figure.savefig(path)
        except ValueError as error:  # nothing to put along x, or a suffix that matplotlib does not know
            raise InputError(f"--plot {path}: {error}") from None
