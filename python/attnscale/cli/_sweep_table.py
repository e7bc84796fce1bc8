# SPDX-License-Identifier: BSD-3-Clause
"""A sweep's Dataset as rows for people, CSV and JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._spelling import as_number
from .._tables.tabled import nats_per
from .._tables.text import to_text

if TYPE_CHECKING:
    import xarray

    from .._tables.tabled import Unit

__all__ = ["flat_rows", "nested_rows", "table_text"]


def nested_rows(table: xarray.Dataset, axes: list[str]) -> list[dict[str, Any]]:
    """One mapping for each case: its parameters, then its results, arrays as nested lists."""
    return [
        {**place, **{name: _plain(array) for name, array in results.items()}}
        for place, results in _cases(table, axes)
    ]


def flat_rows(table: xarray.Dataset, axes: list[str]) -> list[dict[str, Any]]:
    """One mapping for each case, with a column ``name[i,j]`` for every element of an array."""
    rows = []
    for place, results in _cases(table, axes):
        row = dict(place)
        for name, array in results.items():
            for index in np.ndindex(array.shape):
                where = ",".join(map(str, index))
                row[f"{name}[{where}]" if where else name] = _plain(array[index])
        rows.append(row)
    return rows


def table_text(table: xarray.Dataset, axes: list[str], unit: Unit = "nats") -> str:
    """Columns for the parameters and for each result, entropies in `unit`; an array shows its extents."""
    nats, units = nats_per(unit), {str(name): each.attrs.get("units") for name, each in table.items()}
    size = {name: nats if kind == "nat" else 1 for name, kind in units.items()}
    header = [f"{name} ({unit})" if kind == "nat" else name for name, kind in units.items()]
    rows = [
        [
            *(as_number(value) if isinstance(value, float) else str(value) for value in place.values()),
            *(_cell(array / size[name] if size[name] != 1 else array) for name, array in results.items()),
        ]
        for place, results in _cases(table, axes)
    ]
    text = to_text([*axes, *header], rows)
    if all(variable.ndim == len(axes) for variable in table.data_vars.values()):
        return text
    return f"{text}\n\nArrays are shown by their extents; --json and --csv have the numbers."


def _cases(table: xarray.Dataset, axes: list[str]) -> list[tuple[dict[str, Any], dict[str, NDArray[Any]]]]:
    labels = {name: table[name].values for name in axes}
    arrays = {str(name): variable.values for name, variable in table.data_vars.items()}
    return [
        (
            {name: _plain(labels[name][i]) for name, i in zip(axes, index, strict=True)},
            {name: np.asarray(array[index]) for name, array in arrays.items()},
        )
        for index in np.ndindex(*(len(values) for values in labels.values()))
    ]


def _plain(array: Any) -> Any:
    """Numbers and text as JSON knows them, anything else as text."""
    if np.asarray(array).dtype.kind in "cmM":
        array = np.asarray(array).astype(np.str_)
    return np.asarray(array).tolist()


def _cell(array: NDArray[Any]) -> str:
    if array.ndim:
        return " x ".join(map(str, array.shape))
    value = array.item()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
