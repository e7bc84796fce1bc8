# SPDX-License-Identifier: BSD-3-Clause
"""The products of linear attention, head by head in the core, on the caller's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _core

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["GIVEN", "MAPS", "Rows", "add", "empty_sums", "read", "rows_times", "step"]

Sums = tuple["NDArray[np.float64]", "NDArray[np.float64]"]

#: What the core makes of rows before it sums their products, by its own numbers.
MAPS = {"given": 0, "elu": 1, "relu": 2, "exponential": 3}


class Rows(NamedTuple):
    """From rows to features, and from sums to outputs: see cpp/src/linear.hpp."""

    map: str = "given"
    query_shift: NDArray[Any] | None = None  # (..., features)
    key_reference: NDArray[Any] | None = None  # (..., features)
    per_channel: bool = False
    divide: bool = False

    def options(self, index: tuple[int, ...]) -> dict[str, Any]:
        """The core's arguments for one head."""
        shifts = {
            name: np.ascontiguousarray(_at(array, index, 1))
            for name, array in (("query_shift", self.query_shift), ("key_reference", self.key_reference))
            if array is not None
        }
        return {"map": MAPS[self.map], "divide": self.divide, **shifts}


GIVEN = Rows()


def empty_sums(key: NDArray[Any], value: NDArray[Any]) -> Sums:
    """S (..., features, value_dim) and z (..., features) before any key."""
    lead = np.broadcast_shapes(key.shape[:-2], value.shape[:-2])
    return np.zeros((*lead, key.shape[-1], value.shape[-1])), np.zeros((*lead, key.shape[-1]))


def add(key: NDArray[Any], value: NDArray[Any], sums: Sums, how: Rows = GIVEN) -> None:
    """sums += phi(key)^T value and the sum of phi(key)."""
    key, value = rows_contiguous(key), rows_contiguous(value)
    products, total = sums
    for index in np.ndindex(*total.shape[:-1]):
        at = (_at(key, index), _at(value, index))
        _core.linear(None, *at, None, None, products[index], total[index], **how.options(index))


def read(
    query: NDArray[Any], sums: Sums, how: Rows = GIVEN, out: NDArray[Any] | None = None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """phi(query) S, into `out` where it is given, and phi(query) . z."""
    query = rows_contiguous(query)
    products, total = sums
    lead = np.broadcast_shapes(query.shape[:-2], total.shape[:-1])
    rows = np.empty((*lead, query.shape[-2], products.shape[-1]), query.dtype) if out is None else out
    weights = np.empty((*lead, query.shape[-2]), query.dtype)
    for index in np.ndindex(*lead):
        to = (_at(rows, index), weights[index])
        known = (_at(products, index), _at(total, index, 1))
        _core.linear(_at(query, index), None, None, *to, *known, **how.options(index))
    return rows, weights


def step(
    query: NDArray[Any],
    key: NDArray[Any],
    value: NDArray[Any],
    base: Sums | None,
    how: Rows = GIVEN,
    out: NDArray[Any] | None = None,
) -> tuple[NDArray[Any], NDArray[Any], Sums]:
    """What query i reads of the sums `base` and the keys 0 ... i, and the sums over these keys alone."""
    query, key, value = rows_contiguous(query), rows_contiguous(key), rows_contiguous(value)
    own = empty_sums(key, value)
    lead = np.broadcast_shapes(query.shape[:-2], own[1].shape[:-1])
    rows = np.empty((*lead, query.shape[-2], value.shape[-1]), query.dtype) if out is None else out
    weights = np.empty((*lead, query.shape[-2]), query.dtype)
    for index in np.ndindex(*lead):
        # Query heads that share a key head start from the same sums, and leave the same.
        products, total = _at(own[0], index), _at(own[1], index, 1)
        products[...], total[...] = 0, 0
        at = (_at(query, index), _at(key, index), _at(value, index), _at(rows, index))
        options = how.options(index)
        if base is not None:
            options |= {"base_products": _at(base[0], index), "base_total": _at(base[1], index, 1)}
        _core.linear(*at, weights[index], products, total, per_channel=how.per_channel, **options)
    return rows, weights, own


def rows_times(rows: NDArray[Any], matrix: NDArray[np.float64]) -> NDArray[Any]:
    """rows @ matrix without the threads of a BLAS, which would wait for each other."""
    return read(rows, (matrix, np.zeros(len(matrix))))[0]


def rows_contiguous(array: NDArray[Any]) -> NDArray[Any]:
    """As the core reads it: elements of a row beside each other."""
    if (array.shape[-1] < 2 or array.strides[-1] == array.itemsize) and array.flags.aligned:
        return array
    return np.ascontiguousarray(array)


def _at(array: NDArray[Any], index: tuple[int, ...], inner: int = 2) -> NDArray[Any]:
    """The matrix of a leading index; axes of extent 1 and missing ones serve all entries."""
    lead = array.shape[: array.ndim - inner]
    entries = zip(lead, index[len(index) - len(lead) :], strict=True)
    found: NDArray[Any] = array[tuple(0 if n == 1 else i for n, i in entries)]
    return found
