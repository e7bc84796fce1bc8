# SPDX-License-Identifier: BSD-3-Clause
"""Norms of the Jacobian of self-attention: dependence of each output on each input."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._base.checks import as_array, boolean, fit_to, number, positive_int, shown
from .._call.rows import shows, typed_mask
from ._arrays import matrix, vectors, wide_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

_BLOCK = 2**21  # float64 numbers in an array of a block of rows: 16 MiB


class _Head(NamedTuple):
    """One sequence under the weights of one head, float64; E channels, D of key and F of value."""

    x: NDArray[np.float64]  # (n, E)
    query: NDArray[np.float64]  # (n, D), with the scale
    key: NDArray[np.float64]  # (n, D)
    value: NDArray[np.float64]  # (n, F)
    q_weight: NDArray[np.float64]  # (D, E), with the scale
    k_weight: NDArray[np.float64]  # (D, E)
    v_weight: NDArray[np.float64]  # (F, E)


def attention_jacobian_norms(
    x: ArrayLike,
    q_weight: ArrayLike,
    k_weight: ArrayLike,
    v_weight: ArrayLike | None = None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    attn_mask: ArrayLike | None = None,
    rows: Sequence[int] | None = None,
    block: int | None = None,
) -> NDArray[Any]:
    """Norms of dy_i / dx_j for pure self-attention y_i = V sum_j softmax_j(scale Qx_i . Kx_j) x_j.

    Frobenius norms, an association map: how much the output at i moves with the input at j, through the
    value, the key and, for j = i, the query.

    Parameters
    ----------
    x : array_like, shape (..., n, embed_dim)
    q_weight, k_weight : array_like, shape (head_dim, embed_dim) or (heads, head_dim, embed_dim)
    v_weight : array_like, shape (value_dim, embed_dim) or (heads, value_dim, embed_dim), optional
        V, including the output projection if there is one. Default: the identity.
    scale : float, optional
        1/sqrt(head_dim) by default.
    is_causal : bool, default False
        Query i sees the keys 0 ... i.
    attn_mask : array_like of bool or float, optional
        Broadcasts to (n, n). bool: True = the key takes part; float: added to the score.
    rows : sequence of int, optional
        The outputs i to compute; default: all.
    block : int, optional
        Rows at a time; default: as many as fit 16 MiB arrays. The result depends on it only by rounding.

    Returns
    -------
    ndarray, shape (..., n_rows, n) or (..., heads, n_rows, n)
        With an axis of heads if q_weight has one. float64 for float64 input, else float32; the arithmetic
        is float64. 0 where the key is hidden; the row of a query without keys is 0.

    Raises
    ------
    TypeError, ValueError
        If shapes do not fit, or rows are not indices of outputs.

    Notes
    -----
    With M = scale Q^T K, w_i = M^T x_i, xbar_i = sum_j p_ij x_j and u = x_j - xbar_i::

        dy_i/dx_j = p_ij V (I + u w_i^T) + [i = j] V Cov_p(x) M^T,

    and for j != i the squared norm is ``p_ij^2 (|V|^2 + 2 w_i . V^T V u + |V u|^2 |w_i|^2)``: two matrix
    products for all pairs. The term of the query costs value_dim * head_dim per pair. Beside the
    result, memory is that of a block of rows.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> x = np.random.default_rng(0).standard_normal((50, 8))
    >>> norms = at.variants.attention_jacobian_norms(x, np.zeros((4, 8)), np.eye(4, 8))
    >>> bool(np.allclose(norms, np.sqrt(8) / 50))  # Q = 0: equal weights, and the identity's norm
    True
    """
    inputs = vectors("x", x)
    q = matrix("q_weight", q_weight, inputs.shape[-1], heads=True)
    k = matrix("k_weight", k_weight, inputs.shape[-1], heads=True)
    if q.shape != k.shape:
        raise ValueError(f"q_weight and k_weight must have the same shape, got {q.shape} and {k.shape}")
    v = _value_weight(v_weight, q, inputs.shape[-1])
    n = inputs.shape[-2]
    factor = 1 / math.sqrt(max(q.shape[-2], 1)) if scale is None else number("scale", scale)
    causal, mask = boolean("is_causal", is_causal), _mask(attn_mask, n)
    chosen = _rows(rows, n)
    size = (
        positive_int("block", block) if block is not None else _block_rows(n, v.shape[-2], inputs.shape[-1])
    )
    # An axis of heads by its length, not -1: a weight without rows would not tell its number of heads.
    weights = [w.astype(np.float64).reshape(math.prod(w.shape[:-2]), *w.shape[-2:]) for w in (q, k, v)]
    norms = np.empty((*inputs.shape[:-2], len(weights[0]), len(chosen), n), wide_type(inputs.dtype))
    with np.errstate(all="ignore"):  # overflow shows as infinity or NaN in the norms
        for index in np.ndindex(norms.shape[:-2]):
            head = _head(inputs[index[:-1]].astype(np.float64), [w[index[-1]] for w in weights], factor)
            for first in range(0, len(chosen), size):
                cut = chosen[first : first + size]
                norms[index][first : first + size] = _block(head, cut, mask, is_causal=causal)
    return norms if q.ndim == 3 else norms[..., 0, :, :]


def _head(x: NDArray[np.float64], weights: list[NDArray[np.float64]], scale: float) -> _Head:
    q, k, v = weights
    return _Head(x, scale * x @ q.T, x @ k.T, x @ v.T, scale * q, k, v)


def _block(
    head: _Head, rows: NDArray[np.int64], mask: NDArray[Any] | None, *, is_causal: bool
) -> NDArray[np.float64]:
    """Norms of the outputs `rows` by all inputs."""
    p = _weights(head, rows, mask, is_causal=is_causal)
    w = head.query[rows] @ head.k_weight  # (b, E)
    # Products of V x after subtracting the part that all rows share, so that few digits cancel.
    shift = head.value.mean(0)
    value = head.value - shift
    mean = p @ value
    vw = w @ head.v_weight.T
    along = vw @ value.T - (vw * mean).sum(-1, keepdims=True)  # w . V^T V u
    spread = (value * value).sum(-1) - 2 * mean @ value.T + (mean * mean).sum(-1, keepdims=True)  # |V u|^2
    square = (head.v_weight**2).sum() + 2 * along
    square += np.maximum(spread, 0) * (w * w).sum(-1, keepdims=True)
    norms = p * np.sqrt(np.maximum(square, 0))
    norms[np.arange(len(rows)), rows] = _own(head, rows, p, w, value)
    return np.asarray(norms)


def _weights(
    head: _Head, rows: NDArray[np.int64], mask: NDArray[Any] | None, *, is_causal: bool
) -> NDArray[np.float64]:
    """Rows of softmax; 0 for a row that sees no key."""
    scores = head.query[rows] @ head.key.T
    if mask is not None:
        part = mask[rows] if mask.shape[0] > 1 else mask
        added = scores if part.dtype == np.bool_ else scores + part
        scores = np.where(shows(part), added, -np.inf)
    if is_causal:
        scores = np.where(np.arange(len(head.x)) <= rows[:, None], scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    p = np.exp(scores - np.where(np.isneginf(top), 0, top))
    total = p.sum(-1, keepdims=True)
    return np.asarray(p / np.where(total == 0, 1, total))


def _own(head: _Head, rows: NDArray[np.int64], p: Any, w: Any, value: Any) -> NDArray[np.float64]:
    """|dy_i/dx_i|, the norm of p_ii (V + V u w^T) + Cov_p(Vx, Kx) scale Q."""
    key = head.key - head.key.mean(0)
    mean = p @ value
    n, d = key.shape
    covariance = np.zeros((len(rows), value.shape[-1], d))
    step = max(1, _BLOCK // max(1, d * value.shape[-1]))
    for first in range(0, n, step):
        cut = slice(first, first + step)
        covariance += np.tensordot(p[:, cut], value[cut, :, None] * key[cut, None, :], 1)
    # A row without keys has no mean to subtract: its sums are 0.
    covariance -= mean[:, :, None] * (p @ key)[:, None, :]
    own = p[np.arange(len(rows)), rows]
    through_key = head.v_weight + (value[rows] - mean)[:, :, None] * w[:, None, :]
    jacobian = own[:, None, None] * through_key + covariance @ head.q_weight
    return np.asarray(np.sqrt((jacobian * jacobian).sum((-2, -1))))


def _value_weight(v_weight: Any, q: NDArray[Any], embed_dim: int) -> NDArray[Any]:
    v = np.eye(embed_dim) if v_weight is None else matrix("v_weight", v_weight, embed_dim, heads=True)
    if v.ndim == 3 and v.shape[:-2] != q.shape[:-2]:
        raise ValueError(f"v_weight must have as many heads as q_weight, got {v.shape} and {q.shape}")
    return np.broadcast_to(v, (*q.shape[:-2], *v.shape[-2:]))


def _mask(attn_mask: Any, n: int) -> NDArray[Any] | None:
    if attn_mask is None:
        return None
    return np.atleast_2d(fit_to("attn_mask", typed_mask(attn_mask), (n, n), "(n, n)"))


def _rows(rows: Any, n: int) -> NDArray[np.int64]:
    if rows is None:
        return np.arange(n)
    chosen = as_array("rows", rows)
    if chosen.dtype.kind not in "iu":
        raise TypeError(f"rows must be integers, got {chosen.dtype}")
    if chosen.ndim != 1 or (chosen.size and (chosen.min() < 0 or chosen.max() >= n)):
        raise ValueError(f"rows must be a sequence of indices 0 ... {n - 1}, got {shown(rows)}")
    return chosen.astype(np.int64)


def _block_rows(n: int, *dims: int) -> int:
    """Number of rows whose largest array, n or a whole Jacobian wide, fits _BLOCK numbers."""
    return int(max(1, _BLOCK // max(n, math.prod(dims), 1)))
