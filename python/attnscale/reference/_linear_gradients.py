# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of variants, with the features of every pair of rows written out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._attention import attention, visible
from ._gradients import attention_gradients

Array = NDArray[Any]


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


def _of_logarithms(
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
        made = _of_logarithms(logs[0], logs[1], value, grad, **options)
        made = (made[0] / (1 + np.maximum(query, 0)), made[1] / (1 + np.maximum(key, 0)), made[2])
    return dict(zip(("query", "key", "value"), made, strict=True))


def _performer(query: Array, key: Array, value: Array, grad: Array, **options: Any) -> dict[str, Array]:
    projection, scale = options.pop("projection"), options.pop("scale", None)
    root = np.sqrt(query.shape[-1] ** -0.5 if scale is None else scale)
    rows = (query * root, key * root)
    logs = [x @ projection.T - np.square(x).sum(-1, keepdims=True) / 2 for x in rows]
    by_q, by_k, by_value = _of_logarithms(logs[0], logs[1], value, grad, **options)
    made = [
        root * (d @ projection - x * d.sum(-1, keepdims=True))
        for d, x in zip((by_q, by_k), rows, strict=True)
    ]
    return {"query": made[0], "key": made[1], "value": by_value}


def _cosformer(query: Array, key: Array, value: Array, grad: Array, **options: Any) -> dict[str, Array]:
    length = options.pop("max_length")
    shift = key.shape[-2] - query.shape[-2] if options.get("causal") == "bottom_right" else 0
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
    maps = np.exp(shown - np.where(np.isinf(top), 0, top))  # one map of each query and channel, over keys
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
