# SPDX-License-Identifier: BSD-3-Clause
"""Variants of attention in linear time by their matrices of weights, and their gradients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._attention import attention, offset_of, visible
from ._gradients import attention_gradients

Array = NDArray[Any]


def weighted_mean(weights: Array, value: Array, **masks: Any) -> Array:
    """Means of `value` by rows of `weights` (..., n_queries, n_keys) without hidden keys; 0 if all are 0."""
    seen = np.where(visible(weights.shape, **masks), weights, 0)
    total = seen.sum(-1, keepdims=True)
    return np.asarray(seen @ value / np.where(total == 0, 1, total))


def _of_logarithms(query: Array, key: Array, value: Array, **masks: Any) -> Array:
    """Attention with weights sum_r exp(query_r + key_r), each row divided by its largest term."""
    pairs = query[..., :, None, :] + key[..., None, :, :]
    hidden = ~visible(pairs.shape[:-1], **masks)[..., None]
    top = np.where(hidden, -np.inf, pairs).max((-2, -1), keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):  # hidden pairs overflow; rows without others are NaN
        return weighted_mean(np.exp(pairs - top).sum(-1), value, **masks)


def linear_attention(
    query: Array, key: Array, value: Array, *, feature_map: Any = "elu", **masks: Any
) -> Array:
    """Attention with weights phi(q) . phi(k)."""
    if isinstance(feature_map, str) and feature_map == "elu":  # ln(elu(x) + 1) does not vanish
        logs = [np.where(x > 0, np.log1p(np.maximum(x, 0)), x) for x in (query, key)]
        return _of_logarithms(logs[0], logs[1], value, **masks)
    if isinstance(feature_map, str):
        feature_map = {"relu": lambda x: np.maximum(x, 0)}[feature_map]
    phi_q, phi_k = feature_map if isinstance(feature_map, tuple) else (feature_map(x) for x in (query, key))
    return weighted_mean(phi_q @ np.swapaxes(phi_k, -1, -2), value, **masks)


def performer_attention(
    query: Array, key: Array, value: Array, projection: Array, *, scale: float | None = None, **masks: Any
) -> Array:
    """Attention with weights sum_r exp(ln phi_r(q) + ln phi_r(k))."""
    root = np.sqrt(query.shape[-1] ** -0.5 if scale is None else scale)
    rows = (query * root, key * root)
    logs = [x @ projection.T - np.square(x).sum(-1, keepdims=True) / 2 for x in rows]
    return _of_logarithms(logs[0], logs[1], value, **masks)


def cosformer_attention(query: Array, key: Array, value: Array, *, max_length: int, **masks: Any) -> Array:
    """Attention with weights relu(q_i) . relu(k_j) cos(pi (i - j) / (2 M))."""
    shift = offset_of(masks.get("causal"), key.shape[-2], query.shape[-2])
    distance = np.arange(query.shape[-2])[:, None] + shift - np.arange(key.shape[-2])
    kernel = np.maximum(query, 0) @ np.swapaxes(np.maximum(key, 0), -1, -2)
    return weighted_mean(kernel * np.cos(np.pi * distance / (2 * max_length)), value, **masks)


def ssd(query: Array, key: Array, value: Array, log_decay: Array) -> Array:
    """y = (L * q k^T) v with L_ij = exp(a_(j+1) + ... + a_i), 0 above the diagonal."""
    past = np.cumsum(log_decay, axis=-1)
    between = np.tril(np.exp(np.minimum(past[..., :, None] - past[..., None, :], 0)))
    return np.asarray((between * (query @ np.swapaxes(key, -1, -2))) @ value)


def selective_scan(x: Array, step: Array, rates: Array, key: Array, query: Array) -> Array:
    """The recurrence of Mamba (Gu and Dao 2023, arXiv 2312.00752, algorithm 2), channel by channel.

    The core does not compute it; :func:`attnscale.variants.ssd` is the case of one decay per head.

    Parameters
    ----------
    x, step : array of shape (..., n, channels)
        Inputs, and the positive step sizes (Delta).
    rates : array of shape (channels, states)
        A, negative: the state decays by exp(step * rates).
    key, query : array of shape (..., n, states)
        B and C, the same for all channels.

    Returns
    -------
    ndarray of shape (..., n, channels)
    """
    state = np.zeros((*x.shape[:-2], *rates.shape))
    y = np.empty(x.shape)
    for t in range(x.shape[-2]):
        pushed = (step * x)[..., t, :, None] * key[..., t, None, :]
        state = np.exp(step[..., t, :, None] * rates) * state + pushed
        y[..., t, :] = (state * query[..., t, None, :]).sum(-1)
    return y


def _softmax(x: Array, axis: int) -> Array:
    top = x.max(axis, keepdims=True)
    weights = np.exp(x - np.where(np.isneginf(top), 0, top))
    total = weights.sum(axis, keepdims=True)
    return np.asarray(weights / np.where(total == 0, 1, total))


def efficient_attention_weights(query: Array, key: Array, *, scale: float = 1.0, **masks: Any) -> Array:
    """A_ij = sum_c softmax_c(q_i) softmax_j(k_c), the second over the visible keys of query i."""
    n = (*np.broadcast_shapes(query.shape[:-2], key.shape[:-2]), query.shape[-2], key.shape[-2])
    seen = visible(n, **masks)[..., None]
    maps = _softmax(np.where(seen, scale * key[..., None, :, :], -np.inf), -2)
    return np.asarray(np.einsum("...ic,...ijc->...ij", _softmax(scale * query, -1), maps))


def efficient_attention(
    query: Array, key: Array, value: Array, *, normalization: str = "softmax", **options: Any
) -> Array:
    """Efficient attention; with "scaling", q . k is divided by the number of visible keys of the query."""
    if normalization == "softmax":
        return np.asarray(efficient_attention_weights(query, key, **options) @ value)
    scale = options.pop("scale", 1.0)
    scores = scale**2 * query @ np.swapaxes(key, -1, -2)
    seen = visible(scores.shape, **options)
    return np.asarray(np.where(seen, scores, 0) @ value / np.maximum(seen.sum(-1, keepdims=True), 1))


def global_maps(query: Array, key: Array, value: Array, *, scale: float = 1.0) -> tuple[Array, Array, Array]:
    """Distributions of channels over keys, their values, and each query's mixture of them."""
    maps = np.swapaxes(_softmax(scale * key, -2), -1, -2)
    return maps, maps @ value, _softmax(scale * query, -1)


def linformer_attention(query: Array, key: Array, value: Array, e: Array, f: Array | None = None) -> Array:
    """softmax(q (E k)^T / sqrt(d)) (F v)."""
    scores = query @ np.swapaxes(e @ key, -1, -2) / np.sqrt(query.shape[-1])
    return np.asarray(_softmax(scores, -1) @ ((e if f is None else f) @ value))


def relay_attention(x: Array, centres: Array) -> Array:
    """B_k = sum_i softmax_i(mu_k . x_i) x_i."""
    return np.asarray(np.swapaxes(_softmax(x @ np.swapaxes(centres, -1, -2), -2), -1, -2) @ x)


def local_global_attention(
    query: Array, key: Array, value: Array, *, radius: int, global_tokens: int = 0, is_causal: bool = False
) -> Array:
    """Softmax over the visible keys of the pattern."""
    i = np.arange(query.shape[-2])
    seen = (abs(i[:, None] - i) <= radius) | (i < global_tokens) | (i[:, None] < global_tokens)
    seen &= (i <= i[:, None]) | (not is_causal)
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    return np.asarray(_softmax(np.where(seen, scores, -np.inf), -1) @ value)


def gradients(
    variant: str, query: Any, key: Any, value: Array, grad_output: Array, **options: Any
) -> SimpleNamespace:
    """Gradients of sum(grad_output * output), by the names of the arguments."""
    rest = (query, key, value, grad_output)
    if variant == "efficient_attention" and options.pop("normalization", "softmax") == "scaling":
        return SimpleNamespace(**_scaling(*rest, **options))
    families: dict[str, Any] = {
        "efficient_attention": _efficient,
        "linear_attention": _linear,
        "cosformer_attention": _cosformer,
        "performer_attention": _performer,
        "ssd": _ssd,
        "relay_attention": _relay,
        "differential_attention": _differential,
    }
    return SimpleNamespace(**families[variant](*rest, **options))


def _swap(x: Array) -> Array:
    return np.swapaxes(x, -1, -2)


def _of_weights(weights: Array, value: Array, grad: Array) -> tuple[Array, Array]:
    """Gradients by weights (0 where hidden) that are divided by their sum, and by value."""
    total = weights.sum(-1, keepdims=True)
    p = weights / np.where(total == 0, 1, total)
    by_p = grad @ _swap(value)
    by_weights = by_p - (p * by_p).sum(-1, keepdims=True)
    return by_weights / np.where(total == 0, np.inf, total), _swap(p) @ grad


def _of_features(
    phi_q: Array, phi_k: Array, value: Array, grad: Array, **masks: Any
) -> tuple[Array, Array, Array]:
    """Gradients by features, and by value."""
    products = phi_q @ _swap(phi_k)
    seen = visible(products.shape, **masks)
    by_weights, by_value = _of_weights(np.where(seen, products, 0), value, grad)
    by_weights = np.where(seen, by_weights, 0)
    return by_weights @ phi_k, _swap(by_weights) @ phi_q, by_value


def _through_logarithms(
    log_q: Array, log_k: Array, value: Array, grad: Array, **masks: Any
) -> tuple[Array, Array, Array]:
    """Gradients by logarithms of features, and by value; each row is divided by its largest term."""
    pairs = log_q[..., :, None, :] + log_k[..., None, :, :]
    seen = visible(pairs.shape[:-1], **masks)[..., None]
    top = np.where(seen, pairs, -np.inf).max((-2, -1), keepdims=True)
    terms = np.where(seen, np.exp(np.where(seen, pairs - np.where(np.isinf(top), 0, top), 0)), 0)
    by_weights, by_value = _of_weights(terms.sum(-1), value, grad)
    terms = terms * by_weights[..., None]
    return terms.sum(-2), terms.sum(-3), by_value


def _linear(query: Array, key: Array, value: Array, grad: Array, **options: Any) -> dict[str, Array]:
    feature_map = options.pop("feature_map", "elu")
    if isinstance(feature_map, tuple):
        made = _of_features(feature_map[0], feature_map[1], value, grad, **options)
    elif feature_map == "relu":
        made = _of_features(np.maximum(query, 0), np.maximum(key, 0), value, grad, **options)
        made = (made[0] * (query > 0), made[1] * (key > 0), made[2])
    else:  # elu(x) + 1 by its logarithm
        logs = [np.where(x > 0, np.log1p(np.maximum(x, 0)), x) for x in (query, key)]
        made = _through_logarithms(logs[0], logs[1], value, grad, **options)
        made = (made[0] / (1 + np.maximum(query, 0)), made[1] / (1 + np.maximum(key, 0)), made[2])
    return dict(zip(("query", "key", "value"), made, strict=True))


def _performer(query: Array, key: Array, value: Array, grad: Array, **options: Any) -> dict[str, Array]:
    projection, scale = options.pop("projection"), options.pop("scale", None)
    root = np.sqrt(query.shape[-1] ** -0.5 if scale is None else scale)
    rows = (query * root, key * root)
    logs = [x @ projection.T - np.square(x).sum(-1, keepdims=True) / 2 for x in rows]
    by_q, by_k, by_value = _through_logarithms(logs[0], logs[1], value, grad, **options)
    made = [
        root * (d @ projection - x * d.sum(-1, keepdims=True))
        for d, x in zip((by_q, by_k), rows, strict=True)
    ]
    return {"query": made[0], "key": made[1], "value": by_value}


def _cosformer(query: Array, key: Array, value: Array, grad: Array, **options: Any) -> dict[str, Array]:
    length = options.pop("max_length")
    shift = offset_of(options.get("causal"), key.shape[-2], query.shape[-2])
    distance = np.arange(query.shape[-2])[:, None] + shift - np.arange(key.shape[-2])
    cosine = np.cos(np.pi * distance / (2 * length))
    rows = np.maximum(query, 0), np.maximum(key, 0)
    seen = visible((*query.shape[:-1], key.shape[-2]), **options)
    weights = np.where(seen, cosine * (rows[0] @ _swap(rows[1])), 0)
    by_weights, by_value = _of_weights(weights, value, grad)
    by_product = np.where(seen, by_weights * cosine, 0)
    by_q, by_k = by_product @ rows[1], _swap(by_product) @ rows[0]
    return {"query": by_q * (query > 0), "key": by_k * (key > 0), "value": by_value}


def _scaling(
    query: Array, key: Array, value: Array, grad: Array, *, scale: float = 1.0, **masks: Any
) -> dict[str, Array]:
    seen = visible((*query.shape[:-1], key.shape[-2]), **masks)
    each = np.where(seen, scale**2 / np.maximum(seen.sum(-1, keepdims=True), 1), 0)
    by_products = each * (grad @ _swap(value))
    weights = each * (query @ _swap(key))
    return {"query": by_products @ key, "key": _swap(by_products) @ query, "value": _swap(weights) @ grad}


def _efficient(
    query: Array, key: Array, value: Array, grad: Array, *, scale: float = 1.0, **masks: Any
) -> dict[str, Array]:
    seen = visible((*query.shape[:-1], key.shape[-2]), **masks)[..., None]
    shown = np.where(seen, scale * key[..., None, :, :], -np.inf)
    top = shown.max(-2, keepdims=True)
    maps = np.exp(shown - np.where(np.isinf(top), 0, top))  # per query and channel, over keys
    maps /= np.where(maps.sum(-2, keepdims=True) == 0, 1, maps.sum(-2, keepdims=True))
    shares = np.exp(scale * (query - query.max(-1, keepdims=True)))
    shares /= shares.sum(-1, keepdims=True)
    by_pairs = (grad @ _swap(value))[..., None]
    by_shares = (maps * by_pairs).sum(-2)
    by_logs = maps * shares[..., None, :] * (by_pairs - by_shares[..., None, :])
    by_q = scale * shares * (by_shares - (shares * by_shares).sum(-1, keepdims=True))
    weights = (maps * shares[..., None, :]).sum(-1)
    return {"query": by_q, "key": scale * by_logs.sum(-3), "value": _swap(weights) @ grad}


def _ssd(query: Array, key: Array, value: Array, grad: Array, *, log_decay: Array) -> dict[str, Array]:
    past = np.cumsum(np.broadcast_to(log_decay, query.shape[:-1]), axis=-1)
    between = np.tril(np.exp(np.minimum(past[..., :, None] - past[..., None, :], 0)))
    products, by_pairs = query @ _swap(key), grad @ _swap(value)
    by_products, weights = between * by_pairs, between * products
    terms = weights * by_pairs
    passing = [terms[..., i:, :i].sum((-2, -1)) for i in range(query.shape[-2])]
    return {
        "query": by_products @ key,
        "key": _swap(by_products) @ query,
        "value": _swap(weights) @ grad,
        "log_decay": np.stack(passing, -1),
    }


def _relay(x: Array, centres: Array, value: Array | None, grad: Array) -> dict[str, Any]:
    given = x if value is None else value
    by = attention_gradients(centres, x, given, grad, scale=1.0)
    by_x = by.key + by.value if value is None else by.key
    return {"query": by_x, "key": by.query, "value": None if value is None else by.value}


def _differential(
    query: Any, key: Any, value: Array, grad: Array, *, lam: Array, **options: Any
) -> dict[str, Any]:
    one = attention_gradients(query[0], key[0], value, grad, **options)
    two = attention_gradients(query[1], key[1], value, -lam[..., None] * grad, **options)
    return {
        "query": (one.query, two.query),
        "key": (one.key, two.key),
        "value": one.value + two.value,
        "lam": -(grad * attention(query[1], key[1], value, **options)).sum(-1),
    }
