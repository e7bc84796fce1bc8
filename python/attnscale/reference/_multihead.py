# SPDX-License-Identifier: BSD-3-Clause
"""Multi-head attention step by step, as the article of 2023 writes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._attention import attention_statistics

Array = NDArray[Any]


def multi_head_attention(
    layer: Any, query: Array, key: Array, value: Array, *, mask: Any = 1, prior: Any = 1, keep: Any = 1
) -> Array:
    """Projections, scores, mask, softmax, prior, dropout, sum, projection. mask and keep are 0 or 1."""
    heads = []
    for name, x in (("query", query), ("key", key), ("value", value)):
        rows = x @ getattr(layer, f"{name}_weight").T + getattr(layer, f"{name}_bias")
        heads.append(rows.reshape(*rows.shape[:-1], layer.heads, layer.head_dim))
    if type(layer.normalizer).__name__ == "Softmax" and layer.qk_norm is None:
        a = _weights(layer, heads[0], heads[1], mask, prior)
    else:
        a = _other_weights(layer, heads[0], heads[1], mask, prior)
    a = a * keep / (1 - (layer.dropout if np.ndim(keep) else 0))
    rows = np.einsum("...hjk,...khd->...jhd", a, heads[2])
    return np.asarray(rows.reshape(*rows.shape[:-2], -1) @ layer.output_weight.T + layer.output_bias)


def _weights(layer: Any, query: Array, key: Array, mask: Any, prior: Any) -> Array:
    """The article's softmax: masked scores of -1e12, and the prior before the sum."""
    scores = np.einsum("...jhd,...khd->...hjk", query, key)
    scores = scores * np.broadcast_to(layer.scale, layer.heads)[:, None, None]
    scores = scores * mask - 1e12 * (1 - np.asarray(mask))
    e = np.exp(scores - scores.max(-1, keepdims=True)) * prior
    weights: Array = e / e.sum(-1, keepdims=True)
    return weights


def _other_weights(layer: Any, query: Array, key: Array, mask: Any, prior: Any) -> Array:
    """Weights of another normalizer or of normalised queries and keys, the prior a bias of ln(prior)."""
    with np.errstate(divide="ignore"):
        bias = np.where(mask, np.log(np.asarray(prior, np.float64)), -np.inf)
    q, k = (rows.swapaxes(-3, -2) for rows in (query, key))
    scale = np.broadcast_to(layer.scale, layer.heads)[:, None]
    options = {"scale": scale, "normalizer": layer.normalizer, "qk_norm": layer.qk_norm}
    p: Array = attention_statistics(q, k, attn_mask=np.atleast_2d(bias), **options).p
    return p
