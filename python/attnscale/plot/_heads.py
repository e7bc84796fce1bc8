# SPDX-License-Identifier: BSD-3-Clause
"""Entropy head by head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from ._style import COLOURS, GREY, LABELS, MARKERS, new_axes, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["entropy_by_head", "head_map"]


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
        ax = new_axes(ax, height=0.7 + 0.17 * n_heads)
        stacked = np.stack([values[order] for values in series.values()])
        ax.hlines(rows, stacked.min(0), stacked.max(0), color="#C9C9C9", linewidth=1.2, zorder=1)
        for index, law in enumerate(series):
            label = {**LABELS, **(labels or {})}.get(law, law)
            marker, size = MARKERS[index % len(MARKERS)]
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


def head_map(
    values: ArrayLike,
    *,
    label: str = "mean entropy (nats)",
    low: float | None = None,
    high: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """One number for each head of each layer, as a map of colours.

    Parameters
    ----------
    values : array_like, shape (n_layers, n_heads)
        NaN leaves a field white: a head that was not measured.
    label : str
        What the colour bar shows.
    low, high : float, optional
        Ends of the colours; the least and the largest value by default.
    ax : matplotlib Axes, optional
        A new figure's by default.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        ``values`` has not two axes.

    Examples
    --------
    >>> ax = head_map([[0.2, 4.5, 5.8], [3.0, 2.2, 5.1]])
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('head', 'layer')
    """
    grid = np.asarray(values, np.float64)
    if grid.ndim != 2:
        raise ValueError(f"values must have shape (n_layers, n_heads), got {grid.shape}")
    n_layers, n_heads = grid.shape
    with style():
        ax = new_axes(ax, height=1.0 + 0.26 * n_layers)
        ax.grid(visible=False)
        image = ax.imshow(grid, cmap="cividis", vmin=low, vmax=high, aspect="auto", interpolation="none")
        ax.set_xticks(range(0, n_heads, max(1, n_heads // 16)))
        ax.set_yticks(range(0, n_layers, max(1, n_layers // 24)))
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
        ax.set_xlabel("head")
        ax.set_ylabel("layer")
        ax.figure.colorbar(image, ax=ax, label=label)
    return ax


def _mark_uniform(ax: Axes, n_keys: int) -> None:
    limit = float(np.log(n_keys))
    ax.axvline(limit, color=GREY, linestyle=(0, (4, 2)), linewidth=1.2)
    ax.set_xlim(right=1.04 * limit)
    ax.text(
        limit,
        0.5,
        rf"$\ln {n_keys}$ ",
        transform=ax.get_xaxis_transform(),
        ha="right",
        va="center",
        color=GREY,
        fontsize=8,
    )


def _effective_keys_scale(ax: Axes) -> None:
    top = ax.secondary_xaxis("top", functions=(np.exp, lambda keys: np.log(np.maximum(keys, 1e-12))))
    highest = float(np.exp(ax.get_xlim()[1]))
    ticks = [tick for tick in (1, 3, 10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000) if tick <= highest]
    top.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    top.set_xlabel(r"effective keys, $e^H$")
