# SPDX-License-Identifier: BSD-3-Clause
"""distance_scale= and distance_bias=: tables over the distance between query and key.

A table of n_queries + n_keys - 1 numbers, read with the strides -1 and 1, is a matrix over (query, key):
a distance costs O(n) memory, and the core sees an ordinary matrix.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._base.checks import as_array
from .arrays import Extents, Unread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._core import Intervals
    from ..laws import Law


class ScoreForm(NamedTuple):
    """softcap(distance_scale * product) + distance_bias; tables broadcast to (..., n_queries, n_keys)."""

    softcap: float = 0.0  # c: c * tanh(score / c); 0.0: none
    distance_scale: NDArray[Any] | None = None  # in the type of the arithmetic
    distance_bias: NDArray[Any] | None = None


#: Scores that are plain scaled products, as in most calls.
PRODUCTS = ScoreForm()


def read_tables(
    tables: tuple[Any, Any], law: Law | None, extents: Extents, intervals: Intervals, head_dim: int
) -> tuple[Any, Any]:
    """Factor of query . key and offset of the score, from distance_scale, distance_bias and the law.

    Views (..., heads, n_queries, n_keys) in the type of the arithmetic, or None; tables that are not read
    give :class:`Unread`.
    """
    distances, reach = intervals.distances(), intervals.reach()
    factor = _read("distance_scale", tables[0], distances, reach, extents)
    offset = _read("distance_bias", tables[1], distances, reach, extents)
    if law is not None and law.meaning.is_distance:
        if type(factor) is not Unread:
            of_law = law_factor(law, distances, head_dim)
            factor = of_law if factor is None else factor * of_law
        if hasattr(law, "bias") and type(offset) is not Unread:
            added = law.bias(np.abs(distances))
            offset = added if offset is None else offset + added
    found = matrix_of(factor, extents), matrix_of(offset, extents)
    if law is not None and law.meaning.measures_the_row and any(each is not None for each in found):
        raise ValueError(
            f"scale={law.name!r} measures the row without distance_scale and distance_bias; pass the scale "
            "as an array, measured with them"
        )
    return found


def law_factor(law: Law, distances: NDArray[np.int64], head_dim: int) -> NDArray[np.float64]:
    """Factor of the standard scale under a law of the distance, at each distance."""
    return np.asarray(law.scale(np.abs(distances), head_dim)) * math.sqrt(head_dim)


def _read(name: str, table: Any, distances: NDArray[np.int64], reach: int, extents: Extents) -> Any:
    """The table at each distance, in float64; `reach` is the largest distance of a query and a key."""
    if table is None:
        return None
    is_function = callable(table)
    values: Any = table(distances) if is_function else table
    values = values if type(values) is Unread else as_array(name, values)
    if values.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be numbers or a function that returns them, got {values.dtype}")
    if is_function:
        if values.shape[-1:] != distances.shape[-1:]:
            raise ValueError(
                f"{name} must return one number for each of {distances.shape[-1]} distances on its last "
                f"axis, got shape {values.shape}"
            )
    else:
        values = _look_up(name, values, distances, reach)
    _check_leading(name, values.shape[:-1], extents.leading)
    if type(values) is Unread:
        return values
    if not np.isfinite(values).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity; attn_mask and window hide keys")
    return values.astype(np.float64, copy=False)


def _look_up(name: str, table: Any, distances: NDArray[np.int64], reach: int) -> Any:
    """The table at each distance: entry t of its last axis serves the distances t and -t."""
    if table.ndim == 0 or table.shape[-1] <= reach:
        raise ValueError(
            f"{name} must have an entry for each distance 0 ... {reach} on its last axis, "
            f"got shape {table.shape}"
        )
    if type(table) is Unread:
        leading = np.broadcast_shapes(table.shape[:-1], distances.shape[:-1])
        return table.reshape((*leading, distances.shape[-1]))
    if table.shape[-1] == 0:  # then reach is -1: there is no pair of query and key
        return np.zeros((*table.shape[:-1], *distances.shape[-1:]))
    steps = np.minimum(np.abs(distances), max(reach, 0))
    if steps.ndim == 1:
        return table[..., steps]
    # With key lengths each batch entry has its own distances.
    shape = np.broadcast_shapes(table.shape[:-1], steps.shape[:-1])
    table = np.broadcast_to(table, (*shape, table.shape[-1]))
    return np.take_along_axis(table, np.broadcast_to(steps, (*shape, steps.shape[-1])), -1)


def _check_leading(name: str, leading: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    fits = len(leading) <= len(wanted) and all(
        n in (1, m) for n, m in zip(reversed(leading), reversed(wanted), strict=False)
    )
    if not fits:
        raise ValueError(
            f"{name} must broadcast to (..., heads) = {wanted} before its last axis, got {leading}"
        )


def matrix_of(values: Any, extents: Extents) -> Any:
    """values[..., n_queries - 1 - i + j] at (i, j), without a copy of the matrix."""
    _, n_queries, n_keys, *_ = extents
    if values is None or n_queries == 0 or n_keys == 0:
        return None
    if type(values) is Unread:
        return Unread((*values.shape[:-1], n_queries, n_keys), extents.wide)
    values = np.ascontiguousarray(values, extents.wide)
    rows = np.lib.stride_tricks.sliding_window_view(values, n_keys, axis=-1)
    return rows[..., ::-1, :]
