# SPDX-License-Identifier: BSD-3-Clause
"""The entropy that random keys would have in the place of a head's."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ..theory import expected_entropy

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_KNOTS = 5  # rows whose expectation is computed where rows see different numbers of keys


def random_entropy(visible: NDArray[np.int64], beta: Array, head_dim: int) -> Array:
    """Mean over the rows of the expected entropy of as many random keys, shape (heads, betas).

    The keys are independent and uniform on a sphere, with scores of the variance beta^2. `visible` has the
    shape (heads, rows), and beta is one for all, or (heads, rows, betas). Rows that see different numbers of
    keys lie between five of them, along the logarithm of the number.
    """
    counts = np.maximum(visible, 1)
    if beta.ndim == 1:  # heads that see the same keys share the answer
        kinds, which = np.unique(counts, axis=0, return_inverse=True)
        every = np.broadcast_to(beta, (*kinds.shape, len(beta)))
        return _each(kinds, every, head_dim)[which.reshape(-1)]
    return _each(counts, beta, head_dim)


def _each(counts: NDArray[np.int64], beta: Array, head_dim: int) -> Array:
    return np.array([[_mean(n, b, head_dim) for b in betas.T] for n, betas in zip(counts, beta, strict=True)])


def _mean(visible: NDArray[np.int64], beta: Array, head_dim: int) -> float:
    if not np.isfinite(beta).all():
        return float("nan")
    counts, first = np.unique(visible, return_index=True)
    knots = np.unique(np.linspace(0, len(counts) - 1, _KNOTS).round().astype(int))
    values = [_expected(int(counts[i]), float(beta[first[i]]), head_dim) for i in knots]
    return float(np.interp(np.log(visible), np.log(counts[knots]), values).mean())


@lru_cache(maxsize=4096)
def _expected(n: int, beta: float, head_dim: int) -> float:
    """Heads and layers share their numbers of keys, and the exact expectation takes its time."""
    return float(expected_entropy(n, beta, head_dim=head_dim))
