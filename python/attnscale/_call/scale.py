# SPDX-License-Identifier: BSD-3-Clause
"""scale=: a number, an array, a law or its name becomes what the core multiplies q . k with."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._checks import as_array, fit_to, number
from .arrays import Inputs
from .row_counts import query_positions, row_sizes, visible_keys
from .row_measures import row_entropies, row_gaps
from .rows import Visibility

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..laws import Law

__all__ = ["check_one_scale_a_row", "read_scale", "read_scales", "refuse_row_measures"]

_AXES = "(..., heads, n_queries)"


def read_scale(
    scale: Any, inputs: Inputs, visible: Visibility, num_threads: int, softcap: float = 0.0
) -> float | NDArray[np.float64]:
    """A float, or a float64 array that broadcasts to (..., heads, n_queries)."""
    head_dim = inputs.query.shape[-1]
    if scale is None:
        return 1.0 / math.sqrt(max(head_dim, 1))
    if isinstance(scale, (int, float)):
        return number("scale", scale)
    from .. import laws  # only here: most calls need no law

    if isinstance(scale, (str, laws.Law)):
        return _law_scale(laws.get(scale), inputs, visible, num_threads, softcap)
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
    law: Law, inputs: Inputs, visible: Visibility, num_threads: int, softcap: float
) -> float | NDArray[np.float64]:
    check_one_scale_a_row(law)
    n = law.meaning.of(_CallRows(inputs, visible, num_threads, softcap))
    # A row without keys has no scale to speak of; the least n keeps logarithms finite there. A row that
    # sees a NaN is NaN whatever its scale.
    n = np.maximum(np.nan_to_num(n, nan=0.0, posinf=np.inf), law.meaning.least)
    scale = law.scale(n, max(inputs.query.shape[-1], 1))
    return scale if isinstance(scale, float) else _rows(f"the scale of {law!r}", scale, inputs)


class _CallRows(NamedTuple):
    """What a meaning of n may ask of a call."""

    inputs: Inputs
    visible: Visibility
    num_threads: int
    softcap: float

    def visible_keys(self) -> NDArray[Any]:
        return visible_keys(*self._extents(), self.visible, self.num_threads)

    def row_sizes(self) -> NDArray[Any]:
        return row_sizes(*self._extents(), self.visible)

    def positions(self) -> NDArray[Any]:
        return query_positions(*self._extents(), self.visible)

    def row_entropies(self) -> NDArray[Any]:
        return row_entropies(self.inputs, self.visible, self.softcap, self.num_threads)

    def row_gaps(self) -> NDArray[Any]:
        return row_gaps(self.inputs, self.visible, self.softcap)

    def _extents(self) -> tuple[int, int]:
        return self.inputs.query.shape[-2], self.inputs.key.shape[-2]


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


def refuse_row_measures(scale: Any) -> None:
    """Laws that measure a row do so without distance_scale and distance_bias."""
    from .. import laws

    if isinstance(scale, (str, laws.Law)) and (law := laws.get(scale)).meaning.measures_the_row:
        raise ValueError(
            f"scale={law.name!r} measures the row without distance_scale and distance_bias; pass the scale "
            "as an array, measured with them"
        )
