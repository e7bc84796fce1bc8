# SPDX-License-Identifier: BSD-3-Clause
"""The matrix of attention weights, written out on purpose."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from .._base.checks import positive_int
from .._base.hints import hinted
from .._call.call import Call
from .._call.options import AttentionEntropyOptions, takes
from .._call.weights import normalizer_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from .._core import CoreCall

__all__ = ["attention_weights"]

# Keys a tile. A pair of query and key costs head_dim + _TILE multiply-adds, and every tile a call: 64 and 128
# were equally fast at n = 512 and 2048 (13 times as fast as all unit vectors at once), 256 slower.
_TILE = 128


@hinted
@takes(AttentionEntropyOptions)
def attention_weights(
    query: ArrayLike, key: ArrayLike, *, max_bytes: int = 2**32, **options: Unpack[AttentionEntropyOptions]
) -> NDArray[np.floating[Any]]:
    """The weight of every key for every query: the matrix that :func:`attention` never writes out.

    For pictures, tests and short texts: the memory is n_queries * n_keys a head, 4 MiB for 1024 tokens and
    4 GiB for 32768. :func:`attention_statistics` gives statistics of the rows without the matrix.

    Parameters
    ----------
    query, key : array_like
        As for :func:`attention`.
    max_bytes : int, default 2**32
        A larger matrix is a MemoryError, before anything is computed.
    {names}
        As for :func:`attention`. The weights are (..., heads, n_queries, n_keys) for all layouts.

    Returns
    -------
    ndarray, shape (..., heads, n_queries, n_keys)
        0 where a query does not see the key. Rows of a softmax add up to 1 (with a sink, to 1 less its
        weight), those of a query without keys to 0. float64 for float64 input, else float32.

    Raises
    ------
    MemoryError
        If the matrix would take more than ``max_bytes``, with the number of bytes that it would take.

    Notes
    -----
    The exact kernel applied to unit vectors as values: row j of the output is weight j. With a softmax the
    keys are processed in tiles merged by their log-sum-exp, as in :func:`merge_states`, so the work is that
    of attention with a head_dim of 128 for the values. Other normalizers (Sparsemax, Entmax, TopK, Sigmoid,
    ReLU, ...) take all unit vectors at once: the work is n_queries * n_keys^2 a head.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.zeros((2, 1, 3, 8))
    >>> at.attention_weights(q, k, is_causal=True).round(3)  # zero scores: all visible keys weigh the same
    array([[[1.   , 0.   , 0.   ],
            [0.5  , 0.5  , 0.   ],
            [0.333, 0.333, 0.333]]])
    """
    call = Call(query, key, None, options)
    call.see()
    weights = _room(call, positive_int("max_bytes", max_bytes))
    call.score()
    found = normalizer_of(options)
    rule = None if found is None else found._rule(call)
    if weights.shape[-1] <= _TILE or not (rule is None or rule.kind == "softmax"):
        unit = np.eye(weights.shape[-1], dtype=weights.dtype)
        call.core.attend(unit, weights, (), call.scale, rule)
    else:
        _by_tiles(call, None if rule is None else rule.sink, weights)
    call.check_rows(weights)
    return call.rows(weights, "weights", (..., "queries", "keys"))


def _room(call: Call, most: int) -> NDArray[Any]:
    """An array for the weights, if its size is allowed."""
    shape = (*call.row_shape, call.inputs.key.shape[-2])
    dtype = np.dtype(np.float64 if call.inputs.dtype == np.float64 else np.float32)
    size = math.prod(shape) * dtype.itemsize
    if size > most:
        heads = math.prod(call.inputs.leading)
        plural = "" if heads == 1 else "s"
        raise MemoryError(
            f"the weights of {heads} head{plural}, {shape[-2]} queries and {shape[-1]} keys would take "
            f"{_bytes(size)} ({dtype}), more than max_bytes, {_bytes(most)}. attention_statistics has "
            f"their entropy without the matrix, fewer queries or heads make it smaller, and max_bytes={size} "
            "allows it"
        )
    return np.empty(shape, dtype)


def _by_tiles(call: Call, sink: Any, weights: NDArray[Any]) -> None:
    """Fill `weights` with a softmax, tile by tile of keys; `sink` is the score of another outcome."""
    n_keys = weights.shape[-1]
    starts = range(0, n_keys, _TILE)
    lse = np.empty((len(starts), *weights.shape[:-1]))
    # Rows n_keys - a ... of this are unit vectors for the keys a, a + 1, ... and zero for all others.
    unit = np.zeros((2 * n_keys, _TILE), weights.dtype)
    unit[n_keys : n_keys + _TILE] = np.eye(_TILE)
    for a, total in zip(starts, lse, strict=True):
        b = min(a + _TILE, n_keys)
        value = unit[n_keys - a : 2 * n_keys - a, : b - a]
        (total[...],) = _tile_core(call, a, b).attend(
            value, weights[..., a:b], ("lse",), call.scale, None, True
        )
    with np.errstate(all="ignore"):  # a part that underflows against the whole has no weight
        for a, share in zip(starts, _shares(lse, sink), strict=True):
            weights[..., a : a + _TILE] *= share[..., None].astype(weights.dtype)


def _tile_core(call: Call, a: int, b: int) -> CoreCall:
    """The call with keys a ... b - 1 visible at most; the kernel skips the others."""
    n_queries = call.row_shape[-1]
    begin = np.full(n_queries, a) if call.intervals.begin is None else np.maximum(call.intervals.begin, a)
    end = np.full(n_queries, b) if call.intervals.end is None else np.minimum(call.intervals.end, b)
    return call.core_of(np.minimum(begin, end), end)


def _shares(lse: NDArray[np.float64], sink: Any) -> NDArray[np.float64]:
    """Weight of each tile in the whole row, (n_tiles, ..., n_queries)."""
    logit = np.float64(-np.inf) if sink is None else np.asarray(sink, np.float64)
    top = np.maximum(lse.max(axis=0), logit)
    top = np.where(np.isneginf(top), 0.0, top)  # rows without keys: exp(-inf) = 0
    parts = np.exp(lse - top)
    whole = parts.sum(axis=0) + np.exp(logit - top)
    return parts / np.where(whole == 0, 1.0, whole)


def _bytes(count: float) -> str:
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
