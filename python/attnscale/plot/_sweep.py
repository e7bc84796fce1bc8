# SPDX-License-Identifier: BSD-3-Clause
"""A figure of any number that a sweep has for each case, as curves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .._checks import shown
from .._grid.table import Table
from .._tables.tabled import Unit
from ._curves import AXIS_LABELS, draw_curves, points_key, quantity_label, read_curves, unit_of
from ._names import key_below, name_lines, subtitle
from ._style import new_axes, style
from ._subtitle import describe
from ._tables import read_table
from ._ticks import length_ticks

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes


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
        ``NAME_standard_error`` for the variable NAME, gives it error bars of one standard error, and
        ``exact`` a curve to ``value``.
    x : str, optional
        A parameter with numbers; the one with the most values by default.
    ax : matplotlib Axes, optional
        A new figure's by default.
    labels : mapping, optional
        What to print for the values of the other parameters.
    unit : {"nats", "bits"}
        Unit of the axis, if the variable is an entropy: its attribute ``units`` is "nat" or "bit".

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    TypeError, ValueError
        ``table`` is no Dataset; there is no such variable, parameter or unit.

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
        # In an experiment n are keys, and points are random; in another function they may be anything.
        experiment = bool(read.experiment)
        ax.set_xlabel(AXIS_LABELS.get(x, x) if experiment else x.replace("_", " "))
        text = (_function(table) if name == "value" else "") or name
        ax.set_ylabel(quantity_label(text, unit_of(read, name, unit)))
        name_lines(ax, lines, grow=own)
        key_below(ax, points_key(curves) if experiment else points_key(curves, "with one standard error"))
    subtitle(ax, _about(table, read))
    return ax


def _about(table: xarray.Dataset, read: Table) -> str:
    """A line on the function and what was the same everywhere; for an experiment, on its parameters."""
    about = describe(read) or str(table.attrs.get("constants", ""))
    return ": ".join(part for part in (_function(table), about) if part)


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
