# SPDX-License-Identifier: BSD-3-Clause
"""scale=: a number, an array, a law or its name becomes what the core multiplies q . k with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import as_array, fit_to, number, shown, sum_over_repeats

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..laws import Law
    from .data import CallData

__all__ = ["check_one_scale_a_row", "law_gradients", "read_scale", "read_scales"]

_AXES = "(..., heads, n_queries)"


#: What the core multiplies q . k with, a number or an array that broadcasts to (..., heads, n_queries);
#: and n of each row, where the scale is a law.
ReadScale = tuple["float | NDArray[np.float64]", "NDArray[np.float64] | None"]


def read_scale(scale: Any, call: CallData) -> ReadScale:
    """The scale of a call; a law is read once, as its n may cost a pass over the scores."""
    if scale is None:
        return 1.0 / math.sqrt(call.head_dim), None
    if isinstance(scale, (int, float)):
        return number("scale", scale), None
    from .. import laws  # only here: most calls need no law

    if isinstance(scale, (str, laws.Law)):
        return _law_scale(laws.get(scale), call)
    array = as_array("scale", scale)
    if array.dtype.kind not in "iuf" and array.dtype.name != "bfloat16":
        raise TypeError(f"scale must be a number, an array of numbers, a law or its name, got {shown(scale)}")
    rows = _rows("scale", array, call)
    if not np.isfinite(rows).all():
        raise ValueError("scale must be finite, got an array with NaN or infinity")
    return rows, None


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


def _law_scale(law: Law, call: CallData) -> ReadScale:
    check_one_scale_a_row(law)
    counts = _counts(law, call)
    scale = law.scale(counts, call.head_dim)
    rows = scale if isinstance(scale, float) else _rows(f"the scale of {law!r}", scale, call)
    return rows, counts


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

    None: the scale is no law of the row. A number for each parameter, or one a head where it is one a head.
    """
    if call.counts is None:
        return None
    from .. import laws

    law = laws.get(scale)
    found = {}
    for name, derivative in law.derivatives(call.counts, call.head_dim).items():
        given = law.parameter(name)
        shape = (len(given), 1) if isinstance(given, tuple) else ()
        found[name] = sum_over_repeats(rows * derivative, shape).reshape(shape[:1])
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
