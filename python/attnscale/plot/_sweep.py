# SPDX-License-Identifier: BSD-3-Clause
"""Any number that a sweep has for each case, as curves."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ._style import LABELS, MARKERS, colours, new_axes, style

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
        ``NAME_standard_error`` for the variable NAME, gives it error bars of one standard error.
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
    >>> ax.get_xlabel(), [text.get_text() for text in ax.get_legend().get_texts()]
    ('n', ['power = 1', 'power = 2'])
    """
    names = {**LABELS, **(labels or {})}
    variable = table[_quantity(table, quantity)]
    x = _parameter(table, x)
    others = [str(dim) for dim in variable.dims if dim != x]
    errors = table.get("standard_error" if variable.name == "value" else f"{variable.name}_standard_error")
    with style():
        ax = new_axes(ax)
        for index, chosen in enumerate(itertools.product(*(range(table.sizes[dim]) for dim in others))):
            place = dict(zip(others, chosen, strict=True))
            words = [_word(dim, table[dim].values[i], names) for dim, i in place.items()]
            bars = None if errors is None else errors.isel(place).values
            _draw(ax, table[x].values, variable.isel(place).values, bars, ", ".join(words), index)
        _decorate(ax, table[x].values, x, variable)
        if others:
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
        raise ValueError(f"quantity must be one number for each case, one of: {seen}; got {wanted!r}")
    if not found:
        seen = ", ".join(map(str, table.data_vars))
        raise ValueError(f"a figure needs one number for each case, got only arrays and text: {seen}")
    return found[0] if wanted is None else wanted


def _parameter(table: xarray.Dataset, wanted: str | None) -> str:
    """The parameter along x."""
    found = [str(name) for name in table.dims if name in table.coords and table[name].dtype.kind in "iuf"]
    if wanted is not None and wanted not in found:
        raise ValueError(f"x must be a parameter with numbers, one of: {', '.join(found)}; got {wanted!r}")
    if not found:
        raise ValueError(f"a figure needs a parameter with numbers, got {', '.join(map(str, table.dims))}")
    return max(found, key=lambda name: table.sizes[name]) if wanted is None else wanted


def _word(name: str, label: Any, names: Mapping[str, str]) -> str:
    if isinstance(label, str):
        return names.get(label, label)
    return f"{name} = {label}" if isinstance(label, np.bool_) else f"{name} = {label:g}"


def _draw(
    ax: Axes, x: NDArray[Any], y: NDArray[Any], bars: NDArray[Any] | None, label: str, index: int
) -> None:
    """One curve in the order of x, whatever the order of the grid; gaps where a case has no number."""
    order = np.argsort(x)
    ax.errorbar(
        x[order],
        y[order].astype(np.float64),
        None if bars is None else bars[order],
        color=colours(index + 1)[-1],
        marker=MARKERS[index % len(MARKERS)][0],
        markersize=4.5,
        linewidth=1.4,
        elinewidth=1.1,
        capsize=2.5,
        label=label or None,
    )


def _decorate(ax: Axes, x: NDArray[Any], name: str, variable: xarray.DataArray) -> None:
    if x.min() > 0 and x.max() >= 8 * x.min():
        ax.set_xscale("log")
        ax.set_xticks(x, [f"{each:g}" for each in x])
        ax.set_xticks([], minor=True)
    ax.set_xlabel(name)
    unit = " (nats)" if variable.attrs.get("units") == "nat" else ""
    ax.set_ylabel(str(variable.attrs.get("long_name", variable.name)).replace("_", " ") + unit)
