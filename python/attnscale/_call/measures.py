# SPDX-License-Identifier: BSD-3-Clause
"""Measures of the scores of whole rows, written out block by block of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .rows import shows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._core import Intervals
    from .arrays import Extents, Inputs
    from .distance import ScoreForm

_BLOCK = 2**22  # scores held at a time: 32 MiB of float64


def row_gaps(inputs: Inputs, intervals: Intervals, mask: Any, form: ScoreForm) -> NDArray[np.float64]:
    """Critical inverse temperature of each row's gaps at the standard scale, (..., heads, n_queries).

    It needs a row's scores in order, so blocks of rows are written out and sorted.
    """
    from ..laws import CriticalScale

    return _of_rows(CriticalScale.measure, inputs, intervals, mask, form)


def row_spreads(inputs: Inputs, intervals: Intervals, mask: Any, form: ScoreForm) -> NDArray[np.float64]:
    """Standard deviation of each row's visible scores at the standard scale, (..., heads, n_queries)."""
    from ..laws import NormSoftmax

    return _of_rows(NormSoftmax.measure, inputs, intervals, mask, form)


def _of_rows(
    measure: Callable[[NDArray[np.float64]], Any],
    inputs: Inputs,
    intervals: Intervals,
    mask: Any,
    form: ScoreForm,
) -> NDArray[np.float64]:
    """A number of each row of scores at the standard scale, from blocks of rows."""
    measured = np.zeros(inputs.row_shape)
    for cut in blocks_of_rows(inputs.row_shape, inputs.key.shape[-2]):
        score, seen = rows_of_block(inputs, intervals, mask, form, cut)
        measured[..., cut] = measure(np.where(seen, score, -np.inf))
    return measured


def count_visible(extents: Extents, intervals: Intervals, mask: NDArray[Any]) -> NDArray[np.int64]:
    """Number of keys that each query may see, from blocks of rows."""
    found = np.zeros(extents.row_shape, np.int64)
    for cut in blocks_of_rows(extents.row_shape, extents.n_keys):
        found[..., cut] = seen_in_block(extents, intervals, mask, cut).sum(-1)
    return found


def blocks_of_rows(row_shape: tuple[int, ...], n_keys: int) -> Iterator[slice]:
    """Blocks of queries, as large as a limit on the scores of all heads allows."""
    n_queries = row_shape[-1]
    step = max(1, _BLOCK // max(1, math.prod(row_shape[:-1]) * n_keys))
    for first in range(0, n_queries, step):
        yield slice(first, min(first + step, n_queries))


def rows_of_block(
    inputs: Inputs, intervals: Intervals, mask: Any, form: ScoreForm, cut: slice, scale: Any = None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Scores of some queries, and whether they see each key; both broadcast to (..., heads, rows, n_keys).

    scale: a number or an array that broadcasts to (..., heads, n_queries); None is the standard scale.
    """
    score = _scores(inputs, form, cut, scale)
    if mask is not None and mask.dtype != np.bool_:
        score = score + cut_rows(mask, cut, -2)
    return score, seen_in_block(inputs.extents, intervals, mask, cut)


def _scores(inputs: Inputs, form: ScoreForm, cut: slice, scale: Any) -> NDArray[np.float64]:
    """Scores of some queries before masks, (..., heads, rows, n_keys)."""
    q, k = inputs.query[..., cut, :].astype(np.float64), keys_of_heads(inputs).astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        score: NDArray[np.float64] = q @ k.swapaxes(-1, -2)
        if scale is None:
            score /= math.sqrt(max(q.shape[-1], 1))
        else:
            rows = np.asarray(scale)
            score *= rows if rows.ndim == 0 else cut_rows(rows, cut, -1)[..., None]
        if form.distance_scale is not None:
            score *= cut_rows(form.distance_scale, cut, -2)
        if form.softcap:
            score = form.softcap * np.tanh(score / form.softcap)
        return score if form.distance_bias is None else score + cut_rows(form.distance_bias, cut, -2)


def keys_of_heads(inputs: Inputs) -> NDArray[Any]:
    """The keys, repeated to as many heads as the query's where groups of heads share one."""
    key, leading = inputs.key, inputs.leading
    if key.ndim < 3 or key.shape[-3] in (1, leading[-1]):
        return key
    return key.repeat(leading[-1] // key.shape[-3], axis=-3)


def seen_in_block(extents: Extents, intervals: Intervals, mask: Any, cut: slice) -> NDArray[np.bool_]:
    """Whether some queries see each key; broadcasts to (..., heads, rows, n_keys)."""
    key = np.arange(extents.n_keys)
    seen = np.ones(key.shape, np.bool_)
    if intervals.begin is not None:
        seen = seen & (key >= cut_rows(intervals.begin, cut, -1)[..., None])
    if intervals.end is not None:
        seen = seen & (key < cut_rows(intervals.end, cut, -1)[..., None])
    return seen if mask is None else seen & shows(cut_rows(mask, cut, -2))


def cut_rows(array: Any, cut: slice, axis: int) -> NDArray[Any]:
    """Some rows of an array; an array with a single row is unchanged."""
    if array.ndim < -axis or array.shape[axis] == 1:
        return np.asarray(array)
    return np.asarray(array[(..., cut, *(slice(None),) * (-axis - 1))])
