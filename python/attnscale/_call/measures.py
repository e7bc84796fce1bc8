# SPDX-License-Identifier: BSD-3-Clause
"""What the written-out scores of a row say, for the laws that look at all of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .arrays import Inputs
    from .form import ScoreForm
    from .rows import Intervals

__all__ = ["row_gaps", "row_spreads"]

_BLOCK = 2**22  # scores held at a time: 32 MiB of float64


def row_gaps(inputs: Inputs, intervals: Intervals, mask: Any, form: ScoreForm) -> NDArray[np.float64]:
    """Critical inverse temperature of each row's gaps at the standard scale, (..., heads, n_queries).

    It needs the scores of a row in order, so blocks of rows are written out and sorted.
    """
    from ..laws import CriticalScale

    return _of_rows(CriticalScale.measure, inputs, intervals, mask, form)


def row_spreads(inputs: Inputs, intervals: Intervals, mask: Any, form: ScoreForm) -> NDArray[np.float64]:
    """Standard deviation of what each row sees at the standard scale, (..., heads, n_queries)."""
    from ..laws import NormSoftmax

    return _of_rows(NormSoftmax.measure, inputs, intervals, mask, form)


def _of_rows(
    measure: Callable[[NDArray[np.float64]], Any],
    inputs: Inputs,
    intervals: Intervals,
    mask: Any,
    form: ScoreForm,
) -> NDArray[np.float64]:
    """A number of each row of scores at the standard scale, written out by blocks of rows."""
    n_queries = inputs.query.shape[-2]
    row = max(1, math.prod(inputs.leading) * inputs.key.shape[-2])
    step = max(1, _BLOCK // row)
    measured = np.zeros((*inputs.leading, n_queries))
    for first in range(0, n_queries, step):
        cut = slice(first, min(first + step, n_queries))
        score, seen = _scores(inputs, form, cut), _seen(inputs, intervals, cut)
        if mask is not None:
            part = _cut(mask, cut, -2)
            score = score if part.dtype == np.bool_ else score + part
            seen = seen & (part if part.dtype == np.bool_ else ~np.isneginf(part))
        measured[..., cut] = measure(np.where(seen, score, -np.inf))
    return measured


def _scores(inputs: Inputs, form: ScoreForm, cut: slice) -> NDArray[np.float64]:
    """Scores of some queries before masks, (..., heads, rows, n_keys)."""
    q, k = inputs.query[..., cut, :].astype(np.float64), inputs.key.astype(np.float64)
    if q.ndim > 2 and k.ndim > 2 and k.shape[-3] not in (1, inputs.leading[-1]):
        k = k.repeat(inputs.leading[-1] // k.shape[-3], axis=-3)
    with np.errstate(invalid="ignore", over="ignore"):
        score: NDArray[np.float64] = q @ k.swapaxes(-1, -2) / math.sqrt(max(q.shape[-1], 1))
        return form.of_rows(score)


def _seen(inputs: Inputs, intervals: Intervals, cut: slice) -> NDArray[np.bool_]:
    """Where the interval of a query holds the key."""
    key = np.arange(inputs.key.shape[-2])
    seen = np.ones(key.shape, np.bool_)
    if intervals.begin is not None:
        seen = seen & (key >= _cut(intervals.begin, cut, -1)[..., None])
    if intervals.end is not None:
        seen = seen & (key < _cut(intervals.end, cut, -1)[..., None])
    return seen


def _cut(array: Any, cut: slice, axis: int) -> NDArray[Any]:
    """The rows of an array, unless one serves all."""
    if array.ndim < -axis or array.shape[axis] == 1:
        return np.asarray(array)
    return np.asarray(array[(..., cut, *(slice(None),) * (-axis - 1))])
