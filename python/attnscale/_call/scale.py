# SPDX-License-Identifier: BSD-3-Clause
"""scale=: a number, an array, a law or its name becomes what the core multiplies q . k with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import as_array, fit_to, number, shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..laws import Law
    from .data import CallData

__all__ = ["check_one_scale_a_row", "law_gradients", "read_scale", "read_scales"]

_AXES = "(..., heads, n_queries)"


def read_scale(scale: Any, call: CallData) -> float | NDArray[np.float64]:
    """A float, or a float64 array that broadcasts to (..., heads, n_queries)."""
    if scale is None:
        return 1.0 / math.sqrt(call.head_dim)
    if isinstance(scale, (int, float)):
        return number("scale", scale)
    from .. import laws  # only here: most calls need no law

    if isinstance(scale, (str, laws.Law)):
        return _law_scale(laws.get(scale), call)
    array = as_array("scale", scale)
    if array.dtype.kind not in "iuf" and array.dtype.name != "bfloat16":
        raise TypeError(f"scale must be a number, an array of numbers, a law or its name, got {shown(scale)}")
    rows = _rows("scale", array, call)
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


def _rows(name: str, array: NDArray[Any], call: CallData) -> NDArray[np.float64]:
    try:
        return fit_to(name, array, call.row_shape, _AXES).astype(np.float64, copy=False)
    except ValueError as error:
        leading = call.inputs.leading
        if array.ndim == 1 and leading and array.shape[0] == leading[-1]:
            raise ValueError(f"{error}; one scale a head is an array of shape (heads, 1)") from None
        raise


def _law_scale(law: Law, call: CallData) -> float | NDArray[np.float64]:
    check_one_scale_a_row(law)
    scale = law.scale(_counts(law, call), call.head_dim)
    return scale if isinstance(scale, float) else _rows(f"the scale of {law!r}", scale, call)


def _counts(law: Law, call: CallData) -> NDArray[np.float64]:
    """n of each row. A row without keys has no scale to speak of; the least n keeps logarithms finite there.

    A row that sees a NaN is NaN whatever its scale.
    """
    counts = np.nan_to_num(law.meaning.of(call), nan=0.0, posinf=np.inf)
    return np.maximum(counts, law.meaning.least)  # type: ignore[no-any-return]


def law_gradients(
    scale: Any, rows: NDArray[np.float64], call: CallData
) -> dict[str, NDArray[np.float64]] | None:
    """Gradients of a law's parameters from those of the scales of rows, (..., heads, n_queries).

    None: the scale is no law. A number for each parameter, or one a head where it is one a head.
    """
    from .. import laws

    if not isinstance(scale, (str, laws.Law)):
        return None
    law = laws.get(scale)
    if law.meaning.is_distance:
        return None
    found = {}
    for name, derivative in law.derivatives(_counts(law, call), call.head_dim).items():
        of_rows = rows * derivative
        one_a_head = isinstance(law.parameter(name), tuple)
        found[name] = of_rows.sum((*range(of_rows.ndim - 2), -1)) if one_a_head else np.asarray(of_rows.sum())
    return found


def check_one_scale_a_row(law: Law) -> None:
    """A scale multiplies whole rows: all channels, and all keys alike."""
    if law.channels != "all":
        raise ValueError(
            f"law {law.name!r} acts on the {law.channels} channels only, and a scale on all. Multiply "
            "the query by law.channel_factors(head_dim, channels), or say channels='all' if all of them are"
        )
    if law.meaning.is_distance:
        raise ValueError(
            f"law {law.name!r} gives the keys of a row different scales, and scale takes one a row here"
        )
