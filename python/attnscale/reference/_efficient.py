# SPDX-License-Identifier: BSD-3-Clause
"""Efficient attention, relay nodes and Linformer by their matrices of weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._attention import visible

Array = NDArray[Any]


def _softmax(x: Array, axis: int) -> Array:
    top = x.max(axis, keepdims=True)
    weights = np.exp(x - np.where(np.isneginf(top), 0, top))
    total = weights.sum(axis, keepdims=True)
    return np.asarray(weights / np.where(total == 0, 1, total))


def efficient_attention_weights(query: Array, key: Array, *, scale: float = 1.0, **masks: Any) -> Array:
    """A_ij = sum_c softmax_c(q_i) softmax_j(k_c), the second over the keys that query i sees."""
    n = (*np.broadcast_shapes(query.shape[:-2], key.shape[:-2]), query.shape[-2], key.shape[-2])
    seen = visible(n, **masks)[..., None]
    maps = _softmax(np.where(seen, scale * key[..., None, :, :], -np.inf), -2)
    return np.asarray(np.einsum("...ic,...ijc->...ij", _softmax(scale * query, -1), maps))


def efficient_attention(
    query: Array, key: Array, value: Array, *, normalization: str = "softmax", **options: Any
) -> Array:
    """Efficient attention; with "scaling", q . k is divided by the number of keys that the query sees."""
    if normalization == "softmax":
        return np.asarray(efficient_attention_weights(query, key, **options) @ value)
    scale = options.pop("scale", 1.0)
    scores = scale**2 * query @ np.swapaxes(key, -1, -2)
    seen = visible(scores.shape, **options)
    return np.asarray(np.where(seen, scores, 0) @ value / np.maximum(seen.sum(-1, keepdims=True), 1))


def global_maps(query: Array, key: Array, value: Array, *, scale: float = 1.0) -> tuple[Array, Array, Array]:
    """Channels' distributions over keys, their values, and each query's mixture of them."""
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
    """Softmax over the keys that the pattern lets a query see."""
    i = np.arange(query.shape[-2])
    seen = (abs(i[:, None] - i) <= radius) | (i < global_tokens) | (i[:, None] < global_tokens)
    seen &= (i <= i[:, None]) | (not is_causal)
    scores = query @ np.swapaxes(key, -1, -2) / np.sqrt(query.shape[-1])
    return np.asarray(_softmax(np.where(seen, scores, -np.inf), -1) @ value)
