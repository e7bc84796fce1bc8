# SPDX-License-Identifier: BSD-3-Clause
"""Figures of experiments and sweeps: points with error bars, on exact curves where they are known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._base.checks import shown
from .._base.tabled import Unit, nats_per
from ..montecarlo._experiment import DECLARATIONS
from ._curves import (
    AXIS_LABELS,
    draw_curves,
    points_key,
    quantity_label,
    read_curves,
    unchanging,
    unit_of,
    x_values,
)
from ._length import entropy_vs_length
from ._names import Named, columns_of, key_below, label_axes, length_ticks, log_ticks, name_lines, subtitle
from ._style import GREY, new_axes, style
from ._tables import describe, read_table

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes


_MANY = 20  # times the least value: then a linear axis would hide it


def experiment(
    result: Any,
    *,
    quantity: str | None = None,
    ax: Axes | None = None,
    labels: Mapping[str, str] | None = None,
    unit: Unit = "nats",
) -> Axes:
    """A figure of the result of any experiment.

    Parameters
    ----------
    result : ExperimentResult
        A result with at least one axis of numbers (a parameter given as a sequence).
    quantity : str, optional
        One of ``result.estimates``; the main one by default.
    ax : matplotlib Axes, optional
        A new figure's by default.
    labels : mapping, optional
        Labels to print for names of laws and other values.
    unit : {"nats", "bits"}
        Unit of the axis, if the quantity is an entropy.

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    If the result has no axis of numbers, or the unit is another.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.max_cosine([64, 512, 4096], 16, samples=100, rng=0)
    >>> at.plot.experiment(result).get_ylabel()
    'largest cosine'
    """
    table = read_table("result", result)
    nats_per(unit)
    name, axes = table.experiment, table.column().axes
    own: dict[str, Any] = {"entropy_vs_length": entropy_vs_length, "softmax_saturation": saturation}
    own |= {"needle_dilution": needle, "jl_distortion": jl_distortion}
    along = DECLARATIONS[name].along if name in DECLARATIONS else ("n", "head_dim", "k")
    x = x_values(axes, along)
    if x is None:
        seen = ", ".join(map(str, axes)) or "none"
        raise ValueError(
            f"a figure needs a parameter that was given as a sequence of numbers, got axes: {seen}"
        )
    if name in own and x == along[0] and quantity in (None, table.names()[0]):
        in_unit = {"unit": unit} if name in ("entropy_vs_length", "needle_dilution") else {}
        drawn: Axes = own[name](result, ax=ax, labels=labels, **in_unit)
        return drawn
    return _curves(result, x, quantity, ax, labels, unit=unit)


def saturation(
    result: Any,
    *,
    quantity: str | None = None,
    ax: Axes | None = None,
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """Saturation of the softmax against head_dim, scaled and not.

    Parameters
    ----------
    result : ExperimentResult or Dataset
        A result of :func:`attnscale.montecarlo.softmax_saturation` with several head_dim.
    quantity, ax, labels
        As for :func:`experiment`.

    Returns
    -------
    matplotlib Axes

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.softmax_saturation(head_dim=[4, 64, 1024], samples=100, rng=0)
    >>> at.plot.saturation(result).get_xlabel()
    'head dimension, $d$'
    """
    return _curves(result, "head_dim", quantity, ax, labels, low=0.0)


def needle(
    result: Any,
    *,
    quantity: str | None = None,
    ax: Axes | None = None,
    labels: Mapping[str, str] | None = None,
    unit: Unit = "nats",
) -> Axes:
    """Weight of one key against the number of keys.

    Parameters
    ----------
    result : ExperimentResult or Dataset
        A result of :func:`attnscale.montecarlo.needle_dilution` with several n.
    quantity, ax, labels, unit
        As for :func:`experiment`.

    Returns
    -------
    matplotlib Axes
        The y axis is logarithmic if every value is positive and the largest more than 20 times the least.
        Otherwise it ends at 1, or at the largest value if that is below 1/2.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.needle_dilution([64, 512], cosine=0.6, samples=100, rng=0)
    >>> at.plot.needle(result).get_ylabel()
    'weight of the needle'
    """
    return _curves(result, "n", quantity, ax, labels, low=0.0, high=1.0, unit=unit, spread=True)


def jl_distortion(result: Any, *, ax: Axes | None = None, labels: Mapping[str, str] | None = None) -> Axes:
    """Largest change of a squared distance against k, below the bound of Dasgupta and Gupta.

    Parameters
    ----------
    result : ExperimentResult or Dataset
        A result of :func:`attnscale.montecarlo.jl_distortion` with several k.
    ax, labels
        As for :func:`experiment`.

    Returns
    -------
    matplotlib Axes
        Both scales are logarithmic. The dashed line is the eps for which :func:`attnscale.theory.jl_min_dim`
        gives each k; it ends at eps = 1.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.jl_distortion(n=50, dim=300, k=[32, 128], samples=3, rng=0)
    >>> at.plot.jl_distortion(result).get_yscale()
    'log'
    """
    table = read_table("result", result)
    k = np.sort(read_curves(table, "k", "distortion")[0].x)
    n = table.parameters.get("n")
    return _curves(
        result, "k", "distortion", ax, labels, log=True, more=_bound(n, k) if isinstance(n, int) else None
    )


def _bound(n: int, k: NDArray[np.float64]) -> Named | None:
    """The eps for which the lemma gives each k, from the least k to the largest."""
    from .. import theory

    eps = np.geomspace(0.02, 0.999, 400)
    dimensions = np.asarray(theory.jl_min_dim(n, eps=eps), np.float64)
    inside = (dimensions >= k[0]) & (dimensions <= k[-1])
    return (
        Named(dimensions[inside], eps[inside], "bound of the lemma for all pairs", GREY)
        if inside.any()
        else None
    )


def _curves(
    result: Any,
    x: str,
    quantity: str | None,
    ax: Axes | None,
    labels: Mapping[str, str] | None,
    *,
    low: float | None = None,
    high: float | None = None,
    log: bool = False,
    spread: bool = False,
    more: Named | None = None,
    unit: Unit = "nats",
) -> Axes:
    """Draw curves against `x`; y from at most `low` to at least `high`, or logarithmic; `more` is dashed.

    With `spread`, the y axis fits values that are small or differ by large factors.
    """
    own, table = ax is None, read_table("result", result)
    quantity = quantity or table.names()[0]
    curves = read_curves(table, x, quantity, labels, unit=unit)
    with style():
        ax = new_axes(ax)
        lines, key = draw_curves(ax, curves), points_key(curves)
        if more is not None:
            (dashed,) = ax.plot(more.x, more.y, color=GREY, linestyle=(0, (4, 2)), linewidth=1.2)
            key.append((dashed, more.name))
        if curves[0].x[0] > 0:
            length_ticks(ax, curves[0].x)
        else:  # heads, numbered from 0
            ax.locator_params(axis="x", integer=True)
        if spread:
            values = np.concatenate([curve.value for curve in curves])
            log = bool(values.min() > 0 and values.max() > _MANY * values.min())
            low, high = None if log else low, high if values.max() > 0.5 else None
        if log:
            ax.set_yscale("log")
        if ax.get_yscale() == "log":
            log_ticks(ax.yaxis)
        bottom, top = ax.get_ylim()
        ax.set_ylim(bottom if low is None else min(low, bottom), top if high is None else max(high, top))
        label_axes(ax, AXIS_LABELS.get(x, x), quantity_label(quantity, unit_of(table, quantity, unit)))
        below = name_lines(ax, lines, grow=own)
        key_below(ax, [*below, *key], columns=columns_of(below), grow=own)
    subtitle(ax, describe(table, unchanging(table, x, quantity)))
    return ax


def sweep(
    table: xarray.Dataset,
    *,
    quantity: str | None = None,
    x: str | None = None,
    ax: Axes | None = None,
    labels: Mapping[str, str] | None = None,
    unit: Unit = "nats",
) -> Axes:
    """One number of each case against one parameter, a curve for every combination of the others.

    Parameters
    ----------
    table : xarray.Dataset
        A result of :func:`attnscale.sweep`.
    quantity : str, optional
        A variable with one number for each case; the first such by default. ``standard_error``, or
        ``NAME_standard_error`` for the variable NAME, gives error bars, and ``exact`` a curve for ``value``.
    x : str, optional
        A parameter with numbers; the one with the most values by default.
    ax : matplotlib Axes, optional
        A new figure's by default.
    labels : mapping, optional
        Labels to print for values of the other parameters.
    unit : {"nats", "bits"}
        Unit of the axis, if the variable is an entropy: its attribute ``units`` is "nat" or "bit".

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError, ValueError
        If ``table`` is not a Dataset, or there is no such variable, parameter or unit.

    Examples
    --------
    >>> import attnscale as at
    >>> table = at.sweep(lambda n, power: n**power, {"n": [1, 2, 4], "power": [1, 2]})
    >>> ax = sweep(table)
    >>> ax.get_ylabel(), [text.get_text() for text in ax.texts]
    ('value', ['power 1', 'power 2'])
    """
    if not hasattr(table, "data_vars"):
        raise TypeError(f"table must be a Dataset of xarray, as attnscale.sweep returns, got {shown(table)}")
    chosen, x, read = _quantity(table, quantity), _parameter(table, x), read_table("table", table)
    name = read.names()[0] if chosen == "value" else chosen
    curves = read_curves(read, x, name, labels, unit=unit)
    along, own = curves[0].x, ax is None
    with style():
        ax = new_axes(ax)
        lines = draw_curves(ax, curves)
        if along.min() > 0 and along.max() >= 8 * along.min():
            length_ticks(ax, along)
        # In an experiment n counts keys, and points are random; in another function they may be anything.
        experiment = bool(read.experiment)
        text = (_function(table) if name == "value" else "") or name
        named = AXIS_LABELS.get(x, x) if experiment else x.replace("_", " ")
        label_axes(ax, named, quantity_label(text, unit_of(read, name, unit)))
        below = name_lines(ax, lines, grow=own)
        key = points_key(curves) if experiment else points_key(curves, "with one standard error")
        key_below(ax, [*below, *key], columns=columns_of(below), grow=own)
    # The function and its constants; for an experiment, its parameters.
    about = _function(table), describe(read) or str(table.attrs.get("constants", ""))
    subtitle(ax, ": ".join(filter(None, about)))
    return ax


def _function(table: xarray.Dataset) -> str:
    """Name of the function; empty if it has none."""
    name = re.split(r"[:.]", str(table.attrs.get("function", "")))[-1]
    return "" if name.startswith("<") else name


def _quantity(table: xarray.Dataset, wanted: str | None) -> str:
    """The variable to draw: it has a number for each case and no axis besides the grid's."""
    found = [
        str(name)
        for name, variable in table.data_vars.items()
        if variable.dtype.kind in "biuf" and set(variable.dims) <= set(table.coords)
    ]
    seen = ", ".join(found) or "none"
    if wanted is not None and wanted not in found:
        raise ValueError(f"quantity must be one number for each case, one of: {seen}; got {shown(wanted)}")
    if not found:
        seen = ", ".join(map(str, table.data_vars))
        raise ValueError(f"a figure needs one number for each case, got only arrays and text: {seen}")
    return found[0] if wanted is None else wanted


def _parameter(table: xarray.Dataset, wanted: str | None) -> str:
    """The parameter along x."""
    found = [str(name) for name in table.dims if name in table.coords and table[name].dtype.kind in "iuf"]
    if wanted is not None and wanted not in found:
        raise ValueError(
            f"x must be a parameter with numbers, one of: {', '.join(found)}; got {shown(wanted)}"
        )
    if not found:
        raise ValueError(f"a figure needs a parameter with numbers, got {', '.join(map(str, table.dims))}")
    return max(found, key=lambda name: table.sizes[name]) if wanted is None else wanted
