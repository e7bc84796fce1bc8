# SPDX-License-Identifier: BSD-3-Clause
"""Shared legend of a figure with several panels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import positive_int, refusal, shown
from ._names import _BELOW, _BESIDE_A_LINE, _SIZE, fit_labels, in_columns

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

_EDGE = 12.0  # points of the figure's width left free by a legend


def shared_legend(figure: Figure, *, columns: int = 4) -> Legend:
    """Draw one legend below all panels of a figure, in place of their names and keys.

    Entries with the same name and colour are listed once. Call it when all panels are drawn.

    Parameters
    ----------
    figure : matplotlib Figure
        Its panels may be of this package or others.
    columns : int, default 4
        The most columns; fewer if the names are too long for the figure's width.

    Returns
    -------
    matplotlib Legend

    Raises
    ------
    TypeError, ValueError
        If ``figure`` is not a figure, nothing in it has a name, or ``columns`` is less than 1.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> from attnscale.plot import entropy_vs_length, law_comparison, shared_legend, style
    >>> with style(width=5.5, height=2.6):
    ...     figure, (left, right) = plt.subplots(1, 2)
    ...     ax = entropy_vs_length({"standard": [3.0, 3.6], "log_n": [3.2, 3.6]}, [128, 256], ax=left)
    ...     ax = law_comparison(["standard", "log_n"], [128, 256], ax=right)
    ...     legend = shared_legend(figure)
    >>> [text.get_text() for text in legend.get_texts()]
    ['uniform, $\\\\ln n$', 'standard, $1/\\\\sqrt{d}$', '$\\\\log_{512} n\\\\,/\\\\sqrt{d}$']
    """
    if not hasattr(figure, "legends") or not hasattr(figure, "axes"):
        raise refusal(TypeError, "figure", f"must be a Figure of matplotlib, got {shown(figure)}")
    positive_int("columns", columns)
    entries: dict[tuple[str, str], tuple[Any, str]] = {}
    for ax in figure.axes:
        for handle, text in _named(ax):
            entries.setdefault((" ".join(text.split()), _colour(handle)), (handle, text))
    if not entries:
        raise refusal(ValueError, "figure", "must have panels with named lines, got none")
    for ax in figure.axes:
        _clear(ax)
    if figure.get_layout_engine() is None:
        figure.set_layout_engine("constrained")

    def draw(texts: Sequence[str], across: int) -> Legend:
        for before in [each for each in figure.legends if each.get_gid() == _BELOW]:
            before.remove()
        legend = figure.legend(
            [handle for handle, _ in entries.values()],
            texts,
            loc="outside lower center",
            ncols=across,
            fontsize=_SIZE,
            columnspacing=1.2,
            handlelength=1.8,
            borderpad=0.2,
        )
        legend.set_gid(_BELOW)
        return legend

    room = 72 * float(figure.get_size_inches()[0]) - _EDGE
    legend = in_columns(draw, [text for _, text in entries.values()], room, columns)
    figure.draw_without_rendering()  # the legend takes some of the panels' height
    for ax in figure.axes:
        fit_labels(ax)
    return legend


def _named(ax: Axes) -> Iterator[tuple[Any, str]]:
    """The named lines, then the other entries in legends of these axes."""
    known = set()
    for handle, text in zip(*ax.get_legend_handles_labels(), strict=True):
        known.add(" ".join(text.split()))
        yield handle, text
    for legend in _legends(ax):
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            if " ".join(text.get_text().split()) not in known:
                yield handle, " ".join(text.get_text().split())


def _legends(ax: Axes) -> list[Any]:
    from matplotlib.legend import Legend

    return list(ax.findobj(Legend))


def _colour(handle: Any) -> str:
    """Colour of a line, of points with error bars, or of an area."""
    from matplotlib.colors import to_hex, to_rgba_array

    artist: Any = handle[0] if isinstance(handle, tuple) else handle  # bars belong to a line
    read = getattr(artist, "get_color", None) or artist.get_facecolor
    found = to_rgba_array(read())
    return str(to_hex(found[0])) if len(found) else "none"


def _clear(ax: Axes) -> None:
    """Remove names and legends, and the room for names beside the lines."""
    for legend in _legends(ax):
        legend.remove()
    names = [text for text in ax.texts if text.get_gid() == _BESIDE_A_LINE]
    for text in names:
        text.remove()
    if names:
        ends = np.array([ax.dataLim.x0, ax.dataLim.x1])
        log = ax.get_xscale() == "log"
        low, high = np.log(ends) if log else ends
        room = 0.04 * (high - low) or 0.5
        limits = np.array([low - room, high + room])
        ax.set_xlim(*(np.exp(limits) if log else limits))
