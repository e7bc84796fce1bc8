# SPDX-License-Identifier: BSD-3-Clause
"""Sums over rows that do not depend on how the work was divided, and estimates from them."""

from __future__ import annotations

from dataclasses import dataclass
from dataclasses import fields as dataclass_fields

import numpy as np
from numpy.typing import NDArray

from .._core import tally_add, tally_covariance, tally_mean, tally_standard_error
from .._grid.fields import Field, Fields

_Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Tally:
    """Mean and covariance of rows of numbers, to which more rows can be added.

    The sums run strictly from the first row to the last, so equal rows give equal bits for every division of
    the work. They sum differences from the first row, which keeps digits where the spread is small against
    the mean. The core computes; it reads these fields by name.
    """

    rows: int  # number of added rows
    origin: _Array  # shape (..., m). The first row
    #: shape (..., m) and (..., m, m). Sums of the difference from the origin, and of its outer product with
    #: itself.
    sums: _Array
    products: _Array

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> Tally:
        """A tally without rows; a row has this shape."""
        zero = np.zeros(shape)
        return cls(0, zero, zero, np.zeros((*shape, shape[-1])))

    def add(self, rows: _Array) -> Tally:
        """The tally with more rows, of shape (count, ..., m)."""
        return Tally(*tally_add(self, rows))

    @classmethod
    def of(cls, fields: Fields) -> Tally:
        """The tally from :meth:`to_fields`."""
        rows, *arrays = (fields[each.name].values for each in dataclass_fields(cls))
        return cls(int(rows), *arrays)

    def to_fields(self) -> Fields:
        """The tally's arrays by name, for a store."""
        return {each.name: Field(np.asarray(getattr(self, each.name))) for each in dataclass_fields(self)}

    @property
    def mean(self) -> _Array:
        """Mean row; NaN without rows."""
        return tally_mean(self)

    @property
    def covariance(self) -> _Array:
        """Unbiased covariance of the columns, shape (..., m, m); NaN with fewer than 2 rows."""
        return tally_covariance(self)

    @property
    def standard_error(self) -> _Array:
        """Standard error of the mean, sqrt(variance / rows); NaN with fewer than 2 rows."""
        return tally_standard_error(self)
