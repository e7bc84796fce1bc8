# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of attention, and its Jacobian, with every matrix written out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._attention import _heads_first, _repeat_heads, attention_statistics, score_parts, scores
from ._normalizers import alpha_gradient, pull_back, with_length

Array = NDArray[Any]


@np.errstate(invalid="ignore", over="ignore")
def attention_gradients(
    query: Array,
    key: Array,
    value: Array | None = None,
    grad_output: Array | None = None,
    *,
    normalizer: Any = "softmax",
    **options: Any,
) -> SimpleNamespace:
    """Gradients of sum(grad_output * output) + sum(grad_lse * lse) + ..., by the names of the arguments.

    scale, bias (of a sigmoid) and alpha (of entmax, else None) are one number per row; attn_mask is the
    gradient of the scores, (..., heads, n_queries, n_keys).
    """
    given = {name: options.pop(name) for name in list(options) if name.startswith("grad_")}
    rows = attention_statistics(query, key, value, normalizer=normalizer, **options)
    s, seen = scores(query, key, **options)
    dp, d_value = _through_output(rows.p, seen, query, value, grad_output, options)
    ds = score_gradient(rows, s, seen, dp, given, normalizer)
    d_query, d_key, d_scale = _through_scores(ds, seen, query, key, options)
    of = SimpleNamespace(query=d_query, key=d_key, value=d_value, scale=d_scale, attn_mask=ds)
    of.bias, of.alpha = ds.sum(-1), alpha_gradient(normalizer, rows.p, np.where(seen, dp, 0))
    return of


def _through_output(
    p: Array, seen: Array, query: Array, value: Any, grad_output: Any, options: dict[str, Any]
) -> tuple[Array, Array | None]:
    if grad_output is None or value is None:
        return np.zeros_like(p), None
    layout = options.get("layout", "bhsd")
    q, v, g = (_heads_first(x, layout) for x in (query, value, grad_output))
    return _pairs(g, _shared(v, q, options)), _fold(_over_queries(p, seen, g), v, layout)


def _through_scores(
    ds: Array, seen: Array, query: Array, key: Array, options: dict[str, Any]
) -> tuple[Array, Array, Array]:
    """Gradients of query, key and the scale of each row."""
    layout, norm = options.get("layout", "bhsd"), options.get("qk_norm")
    lengthened = (query, key) if norm is None else (with_length(query, norm), with_length(key, norm))
    q, k = (_heads_first(x, layout) for x in lengthened)
    parts = score_parts(query, key, **options)
    x = ds * np.where(seen, _slope(parts, options.get("softcap")) * parts.factor, 0)
    d_query = _fold(_over_keys(x * parts.scale, seen, _shared(k, q, options)), q, layout)
    d_key = _fold(_over_queries(x * parts.scale, seen, q), k, layout)
    if norm is not None:
        d_query, d_key = _through_norm(query, d_query, norm), _through_norm(key, d_key, norm)
    return d_query, d_key, np.where(seen, x * parts.product, 0).sum(-1)


def score_gradient(
    rows: SimpleNamespace,
    s: Array,
    seen: Array,
    dp: Array,
    given: dict[str, Any],
    normalizer: Any = "softmax",
) -> Array:
    """Gradient of each score, from those of its weights and, for a softmax, of its statistics."""
    p, w = rows.p, {name.removeprefix("grad_"): g[..., None] for name, g in given.items() if g is not None}
    h, mean, variance, top, c = (
        x[..., None]
        for x in (rows.entropy, rows.mean_score, rows.score_variance, rows.max_weight, rows.concentration)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        log_p = np.where(p > 0, np.log(p), 0)
        centred = np.where(seen, s, 0) - mean
        row = w.get("lse", 0) - w.get("entropy", 0) * (log_p + h)
        row = row + w.get("mean_score", 0) * (1 + centred)
        row = row + w.get("score_variance", 0) * (centred**2 - variance + 2 * centred)
        row = row + w.get("concentration", 0) * 2 * (p - c)
        row = row - w.get("renyi2", 0) * 2 * (p / np.where(c == 0, 1, c) - 1)
        at = np.arange(s.shape[-1]) == rows.argmax[..., None]
        row = row - w.get("max_weight", 0) * top
        of_weights = pull_back(normalizer, s, seen, p, np.where(seen, dp, 0))
        ds = of_weights + p * row + at * (w.get("max_score", 0) + w.get("max_weight", 0) * top)
    return np.where(seen, ds, 0)


def _slope(parts: SimpleNamespace, softcap: float | None) -> Any:
    """Derivative of a score by scale * factor * product."""
    if softcap is None:
        return 1.0
    return 1 / np.cosh(parts.product * parts.factor * parts.scale / softcap) ** 2


def _pairs(query: Array, key: Array) -> Array:
    return np.asarray(np.einsum("...ic,...jc->...ij", query, key))


def _shared(array: Array, query: Array, options: dict[str, Any]) -> Array:
    return _repeat_heads(array, query, enable_gqa=options.get("enable_gqa", False))


def _over_keys(pairs: Array, seen: Array, key: Array) -> Array:
    """Sum over the keys that each query sees."""
    return np.asarray(np.where(seen[..., None], pairs[..., None] * key[..., None, :, :], 0).sum(-2))


def _over_queries(pairs: Array, seen: Array, query: Array) -> Array:
    """Sum over the queries that see each key."""
    return np.asarray(np.where(seen[..., None], pairs[..., None] * query[..., None, :], 0).sum(-3))


def _fold(gradient: Array, array: Array, layout: str) -> Array:
    """Sum a gradient over the axes along which its array was repeated, in the layout of the array."""
    lead = gradient.ndim - array.ndim
    gradient = gradient.sum(tuple(range(lead)))
    for axis in range(array.ndim - 2):
        n, m = array.shape[axis], gradient.shape[axis]
        if n != m:
            split = (*gradient.shape[:axis], n, m // max(n, 1), *gradient.shape[axis + 1 :])
            gradient = gradient.reshape(split).sum(axis + 1)
    return _heads_first(gradient, layout)


def _through_norm(rows: Array, gradient: Array, qk_norm: str) -> Array:
    """Gradient of the rows from that of with_length(rows); 0 for rows of zeros."""
    norm = np.linalg.norm(rows.astype(np.float64), axis=-1, keepdims=True)
    unit, length = with_length(rows, "l2"), 1.0 if qk_norm == "l2" else np.sqrt(rows.shape[-1])
    along = (unit * gradient).sum(-1, keepdims=True)
    seen = (gradient != 0).any(-1, keepdims=True)
    return np.where(
        ~seen | (norm == 0), 0, (gradient - unit * along) * (length / np.where(norm == 0, 1, norm))
    )


def attention_jacobian_norms(
    x: Array, q_weight: Array, k_weight: Array, v_weight: Array, scale: float, seen: Array
) -> Array:
    """``|dy_i/dx_j|_F``, (n, n), from the derivative of each score by each input."""
    n, m = len(x), scale * q_weight.T @ k_weight
    s = np.where(seen, x @ m @ x.T, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    one = np.eye(n)
    # ds_il/dx_j = [l = j] M^T x_i + [i = j] M x_l, as (i, l, j, channel).
    ds = one[None, :, :, None] * (x @ m)[:, None, None, :] + one[:, None, :, None] * (x @ m.T)[None, :, None]
    dp = p[:, :, None, None] * (ds - np.einsum("il,iljc->ijc", p, ds)[:, None])
    jacobian = np.einsum("fe,le,iljc->ijfc", v_weight, x, dp) + p[:, :, None, None] * v_weight
    return np.asarray(np.linalg.norm(jacobian, axis=(-2, -1)))
