# SPDX-License-Identifier: BSD-3-Clause
"""distance_scale= and distance_bias=: tables over the distance between query and key.

A table of n_queries + n_keys - 1 numbers, read with the strides -1 and 1, is a matrix over (query, key).
So a distance costs O(n) memory, and the core sees a matrix like any other.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._checks import as_array
from .arrays import Inputs
from .row_counts import query_positions
from .rows import Visibility

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..laws import Law

__all__ = ["NO_TABLES", "Tables", "law_of_distance", "read_tables"]


class Tables(NamedTuple):
    """Views (..., heads, n_queries, n_keys) in the type of the arithmetic, or None."""

    factor: NDArray[Any] | None  # of query . key
    offset: NDArray[Any] | None  # of the score, after soft-cap


NO_TABLES = Tables(None, None)


def law_of_distance(scale: Any) -> Law | None:
    """The law, if `scale` is one whose n is the distance of query and key."""
    if scale is None or isinstance(scale, (int, float, np.ndarray)):
        return None
    from .. import laws

    law = laws.get(scale) if isinstance(scale, (str, laws.Law)) else None
    return law if law is not None and law.meaning.is_distance else None


def read_tables(
    distance_scale: Any, distance_bias: Any, law: Law | None, inputs: Inputs, visible: Visibility
) -> Tables:
    """Check the tables and multiply (add) those of the law."""
    if distance_scale is None and distance_bias is None and law is None:
        return NO_TABLES
    distances = _distances(inputs, visible)
    factor = None if distance_scale is None else _read("distance_scale", distance_scale, distances, inputs)
    offset = None if distance_bias is None else _read("distance_bias", distance_bias, distances, inputs)
    if law is not None:
        head_dim = max(inputs.query.shape[-1], 1)
        steps = np.abs(distances)
        of_law = np.asarray(law.scale(steps, head_dim)) * math.sqrt(head_dim)
        factor = of_law if factor is None else factor * of_law
        if hasattr(law, "bias"):
            offset = law.bias(steps) if offset is None else offset + law.bias(steps)
    return Tables(_matrix(factor, inputs), _matrix(offset, inputs))


def _distances(inputs: Inputs, visible: Visibility) -> NDArray[np.int64]:
    """Position of the query less that of the key: of query i and key j at n_queries - 1 - i + j.

    Shape (n_distances,), or (..., heads = 1, n_distances) where key lengths move the diagonal.
    """
    n_queries, n_keys = inputs.query.shape[-2], inputs.key.shape[-2]
    last = query_positions(n_queries, n_keys, visible)[..., -1:] if n_queries else np.zeros(1, np.int64)
    distances: NDArray[np.int64] = last - np.arange(max(n_queries + n_keys - 1, 0))
    return distances


def _read(name: str, table: Any, distances: NDArray[np.int64], inputs: Inputs) -> NDArray[Any]:
    """The table at each distance, in float64."""
    is_function = callable(table)
    values = as_array(name, table(distances) if is_function else table)
    if values.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be numbers or a function that returns them, got {values.dtype}")
    if is_function:
        if values.shape[-1:] != distances.shape[-1:]:
            raise ValueError(
                f"{name} must return one number for each of {distances.shape[-1]} distances on its last "
                f"axis, got shape {values.shape}"
            )
    else:
        values = _look_up(name, values, distances)
    _check_leading(name, values, inputs)
    if not np.isfinite(values).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity; attn_mask and window hide keys")
    return values.astype(np.float64, copy=False)


def _look_up(name: str, table: NDArray[Any], distances: NDArray[np.int64]) -> NDArray[Any]:
    """Entry t of the last axis at the distances t and -t."""
    steps = np.abs(distances)
    needed = int(steps.max(initial=-1)) + 1
    if table.ndim == 0 or table.shape[-1] < needed:
        raise ValueError(
            f"{name} must have an entry for each distance 0 ... {needed - 1} on its last axis, "
            f"got shape {table.shape}"
        )
    if steps.ndim == 1:
        return table[..., steps]
    # Key lengths: each batch entry has distances of its own.
    shape = np.broadcast_shapes(table.shape[:-1], steps.shape[:-1])
    table = np.broadcast_to(table, (*shape, table.shape[-1]))
    return np.take_along_axis(table, np.broadcast_to(steps, (*shape, steps.shape[-1])), -1)


def _check_leading(name: str, values: NDArray[Any], inputs: Inputs) -> None:
    leading, wanted = values.shape[:-1], inputs.leading
    fits = len(leading) <= len(wanted) and all(
        n in (1, m) for n, m in zip(reversed(leading), reversed(wanted), strict=False)
    )
    if not fits:
        raise ValueError(
            f"{name} must broadcast to (..., heads) = {wanted} before its last axis, got {leading}"
        )


def _matrix(values: NDArray[Any] | None, inputs: Inputs) -> NDArray[Any] | None:
    """values[..., n_queries - 1 - i + j] at (i, j), without a copy of the matrix."""
    n_queries, n_keys = inputs.query.shape[-2], inputs.key.shape[-2]
    if values is None or n_queries == 0 or n_keys == 0:
        return None
    wide = inputs.dtype == np.float64
    values = np.ascontiguousarray(values, np.float64 if wide else np.float32)
    rows = np.lib.stride_tricks.sliding_window_view(values, n_keys, axis=-1)
    return rows[..., ::-1, :]
