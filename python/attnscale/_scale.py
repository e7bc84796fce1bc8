# SPDX-License-Identifier: BSD-3-Clause
"""scale=: a number, an array, a law or its name becomes what the core multiplies q . k with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ._checks import as_array, fit_to, number
from ._inputs import Inputs
from ._options import Visibility
from ._row_counts import query_positions, row_sizes, visible_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .laws import Law

__all__ = ["read_scale", "read_scales"]

_AXES = "(..., heads, n_queries)"


def read_scale(
    scale: Any, inputs: Inputs, visible: Visibility, num_threads: int
) -> float | NDArray[np.float64]:
    """A float, or a float64 array that broadcasts to (..., heads, n_queries)."""
    head_dim = inputs.query.shape[-1]
    if scale is None:
        return 1.0 / math.sqrt(max(head_dim, 1))
    if isinstance(scale, (int, float)):
        return number("scale", scale)
    from . import laws  # only here: most calls need no law

    if isinstance(scale, (str, laws.Law)):
        return _law_scale(laws.get(scale), inputs, visible, num_threads)
    array = as_array("scale", scale)
    if array.dtype.kind not in "iuf" and array.dtype.name != "bfloat16":
        raise TypeError(f"scale must be a number, an array of numbers, a law or its name, got {scale!r}")
    rows = _rows("scale", array, inputs)
    if not np.isfinite(rows).all():
        raise ValueError("scale must be finite, got an array with NaN or infinity")
    return rows


def read_scales(scales: Any) -> NDArray[np.float64]:
    """The scales of a curve, checked: one axis of finite numbers."""
    array = as_array("scales", scales)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"scales must be numbers, got {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"scales must have one axis, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError("scales must be finite, got an array with NaN or infinity")
    return np.ascontiguousarray(array, np.float64)


def _rows(name: str, array: NDArray[Any], inputs: Inputs) -> NDArray[np.float64]:
    shape = (*inputs.leading, inputs.query.shape[-2])
    try:
        return fit_to(name, array, shape, _AXES).astype(np.float64, copy=False)
    except ValueError as error:
        if array.ndim == 1 and inputs.leading and array.shape[0] == inputs.leading[-1]:
            raise ValueError(f"{error}; one scale a head is an array of shape (heads, 1)") from None
        raise


def _law_scale(
    law: Law, inputs: Inputs, visible: Visibility, num_threads: int
) -> float | NDArray[np.float64]:
    n_queries, n_keys, head_dim = inputs.query.shape[-2], inputs.key.shape[-2], inputs.query.shape[-1]
    n: Any = 1
    if law.n_means == "visible keys":
        n = visible_keys(n_queries, n_keys, visible, num_threads)
    elif law.n_means == "row size":
        n = row_sizes(n_queries, n_keys, visible)
    elif law.n_means == "query position + 1":
        n = query_positions(n_queries, n_keys, visible) + 1
    # A row without keys has no scale to speak of; n = 1 keeps logarithms finite there.
    scale = law.scale(np.maximum(n, 1), max(head_dim, 1))
    return scale if isinstance(scale, float) else _rows(f"the scale of {law!r}", scale, inputs)
