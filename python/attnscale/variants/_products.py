# SPDX-License-Identifier: BSD-3-Clause
"""The products of linear attention, head by head in the core, on the caller's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["add", "empty_sums", "read", "rows_times", "step"]

Sums = tuple["NDArray[np.float64]", "NDArray[np.float64]"]


def empty_sums(key: NDArray[Any], value: NDArray[Any]) -> Sums:
    """S (..., features, value_dim) and z (..., features) before any key."""
    lead = np.broadcast_shapes(key.shape[:-2], value.shape[:-2])
    return np.zeros((*lead, key.shape[-1], value.shape[-1])), np.zeros((*lead, key.shape[-1]))


def add(key: NDArray[Any], value: NDArray[Any], sums: Sums) -> None:
    """sums += key^T value and the sum of the keys."""
    key, value = rows_contiguous(key), rows_contiguous(value)
    products, total = sums
    for index in np.ndindex(*total.shape[:-1]):
        at = (_at(key, index), _at(value, index))
        _core.linear(None, *at, None, None, products[index], total[index])


def read(query: NDArray[Any], sums: Sums) -> tuple[NDArray[Any], NDArray[Any]]:
    """query S and query . z."""
    query = rows_contiguous(query)
    products, total = sums
    lead = np.broadcast_shapes(query.shape[:-2], total.shape[:-1])
    rows = np.empty((*lead, query.shape[-2], products.shape[-1]), query.dtype)
    weights = np.empty(rows.shape[:-1], query.dtype)
    for index in np.ndindex(*lead):
        to = (rows[index], weights[index])
        _core.linear(_at(query, index), None, None, *to, _at(products, index), _at(total, index, 1))
    return rows, weights


def step(
    query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], sums: Sums
) -> tuple[NDArray[Any], NDArray[Any], Sums]:
    """What query i reads of the sums and the keys 0 ... i, and the sums with all keys."""
    query, key, value = rows_contiguous(query), rows_contiguous(key), rows_contiguous(value)
    lead = np.broadcast_shapes(query.shape[:-2], sums[1].shape[:-1])
    rows = np.empty((*lead, query.shape[-2], value.shape[-1]), query.dtype)
    weights = np.empty(rows.shape[:-1], query.dtype)
    after = sums[0].copy(), sums[1].copy()
    for index in np.ndindex(*lead):
        # Query heads that share a key head start from the same sums, and leave the same.
        products, total = _at(after[0], index), _at(after[1], index, 1)
        products[...], total[...] = _at(sums[0], index), _at(sums[1], index, 1)
        at = (_at(query, index), _at(key, index), _at(value, index))
        _core.linear(*at, rows[index], weights[index], products, total)
    return rows, weights, after


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
