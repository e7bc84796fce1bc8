# SPDX-License-Identifier: BSD-3-Clause
"""Sums over rows that do not depend on how the rows came in pieces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Tally"]

_Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Tally:
    """Mean and covariance of rows of numbers, of which ever more are added.

    The sums run strictly from the first row to the last, so that the same rows give the same bits
    whatever the pieces were. They are of the distance to the first row: no digits are lost where
    the spread is small against the mean.

    Attributes
    ----------
    rows : int
        How many were added.
    origin : ndarray of float64, shape (..., m)
        The first row.
    sums, products : ndarrays of shape (..., m) and (..., m, m)
        Of the distance to the origin, and of its outer product with itself.
    """

    rows: int
    origin: _Array
    sums: _Array
    products: _Array

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> Tally:
        """No rows yet; one row has this shape."""
        zero = np.zeros(shape)
        return cls(0, zero, zero, np.zeros((*shape, shape[-1])))

    def add(self, rows: _Array) -> Tally:
        """With more rows, of shape (count, ..., m)."""
        if not len(rows):
            return self
        origin = self.origin if self.rows else rows[0].copy()
        distance = rows - origin
        products = distance[..., :, None] * distance[..., None, :]
        return Tally(
            self.rows + len(rows), origin, _fold(self.sums, distance), _fold(self.products, products)
        )

    @property
    def mean(self) -> _Array:
        """Mean row; NaN without rows."""
        if not self.rows:
            return np.full(self.sums.shape, np.nan)
        return self.origin + self.sums / self.rows

    @property
    def covariance(self) -> _Array:
        """Unbiased covariance of the columns, shape (..., m, m); NaN with fewer than 2 rows."""
        if self.rows < 2:
            return np.full(self.products.shape, np.nan)
        outer = self.sums[..., :, None] * self.sums[..., None, :] / self.rows
        return (self.products - outer) / (self.rows - 1)

    @property
    def standard_error(self) -> _Array:
        """Of the mean: sqrt(variance / rows); NaN with fewer than 2 rows."""
        variance = np.diagonal(self.covariance, axis1=-2, axis2=-1)
        # Rounding may leave a variance of 0 a little below it.
        return np.sqrt(np.maximum(variance, 0) / max(self.rows, 1))


def _fold(total: _Array, terms: _Array) -> _Array:
    """((total + terms[0]) + terms[1]) + ...; np.sum would take another order for each length."""
    first = terms[0] + total
    terms[0] = first
    return np.asarray(np.add.accumulate(terms, axis=0)[-1])
