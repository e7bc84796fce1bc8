# SPDX-License-Identifier: BSD-3-Clause
"""Measured results over a grid: axes, and quantities with errors and exact values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import meant, shown
from .._base.tabled import Labelled, Sheet, Tabled

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Column:
    """One quantity over labelled axes.

    Attributes
    ----------
    axes : dict of str to tuple
        Labels along each axis of the arrays, in order.
    value : ndarray
    unit : str
        "nat" or "" (a plain number).
    error : ndarray or None
        One standard error of each value.
    count : ndarray or None
        Number of samples, or models, behind each mean.
    exact : ndarray or None
        The theoretical limit of each value; None without one.
    """

    axes: Mapping[str, tuple[Any, ...]]
    value: NDArray[Any]
    unit: str = ""
    error: NDArray[Any] | None = None
    count: NDArray[Any] | None = None
    exact: NDArray[Any] | None = None

    def at(self, name: str, **labels: Any) -> Column:
        """The part at these labels, without their axes; errors mention `name`."""
        where = places(name, self.axes, labels)
        axes = {axis: each for axis, each in self.axes.items() if axis not in labels}
        arrays = (None if each is None else each[where] for each in (self.error, self.count, self.exact))
        return Column(axes, self.value[where], self.unit, *arrays)


class Table(Tabled):
    """Quantities measured over a grid, the main one first.

    A class of results names its quantities (:meth:`names`) and gives each (:meth:`column`); rows, the printed
    table and figures follow from these.

    Attributes
    ----------
    experiment : str
        The measured function, or empty.
    parameters : dict
        Parameters of the measurement, for JSON.
    counts : str
        Unit of the count: what a value is the mean of.
    """

    experiment: str
    parameters: dict[str, Any]
    counts = "samples"

    def names(self) -> tuple[str, ...]:
        """The names of the quantities, the main one first."""
        raise NotImplementedError

    def column(self, name: str | None = None) -> Column:
        """One quantity; the main one by default."""
        raise NotImplementedError

    def _rows_of(self, names: Mapping[str, str]) -> list[dict[str, Any]]:
        """A dictionary for every point: labels, each quantity with its error, and the count.

        `names` maps each quantity to the name of its error; all have the axes of the first.
        """
        columns = {name: self.column(name) for name in names}
        first = next(iter(columns.values()))
        found = []
        for index, row in points(first.axes):
            for name, column in columns.items():
                row[name] = float(column.value[index])
                if column.error is not None:
                    row[names[name]] = float(column.error[index])
            if first.count is not None:
                row[self.counts] = int(first.count[index])
            found.append(row)
        return found

    def _variables(self) -> dict[str, Labelled]:
        """Each quantity with its standard error, and the count of the main one."""
        found: dict[str, Labelled] = {}
        for name in self.names():
            column = self.column(name)
            dims = tuple(column.axes)
            found[name] = Labelled(dims, column.value, column.unit)
            if column.error is not None:
                found[f"{name}_standard_error"] = Labelled(dims, column.error, column.unit)
        main = self.column()
        if main.count is not None:
            found[self.counts] = Labelled(tuple(main.axes), main.count)
        return found

    def _title(self) -> str:
        """The first line of the printed table."""
        return self.experiment

    def _notes(self) -> list[str]:
        """Sentences below the printed table."""
        return []

    def _sheet(self, nats: float, unit: str) -> Sheet:
        from .._base.text import error_cell, number_cell  # imported only here: it brings csv, html and json

        name, main = self.names()[0], self.column()
        size, named = (nats, unit[:-1]) if main.unit == "nat" else (1.0, main.unit)
        header = (*main.axes, f"{name}{f' ({named})' if named else ''}", "standard error", self.counts)
        rows = [
            (
                *map(str, labels.values()),
                number_cell(main.value[index] / size),
                *([] if main.error is None else [error_cell(main.error[index] / size)]),
                *([] if main.count is None else [str(main.count[index])]),
            )
            for index, labels in points(main.axes)
        ]
        others = ", ".join(self.names()[1:])
        return Sheet(
            self._title(), header, rows, (*([f"  also: {others}"] if others else []), *self._notes())
        )


def places(name: str, axes: Mapping[str, tuple[Any, ...]], labels: Mapping[str, Any]) -> tuple[Any, ...]:
    """Index of the entries of an array over `axes` at these labels; other axes stay whole.

    Raises
    ------
    KeyError
        If a label is not on its axis, or the axis does not exist; the message names the quantity.
    """
    where: list[Any] = []
    for axis, known in axes.items():
        if axis in labels and labels[axis] not in known:
            raise KeyError(f"{axis} must be one of {known}, got {shown(labels[axis])}")
        where.append(known.index(labels[axis]) if axis in labels else slice(None))
    if unknown := labels.keys() - axes.keys():
        given = min(unknown)
        raise KeyError(f"{meant(given, [*axes])}{given!r} is no axis of {name}, which has {', '.join(axes)}")
    return tuple(where)


def points(axes: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Each point of the axes, the last varying fastest: its index, and its label on each axis.

    Examples
    --------
    >>> list(points({"n": (8, 64), "law": ("standard",)}))
    [((0, 0), {'n': 8, 'law': 'standard'}), ((1, 0), {'n': 64, 'law': 'standard'})]
    """
    for index in np.ndindex(*map(len, axes.values())):
        yield index, {name: labels[i] for (name, labels), i in zip(axes.items(), index, strict=True)}
