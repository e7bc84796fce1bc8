# SPDX-License-Identifier: BSD-3-Clause
"""Any number that a sweep has for each case, as curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .._checks import shown
from ._curves import AXIS_LABELS, draw_curves, quantity_label, read_curves
from ._style import new_axes, style

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes

__all__ = ["sweep"]


def sweep(
    table: xarray.Dataset,
    *,
    quantity: str | None = None,
    x: str | None = None,
    ax: Axes | None = None,
    labels: Mapping[str, str] | None = None,
) -> Axes:
    """One number of each case against one parameter, a curve for every combination of the others.

    Parameters
    ----------
    table : xarray.Dataset
        Of :func:`attnscale.sweep`.
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

    Returns
    -------
    matplotlib Axes

    Raises
    ------
    ValueError
        There is no such variable or parameter.

    Examples
    --------
    >>> import attnscale as at
    >>> table = at.sweep(lambda n, power: n**power, {"n": [1, 2, 4], "power": [1, 2]})
    >>> ax = sweep(table)
    >>> ax.get_ylabel(), [text.get_text() for text in ax.get_legend().get_texts()]
    ('value', ['power 1', 'power 2'])
    """
    chosen = _quantity(table, quantity)
    x = _parameter(table, x)
    name, curves = read_curves(table, x, None if chosen == "value" else chosen, labels)
    along = curves[0].x
    with style():
        ax = new_axes(ax)
        draw_curves(ax, curves)
        if along.min() > 0 and along.max() >= 8 * along.min():
            ax.set_xscale("log")
            ax.set_xticks(along, [f"{each:g}" for each in along])
            ax.set_xticks([], minor=True)
        ax.set_xlabel(AXIS_LABELS.get(x, x))
        unit = " (nats)" if table[chosen].attrs.get("units") == "nat" else ""
        text = quantity_label(name)
        ax.set_ylabel(text if text.endswith(unit) else text + unit)
        if len(curves) > 1:
            ax.legend()
    return ax


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
