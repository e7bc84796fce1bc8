# SPDX-License-Identifier: BSD-3-Clause
"""What a first pass over the scores says about each row, for the laws that look at it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _core
from .arrays import Inputs
from .row_counts import query_positions
from .rows import Visibility

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["row_entropies", "row_gaps"]

_BLOCK = 2**22  # scores held at a time: 32 MiB of float64


def row_entropies(inputs: Inputs, visible: Visibility, softcap: float, num_threads: int) -> NDArray[Any]:
    """Entropy of each row at the standard scale, in nats, (..., heads, n_queries)."""
    scale = 1.0 / math.sqrt(max(inputs.query.shape[-1], 1))
    rows = _core.attend(
        inputs.query, inputs.key, None, None, 0b10, scale, *visible, softcap, num_threads, *(None, None, None)
    )
    entropy = rows[1]
    assert entropy is not None
    return entropy.astype(np.float64)


def row_gaps(inputs: Inputs, visible: Visibility, softcap: float) -> NDArray[np.float64]:
    """Critical inverse temperature of each row's gaps at the standard scale, (..., heads, n_queries).

    It needs the scores of a row in order, so blocks of rows are written out and sorted.
    """
    from ..laws import CriticalScale

    n_queries = inputs.query.shape[-2]
    row = max(1, math.prod(inputs.leading) * inputs.key.shape[-2])
    step = max(1, _BLOCK // row)
    gaps = np.zeros((*inputs.leading, n_queries))
    for first in range(0, n_queries, step):
        cut = slice(first, min(first + step, n_queries))
        gaps[..., cut] = CriticalScale.measure(_scores(inputs, visible, softcap, cut))
    return gaps


def _scores(inputs: Inputs, visible: Visibility, softcap: float, cut: slice) -> NDArray[np.float64]:
    """Scores of some queries, (..., heads, rows, n_keys); -inf where a key is hidden."""
    q, k = inputs.query[..., cut, :].astype(np.float64), inputs.key.astype(np.float64)
    if q.ndim > 2 and k.ndim > 2 and k.shape[-3] not in (1, inputs.leading[-1]):
        k = k.repeat(inputs.leading[-1] // k.shape[-3], axis=-3)
    with np.errstate(invalid="ignore", over="ignore"):
        score: NDArray[np.float64] = q @ k.swapaxes(-1, -2) / math.sqrt(max(q.shape[-1], 1))
    if softcap:
        score = softcap * np.tanh(score / softcap)
    seen = _seen(inputs, visible, cut)
    if visible.mask is not None:
        mask = (
            visible.mask[..., cut, :]
            if visible.mask.ndim > 1 and visible.mask.shape[-2] > 1
            else visible.mask
        )
        if mask.dtype == np.bool_:
            seen = seen & mask
        else:
            score = score + mask
            seen = seen & ~np.isneginf(mask)
    return np.where(seen, score, -np.inf)


def _seen(inputs: Inputs, visible: Visibility, cut: slice) -> NDArray[np.bool_]:
    """Where the interval of a query (causal, window, key_lengths) holds the key."""
    n_queries, n_keys = inputs.query.shape[-2], inputs.key.shape[-2]
    key = np.arange(n_keys)
    distance = key - query_positions(n_queries, n_keys, visible)[..., cut, None]
    lengths: Any = n_keys if visible.key_lengths is None else visible.key_lengths[..., None, None]
    seen: NDArray[np.bool_] = (key < lengths) & (distance <= visible.right) & (-distance <= visible.left)
    return seen
