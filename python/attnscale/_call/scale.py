# SPDX-License-Identifier: BSD-3-Clause
"""scale=: a number, an array, a law or its name, converted to the factor of q . k in the core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import as_array, fit_to, number, shown
from .arrays import ARRAY, Extents, Unread

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._base.rows import CallRows
    from ..laws import Law

    #: The core's factor of q . k: a number, or an array that broadcasts to (..., heads, n_queries).
    Scale = float | NDArray[np.float64]

_AXES = "(..., heads, n_queries)"


def read_law(scale: Any) -> Law | None:
    """The law that `scale` is or spells; None for anything else."""
    if scale is None or isinstance(scale, (int, float)) or type(scale) is ARRAY:
        return None
    from .. import laws  # here, since most calls need no law

    return laws.get(scale) if isinstance(scale, (str, laws.Law)) else None


def read_scale(scale: Any, extents: Extents) -> Scale | Unread:
    """A scale given as a number or an array, checked."""
    if isinstance(scale, (int, float)):
        return number("scale", scale)
    array = scale if type(scale) is Unread else as_array("scale", scale)
    if array.dtype.kind not in "iuf" and array.dtype.name != "bfloat16":
        raise TypeError(f"scale must be a number, an array of numbers, a law or its name, got {shown(scale)}")
    fitted: NDArray[Any] | Unread = _rows("scale", array, extents)
    if isinstance(fitted, Unread):
        return fitted
    rows = fitted.astype(np.float64, copy=False)
    if not np.isfinite(rows).all():
        raise ValueError("scale must be finite, got an array with NaN or infinity")
    return rows


def read_scales(scales: Any) -> NDArray[np.float64]:
    """The scales of a curve, checked: a one-dimensional array of finite numbers."""
    array = as_array("scales", scales)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"scales must be numbers, got {array.dtype}")
    if array.ndim != 1:
        raise ValueError(f"scales must have one axis, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError("scales must be finite, got an array with NaN or infinity")
    return np.ascontiguousarray(array, np.float64)


def _rows(name: str, array: Any, extents: Extents) -> Any:
    row_shape = extents.row_shape
    try:
        return fit_to(name, array, row_shape, _AXES)
    except ValueError as error:
        if array.ndim == 1 and len(row_shape) > 1 and array.shape[0] == row_shape[-2]:
            raise ValueError(f"{error}; one scale a head is an array of shape (heads, 1)") from None
        raise


def law_counts(law: Law, rows: CallRows) -> NDArray[np.float64]:
    """n of each row; at least the law's least n, so that logarithms are finite for rows without keys."""
    check_one_scale_a_row(law)
    meaning = law.meaning
    counts = np.asarray(meaning.of(rows))
    if counts.dtype.kind == "f":
        counts = np.nan_to_num(counts, nan=0.0, posinf=np.inf)
    return np.maximum(counts, meaning.least, dtype=np.float64)  # type: ignore[no-any-return]


def law_scale(law: Law, counts: NDArray[np.float64], head_dim: int, extents: Extents) -> Scale:
    """The scale of a law at the counts of rows."""
    scale = law._scale(counts, head_dim)  # law.scale would check the counts
    if np.ndim(scale) == 0:
        return float(scale)
    array = np.asarray(scale, np.float64)
    return array if array.shape == counts.shape else _rows(f"the scale of {law!r}", array, extents)


def check_one_scale_a_row(law: Law) -> None:
    """Refuse a law that is not one scale for a whole row: for all channels and all keys."""
    if law.channels != "all":
        raise ValueError(
            f"law {law.name!r} acts on the {law.channels} channels only, and a scale on all. Multiply "
            "the query by law.channel_factors(head_dim, channels), or say channels='all' if all of them are"
        )
    if law.meaning.is_distance:
        raise ValueError(
            f"law {law.name!r} gives the keys of a row different scales, and scale takes one a row here"
        )
