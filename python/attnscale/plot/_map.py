# SPDX-License-Identifier: BSD-3-Clause
"""The weights of every key for every query, as a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.checks import number, shown
from ._inputs import check_axes, numbers
from ._names import label_axes
from ._style import figure_size, style, wanted_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_HEADS = 24
_MOST_LABELS = 64  # on one axis; with more tokens, every second, third, ... has a label
_COLOUR_BAR = "weight of the key in its row (blank: 0)"
_CELL = 0.155  # inches of a token with a name


def attention_map(
    weights: ArrayLike,
    tokens: Sequence[str] | None = None,
    *,
    key_tokens: Sequence[str] | None = None,
    names: Sequence[str] | None = None,
    high: float | None = None,
    ax: Axes | None = None,
) -> Any:
    """Attention weights as a picture: one row a query, one column a key, the darker the larger the weight.

    Colours go by the square root of the weight, so that a twentieth of a row is visible beside half of
    another; the bar has the numbers.

    Parameters
    ----------
    weights : array_like, shape (n_queries, n_keys) or (n_heads, n_queries, n_keys)
        Weights from :func:`attnscale.attention_weights`, of one head or of up to 24, which become a grid. A
        weight of exactly 0 is blank, as for keys hidden from a causal query.
    tokens : sequence of str, optional
        The text of the queries, and of the keys if they are as many. Up to 64 tokens are all named, more of
        them only every second, third, ...
    key_tokens : sequence of str, optional
        The text of the keys, if it is another one.
    names : sequence of str, optional
        Titles of the heads; "head 0", "head 1", ... by default. One head has none.
    high : float, optional
        The weight of the darkest colour. By default the one that 98 of 100 rows do not exceed, over all shown
        heads, so that the first causal rows, with few keys, do not decide for the others.
    ax : matplotlib Axes, optional
        Axes for one head; a new figure's by default. Several heads get their own figure.

    Returns
    -------
    matplotlib Axes
        For weights with heads, an array of axes, one a head.

    Raises
    ------
    ValueError
        If shapes do not fit, or there are more heads than a page holds.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.random.default_rng(0).standard_normal((2, 4, 16))
    >>> ax = at.plot.attention_map(at.attention_weights(q, k, is_causal=True), "who looks at whom".split())
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['who', 'looks', 'at', 'whom']
    """
    maps = _read(weights)
    rows, columns = _tokens(tokens, key_tokens, maps.shape[-2:])
    if high is not None and number("high", high) <= 0:
        raise ValueError(f"high must be greater than 0, got {high}")
    top = _darkest(maps) if high is None else float(high)
    if maps.ndim == 2:
        with style():
            if ax is not None:
                check_axes(ax)
            ax = _panels(1, 1, maps.shape, rows, columns, 2.6)[0, 0] if ax is None else ax
            _label(ax, rows, columns, maps.shape)
            _colour_bar(_draw(ax, maps, top), [ax], maps)
        return ax
    if ax is not None:
        raise ValueError(f"ax is for one head, weights of shape (n_queries, n_keys); got {maps.shape}")
    heads = [f"head {head}" for head in range(len(maps))]
    titles = heads if names is None else _names("names", names, len(maps), "heads")
    return _grid(maps, rows, columns, titles, top)


def _read(weights: ArrayLike) -> NDArray[np.float64]:
    maps = numbers("weights", weights)
    if maps.ndim not in (2, 3) or 0 in maps.shape:
        raise ValueError(
            "weights must have the shape (n_queries, n_keys) or (n_heads, n_queries, n_keys), no axis empty, "
            f"got {maps.shape}"
        )
    if maps.ndim == 3 and len(maps) > _MOST_HEADS:
        raise ValueError(
            f"weights must be of at most {_MOST_HEADS} heads, got {len(maps)}; weights[:{_MOST_HEADS}]"
        )
    return maps


def _tokens(
    tokens: Any, key_tokens: Any, shape: tuple[int, ...]
) -> tuple[list[str] | None, list[str] | None]:
    """Names of the queries and of the keys."""
    n_queries, n_keys = shape
    rows = None if tokens is None else _names("tokens", tokens, n_queries, "queries")
    if key_tokens is not None:
        return rows, _names("key_tokens", key_tokens, n_keys, "keys")
    return rows, rows if n_keys == n_queries else None


def _names(argument: str, given: Any, count: int, what: str) -> list[str]:
    if isinstance(given, str):
        raise TypeError(f"{argument} must be a sequence of strings, one a token, got {shown(given)}")
    listed = [str(each) for each in given]
    if len(listed) != count:
        raise ValueError(f"{argument} must be as many as the {what}, {count}, got {len(listed)}")
    return listed


def _colours() -> Any:
    """Blues from a light one, so that a small weight differs from a blank."""
    import matplotlib as mpl
    from matplotlib.colors import ListedColormap

    return ListedColormap(mpl.colormaps["Blues"](np.linspace(0.1, 1, 256))).with_extremes(bad="white")


def _darkest(maps: NDArray[np.float64]) -> float:
    largest = np.nan_to_num(maps.max(axis=-1))
    return float(np.quantile(largest, 0.98)) or float(largest.max()) or 1.0


def _draw(ax: Axes, weights: NDArray[np.float64], high: float) -> Any:
    from matplotlib.colors import PowerNorm

    image = ax.imshow(
        np.ma.masked_where(weights == 0, weights),
        cmap=_colours(),
        norm=PowerNorm(0.5, 0, high, clip=True),
        interpolation="none" if max(weights.shape) <= 256 else "antialiased",  # newer: "auto"
    )
    ax.grid(visible=False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(True)
    ax.spines[:].set_color("#C9C9C9")
    return image


def _colour_bar(image: Any, panels: Any, maps: NDArray[np.float64]) -> None:
    from matplotlib.ticker import MaxNLocator

    beyond = "max" if np.nanmax(maps) > 1.02 * image.norm.vmax else "neither"
    figure = panels[0].figure
    # Few ticks: they are dense at the top, since colours go by the square root.
    bar = figure.colorbar(image, ax=panels, shrink=0.8, aspect=30, extend=beyond, ticks=MaxNLocator(4))
    label_axes(bar.ax, y=_COLOUR_BAR)


def _label(ax: Axes, rows: list[str] | None, columns: list[str] | None, shape: tuple[int, ...]) -> None:
    from matplotlib.ticker import MaxNLocator

    size = 8 if max(shape) <= 32 else 6.5
    if rows is not None:
        _name_ticks(ax.yaxis, rows, size)
    if columns is not None:
        _name_ticks(ax.xaxis, columns, size)
        ax.tick_params(axis="x", rotation=90)
    for axis, names in ((ax.yaxis, rows), (ax.xaxis, columns)):
        if names is None:  # whole numbers count queries and keys
            axis.set_major_locator(MaxNLocator("auto", integer=True))
    ax.set_ylabel("query")
    ax.set_xlabel("key")


def _name_ticks(axis: Any, names: list[str], size: float) -> None:
    box = axis.axes.get_window_extent()
    extent = (box.width if axis.axis_name == "x" else box.height) * 72 / axis.axes.figure.dpi
    # Labels and the bar take a fifth of the axes in the layout.
    few = math.ceil(1.1 * size * len(names) / (0.8 * extent))
    places = range(0, len(names), max(math.ceil(len(names) / _MOST_LABELS), few))
    # "$" is a dollar in a text; line breaks would spread a name over its neighbours.
    axis.set_ticks(places, [repr(names[i])[1:-1] if "\n" in names[i] else names[i] for i in places])
    for label in axis.get_ticklabels():
        label.set(parse_math=False, fontsize=size)


def _panels(
    down: int, across: int, shape: tuple[int, ...], rows: Any, columns: Any, least: float
) -> NDArray[Any]:
    """A figure of `down` times `across` panels, with enough room for names of tokens."""
    import matplotlib.pyplot as plt

    n_queries, n_keys = (min(extent, _MOST_LABELS) for extent in shape)
    height = max(least, _CELL * n_queries) if rows is not None else least
    width = max(least, _CELL * n_keys) if columns is not None else least
    beside, below = (0.08 * max(map(len, names or [""])) for names in (rows, columns))
    size = across * (width + 0.15) + beside + 1.6, down * (height + 0.35) + below + 0.6
    if (wanted := wanted_width()) is not None:  # cells become smaller, letters do not
        size = wanted, size[1] * min(wanted / size[0], 1.0)
    panels: NDArray[Any] = plt.subplots(
        down, across, figsize=figure_size(*size), sharex=True, sharey=True, squeeze=False, layout="compressed"
    )[1]
    return panels


def _grid(
    maps: NDArray[np.float64],
    rows: list[str] | None,
    columns: list[str] | None,
    titles: list[str],
    high: float,
) -> Any:
    count, shape = len(maps), maps.shape[1:]
    across = min(count, 2 if columns is not None and shape[1] > 24 else 3 if count % 3 == 0 else 4)
    with style():
        panels = _panels(math.ceil(count / across), across, shape, rows, columns, 1.7).ravel()
        for panel, weights, title in zip(panels, maps, titles, strict=False):
            image = _draw(panel, weights, high)
            panel.set_title(title)
            _label(panel, rows, columns, shape)
        for index, panel in enumerate(panels):
            panel.set_visible(index < count)
            left, bottom = index % across == 0, index + across >= count
            panel.tick_params(labelbottom=bottom, labelleft=left)
            panel.set_xlabel("key" if bottom else "")
            panel.set_ylabel("query" if left else "")
        _colour_bar(image, list(panels), maps)
    return panels[:count]
