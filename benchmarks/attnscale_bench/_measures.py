# SPDX-License-Identifier: BSD-3-Clause
"""Statistics of the weights of a variant: sharpness, sparsity, rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from attnscale.montecarlo._weights import effective_rank, row_entropy

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["WeightMeasures", "measure_weights", "weights_of"]


class WeightMeasures(NamedTuple):
    """Means over rows (and heads) of weights whose rows sum to 1; effective_rank is of whole matrices."""

    entropy: float  # nats
    max_weight: float
    support: float  # weights that are not 0
    effective_rank: float
    needle_weight: float  # on the key with the largest dot product


def weights_of(function: Callable[..., Any], query: NDArray[Any], key: NDArray[Any]) -> NDArray[Any]:
    """The matrix (..., n_queries, n_keys) that a variant applies to values: its output for unit vectors."""
    n = key.shape[-2]
    units = np.broadcast_to(np.eye(n, dtype=query.dtype), (*key.shape[:-2], n, n))
    weights: NDArray[Any] = function(query, key, units)
    return weights


def measure_weights(weights: NDArray[Any], query: NDArray[Any], key: NDArray[Any]) -> WeightMeasures:
    """Entropy, largest weight, support, effective rank, and the weight of the key nearest by dot product.

    effective_rank is exp of the entropy of the singular values divided by their sum (Roy and Vetterli
    2007), as in ``attnscale.montecarlo.rank_and_sparsity``.
    """
    p = np.maximum(weights.astype(np.float64), 0)
    singular = np.linalg.svd(p, compute_uv=False)
    nearest = (query.astype(np.float64) @ np.swapaxes(key.astype(np.float64), -1, -2)).argmax(-1)
    return WeightMeasures(
        entropy=float(row_entropy(p).mean()),
        max_weight=float(p.max(-1).mean()),
        support=float((p > 0).sum(-1).mean()),
        effective_rank=float(effective_rank(singular).mean()),
        needle_weight=float(np.take_along_axis(p, nearest[..., None], -1).mean()),
    )
