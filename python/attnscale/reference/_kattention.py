# SPDX-License-Identifier: BSD-3-Clause
"""Rotary positions and kattention, step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._attention import attention

Array = NDArray[Any]


def rotation(position: float, head_dim: int, *, base: float = 10000.0, interleaved: bool = False) -> Array:
    """R_m, (head_dim, head_dim): one 2 x 2 rotation for each pair of channels."""
    turned = np.zeros((head_dim, head_dim))
    for c in range(head_dim // 2):
        a, b = (2 * c, 2 * c + 1) if interleaved else (c, c + head_dim // 2)
        angle = position * base ** (-2 * c / head_dim)
        turned[[a, b], [a, b]] = np.cos(angle)
        turned[a, b], turned[b, a] = -np.sin(angle), np.sin(angle)
    return turned


def apply_rotary(x: Array, positions: Array, **options: Any) -> Array:
    """R_m x_m for rows (n, head_dim)."""
    rows = [rotation(m, x.shape[-1], **options) @ row for m, row in zip(positions, x, strict=True)]
    return np.array(rows, np.float64).reshape(x.shape)


def rotary_score(query: Array, key: Array, distances: Array, **options: Any) -> Array:
    """q^T R_(n - m) k of one query and key, for t = m - n."""
    return np.array([query @ rotation(-t, len(query), **options) @ key for t in distances])


def kattention_scores(
    name: str, x: Array, y: Array, q: Array, k: Array, b: Array | float = 0.0, c: Array | float = 0.0
) -> Array:
    """f1 ... f6 of all pairs, (n, m), from the matrices Q^T K, K^T K and Q^T Q."""
    x, y, q, k = (each.astype(np.float64) for each in (x, y, q, k))
    cross = x @ q.T @ k @ y.T
    of_key = np.einsum("je,ef,jf->j", y, np.eye(y.shape[-1]) if name == "f2" else k.T @ k, y) / 2
    step = y @ k.T @ np.broadcast_to(b, q.shape[:1])
    of_query = x @ q.T @ np.broadcast_to(c, q.shape[:1]) - np.einsum("ie,ef,if->i", x, q.T @ q, x) / 2
    terms = {"f1": cross, "f2": cross - of_key, "f3": cross - of_key, "f4": cross - of_key + step}
    terms |= {"f5": terms["f4"], "f6": terms["f4"] + of_query[:, None]}
    return np.asarray(terms[name])


def kattention_heads(
    query: Array, key: Array, value: Array, *, bias: Array | float = 0.0, scale: float, **masks: Any
) -> Array:
    """``softmax(-scale |q + b - k|^2 / 2) value``; the scores are a mask on queries and keys of 0."""
    q, k = query.astype(np.float64), key.astype(np.float64)
    step = np.asarray(bias, np.float64)
    q = q + (step[..., None, :] if step.ndim else step)
    distance = ((q[..., :, None, :] - k[..., None, :, :]) ** 2).sum(-1)
    return attention(0 * q, 0 * k, value, attn_mask=-0.5 * scale * distance, **masks)


def kattention(x: Array, q_weight: Array, k_weight: Array, bias: Array | float, beta: float) -> Array:
    """y_i = sum_j softmax_j(beta f4(x_i, x_j)) x_j of one head."""
    score = beta * kattention_scores("f4", x, x, q_weight, k_weight, bias)
    p = np.exp(score - score.max(-1, keepdims=True))
    return np.asarray(p / p.sum(-1, keepdims=True) @ x)
