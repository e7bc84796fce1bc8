# SPDX-License-Identifier: BSD-3-Clause
"""A sweep's Dataset as rows for people, CSV and JSON."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .._spelling import as_number
from .._tables.tabled import nats_per
from .._tables.text import error_cell, number_cell, to_text

if TYPE_CHECKING:
    import xarray

    from .._tables.tabled import Unit


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
    """The columns that vary, entropies in `unit`; what is the same in all rows stands once above them.

    An array shows its extents.
    """
    nats, units = nats_per(unit), {str(name): each.attrs.get("units") for name, each in table.items()}
    size = {name: nats if kind == "nat" else 1 for name, kind in units.items()}
    header = [*axes, *(f"{name} ({unit})" if kind == "nat" else name for name, kind in units.items())]
    cases = _cases(table, axes)
    rows = [
        [
            *(as_number(value) if isinstance(value, float) else str(value) for value in place.values()),
            *(
                _cell(name, array / size[name] if size[name] != 1 else array)
                for name, array in results.items()
            ),
        ]
        for place, results in cases
    ]
    columns = zip(*([*place.values(), *results.values()] for place, results in cases), strict=True)
    vary = [len(cases) == 1 or not all(_same(each, column[0]) for each in column) for column in columns]
    text = to_text([*compress(header, vary)], [[*compress(row, vary)] for row in rows])
    if not all(vary):
        same = [
            f"{name} {cell}" for name, cell, varies in zip(header, rows[0], vary, strict=True) if not varies
        ]
        text = f"In all rows: {', '.join(same)}\n\n{text}"
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


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal, or both NaN."""
    a, b = np.asarray(one), np.asarray(other)
    return a.shape == b.shape and bool(np.all((a == b) | ((a != a) & (b != b))))


def _cell(name: str, array: NDArray[Any]) -> str:
    if array.ndim:
        return " x ".join(map(str, array.shape))
    value = array.item()
    if not isinstance(value, float):
        return str(value)
    return error_cell(value, ".6g") if name.endswith("standard_error") else number_cell(value)
