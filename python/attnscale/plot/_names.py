# SPDX-License-Identifier: BSD-3-Clause
"""Words of a figure: names of lines, plain numbers at ticks, labels, a key below, a subtitle above."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._style import GREY, may_grow, wanted_width
from ._text import in_lines, printed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.text import Annotation

_MOST = 8  # lines with their names beside them; more get a legend
_MOST_ROOM = 0.4  # of the width of the axes, for the names
_BESIDE = 4.0  # inches of a panel with room for a legend at its right
_LEFT = 46.0  # points for labels of a panel's y axis
_GAP = 8.0  # points between a line and its name
_SIZE = 8
_MOST_TICKS = 8
_LETTER, _HANDLE = 4.6, 6  # points of a letter of a key; letters that a line or mark takes before its text
_OF_AXIS = 0.85  # of an axis's length, left by titles and keys
_A_NAME = 24  # letters of a text that stays on one line, beside others


class Named(NamedTuple):
    """A line and its name."""

    x: ArrayLike
    y: ArrayLike
    name: str
    colour: str


#: Labels of a line's name and of a legend below; a legend of the whole figure replaces both.
_BESIDE_A_LINE, _BELOW = "attnscale: name of a line", "attnscale: key"


def name_lines(ax: Axes, lines: Sequence[Named], *, grow: bool = False) -> list[tuple[Any, str]]:
    """Name each line at its end, on the side where ends are further apart; returns names for the key below.

    Names neither touch each other nor leave the axes: the x axis is lengthened for them. If they do not fit,
    the caller puts the returned (handle, name) pairs into the key below. Many lines get a legend at the
    right, for which the figure may `grow`, if it may be that wide. Call this last: the limits of y must be
    final.
    """
    known = [line for line in lines if line.name and np.isfinite(np.asarray(line.y, np.float64)).any()]
    if not known:
        return []
    right = _closest(ax, known, right=True) >= _closest(ax, known, right=False)
    ends = sorted(((*_end(line, right=right), line) for line in known), key=lambda end: end[1])
    texts = [_write(ax, x, y, line, right=right) for x, y, line in ends]
    boxes = [text.get_window_extent() for text in texts]
    frame = ax.get_window_extent()
    heights = np.array([1.15 * box.height / frame.height for box in boxes])
    # The layout makes the axes about a tenth wider than now.
    room = 0.95 * max(box.width for box in boxes) / frame.width
    room += max(0.055, (_GAP + 6) * _figure(ax).dpi / 72 / frame.width)
    if len(known) > _MOST or heights.sum() > 1 or room > _MOST_ROOM:
        for text in texts:
            text.remove()
        handles = dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
        below = [(handles[line.name], line.name) for _, _, line in reversed(ends) if line.name in handles]
        if len(known) <= _MOST or wanted_width() or _panel_width(ax) < 72 * _BESIDE:
            return below
        legend_beside(ax, below)
        if grow:
            _grow(ax)
        return []
    places = _apart(_heights(ax, [y for _, y, _ in ends]), heights)
    for text, (x, _, _), place in zip(texts, ends, places, strict=True):
        text.xy = (x, float(ax.transData.inverted().transform(ax.transAxes.transform((0, place)))[1]))
    _make_room(ax, known, room, right=right)
    return []


def _panel_width(ax: Axes) -> float:
    """Points of the figure's width for a panel, with its labels."""
    place = ax.get_subplotspec()
    share = 1.0 if place is None else len(place.colspan) / place.get_gridspec().ncols
    return share * 72 * float(_figure(ax).get_size_inches()[0])


def _figure(ax: Axes) -> Figure:
    """The whole figure that axes are in; Matplotlib 3.8 has no ``get_figure(root=True)``."""
    figure: Figure = ax.figure.figure
    return figure


def legend_beside(ax: Axes, entries: Sequence[tuple[Any, str]]) -> None:
    """Draw a legend to the right of the axes: (handle, text) of each line."""
    ax.legend(
        *zip(*entries, strict=True),
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        fontsize=7.5,
        handlelength=2.6,
    )


def key_below(
    ax: Axes,
    entries: Sequence[tuple[Any, str]],
    *,
    columns: int = 1,
    ticks: int = 1,
    grow: bool = False,
    bar: float = 0.0,
) -> None:
    """Explain marks, lines and shades: (handle, text) of each, below the label of the x axis.

    The key is no wider than the panel, of which a colour bar takes `bar` points. The tick labels of the x
    axis have `ticks` lines. The figure may `grow` by the height of a key of several lines.
    """
    from matplotlib.transforms import offset_copy

    if not entries:
        return
    before, rows = ax.get_legend(), ax.get_xlabel().count("\n") + ticks - 1
    below = offset_copy(ax.transAxes, _figure(ax), y=-32 - 9.5 * rows, units="points")

    def draw(texts: Sequence[str], across: int) -> Legend:
        key = ax.legend(
            [handle for handle, _ in entries],
            texts,
            loc="upper left",
            bbox_to_anchor=(0, 0),
            bbox_transform=below,
            ncols=across,
            borderpad=0,
            borderaxespad=0,
            columnspacing=1.2,
            handlelength=1.8,
            fontsize=_SIZE,
            labelcolor=GREY,
        )
        key.set_gid(_BELOW)
        return key

    key = in_columns(draw, [text for _, text in entries], _panel_width(ax) - _LEFT - bar, columns)
    if before is not None:  # axes have one legend; a second one is an artist among others
        ax.add_artist(before).set_clip_on(False)  # else the layout would leave no room for the legend
    if grow and may_grow():
        # A key of two lines fits without growth.
        more = key.get_window_extent().height / ax.figure.dpi - 2.5 * _SIZE / 72
        width, height = ax.figure.get_size_inches()  # type: ignore[union-attr]
        ax.figure.set_size_inches(width, height + max(more, 0.0))  # type: ignore[union-attr]


def columns_of(below: Sequence[Any]) -> int:
    """Largest number of columns of a key: several for names of lines, which are short."""
    return 4 if below else 1


def in_columns(
    draw: Callable[[Sequence[str], int], Legend], texts: Sequence[str], room: float, columns: int
) -> Legend:
    """The legend from `draw`, of texts and a number of columns, with as many columns as fit `room` points.

    Texts longer than a column wrap, in a legend of one more column.
    """
    for across in range(min(columns, len(texts)), 0, -1):
        letters = int(room / across / _LETTER) - _HANDLE
        longest = 2 * letters if across > 1 else math.inf
        short = [
            in_lines(text, letters) if _A_NAME < printed(text) <= longest or across == 1 else text
            for text in texts
        ]
        legend = draw(short, across)
        if legend.get_window_extent().width * 72 / legend.figure.dpi <= room:
            break
    return legend


def fit_labels(ax: Axes) -> None:
    """Wrap labels longer than their axes in the present layout."""
    frame = ax.get_window_extent()
    for axis, room in ((ax.xaxis, frame.width), (ax.yaxis, frame.height)):
        _fit(axis, room)


def _fit(axis: Axis, room: float) -> None:
    """Wrap the label of an axis if it is longer than `room` pixels."""
    box, text = axis.label.get_window_extent(), axis.label.get_text()
    longest = max(box.width, box.height)
    if text and longest > room:
        axis.set_label_text(in_lines(text, int(printed(text) * room / longest)))


def label_axes(ax: Axes, x: str | None = None, y: str | None = None) -> None:
    """Label the axes, on two lines where a label is longer than its axis."""
    frame = ax.get_window_extent()
    for axis, text, room in ((ax.xaxis, x, frame.width), (ax.yaxis, y, frame.height)):
        if text is not None:
            axis.set_label_text(text)
            _fit(axis, _OF_AXIS * room)


def _grow(ax: Axes) -> None:
    """Widen the figure by the legend, and make it as high as the legend."""
    from matplotlib.figure import Figure

    figure, legend = ax.figure, ax.get_legend()
    if isinstance(figure, Figure) and legend is not None:
        size = legend.get_window_extent()
        width, height = figure.get_size_inches()
        figure.set_size_inches(width + size.width / figure.dpi, max(height, size.height / figure.dpi + 0.4))


def subtitle(ax: Axes, text: str) -> None:
    """Describe the figure in a small title, which another title replaces."""
    if not text:
        return
    letters = max(int(14.5 * (_panel_width(ax) - _LEFT) / 72), 24)
    # A colour would remain with a title that replaces this one.
    ax.set_title(in_lines(text, letters), fontsize=_SIZE)


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
        gid=_BESIDE_A_LINE,
    )


def _apart(places: NDArray[np.float64], heights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Middles nearest to increasing `places` of boxes that neither touch nor leave 0 ... 1."""
    from scipy.optimize import isotonic_regression

    steps = np.concatenate([[0.0], np.cumsum((heights[1:] + heights[:-1]) / 2)])
    middles = isotonic_regression(places - steps).x
    low, high = heights[0] / 2, 1 - heights[-1] / 2 - steps[-1]
    found: NDArray[np.float64] = np.clip(middles, low, max(low, high)) + steps
    return found


def _make_room(ax: Axes, lines: Sequence[Named], room: float, *, right: bool) -> None:
    """Lengthen the x axis by a share `room` of the final one, at the side of the names."""
    log = ax.get_xscale() == "log"
    x = np.concatenate([np.ravel(np.asarray(line.x, np.float64)) for line in lines])
    x = np.log(x) if log else x
    low, high = float(x.min()), float(x.max())
    span = (high - low) / (0.97 - room) if high > low else 1.0
    limits = (low - 0.03 * span, high + room * span) if right else (low - room * span, high + 0.03 * span)
    if high == low:
        limits = (low - 0.5, high + 0.5)
    ax.set_xlim(*(np.exp(limits) if log else limits))


def length_ticks(ax: Axes, values: NDArray[np.float64] | Sequence[float]) -> None:
    """A logarithmic x axis with ticks at these values, or at some of them if they lack room.

    More than 20 values, as in a dense curve, and values of many digits, as from `geomspace`, get ticks at the
    powers of two among them.
    """
    from ._ticks import Plain, Roomy

    ax.set_xscale("log", base=2)
    wanted = np.unique(np.asarray(values, np.float64))
    powers = 2.0 ** np.arange(np.ceil(np.log2(wanted[0])), np.log2(wanted[-1]) + 1e-9)
    odd = wanted[0] >= 1 and (np.abs(wanted - np.round(wanted, 1)) > 1e-9 * wanted).any()
    if (wanted.size > 20 or odd) and powers.size >= 3:
        wanted = powers
    least = np.ptp(np.log(wanted)) / _MOST_TICKS
    chosen = [wanted[-1]]
    for value in wanted[-2::-1]:
        if np.log(chosen[-1] / value) >= 0.999 * least:
            chosen.append(value)
    ax.xaxis.set_major_locator(Roomy(ax.xaxis, [float(value) for value in reversed(chosen)]))
    ax.xaxis.set_major_formatter(Plain())
    ax.set_xticks([], minor=True)


def log_ticks(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis: 1, 2, 5, 10, ... or, over many decades, powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    from ._ticks import Plain

    low, high = sorted(axis.get_view_interval())
    steps: Any = (1.0, 2.0, 5.0) if high < 200 * low else (1.0,)
    axis.set_major_locator(LogLocator(10, subs=steps))
    axis.set_major_formatter(Plain())
    axis.set_minor_locator(NullLocator())
