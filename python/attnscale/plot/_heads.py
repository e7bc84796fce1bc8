# SPDX-License-Identifier: BSD-3-Clause
"""Entropy head by head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._checks import boolean, positive_int
from .._tables.tabled import Unit, nats_per
from ._curves import quantity_label
from ._inputs import named_numbers, text_list
from ._looks import looks
from ._names import key_below
from ._style import GREY, MARKERS, law_label, new_axes, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Array = NDArray[np.float64]


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
        The number of keys: ln n_keys (log2 in bits), the entropy of equal weights, is marked.
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
        ``entropy`` is no mapping, or its entries or ``names`` differ in length; another unit.

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
    with style():
        ax = new_axes(ax, height=0.7 + 0.17 * n_heads)
        stacked = np.stack([values[order] for values in series.values()])
        ax.hlines(rows, stacked.min(0), stacked.max(0), color="#C9C9C9", linewidth=1.2, zorder=1)
        _draw_marks(ax, series, stacked, labels)
        ax.set_yticks(rows, [names[head] for head in order])
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        ax.grid(visible=True, axis="x")
        ax.set_xlim(left=min(0.0, float(stacked.min())))
        ax.set_xlabel(quantity_label("entropy", unit))
        if n_keys is not None:
            _mark_uniform(ax, positive_int("n_keys", n_keys), unit, is_causal=boolean("is_causal", is_causal))
        _effective_keys_scale(ax, unit)
        if len(series) > 1:
            handles, texts = ax.get_legend_handles_labels()
            key_below(ax, list(zip(handles, texts, strict=True)), columns=3)
    return ax


def _draw_marks(
    ax: Axes, series: Mapping[str, _Array], stacked: _Array, labels: Mapping[str, str] | None
) -> None:
    """Draw the marks of each entry; later ones are smaller, so that a mark leaves one below it visible."""
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
