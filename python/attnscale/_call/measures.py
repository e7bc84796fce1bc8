# SPDX-License-Identifier: BSD-3-Clause
"""What the written-out scores of a row say, for the laws that look at all of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .call import Call

__all__ = ["row_gaps"]

_BLOCK = 2**22  # scores held at a time: 32 MiB of float64


def row_gaps(call: Call) -> NDArray[np.float64]:
    """Critical inverse temperature of each row's gaps at the standard scale, (..., heads, n_queries).

    It needs the scores of a row in order, so blocks of rows are written out and sorted.
    """
    from ..laws import CriticalScale

    n_queries = call.inputs.query.shape[-2]
    row = max(1, math.prod(call.inputs.leading) * call.inputs.key.shape[-2])
    step = max(1, _BLOCK // row)
    gaps = np.zeros(call.row_shape)
    for first in range(0, n_queries, step):
        cut = slice(first, min(first + step, n_queries))
        gaps[..., cut] = CriticalScale.measure(_scores(call, cut))
    return gaps


def _scores(call: Call, cut: slice) -> NDArray[np.float64]:
    """Scores of some queries, (..., heads, rows, n_keys); -inf where a key is hidden."""
    inputs = call.inputs
    q, k = inputs.query[..., cut, :].astype(np.float64), inputs.key.astype(np.float64)
    if q.ndim > 2 and k.ndim > 2 and k.shape[-3] not in (1, inputs.leading[-1]):
        k = k.repeat(inputs.leading[-1] // k.shape[-3], axis=-3)
    with np.errstate(invalid="ignore", over="ignore"):
        score: NDArray[np.float64] = q @ k.swapaxes(-1, -2) / math.sqrt(call.head_dim)
    if call.softcap:
        score = call.softcap * np.tanh(score / call.softcap)
    seen = _seen(call, cut)
    if call.mask is not None:
        mask = _cut(call.mask, cut, -2)
        if mask.dtype == np.bool_:
            seen = seen & mask
        else:
            score = score + mask
            seen = seen & ~np.isneginf(mask)
    return np.where(seen, score, -np.inf)


def _seen(call: Call, cut: slice) -> NDArray[np.bool_]:
    """Where the interval of a query holds the key."""
    key = np.arange(call.inputs.key.shape[-2])
    begin, end, _, _ = call.intervals
    seen = np.ones(key.shape, np.bool_)
    if begin is not None:
        seen = seen & (key >= _cut(begin, cut, -1)[..., None])
    if end is not None:
        seen = seen & (key < _cut(end, cut, -1)[..., None])
    return seen


def _cut(array: Any, cut: slice, axis: int) -> NDArray[Any]:
    """The rows of an array, unless one serves all."""
    if array.ndim < -axis or array.shape[axis] == 1:
        return np.asarray(array)
    return np.asarray(array[(..., cut, *(slice(None),) * (-axis - 1))])
