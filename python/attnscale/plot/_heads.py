# SPDX-License-Identifier: BSD-3-Clause
"""Heads: the entropy of each as a row of marks, and maps of heads by layer."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.checks import boolean, positive_int
from .._base.tabled import Unit, nats_per
from ._curves import quantity_label
from ._inputs import named_numbers, numbers, text_list
from ._names import key_below, label_axes, subtitle
from ._style import GREY, MARKERS, law_label, looks, new_axes, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure
    from matplotlib.image import AxesImage

_Array = NDArray[np.float64]
_LINE, _AROUND = 8.6, 75.0  # points of a head's name, and of the space above and below all names


def entropy_by_head(
    entropy: Mapping[str, ArrayLike],
    names: Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
    n_keys: int | None = None,
    is_causal: bool = False,
    labels: Mapping[str, str] | None = None,
    sort: bool = False,
    unit: Unit = "nats",
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
        Number of keys: ln n_keys (log2 in bits), the entropy of equal weights, is marked.
    is_causal : bool, default False
        Query i of n_keys sees the keys 0 ... i: the mean of ln 1 ... ln n_keys is marked instead.
    labels : mapping, optional
        Names to print for the keys of ``entropy``.
    sort : bool, default False
        Order the heads by the first entry.
    unit : {"nats", "bits"}
        Unit of the axis; ``entropy`` is in nats.

    Returns
    -------
    matplotlib Axes
        Axes with a second scale on top: effective keys, exp(entropy), or 2^entropy in bits.

    Raises
    ------
    TypeError, ValueError
        If ``entropy`` is not a mapping, its entries or ``names`` differ in length, or the unit is another.

    Examples
    --------
    >>> ax = entropy_by_head({"standard": [0.2, 4.5, 5.8]}, n_keys=512)
    >>> ax.get_xlabel()
    'mean entropy (nats)'
    """
    nats = nats_per(unit)
    found = named_numbers("entropy", entropy, "nats of each head")
    series = {law: values / nats for law, values in found.items()}
    n_heads = next(iter(series.values())).size
    for law, values in series.items():
        if values.shape != (n_heads,) or not n_heads:
            raise ValueError(f"entropy must have one value for each head, got {law}: shape {values.shape}")
    names = [*map(str, range(n_heads))] if names is None else text_list("names", names, n_heads, "heads")
    order = np.argsort(next(iter(series.values()))) if sort else np.arange(n_heads)
    rows = np.arange(n_heads)
    own = ax is None
    with style():
        ax = new_axes(ax, height=max(0.7 + 0.17 * n_heads, 2.0))
        stacked = np.stack([values[order] for values in series.values()])
        ax.hlines(rows, stacked.min(0), stacked.max(0), color="#C9C9C9", linewidth=1.2, zorder=1)
        _draw_marks(ax, series, stacked, labels)
        step = max(math.ceil(_LINE * n_heads / (_panel_height(ax) - _AROUND)), 1)
        ax.set_yticks(rows[::step], [names[head] for head in order[::step]])
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        ax.grid(visible=True, axis="x")
        ax.set_xlim(left=min(0.0, float(stacked.min())))
        label_axes(ax, quantity_label("entropy", unit))
        if n_keys is not None:
            _mark_uniform(ax, positive_int("n_keys", n_keys), unit, is_causal=boolean("is_causal", is_causal))
        _effective_keys_scale(ax, unit)
        if len(series) > 1:
            handles, texts = ax.get_legend_handles_labels()
            key_below(ax, list(zip(handles, texts, strict=True)), columns=3, grow=own)
    return ax


def _panel_height(ax: Axes) -> float:
    """Points of the figure's height for these axes and their labels, at least for one name."""
    place = ax.get_subplotspec()
    share = 1.0 if place is None else len(place.rowspan) / place.get_gridspec().nrows
    return max(share * 72 * ax.figure.bbox.height / ax.figure.dpi, _AROUND + _LINE)


def _draw_marks(
    ax: Axes, series: Mapping[str, _Array], stacked: _Array, labels: Mapping[str, str] | None
) -> None:
    """Draw the marks of each entry, ever smaller, so that an earlier mark stays visible."""
    for index, (law, look) in enumerate(zip(series, looks(list(series)), strict=True)):
        marker, size = MARKERS[index % len(MARKERS)]
        ax.scatter(
            stacked[index],
            np.arange(stacked.shape[1]),
            s=size,
            color=look.colour,
            marker=marker,
            label=law_label(law, labels),
            zorder=2 + index,
            clip_on=False,
        )


def _mark_uniform(ax: Axes, n_keys: int, unit: Unit, *, is_causal: bool) -> None:
    """Mark the entropy of equal weights: of a row, or the mean over causal rows."""
    logarithm = r"\log_2" if unit == "bits" else r"\ln"
    text, limit = rf"${logarithm} {n_keys}$ ", float(np.log(n_keys))
    if is_causal:
        text, limit = "uniform ", float(np.log(np.arange(1, n_keys + 1)).mean())
    limit /= nats_per(unit)
    ax.axvline(limit, color=GREY, linestyle=(0, (4, 2)), linewidth=1.2)
    ax.set_xlim(right=max(1.04 * limit, ax.get_xlim()[1]))
    ax.text(
        limit,
        0.5,
        text,
        transform=ax.get_xaxis_transform(),
        ha="right",
        va="center",
        color=GREY,
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        zorder=1.5,
    )


def _effective_keys_scale(ax: Axes, unit: Unit) -> None:
    nats = nats_per(unit)
    both = (lambda entropy: np.exp(entropy * nats), lambda keys: np.log(np.maximum(keys, 1e-12)) / nats)
    top = ax.secondary_xaxis("top", functions=both)
    highest = float(np.exp(ax.get_xlim()[1] * nats))
    ticks = [tick for tick in (1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000) if tick <= highest]
    top.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    top.set_xlabel(f"effective keys, ${'2' if unit == 'bits' else 'e'}^H$")


def head_map(
    values: ArrayLike,
    *,
    label: str | None = None,
    low: float | None = None,
    high: float | None = None,
    n_keys: int | None = None,
    modules: Sequence[str] | None = None,
    ax: Axes | None = None,
    unit: Unit = "nats",
) -> Axes:
    """One number for each head of each layer, as a colour map.

    Parameters
    ----------
    values : array_like, shape (n_layers, n_heads)
        NaN leaves a cell white: a head that was not measured.
    label : str, optional
        Label of the colour bar; by default the mean entropy in its unit.
    low, high : float, optional
        Ends of the colours. By default from 0, or the least value if negative, to ln ``n_keys``, or to the
        largest value.
    n_keys : int, optional
        Largest number of visible keys, whose logarithm bounds the entropies.
    modules : sequence of str, optional
        Names of the layers' modules. If they differ in one number ("layers.0.attn", "layers.1.attn"), the
        title has "layers.*.attn" and the layers have these numbers; else they have the names.
    ax : matplotlib Axes, optional
        A new figure's by default.
    unit : {"nats", "bits"}
        Unit of the colour bar; ``values``, ``low`` and ``high`` are in nats. Leave it out for values with
        their own ``label``.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError, ValueError
        If ``values`` are not numbers with two axes, or the unit is another.

    Examples
    --------
    >>> ax = head_map([[0.2, 4.5, 5.8], [3.0, 2.2, 5.1]], n_keys=512)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('head', 'layer')
    """
    grid = numbers("values", values)
    if grid.ndim != 2 or not grid.size:
        raise ValueError(f"values must have shape (n_layers, n_heads), got {grid.shape}")
    n_layers, n_heads = grid.shape
    known = grid[np.isfinite(grid)]
    least = min(0.0, known.min(initial=0.0)) if low is None else low
    most = high
    if most is None:
        most = float(np.log(positive_int("n_keys", n_keys))) if n_keys else known.max(initial=least)
    nats = nats_per(unit)
    with style():
        side = min(0.26, 3.8 / n_heads, 4.5 / n_layers)  # inches
        ax = new_axes(ax, height=max(0.8 + side * n_layers, 2.3), width=max(1.5 + side * n_heads, 2.4))
        pattern, names = layer_names(modules, n_layers)
        image = draw_map(ax, grid / nats, least / nats, most / nats, names)
        subtitle(ax, pattern)
        _colour_bar(ax.figure, image, [ax], quantity_label("entropy", unit) if label is None else label)
    return ax


def draw_head_maps(
    figure: Figure | SubFigure,
    values: Mapping[str, NDArray[np.float64]],
    titles: Sequence[str],
    *,
    most: float,
    modules: Sequence[str],
    unit: Unit,
) -> None:
    """Draw maps of entropies in nats with one colour bar: a row for each entry, a column for each title.

    The arrays have the shape (titles, layers, heads); colours go from 0 to `most`. If there are several rows,
    the name of each stands above the title of its first map, where it may be longer than the map.
    """
    nats, (pattern, names) = nats_per(unit), layer_names(modules, len(modules))
    axes = figure.subplots(len(values), len(titles), squeeze=False, sharex=True, sharey=True)
    for row, (name, maps) in zip(axes, values.items(), strict=True):
        above = [f"{name}\n" if len(values) > 1 else "", *[""] * (len(titles) - 1)]
        for ax, title, first_line, each in zip(row, titles, above, maps, strict=True):
            image = draw_map(ax, each / nats, 0.0, most / nats, names)
            ax.set_title(first_line + title, fontsize=8, loc="left")
            ax.label_outer()
    figure.suptitle(pattern, fontsize=8, x=0.01, ha="left")
    _colour_bar(figure, image, list(axes.flat), quantity_label("entropy", unit))


def draw_map(
    ax: Axes, grid: NDArray[np.float64], least: float, most: float, names: Sequence[str]
) -> AxesImage:
    """A map of layers with these names."""
    n_layers, n_heads = grid.shape
    ax.grid(visible=False)
    image = ax.imshow(grid, cmap="cividis", vmin=least, vmax=most, aspect="equal", interpolation="none")
    every = range(0, n_layers, max(1, n_layers // 8))
    ax.set_xticks(range(0, n_heads, max(1, n_heads // 8)))
    ax.set_yticks(every, [names[layer] for layer in every])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel("head")
    ax.set_ylabel("layer")
    return image


def layer_names(modules: Sequence[str] | None, n_layers: int) -> tuple[str, list[str]]:
    """The common part of all layer names, or an empty text, and the name of each layer."""
    numbers = [*map(str, range(n_layers))]
    if modules is None:
        return "", numbers
    names = text_list("modules", modules, n_layers, "layers")
    parts = [re.split(r"(\d+)", name) for name in names]
    if len({len(each) for each in parts}) == 1:
        varies = [place for place, each in enumerate(zip(*parts, strict=True)) if len(set(each)) > 1]
        if len(varies) == 1 and varies[0] % 2:  # odd positions hold the numbers
            (place,) = varies
            pattern = "".join([*parts[0][:place], "*", *parts[0][place + 1 :]])
            return f"layers: {pattern}", [each[place] for each in parts]
    return "", names


def _colour_bar(figure: Any, image: AxesImage, axes: list[Axes], label: str) -> None:
    bar = figure.colorbar(image, ax=axes)
    label_axes(bar.ax, y=label)
    bar.formatter.set_useOffset(False)
