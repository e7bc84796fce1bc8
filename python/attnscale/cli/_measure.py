# SPDX-License-Identifier: BSD-3-Clause
"""Entropy of stored heads at prefix lengths, shared by ``entropy`` and ``demo``."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..attention import attention_entropy
from ..laws import Law
from ._output import bad_input

#: How a table's effective keys come from its entropies.
KEYS = {"nats": "exp(entropy)", "bits": "2^entropy"}

# Queries and keys of the trial that tells how fast a call is, and how many of each pair are too few to ask.
_TRIAL = (64, 4096)
_FEW = 2**26


def mean_entropy(
    query: NDArray[np.floating],
    key: NDArray[np.floating],
    law: Law,
    lengths: Sequence[int] | None,
    *,
    is_causal: bool = False,
) -> NDArray[np.float64]:
    """Mean entropy of each head, shape (n_lengths, heads).

    At length n the first n queries see the first n keys; None is one entry with everything. The
    mean is over the queries and over the axes before the heads.
    """
    cuts = [(query, key)] if lengths is None else [(query[..., :n, :], key[..., :n, :]) for n in lengths]
    gqa = query.shape[-3] != key.shape[-3]
    means = []
    for q, k in cuts:
        with bad_input():  # the law may be for another number of heads
            entropy = attention_entropy(q, k, scale=law, is_causal=is_causal, enable_gqa=gqa)
        by_head = np.moveaxis(entropy.astype(np.float64), -2, 0)
        means.append(by_head.reshape(by_head.shape[0], -1).mean(axis=1))
    return np.stack(means)


def mean_uniform_entropy(n_queries: int, n_keys: int, *, is_causal: bool = False) -> float:
    """Mean over the queries of ln of the keys each sees: the entropy of equal weights."""
    visible = np.minimum(np.arange(1, n_queries + 1), n_keys) if is_causal else np.full(n_queries, n_keys)
    return float(np.log(visible).mean())


def seconds_a_pair(query: NDArray[np.floating], key: NDArray[np.floating]) -> float:
    """Seconds that the entropy takes for one query and key of every head, by a trial; 0 for short rows."""
    rows = query[..., 0].size
    if rows * key.shape[-2] < _FEW:
        return 0.0
    q, k = query[..., : _TRIAL[0], :], key[..., : _TRIAL[1], :]
    start = time.perf_counter()
    attention_entropy(q, k, enable_gqa=q.shape[-3] != k.shape[-3])
    return (time.perf_counter() - start) / float(q.shape[-2] * k.shape[-2])
