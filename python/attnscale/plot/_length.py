# SPDX-License-Identifier: BSD-3-Clause
"""Entropy against the number of keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.checks import boolean, shown
from .._base.tabled import Unit, nats_per
from ._curves import AXIS_LABELS, draw_curves, points_key, quantity_label, read_curves
from ._inputs import increasing, named_numbers, numbers
from ._names import Named, columns_of, key_below, label_axes, length_ticks, name_lines, subtitle
from ._style import GREY, law_label, looks, new_axes, style
from ._tables import describe, is_table, read_table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Array = NDArray[np.float64]

#: n, entropy of equal weights, and the line's name.
_Uniform = tuple[_Array, _Array, str]


def entropy_vs_length(
    entropy: Any,
    lengths: ArrayLike | None = None,
    *,
    ax: Axes | None = None,
    uniform: bool | ArrayLike = True,
    is_causal: bool = False,
    exact: bool = False,
    labels: Mapping[str, str] | None = None,
    unit: Unit = "nats",
) -> Axes:
    """Mean entropy against the number of keys, one line for every law.

    Parameters
    ----------
    entropy : mapping of str to array_like, ExperimentResult or Dataset
        Nats under each law, of shape (n_lengths,), or (n_lengths, n_heads): then the line is the mean over
        the heads and the shade their middle half. Or a result of
        :func:`attnscale.montecarlo.entropy_vs_length`, or a sweep of it: points with error bars of one
        standard error, on the exact curve if there is one.
    lengths : array_like of int
        Numbers of keys, increasing; for a mapping only.
    ax : matplotlib Axes, optional
    uniform : bool or array_like, default True
        Draw the entropy of equal weights, the upper bound for every law: ln n, for causal rows the mean of
        ln 1 ... ln n, or these nats, one for each length.
    is_causal : bool, default False
        Query i of n sees the keys 0 ... i, and the entropies are means over the queries.
    exact : bool, default False
        The values of a mapping are exact: lines without marks, which need as many lengths as their shape.
    labels : mapping, optional
        Names to print for the keys of ``entropy``.
    unit : {"nats", "bits"}
        Unit of the axis; ``entropy`` is in nats.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError, ValueError
        If ``entropy`` is something else, lengths are missing, superfluous or not as many as values, a result
        has no axis n, or the unit is another.

    Examples
    --------
    >>> ax = entropy_vs_length({"standard": [3.0, 3.6], "log_n": [3.2, 3.6]}, [128, 256])
    >>> ax.get_ylabel()
    'mean entropy (nats)'
    """
    boolean("is_causal", is_causal)
    nats = nats_per(unit)
    if is_table(entropy):
        if lengths is not None:
            raise TypeError("lengths go with a mapping: a result has its own")
        table = read_table("entropy", entropy, unit="nat")
        curves = read_curves(table, "n", labels=labels, unit=unit)
        n = curves[0].x
    else:
        found = named_numbers("entropy", entropy, "nats at each length, or a result of attnscale.montecarlo")
        values = {name: each / nats for name, each in found.items()}
        if lengths is None:
            raise TypeError("a mapping needs lengths")
        curves, n = [], increasing("lengths", lengths, least=1)
    reference = _uniform(uniform, n, is_causal=is_causal, unit=unit)
    own = ax is None
    with style():
        ax = new_axes(ax)
        lines = _draw_uniform(ax, reference)
        lines += (
            draw_curves(ax, curves)
            if curves
            else _draw_laws(ax, n, values, labels, marks=not exact or n.size == 1)
        )
        length_ticks(ax, n)
        ax.set_ylim(bottom=0)
        along = "tokens, $n$ (query $i$ sees $i + 1$ keys)" if is_causal else AXIS_LABELS["n"]
        label_axes(ax, along, quantity_label("entropy", unit))
        below = name_lines(ax, lines, grow=own)
        shaded = not curves and any(each.ndim == 2 for each in values.values())
        key = points_key(curves) if curves else _shade_key(n.size) if shaded else []
        key_below(ax, [*below, *key], columns=columns_of(below), grow=own)
    if curves:
        subtitle(ax, describe(table))
    return ax


def _uniform(given: bool | ArrayLike, n: _Array, *, is_causal: bool, unit: Unit) -> _Uniform | None:
    size = nats_per(unit)
    if isinstance(given, (bool, np.bool_)):
        if not given:
            return None
        every = np.geomspace(n[0], n[-1], 129) if n.size > 1 else n
        if not is_causal:
            logarithm = r"\log_2" if unit == "bits" else r"\ln"
            return every, np.log(every) / size, rf"uniform, ${logarithm} n$"
        from scipy.special import gammaln

        return every, gammaln(every + 1) / every / size, "uniform, causal"
    nats = numbers("uniform", given, ndim=1)
    if nats.size != n.size:
        raise ValueError(
            f"uniform must have one value for each of the {n.size} lengths, got {shown(nats.tolist())}"
        )
    return n, nats / size, "equal weights"


def _draw_uniform(ax: Axes, reference: _Uniform | None) -> list[Named]:
    if reference is None:
        return []
    n, limit, name = reference
    marker: dict[str, Any] = {"marker": "_", "markersize": 14} if n.size == 1 else {}  # a mark for one length
    ax.plot(n, limit, color=GREY, linestyle=(0, (4, 2)), linewidth=1.2, label=name, **marker)
    return [Named(n, limit, name, GREY)]


def _draw_laws(
    ax: Axes, n: _Array, entropy: Mapping[str, _Array], labels: Mapping[str, str] | None, *, marks: bool
) -> list[Named]:
    """Draw the line of the mean, and the shade of the middle half of the heads."""
    found = []
    for (law, values), look in zip(entropy.items(), looks(list(entropy)), strict=True):
        if values.shape[:1] != n.shape or values.ndim > 2:
            rule = f"entropy must have one row for each of the {n.size} lengths"
            raise ValueError(f"{rule}, got shape {values.shape} of {law}")
        mean = values
        if values.ndim == 2:
            mean = values.mean(axis=1)
            low, high = np.quantile(values, [0.25, 0.75], axis=1)
            if n.size == 1:
                ax.vlines(n, low, high, color=look.colour, alpha=0.4, linewidth=5)
            else:
                ax.fill_between(n, low, high, color=look.colour, alpha=0.10, linewidth=0)
        name = law_label(law, labels)
        marker = "o" if marks else None
        ax.plot(n, mean, color=look.colour, linestyle=look.dashes, marker=marker, label=name)
        found.append(Named(n, mean, name, look.colour))
    return found


def _shade_key(n_lengths: int) -> list[tuple[Any, str]]:
    from matplotlib.patches import Patch

    shade, mean = ("shade", "line") if n_lengths > 1 else ("bar", "point")
    text = f"{shade}: middle half of the heads; {mean}: mean"
    return [(Patch(facecolor=GREY, alpha=0.25, linewidth=0), text)]
