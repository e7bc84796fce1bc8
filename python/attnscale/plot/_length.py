# SPDX-License-Identifier: BSD-3-Clause
"""Entropy against the number of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._curves import Curve, draw_curves, is_result, read_curves
from ._style import GREY, LABELS, colours, new_axes, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["entropy_vs_length", "label_lines"]

#: Values along a line, its name and its colour.
_Line: TypeAlias = "tuple[NDArray[np.float64], str, str]"


def entropy_vs_length(
    entropy: Any,
    lengths: Sequence[int] | None = None,
    *,
    ax: Axes | None = None,
    uniform: bool | ArrayLike = True,
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """Mean entropy against the number of keys, one line for every law.

    Parameters
    ----------
    entropy : mapping of str to array_like, ExperimentResult or Dataset
        Nats under each law, of shape (n_lengths,), or (n_lengths, n_heads): then the line is the
        mean over the heads and the shade spans the middle half of them. Or a result of
        :func:`attnscale.montecarlo.entropy_vs_length`, or a sweep of it: points with error bars of
        one standard error, on the exact curve where there is one.
    lengths : sequence of int
        Numbers of keys, increasing; for a mapping only.
    ax : matplotlib Axes, optional
    uniform : bool or array_like, shape (n_lengths,), default True
        Draw ln n, the entropy of equal weights, which no law can exceed. Where queries do not see all n
        keys that is another number: give it (of causal rows the mean of ln(i + 1)).
    labels : mapping, optional
        Names to print for the keys of ``entropy``.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError, ValueError
        Lengths are missing, too many, or not as many as values; a result has no axis n.

    Examples
    --------
    >>> ax = entropy_vs_length({"standard": [3.0, 3.6], "log_n": [3.2, 3.6]}, [128, 256])
    >>> ax.get_ylabel()
    'mean entropy (nats)'
    """
    if is_result(entropy) and lengths is not None:
        raise TypeError("lengths go with a mapping: a result has its own")
    if not is_result(entropy) and lengths is None:
        raise TypeError("a mapping needs lengths")
    curves = read_curves(entropy, "n", labels=labels)[1] if is_result(entropy) else None
    n = np.asarray(lengths, np.float64) if curves is None else curves[0].x
    with style():
        ax = new_axes(ax)
        ends: list[_Line] = []
        if uniform is not False:
            limit = np.log(n) if uniform is True else np.asarray(uniform, np.float64)
            ax.plot(n, limit, color=GREY, linestyle=(0, (4, 2)), linewidth=1.2)
            ends.append((limit, r"uniform, $\ln n$" if uniform is True else "equal weights", GREY))
        ends += _draw_laws(ax, n, entropy, labels) if curves is None else _draw_points(ax, curves)
        ax.set_xscale("log", base=2)
        ax.set_xticks(n, [f"{int(length)}" for length in n])
        ax.set_xticks([], minor=True)
        ax.set_ylim(bottom=0)
        ax.set_xlabel("keys per query, $n$")
        ax.set_ylabel("mean entropy (nats)")
        label_lines(ax, n, ends)
    return ax


def _draw_laws(
    ax: Axes, n: NDArray[np.float64], entropy: Mapping[str, ArrayLike], labels: Mapping[str, str] | None
) -> list[_Line]:
    names = {**LABELS, **(labels or {})}
    found = []
    for (law, values), colour in zip(entropy.items(), colours(len(entropy)), strict=True):
        found.append((_draw_law(ax, n, np.asarray(values, np.float64), colour), names.get(law, law), colour))
    return found


def _draw_points(ax: Axes, curves: Sequence[Curve]) -> list[_Line]:
    drawn = draw_curves(ax, curves)
    return [(curve.value, curve.label, colour) for curve, colour in zip(curves, drawn, strict=True)]


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


def label_lines(ax: Axes, n: NDArray[np.float64], lines: Sequence[_Line]) -> None:
    """Name every line at the side where the lines are further apart, moved until names do not touch."""
    right = _least_gap([mean[-1] for mean, _, _ in lines]) >= _least_gap([mean[0] for mean, _, _ in lines])
    end = -1 if right else 0
    low, high = ax.get_ylim()
    ordered = sorted(lines, key=lambda line: float(line[0][end]))
    places = _apart([float(mean[end]) for mean, _, _ in ordered], 0.075 * (high - low), high)
    for (_, name, colour), place in zip(ordered, places, strict=True):
        ax.annotate(
            name,
            (n[end], place),
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


def _apart(values: Sequence[float], gap: float, most: float) -> NDArray[np.float64]:
    """The numbers nearest to increasing `values` that are `gap` or more apart, moved down to `most`."""
    from scipy.optimize import isotonic_regression

    steps = gap * np.arange(len(values))
    places = isotonic_regression(np.asarray(values) - steps).x + steps
    limits: NDArray[np.float64] = np.minimum(places, most - steps[::-1])
    return limits


def _least_gap(values: Sequence[float]) -> float:
    return float(np.diff(np.sort(values)).min()) if len(values) > 1 else np.inf
