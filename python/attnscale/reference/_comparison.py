# SPDX-License-Identifier: BSD-3-Clause
"""The columns of a matrix of weights, and the divergence of its rows from those of another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._attention import attention_statistics, attention_weights, scores

Array = NDArray[Any]


def attention_received(
    query: Array, key: Array, *, reduce: str = "sum", normalizer: Any = "softmax", **options: Any
) -> Array:
    """The sum, the mean over the queries that see the key, or the largest of each column of weights."""
    p, seen = (
        attention_weights(query, key, normalizer=normalizer, **options),
        scores(query, key, **options)[1],
    )
    if reduce == "max":
        return np.asarray(p.max(-2, initial=0))
    count = np.maximum(np.broadcast_to(seen, p.shape).sum(-2), 1) if reduce == "mean" else 1
    return np.asarray(p.sum(-2) / count)


def attention_divergence(
    query: Array,
    key: Array,
    other_query: Array,
    other_key: Array,
    *,
    scale: Any = None,
    other_scale: Any = None,
    softcap: float | None = None,
    other_softcap: float | None = None,
    attn_mask: Any = None,
    other_attn_mask: Any = None,
    **masks: Any,
) -> Array:
    """sum p (ln p - ln p') of every row."""
    own = {"scale": scale, "softcap": softcap, "attn_mask": attn_mask, **masks}
    their_mask = attn_mask if other_attn_mask is None else other_attn_mask
    theirs = {"scale": other_scale, "softcap": other_softcap, "attn_mask": their_mask, **masks}
    (s, seen), (t, shown) = scores(query, key, **own), scores(other_query, other_key, **theirs)
    rows, others = (
        attention_statistics(query, key, **own),
        attention_statistics(other_query, other_key, **theirs),
    )
    with np.errstate(invalid="ignore"):
        terms = rows.p * ((s - rows.lse[..., None]) - (t - others.lse[..., None]))
    found = np.where(seen & shown, terms, 0).sum(-1)
    return np.where((seen & ~shown).any(-1), np.inf, found)
