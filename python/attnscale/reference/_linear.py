# SPDX-License-Identifier: BSD-3-Clause
"""Linear-time variants of attention with features, by their matrix of weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._attention import visible

Array = NDArray[Any]


def weighted_mean(weights: Array, value: Array, **masks: Any) -> Array:
    """Means of `value` by rows of `weights` (..., n_queries, n_keys) without hidden keys; 0 for no weight."""
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
    shift = key.shape[-2] - query.shape[-2] if masks.get("causal") == "bottom_right" else 0
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

    No function of the core computes it; :func:`attnscale.variants.ssd` is the case of one decay a head.

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
