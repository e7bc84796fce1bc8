# SPDX-License-Identifier: BSD-3-Clause
"""Multiples of the standard scale against the number of keys, from laws and calibrations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import laws as laws_module
from .._base.checks import positive_int, shown
from ._curves import AXIS_LABELS
from ._exact import dense
from ._inputs import increasing, named_numbers, numbers
from ._names import Named, columns_of, key_below, label_axes, length_ticks, log_ticks, name_lines, subtitle
from ._style import GREY, law_label, looks, new_axes, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from ..laws import Law

_Array = NDArray[np.float64]
_MOST_LINES = 7  # laws of a panel
BETA = r"$\beta$, multiple of $1/\sqrt{d}$"


def law_comparison(
    laws: str | float | Law | Sequence[str | float | Law],
    lengths: ArrayLike,
    *,
    head_dim: int = 64,
    others: Mapping[str, ArrayLike | Callable[[_Array], ArrayLike]] | None = None,
    ax: Axes | None = None,
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """Beta, the multiple of the standard scale, of several laws against n.

    Parameters
    ----------
    laws : str, float or Law, or sequence of them
        Beta is that of the last of n causal queries, at enough n to show its shape: steps stand where they
        are.
    lengths : array_like
        Numbers of keys, increasing, at least 1: the ends of the axis and its ticks.
    head_dim : int, default 64
    others : mapping of str to array_like or callable, optional
        More curves, dashed: betas at the lengths, or a function from an array of n to betas, such as
        :func:`attnscale.theory.invariant_beta`.
    ax : matplotlib Axes, optional
        A new figure's by default.
    labels : mapping, optional
        Labels to print for names of laws.

    Returns
    -------
    matplotlib Axes
        Axes in the style of :func:`multiplier_vs_length`.

    Raises
    ------
    TypeError, ValueError
        If there is no such law, its n is not a number of keys, or lengths are not increasing.

    Examples
    --------
    >>> ax = law_comparison(["standard", "log_n"], [64, 512, 4096])
    >>> [line.get_label() for line in ax.get_lines()]
    ['standard, $1/\\\\sqrt{d}$', '$\\\\log_{512} n\\\\,/\\\\sqrt{d}$']
    """
    n = increasing("lengths", lengths, least=1)
    chosen = law_sequence(laws)
    positive_int("head_dim", head_dim)
    every = np.array([n[0]])
    curves: dict[str, _Array] = {}
    if chosen:
        every, betas = dense(
            lambda at: np.stack([multiple_at(law, at, head_dim) for law in chosen], -1), n[0], n[-1]
        )
        curves = {law.spelling: beta for law, beta in zip(chosen, betas.T, strict=True)}
    own = ax is None
    with style():
        ax = new_axes(ax)
        lines = _draw(ax, every, curves, labels)
        lines += _draw_others(ax, n, others or {}, labels)
        _finish(ax, n, lines, grow=own)
    subtitle(ax, rf"Last of $n$ causal queries, $d={head_dim}$")
    return ax


def multiplier_vs_length(
    multipliers: Mapping[str, ArrayLike],
    lengths: ArrayLike,
    *,
    ax: Axes | None = None,
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """Multiple of the standard scale against the number of keys, one line for every law.

    Laws with equal values share a line with all of their names.

    Parameters
    ----------
    multipliers : mapping of str to array_like, shape (n_lengths,)
        Multiples of 1/sqrt(head_dim) under each law; NaN where a law has none.
    lengths : array_like of int
        Numbers of keys, increasing. Values between them are not evaluated: :func:`law_comparison` chooses as
        many as a law's shape needs.
    ax : matplotlib Axes, optional
    labels : mapping, optional
        Labels to print for names of laws.

    Returns
    -------
    matplotlib Axes
        The y axis is logarithmic if every value is positive and the largest more than five times the
        least, and starts at 0 otherwise.

    Raises
    ------
    TypeError, ValueError
        If a law does not have one value for each length.

    Examples
    --------
    >>> ax = multiplier_vs_length({"standard": [1.0, 1.0], "log_n": [1.0, 1.33]}, [512, 4096])
    >>> ax.get_ylabel()
    '$\\\\beta$, multiple of $1/\\\\sqrt{d}$'
    """
    n = increasing("lengths", lengths, least=1)
    curves = named_numbers("multipliers", multipliers, "multiples of 1/sqrt(head_dim)")
    for law, values in curves.items():
        if values.shape != n.shape:
            raise ValueError(
                f"multipliers must have one value for each of the {n.size} lengths, got {law}: {values.shape}"
            )
    own = ax is None
    with style():
        ax = new_axes(ax)
        _finish(ax, n, _draw(ax, n, curves, labels), grow=own)
    return ax


def law_panels(
    curves: Mapping[str, _Array], n: NDArray[np.int64], head_dim: int, figure: Figure | None
) -> Axes:
    """Draw multiples of many laws, the largest first, in as many panels as keep the lines apart."""
    if figure is None:
        import matplotlib.pyplot as plt

        figure = plt.figure()
    known = {name: values for name, values in curves.items() if np.isfinite(values).any()}
    alike: dict[bytes, list[str]] = {}  # equal laws share a line
    for name in sorted(known, key=lambda name: -float(known[name][np.isfinite(known[name])][-1])):
        alike.setdefault(np.round(known[name], 9).tobytes(), []).append(name)
    lines = list(alike.values())
    parts = -(-len(lines) // _MOST_LINES)
    across = min(parts, 3)
    down = -(-parts // across)
    figure.set_size_inches((6.4, 4.4) if parts == 1 else (3.6 * across, 4.2 * down))
    grid = figure.subplots(down, across, squeeze=False)
    for axes, part in zip(grid.flat, np.array_split(np.arange(len(lines)), parts), strict=False):
        names = [name for line in part for name in lines[line]]
        multiplier_vs_length({name: known[name] for name in names}, n, ax=axes)
    for axes in grid.flat[parts:]:
        axes.set_visible(False)
    first: Axes = grid[0, 0]
    first.set_title(f"Multiple of $1/\\sqrt{{d}}$, $d = {head_dim}$")
    return first


def law_sequence(given: Any) -> list[Law]:
    """One law or several, as Law."""
    one = isinstance(given, (str, float, int, laws_module.Law)) or not isinstance(given, Iterable)
    return [laws_module.get(law) for law in ([given] if one else given)]


def multiple_at(law: Law, n: _Array, head_dim: int) -> _Array:
    """Multiplier of the last of n causal queries."""
    values = np.asarray(law.multiplier_at(n, head_dim))
    if values.ndim > 1:
        raise ValueError(f"laws must give one scale for each n, got {shown(law)} with one for each head")
    return values


def _draw(ax: Axes, n: _Array, curves: Mapping[str, _Array], labels: Mapping[str, str] | None) -> list[Named]:
    """Draw one line for each group of equal laws."""
    groups: list[list[str]] = []
    for name, values in curves.items():
        for group in groups:
            if np.allclose(curves[group[0]], values, rtol=1e-9, equal_nan=True):
                group.append(name)
                break
        else:
            groups.append([name])
    lines = []
    for group, look in zip(groups, looks([group[0] for group in groups]), strict=True):
        text = " =\n".join(law_label(name, labels) for name in group)
        ax.plot(n, curves[group[0]], color=look.colour, linestyle=look.dashes, linewidth=1.5, label=text)
        lines.append(Named(n, curves[group[0]], text, look.colour))
    return lines


def _draw_others(
    ax: Axes, n: _Array, others: Mapping[str, Any], labels: Mapping[str, str] | None
) -> list[Named]:
    """Draw grey dashes: values at n, or a function of n on as many points as its shape needs."""
    lines = []
    for index, (name, curve) in enumerate(others.items()):
        what = f"others[{name!r}]"
        x, y = dense(curve, n[0], n[-1]) if callable(curve) else (n, curve)
        y = numbers(what, y, ndim=1)
        if y.shape != x.shape:
            raise ValueError(f"{what} must have {x.size} values, one for each n, got {y.size}")
        text = law_label(name, labels)
        dashes: Any = (0, (4, 2, *[1.2, 2] * index))
        ax.plot(x, y, color=GREY, linestyle=dashes, linewidth=1.4, label=text)
        lines.append(Named(x, y, text, GREY))
    return lines


def _finish(ax: Axes, ticks: _Array, lines: Sequence[Named], *, grow: bool) -> None:
    """Set scales and labels of the axes, and the names of the lines."""
    length_ticks(ax, ticks)
    values = np.concatenate([np.ravel(np.asarray(line.y, np.float64)) for line in lines] or [np.ones(1)])
    values = values[np.isfinite(values)]
    if values.size and values.min() > 0 and values.max() > 5 * values.min():
        ax.set_yscale("log")
        log_ticks(ax.yaxis)
    elif values.size and values.min() >= 0:
        ax.set_ylim(bottom=0)
    label_axes(ax, AXIS_LABELS["n"], BETA)
    below = name_lines(ax, lines, grow=grow)
    key_below(ax, below, columns=columns_of(below), grow=grow)


def calibrated_beta(found: Any, *, laws: int = 3, ax: Axes | None = None) -> Axes:
    """Beta that keeps each head's entropy against n, with its median and the best laws.

    The axis shows the middle four fifths of the heads: if a head attends to one key, its beta is arbitrary.

    Parameters
    ----------
    found : Calibration
        A result of :func:`attnscale.calibrate`.
    laws : int, default 3
        Number of laws to draw, by entropy error; each is the median of its fits to the heads, computed at the
        lengths. Laws that are equal up to their amplitude share a line.
    ax : matplotlib Axes, optional

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.random.default_rng(0).standard_normal((2, 2, 64, 16))
    >>> ax = calibrated_beta(at.calibrate(q, k, n0=32, laws=["standard", "log_n"]))
    >>> ax.get_xlabel()
    'keys per query, $n$'
    """
    if not hasattr(found, "law_beta"):
        raise TypeError(f"found must be a Calibration, as attnscale.calibrate returns, got {shown(found)}")
    own, n = ax is None, found.lengths.astype(np.float64)
    heads = np.asarray(found.beta).reshape(-1, n.size)
    groups = found.groups[: positive_int("laws", laws)]
    spelled = [law.spelling for law in found.laws]
    with style():
        ax = new_axes(ax)
        ax.plot(n, heads.T, color=GREY, linewidth=0.6, alpha=0.45)
        lines = [Named(n, _median(heads), "measured, median", "#000000")]
        ax.plot(n, lines[0].y, color="black", marker="o", linewidth=1.8, label=lines[0].name)
        each = zip(groups, looks([spelled[group[0]] for group in groups]), strict=True)
        for index, (group, look) in enumerate(each):
            values = _median(np.asarray(found.law_beta)[group[0]].reshape(-1, n.size))
            width = max(3.0 - index, 1.2)  # a law on top of another leaves it visible on both sides
            name = " =\n".join(spelled[i] for i in group)
            drawn = {
                "color": look.colour,
                "linestyle": look.dashes,
                "marker": look.marker,
                "linewidth": width,
            }
            ax.plot(n, values, label=name, **drawn)
            lines.append(Named(n, values, name, look.colour))
        known = heads[:, np.isfinite(heads).any(0)]
        middle = np.nanquantile(known, [0.1, 0.9], axis=0).ravel() if known.size else [1.0]
        shown_values = np.concatenate([*(np.ravel(line.y) for line in lines), middle])
        low, high = 0.95 * np.nanmin(shown_values), 1.05 * np.nanmax(shown_values)
        ax.set_ylim(low, high)
        length_ticks(ax, n)
        label_axes(ax, AXIS_LABELS["n"], rf"$\beta$ that keeps the entropy of $n = {found.n0}$")
        below = name_lines(ax, lines)
        with np.errstate(invalid="ignore"):
            outside = int(((heads < low) | (heads > high)).any(1).sum())
        key_below(ax, [*below, *_key(len(heads), outside)], columns=2, grow=own)
    subtitle(ax, "Each law times a constant of the head, median of the heads")
    return ax


def _median(heads: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median over the heads with a number; NaN if there is none."""
    known = np.isfinite(heads).any(0)
    found = np.full(heads.shape[1], np.nan)
    found[known] = np.nanmedian(heads[:, known], axis=0)
    return found


def _key(n_heads: int, outside: int) -> list[tuple[Any, str]]:
    from matplotlib.lines import Line2D

    text = f"{n_heads} heads, measured"
    if outside:
        text += f" ({outside} of them {'leaves' if outside == 1 else 'leave'} the frame)"
    return [(Line2D([], [], color=GREY, linewidth=0.8), text)]
