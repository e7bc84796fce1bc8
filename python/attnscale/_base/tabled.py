# SPDX-License-Identifier: BSD-3-Clause
"""Results that display themselves: as a table, in a notebook, as a data frame, as a dataset."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from .checks import choose

if TYPE_CHECKING:
    import xarray
    from numpy.typing import NDArray

Unit = Literal["nats", "bits"]

#: Effective keys by the unit of the entropy.
EFFECTIVE_KEYS = {"nats": "exp(entropy)", "bits": "2^entropy"}

MOST_ROWS = 20  # of a printed table


class Labelled(NamedTuple):
    """An array of a result with the names of its axes."""

    dims: tuple[str, ...]
    values: Any
    unit: str = ""  # "nat" for entropies, which unit= converts
    attrs: Mapping[str, Any] = MappingProxyType({})  # attributes of a Dataset's variable besides its units


class Sheet(NamedTuple):
    """The printed form of a result: a title, a table, and sentences below it."""

    title: str
    header: tuple[str, ...] = ()
    rows: Iterable[tuple[str, ...]] = ()
    notes: tuple[str, ...] = ()


class Tabled:
    """Table, data frame and dataset of a result from its `_variables`.

    Entropies are stored in nats; ``unit="bits"`` divides the shown ones by ln 2.
    """

    def _variables(self) -> dict[str, Labelled]:
        raise NotImplementedError

    def _dataset(self) -> dict[str, Labelled]:
        """The variables of the Dataset; their names may differ from the table's."""
        return self._variables()

    def _coordinates(self) -> dict[str, Any]:
        """Labels along axes, by axis; other axes are numbered."""
        return {}

    def _attributes(self) -> dict[str, Any]:
        """Attributes of the whole result, of types that a file can hold."""
        return {}

    def _sheet(self, nats: float, unit: str) -> Sheet:
        """The printed form; entropies are divided by `nats` and named `unit`."""
        return Sheet(type(self).__name__, *summary(self._variables(), nats, unit))

    def table(self, *, unit: Unit = "nats") -> str:
        """The result as text, as it prints; entropies in "nats" or "bits"."""
        sheet = self._sheet(nats_per(unit), unit)
        rows, notes = _cut(sheet)
        from .text import Text, to_text  # here, since it brings csv, html and json

        parts = [sheet.title, *([to_text(sheet.header, rows, indent="  ")] if rows else []), *notes]
        return Text("\n".join(parts))

    def __repr__(self) -> str:
        return str(self.table())

    def _repr_html_(self) -> str:
        sheet = self._sheet(1.0, "nats")
        rows, notes = _cut(sheet)
        from .text import to_html

        return to_html(sheet.title, sheet.header, rows, [note.strip() for note in notes])

    def to_xarray(self, *, unit: Unit = "nats") -> xarray.Dataset:
        """All arrays with named axes; entropies in "nats" or "bits", as their attribute says.

        Raises
        ------
        ImportError
            xarray is not installed.
        """
        try:
            import xarray
        except ImportError:
            raise ImportError('to_xarray() needs xarray: pip install "attnscale[sweep]"') from None
        nats = nats_per(unit)
        data = {
            name: (dims, _plain(values) / nats, {"units": unit[:-1], **attrs})
            if kind == "nat"
            else (dims, _plain(values), {**({"units": kind} if kind else {}), **attrs})
            for name, (dims, values, kind, attrs) in self._dataset().items()
        }
        return xarray.Dataset(data, self._coordinates(), self._attributes())

    def to_pandas(self, *, unit: Unit = "nats") -> Any:  # a pandas.DataFrame; pandas brings no types
        """One row for every combination of the axes; entropies in "nats" or "bits".

        Raises
        ------
        ImportError
            pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise ImportError("to_pandas() needs pandas: pip install pandas") from None
        nats, coordinates = nats_per(unit), self._coordinates()
        variables = self._variables()
        extents: dict[str, int] = {}
        for dims, values, *_ in variables.values():
            extents.update(zip(dims, np.shape(values), strict=True))
        axes = list(extents)
        shape = tuple(extents.values())
        columns: dict[str, Any] = {}
        for place, axis in enumerate(axes):
            labels = coordinates.get(axis, np.arange(extents[axis]))
            columns[axis] = _over(_plain(labels), (place,), shape)
        for name, (dims, values, kind, _) in variables.items():
            column = _over(_plain(values), tuple(axes.index(dim) for dim in dims), shape)
            columns[name] = column / nats if kind == "nat" else column
        return pandas.DataFrame(columns)


def nats_per(unit: str) -> float:
    """Number of nats in one unit of entropy: 1 for "nats", ln 2 for "bits"."""
    return math.log(2) if choose("unit", unit, ("nats", "bits")) == "bits" else 1.0


def row_dims(ndim: int, last: tuple[str, ...] = ("head", "query")) -> tuple[str, ...]:
    """Names of the axes (..., heads, n_queries); leading axes are "batch", or "batch_0", "batch_1", ..."""
    batch = ndim - len(last)
    if batch <= 0:
        return last[len(last) - ndim :]
    return (*(["batch"] if batch == 1 else [f"batch_{i}" for i in range(batch)]), *last)


def summary(
    variables: Mapping[str, Labelled], nats: float, unit: str
) -> tuple[tuple[str, ...], list[tuple[str, ...]], tuple[str, ...]]:
    """A row for each array of numbers: its least, mean and largest finite entry; and notes on others."""
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    for name, (_, given, kind, _) in variables.items():
        values = _plain(given)
        title = f"{name} ({unit})" if kind == "nat" else name
        numbers = values.astype(np.float64) / (nats if kind == "nat" else 1.0)
        finite = numbers[np.isfinite(numbers)]
        if values.dtype.kind == "b":
            notes.append(f"  {name}: {int(values.sum())} of {values.size}")
            continue
        if finite.size < values.size:
            notes.append(f"  {name}: {values.size - finite.size} of {values.size} are not finite")
        shown = [finite.min(), finite.mean(), finite.max()] if finite.size else [math.nan] * 3
        cells = ["-" if math.isnan(each) else f"{each:.6g}" for each in shown]
        rows.append((title, cells[0], "-" if name == "argmax" else cells[1], cells[2]))
    return ("", "least", "mean", "largest"), rows, tuple(notes)


def _cut(sheet: Sheet) -> tuple[list[tuple[str, ...]], list[str]]:
    """The shown rows and the lines below them."""
    rows, notes = list(sheet.rows), list(sheet.notes)
    hidden = len(rows) - MOST_ROWS
    return rows[:MOST_ROWS], [f"  ... {hidden} more", *notes] if hidden > 0 else notes


def _plain(values: Any) -> NDArray[Any]:
    array = np.asarray(values)
    # pandas and xarray do not know the types of ml_dtypes.
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def _over(values: NDArray[Any], places: tuple[int, ...], shape: tuple[int, ...]) -> NDArray[Any]:
    """Values along some axes of a grid, repeated for each point of the grid."""
    order = np.argsort(places)
    sizes = [1] * len(shape)
    for place, extent in zip(places, values.shape, strict=True):
        sizes[place] = extent
    return np.broadcast_to(values.transpose(order).reshape(sizes), shape).ravel()
