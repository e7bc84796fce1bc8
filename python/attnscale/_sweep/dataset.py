# SPDX-License-Identifier: BSD-3-Clause
"""The results of all cases as one labelled table of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._grid.case import Axes, Case, labels
from .._grid.fields import Field, Fields

if TYPE_CHECKING:
    import xarray

_Finished = Mapping[Case, Fields]


def assemble(axes: Axes, finished: _Finished, attrs: dict[str, Any]) -> xarray.Dataset | None:
    """Dataset with the axes of the grid first, then those of the results; None without a result.

    Where a case has no value (it failed, or its array is shorter) the entry is NaN, or an empty string for
    text; integers and booleans then become float64.
    """
    import xarray

    if not finished:
        return None
    named = _name_axes(finished)
    extents, coordinates = _inner_axes(named)
    shape = tuple(len(values) for values in axes.values())
    variables = {}
    for name in dict.fromkeys(name for fields in named.values() for name in fields):
        if name in coordinates:
            continue
        holders = {case.index: fields for case, fields in named.items() if name in fields}
        first = next(iter(holders.values()))[name]
        dims = first.dims or ()
        inner = tuple(extents[dim] for dim in dims)
        values = _fill(name, holders, shape, inner, coordinates)
        variables[name] = ((*axes, *dims), values, first.attrs)
    coords = {name: labels(values) for name, values in axes.items()}
    return xarray.Dataset(variables, {**coords, **coordinates}, attrs)


def _name_axes(finished: _Finished) -> dict[Case, Fields]:
    """Give every axis a name.

    Unnamed axes are dim_0, dim_1, ... in all variables, as in xarray; if two variables of one case differ in
    extent there, each has its own axis.
    """
    own = set()
    for fields in finished.values():
        seen: dict[int, int] = {}
        for field in fields.values():
            if field.dims is None:
                for axis, extent in enumerate(field.values.shape):
                    if seen.setdefault(axis, extent) != extent:
                        own.add(axis)
    return {
        case: {name: _named(name, field, own) for name, field in fields.items()}
        for case, fields in finished.items()
    }


def _named(name: str, field: Field, own: set[int]) -> Field:
    if field.dims is not None:
        return field
    dims = tuple(f"{name}_dim_{axis}" if axis in own else f"dim_{axis}" for axis in range(field.values.ndim))
    return Field(field.values, dims, field.attrs)


def _inner_axes(named: Mapping[Case, Fields]) -> tuple[dict[str, int], dict[str, NDArray[Any]]]:
    """Extent of each axis of the results, the largest of all cases, and the coordinates with all values."""
    extents: dict[str, int] = {}
    found: dict[str, list[NDArray[Any]]] = {}
    for fields in named.values():
        for name, field in fields.items():
            dims = field.dims or ()
            for dim, extent in zip(dims, field.values.shape, strict=True):
                extents[dim] = max(extents.get(dim, 0), extent)
            if dims == (name,):
                found.setdefault(name, []).append(field.values)
    coordinates = {}
    for dim, parts in found.items():
        coordinates[dim] = _union(parts)
        extents[dim] = len(coordinates[dim])
    return extents, coordinates


def _union(parts: list[NDArray[Any]]) -> NDArray[Any]:
    """All values of a coordinate: numbers sorted, text in the order of the cases."""
    if all(np.array_equal(part, parts[0]) for part in parts):
        return parts[0]
    values = np.concatenate(parts)
    return np.array(list(dict.fromkeys(values.tolist()))) if values.dtype.kind == "U" else np.unique(values)


def _fill(
    name: str,
    holders: Mapping[tuple[int, ...], Fields],
    shape: tuple[int, ...],
    inner: tuple[int, ...],
    coordinates: Mapping[str, NDArray[Any]],
) -> NDArray[Any]:
    """The array of one variable over all cases that have it."""
    arrays = [fields[name].values for fields in holders.values()]
    complete = len(arrays) == np.prod(shape) and all(array.shape == inner for array in arrays)
    values = _blank(np.result_type(*{array.dtype for array in arrays}), (*shape, *inner), complete=complete)
    for index, fields in holders.items():
        array = fields[name].values
        places = [
            _places(fields[dim].values, coordinates[dim]) if dim in fields else np.arange(extent)
            for dim, extent in zip(fields[name].dims or (), array.shape, strict=True)
        ]
        where: tuple[Any, ...] = (*index, *np.ix_(*places))
        values[where] = array
    return values


def _places(mine: NDArray[Any], every: NDArray[Any]) -> NDArray[np.intp]:
    """Positions of one case's coordinate values among those of all cases."""
    where = {value: place for place, value in enumerate(every.tolist())}
    return np.array([where[value] for value in mine.tolist()], np.intp)


def _blank(dtype: np.dtype[Any], shape: tuple[int, ...], *, complete: bool) -> NDArray[Any]:
    if complete:
        return np.empty(shape, dtype)
    if dtype.kind in "biu":
        dtype = np.dtype(np.float64)
    if dtype.kind in "fc":
        return np.full(shape, np.nan, dtype)
    return np.full(shape, "NaT" if dtype.kind in "mM" else "", dtype)
