# SPDX-License-Identifier: BSD-3-Clause
"""The words of a figure: names beside lines, plain numbers at ticks, a key below, a subtitle above."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._style import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.text import Annotation

_MOST = 8  # lines with their names beside them; more get a legend
_GAP = 8.0  # points between a line and its name
_SIZE = 8
_MOST_TICKS = 8


class Named(NamedTuple):
    """A line and what to call it."""

    x: ArrayLike
    y: ArrayLike
    name: str
    colour: str


def name_lines(ax: Axes, lines: Sequence[Named], *, grow: bool = False) -> None:
    """Name each line at its end, at the side where the ends are further apart.

    Names do not touch each other or leave the axes: the x axis gets longer for them. Where they do not
    fit, or there are many lines, a legend outside of the axes has them, for which the figure may
    `grow`. Call this last: the limits of y must be those of the finished figure.
    """
    known = [line for line in lines if line.name and np.isfinite(np.asarray(line.y, np.float64)).any()]
    if not known:
        return
    right = _closest(ax, known, right=True) >= _closest(ax, known, right=False)
    ends = sorted(((*_end(line, right=right), line) for line in known), key=lambda end: end[1])
    texts = [_write(ax, x, y, line, right=right) for x, y, line in ends]
    boxes = [text.get_window_extent() for text in texts]
    frame = ax.get_window_extent()
    heights = np.array([1.15 * box.height / frame.height for box in boxes])
    # The layout makes the axes about a tenth wider than they are now.
    room = 0.95 * max(box.width for box in boxes) / frame.width + 0.055
    if len(known) > _MOST or heights.sum() > 1 or room > 0.62:
        for text in texts:
            text.remove()
        legend_beside(ax, [line for _, _, line in reversed(ends)])
        if grow:
            _grow(ax)
        return
    places = _apart(_heights(ax, [y for _, y, _ in ends]), heights)
    for text, (x, _, _), place in zip(texts, ends, places, strict=True):
        text.xy = (x, float(ax.transData.inverted().transform(ax.transAxes.transform((0, place)))[1]))
    _make_room(ax, known, room, right=right)


def legend_beside(ax: Axes, lines: Sequence[Named]) -> None:
    """Draw a legend to the right of the axes, in this order, of lines that were drawn with these names."""
    handles = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    drawn = [line.name for line in lines if line.name in handles]
    ax.legend(
        [handles[name] for name in drawn],
        drawn,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        fontsize=7.5,
        handlelength=2.6,
    )


def key_below(ax: Axes, entries: Sequence[tuple[Any, str]], *, columns: int = 1, ticks: int = 1) -> None:
    """Draw what marks, lines and shades mean: (handle, text) of each, below the label of the x axis.

    The labels of the x axis's ticks have `ticks` lines.
    """
    from matplotlib.transforms import offset_copy

    if not entries:
        return
    before = ax.get_legend()
    below = offset_copy(ax.transAxes, ax.get_figure(root=True), y=-32 - 9.5 * (ticks - 1), units="points")
    handles, texts = zip(*entries, strict=True)
    ax.legend(
        handles,
        texts,
        loc="upper left",
        bbox_to_anchor=(0, 0),
        bbox_transform=below,
        ncols=min(columns, len(entries)),
        borderpad=0,
        borderaxespad=0,
        fontsize=_SIZE,
        labelcolor=GREY,
    )
    if before is not None:  # an axes has one legend; a second one is an artist among others
        ax.add_artist(before).set_clip_on(False)  # else the layout would leave the legend no room


def _grow(ax: Axes) -> None:
    """Make the figure wider by the legend, and as high as the legend."""
    from matplotlib.figure import Figure

    figure, legend = ax.figure, ax.get_legend()
    if isinstance(figure, Figure) and legend is not None:
        size = legend.get_window_extent()
        width, height = figure.get_size_inches()
        figure.set_size_inches(width + size.width / figure.dpi, max(height, size.height / figure.dpi + 0.4))


def subtitle(ax: Axes, text: str) -> None:
    """Say what the figure shows, as a title in small letters that another title replaces."""
    if not text:
        return
    width = ax.figure.bbox.width / ax.figure.dpi
    columns = len({each.get_position().x0 for each in ax.figure.axes if each.get_subplotspec()}) or 1
    lines = textwrap.wrap(text, max(int(14.5 * width / columns), 24), break_on_hyphens=False)
    ax.set_title("\n".join(lines), fontsize=_SIZE)  # a colour would stay with a title that replaces it


def _end(line: Named, *, right: bool) -> tuple[float, float]:
    """The last point of the line, or the first."""
    x, y = (np.broadcast_to(np.asarray(each, np.float64), np.shape(line.y)) for each in (line.x, line.y))
    known = np.flatnonzero(np.isfinite(y))
    at = known[-1 if right else 0]
    return float(x[at]), float(y[at])


def _heights(ax: Axes, y: Sequence[float]) -> NDArray[np.float64]:
    """Heights of y as shares of the height of the axes."""
    points = ax.transData.transform([(ax.get_xlim()[1], each) for each in y])
    shares: NDArray[np.float64] = ax.transAxes.inverted().transform(points)[:, 1]
    return shares


def _closest(ax: Axes, lines: Sequence[Named], *, right: bool) -> float:
    heights = np.sort(_heights(ax, [_end(line, right=right)[1] for line in lines]))
    return float(np.diff(heights).min()) if len(lines) > 1 else np.inf


def _write(ax: Axes, x: float, y: float, line: Named, *, right: bool) -> Annotation:
    return ax.annotate(
        line.name,
        (x, y),
        xytext=(_GAP if right else -_GAP, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        color=line.colour,
        fontsize=_SIZE,
        annotation_clip=False,
    )


def _apart(places: NDArray[np.float64], heights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The middles nearest to increasing `places` of boxes that neither touch nor leave 0 ... 1."""
    from scipy.optimize import isotonic_regression

    steps = np.concatenate([[0.0], np.cumsum((heights[1:] + heights[:-1]) / 2)])
    middles = isotonic_regression(places - steps).x
    low, high = heights[0] / 2, 1 - heights[-1] / 2 - steps[-1]
    found: NDArray[np.float64] = np.clip(middles, low, max(low, high)) + steps
    return found


def _make_room(ax: Axes, lines: Sequence[Named], room: float, *, right: bool) -> None:
    """Lengthen the x axis by a share `room` of the finished one, at the side of the names."""
    log = ax.get_xscale() == "log"
    x = np.concatenate([np.ravel(np.asarray(line.x, np.float64)) for line in lines])
    x = np.log(x) if log else x
    low, high = float(x.min()), float(x.max())
    span = (high - low) / (0.97 - room) if high > low else 1.0
    limits = (low - 0.03 * span, high + room * span) if right else (low - room * span, high + 0.03 * span)
    if high == low:
        limits = (low - 0.5, high + 0.5)
    ax.set_xlim(*(np.exp(limits) if log else limits))


def plain(value: float) -> str:
    """A number as a tick says it.

    Examples
    --------
    >>> plain(65536), plain(2**20), plain(0.25), plain(1e6), plain(1234567)
    ('65536', '$2^{20}$', '0.25', '$10^{6}$', '1.23e6')
    """
    if value < 1e6:
        return f"{value:.6g}"
    for base in (2, 10):
        power = round(float(np.log(value) / np.log(base)))
        if value == base**power:
            return rf"${base}^{{{power}}}$"
    return f"{value:.3g}".replace("e+0", "e").replace("e+", "e")


def length_ticks(ax: Axes, values: NDArray[np.float64] | Sequence[float]) -> None:
    """A logarithmic x axis with ticks at these values, or at some of them where there are many.

    More than 20 values, as a dense curve has them, get ticks at the powers of two among them.
    """
    ax.set_xscale("log", base=2)
    wanted = np.unique(np.asarray(values, np.float64))
    powers = 2.0 ** np.arange(np.ceil(np.log2(wanted[0])), np.log2(wanted[-1]) + 1e-9)
    if wanted.size > 20 and powers.size >= 3:
        wanted = powers
    least = np.ptp(np.log(wanted)) / _MOST_TICKS
    chosen = [wanted[-1]]
    for value in wanted[-2::-1]:
        if np.log(chosen[-1] / value) >= 0.999 * least:
            chosen.append(value)
    ticks = [float(value) for value in reversed(chosen)]
    ax.set_xticks(ticks, [plain(tick) for tick in ticks])
    ax.set_xticks([], minor=True)


def log_ticks(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis: 1, 2, 5, 10, ... or, over many decades, powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    steps: Any = (1.0, 2.0, 5.0) if high < 200 * low else (1.0,)
    axis.set_major_locator(LogLocator(10, subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axis.set_minor_locator(NullLocator())
