# SPDX-License-Identifier: BSD-3-Clause
"""Result of one case as named arrays with named axes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.checks import shown

#: Names of the grid's axes.
Reserved = frozenset[str]


@dataclass(frozen=True, eq=False)
class Field:
    """One array of a result."""

    values: NDArray[Any]
    dims: tuple[str, ...] | None = None  # names of the axes of `values`; None if the result has none
    #: Unit and other attributes, text and numbers.
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)


#: Arrays by name; the coordinate of an axis has the axis's name.
Fields = dict[str, Field]


def to_fields(result: Any, reserved: Reserved = frozenset()) -> Fields:
    """The arrays of a result.

    A number, string or array is named "value"; mappings, named tuples and dataclasses give their entries
    (None is omitted, nested names are joined by a dot), tuples "value_0", "value_1", ...; an object with
    ``to_xarray()`` gives what that returns.

    Raises
    ------
    TypeError
        If the result is anything else.

    Examples
    --------
    >>> fields = to_fields({"mean": 0.5, "rows": [1, 2, 3]})
    >>> {name: field.values.shape for name, field in fields.items()}
    {'mean': (), 'rows': (3,)}
    """
    fields: Fields = {}
    _collect(result, "", fields, reserved)
    if not fields:
        raise TypeError(f"a result must hold at least one number or array, got {shown(result)}")
    return fields


def _collect(value: Any, name: str, fields: Fields, reserved: Reserved) -> None:
    if hasattr(value, "to_xarray"):
        value = value.to_xarray()
    if type(value).__module__.partition(".")[0] == "xarray":
        _collect_xarray(value, name, fields, reserved)
        return
    entries = _entries(value)
    if entries is None:
        array = _as_array(name, value)
        if name not in reserved:
            _add(fields, name or "value", Field(array))
        elif array.size != 1:
            raise ValueError(f"a result must not have an array named as a parameter, got {shown(name)}")
        return
    for key, entry in entries.items():
        if entry is not None:
            # A tuple's items are numbered; other parts have names.
            joined = f"{name or 'value'}_{key}" if isinstance(key, int) else f"{name}.{key}" if name else key
            _collect(entry, joined, fields, reserved)


def _entries(value: Any) -> dict[Any, Any] | None:
    """The parts of a composite result."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): entry for key, entry in value.items()}
    if isinstance(value, tuple):
        return dict(value._asdict() if hasattr(value, "_asdict") else enumerate(value))
    return None


def _collect_xarray(value: Any, name: str, fields: Fields, reserved: Reserved) -> None:
    if not hasattr(value, "data_vars"):  # a DataArray, not a Dataset
        value = value.to_dataset(name=value.name or name or "value")
        name = ""
    for key, variable in value.variables.items():
        if key in reserved:  # the grid has this coordinate already; its axis of extent 1 is dropped
            continue
        here = variable
        for dim in reserved.intersection(variable.dims):
            if variable.sizes[dim] != 1:
                raise ValueError(
                    f"a result must not have an axis named as a parameter, got {shown(dim)} of extent "
                    f"{variable.sizes[dim]} in {key!r}"
                )
            here = here.isel({dim: 0})
        is_coordinate = key in value.dims
        attrs = {k: v for k, v in variable.attrs.items() if isinstance(v, (str, int, float))}
        label = f"{name}.{key}" if name and not is_coordinate else str(key)
        field = Field(_as_array(label, here.values), tuple(map(str, here.dims)), attrs)
        if not (is_coordinate and label in fields and np.array_equal(fields[label].values, field.values)):
            _add(fields, label, field)


def _as_array(name: str, value: Any) -> NDArray[Any]:
    where = f"a result's {name}" if name else "a result"
    kinds = "a number, string, array, tuple, mapping, dataclass, or have to_xarray()"
    try:
        array = np.asarray(value)
    except ValueError:  # lists of different lengths
        raise TypeError(f"{where} must be {kinds}, got {shown(value)}") from None
    if array.dtype.kind == "O":
        array = _as_text(array, where, kinds)
    return array


def _as_text(array: NDArray[Any], where: str, kinds: str) -> NDArray[Any]:
    """Strings that xarray stores as objects, as an array of text; other objects are refused."""
    if not all(isinstance(entry, str) for entry in array.flat):
        seen = next((entry for entry in array.flat if not isinstance(entry, str)), None)
        raise TypeError(f"{where} must be {kinds}, got {type(seen).__name__}: {shown(seen)}")
    return array.astype(np.str_)


def _add(fields: Fields, name: str, field: Field) -> None:
    if name in fields:
        raise ValueError(f"a result must not have two arrays of the same name, got {shown(name)} twice")
    fields[name] = field
