# SPDX-License-Identifier: BSD-3-Clause
"""Multi-head attention step by step, as the article of 2023 writes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["multi_head_attention"]

Array = NDArray[Any]


def multi_head_attention(
    layer: Any, query: Array, key: Array, value: Array, *, mask: Any = 1, prior: Any = 1, keep: Any = 1
) -> Array:
    """Projections, scores, mask, softmax, prior, dropout, sum, projection. mask and keep are 0 or 1."""
    heads = []
    for name, x in (("query", query), ("key", key), ("value", value)):
        rows = x @ getattr(layer, f"{name}_weight").T + getattr(layer, f"{name}_bias")
        heads.append(rows.reshape(*rows.shape[:-1], layer.heads, layer.head_dim))
    scores = np.einsum("...jhd,...khd->...hjk", heads[0], heads[1])
    scores = scores * np.broadcast_to(layer.scale, layer.heads)[:, None, None]
    scores = scores * mask - 1e12 * (1 - np.asarray(mask))
    a = np.exp(scores - scores.max(-1, keepdims=True)) * prior
    a = a / a.sum(-1, keepdims=True) * keep / (1 - (layer.dropout if np.ndim(keep) else 0))
    rows = np.einsum("...hjk,...khd->...jhd", a, heads[2])
    return np.asarray(rows.reshape(*rows.shape[:-2], -1) @ layer.output_weight.T + layer.output_bias)
