# SPDX-License-Identifier: BSD-3-Clause
"""Figures of entropy against length and by head. Needs matplotlib (``pip install "attnscale[plot]"``).

Every function draws on ``ax`` (a new figure's if it is None), returns it and never shows it. The
colours are those of Okabe and Ito, which colour-blind readers can tell apart; :func:`style` sets
fonts and sizes for print.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLOURS", "entropy_by_head", "entropy_vs_length", "style"]

#: Okabe and Ito 2008, in the order of use: blue, vermilion, green, orange, sky blue, purple, black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#E69F00", "#56B4E9", "#CC79A7", "#000000")
_GREY = "#6E6E6E"
# Ever smaller marks, so that one that lies on another leaves it visible.
_MARKERS = (("o", 34), ("D", 17), ("s", 7), ("^", 34), ("v", 17), ("P", 17), ("X", 7))

_LABELS = {
    "standard": r"standard, $1/\sqrt{d}$",
    "log_n": r"$\log_{512} n\,/\sqrt{d}$",
    "natural_log_n": r"$\ln n\,/\sqrt{d}$",
    "unscaled": "unscaled, $1$",
}

# 3.4 inches is one column of a two-column page; TrueType fonts keep text searchable in PDF and SVG.
_STYLE: Any = {
    "figure.figsize": (4.6, 3.2),
    "figure.dpi": 120,
    "savefig.dpi": 200,
    "savefig.facecolor": "white",
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
}


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib settings of this package's figures, for the time of a ``with`` block.

    Examples
    --------
    >>> import matplotlib
    >>> with style():
    ...     print(matplotlib.rcParams["axes.spines.top"])
    False
    """
    import matplotlib as mpl

    with mpl.rc_context(_STYLE):
        yield


def entropy_vs_length(
    entropy: Mapping[str, ArrayLike],
    lengths: Sequence[int],
    *,
    ax: Axes | None = None,
    uniform: bool = True,
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """Mean entropy against the number of keys, one line for every law.

    Parameters
    ----------
    entropy : mapping of str to array_like
        Nats under each law, of shape (n_lengths,), or (n_lengths, n_heads): then the line is the
        mean over the heads and the shade spans the middle half of them.
    lengths : sequence of int
        Numbers of keys, increasing.
    ax : matplotlib Axes, optional
    uniform : bool, default True
        Draw ln n, the entropy of equal weights, which no law can exceed.
    labels : mapping, optional
        Names to print for the keys of ``entropy``.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> ax = entropy_vs_length({"standard": [3.0, 3.6], "log_n": [3.2, 3.6]}, [128, 256])
    >>> ax.get_ylabel()
    'mean entropy (nats)'
    """
    names = {**_LABELS, **(labels or {})}
    n = np.asarray(lengths, np.float64)
    with style():
        ax = _axes(ax)
        ends: list[tuple[NDArray[np.float64], str, str]] = []
        if uniform:
            ax.plot(n, np.log(n), color=_GREY, linestyle=(0, (4, 2)), linewidth=1.2)
            ends.append((np.log(n), r"uniform, $\ln n$", _GREY))
        for (law, values), colour in zip(entropy.items(), _colours(len(entropy)), strict=True):
            mean = _draw_law(ax, n, np.asarray(values, np.float64), colour)
            ends.append((mean, names.get(law, law), colour))
        ax.set_xscale("log", base=2)
        ax.set_xticks(n, [f"{int(length)}" for length in n])
        ax.set_xticks([], minor=True)
        ax.set_ylim(bottom=0)
        ax.set_xlabel("keys per query, $n$")
        ax.set_ylabel("mean entropy (nats)")
        _label_lines(ax, n, ends)
    return ax


def entropy_by_head(
    entropy: Mapping[str, ArrayLike],
    names: Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
    n_keys: int | None = None,
    labels: Mapping[str, str] | None = None,
    sort: bool = False,
) -> Axes:
    """Mean entropy of each head, one row a head and one mark for every entry of ``entropy``.

    Parameters
    ----------
    entropy : mapping of str to array_like
        Nats, of shape (n_heads,): under each law, or at each length.
    names : sequence of str, optional
        Names of the heads; their numbers by default.
    ax : matplotlib Axes, optional
    n_keys : int, optional
        Marks ln n_keys, the entropy of equal weights.
    labels : mapping, optional
        Names to print for the keys of ``entropy``.
    sort : bool, default False
        Order the heads by the first entry.

    Returns
    -------
    matplotlib Axes
        With a second scale on top: effective keys, exp(entropy).

    Examples
    --------
    >>> ax = entropy_by_head({"standard": [0.2, 4.5, 5.8]}, n_keys=512)
    >>> ax.get_xlabel()
    'mean entropy (nats)'
    """
    series = {law: np.asarray(values, np.float64) for law, values in entropy.items()}
    n_heads = len(next(iter(series.values())))
    names = [str(head) for head in range(n_heads)] if names is None else list(names)
    order = np.argsort(next(iter(series.values()))) if sort else np.arange(n_heads)
    rows = np.arange(n_heads)
    with style():
        ax = _axes(ax, height=0.7 + 0.17 * n_heads)
        stacked = np.stack([values[order] for values in series.values()])
        ax.hlines(rows, stacked.min(0), stacked.max(0), color="#C9C9C9", linewidth=1.2, zorder=1)
        for index, law in enumerate(series):
            label = {**_LABELS, **(labels or {})}.get(law, law)
            marker, size = _MARKERS[index % len(_MARKERS)]
            colour = COLOURS[index % len(COLOURS)]
            ax.scatter(
                stacked[index],
                rows,
                s=size,
                color=colour,
                marker=marker,
                label=label,
                zorder=2 + index,
                clip_on=False,
            )
        ax.set_yticks(rows, [names[head] for head in order])
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        ax.grid(visible=True, axis="x")
        ax.set_xlim(left=min(0.0, float(stacked.min())))
        ax.set_xlabel("mean entropy (nats)")
        if n_keys is not None:
            _mark_uniform(ax, n_keys)
        _effective_keys_scale(ax)
        if len(series) > 1:
            ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=len(series), handletextpad=0.1)
    return ax


def _axes(ax: Axes | None, *, height: float | None = None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    width, default = _STYLE["figure.figsize"]
    axes: Axes = plt.subplots(figsize=(width, height or default))[1]
    return axes


def _colours(count: int) -> list[str]:
    return [COLOURS[index % len(COLOURS)] for index in range(count)]


def _draw_law(
    ax: Axes, n: NDArray[np.float64], values: NDArray[np.float64], colour: str
) -> NDArray[np.float64]:
    """Line of the mean, shade of the middle half of the heads."""
    if values.shape[0] != n.size:
        raise ValueError(
            f"entropy must have one row for each of the {n.size} lengths, got shape {values.shape}"
        )
    mean = values
    if values.ndim == 2:
        mean = values.mean(axis=1)
        low, high = np.quantile(values, [0.25, 0.75], axis=1)
        ax.fill_between(n, low, high, color=colour, alpha=0.10, linewidth=0)
    ax.plot(n, mean, color=colour, marker="o")
    return mean


def _label_lines(
    ax: Axes, n: NDArray[np.float64], lines: Sequence[tuple[NDArray[np.float64], str, str]]
) -> None:
    """Name every line at the side where the lines are further apart, moved until names do not touch."""
    right = _least_gap([mean[-1] for mean, _, _ in lines]) >= _least_gap([mean[0] for mean, _, _ in lines])
    end = -1 if right else 0
    low, high = ax.get_ylim()
    line_height = 0.075 * (high - low)
    placed = -np.inf
    for mean, name, colour in sorted(lines, key=lambda line: float(line[0][end])):
        placed = max(float(mean[end]), placed + line_height)
        ax.annotate(
            name,
            (n[end], placed),
            xytext=(8 if right else -8, 0),
            textcoords="offset points",
            ha="left" if right else "right",
            va="center",
            color=colour,
            fontsize=8,
            annotation_clip=False,
        )
    # Room for the names inside the axes: 30 % of their width, on a logarithmic scale.
    room = (n[-1] / n[0]) ** 0.43 if n.size > 1 else 4.0
    ax.set_xlim(*((n[0] / 1.12, n[-1] * room) if right else (n[0] / room, n[-1] * 1.12)))


def _least_gap(values: Sequence[float]) -> float:
    return float(np.diff(np.sort(values)).min()) if len(values) > 1 else np.inf


def _mark_uniform(ax: Axes, n_keys: int) -> None:
    limit = float(np.log(n_keys))
    ax.axvline(limit, color=_GREY, linestyle=(0, (4, 2)), linewidth=1.2)
    ax.set_xlim(right=1.04 * limit)
    ax.text(
        limit,
        0.5,
        rf"$\ln {n_keys}$ ",
        transform=ax.get_xaxis_transform(),
        ha="right",
        va="center",
        color=_GREY,
        fontsize=8,
    )


def _effective_keys_scale(ax: Axes) -> None:
    top = ax.secondary_xaxis("top", functions=(np.exp, lambda keys: np.log(np.maximum(keys, 1e-12))))
    highest = float(np.exp(ax.get_xlim()[1]))
    ticks = [tick for tick in (1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000) if tick <= highest]
    top.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    top.set_xlabel(r"effective keys, $e^H$")
