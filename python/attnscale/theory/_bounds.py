# SPDX-License-Identifier: BSD-3-Clause
"""What bounded scores imply for weights and entropy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._arguments import at_least, plain

__all__ = ["entropy_lower_bound", "spectral_entropy_bound", "weight_bounds"]


def entropy_lower_bound(n: ArrayLike, spread: ArrayLike) -> Any:
    """Least entropy that n keys can have by the variance bound, if their scores lie in a range.

    ``max(0, ln n - spread^2 / 8)``: the deficit is the integral of t Var_p(x) from 0 to the scale, and
    no variance in a range R is above R^2/4. Scores g cos have a spread of 2 g, a soft-cap c one of 2 c.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    spread : array_like
        Largest less smallest score, the scale included; at least 0.

    Returns
    -------
    float or ndarray of float64
        Nats; the arguments broadcast.

    Examples
    --------
    >>> round(entropy_lower_bound(512, 4), 4)
    4.2383
    """
    r = at_least("spread", spread, 0)
    return plain(np.maximum(0.0, np.log(at_least("n", n, 1)) - r * r / 8))


def weight_bounds(n: ArrayLike, spread: ArrayLike) -> tuple[Any, Any]:
    """Smallest and largest weight that a key can have among n, if the scores lie in a range.

    ``1/(1 + (n - 1) e^R)`` and ``1/(1 + (n - 1) e^-R)``, reached when all other scores are equal. Both
    fall like 1/n: bounded scores cannot stay sharp (Velickovic et al. 2024, arXiv 2410.01104, who
    give 1/(n e^R) and the same upper bound).

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    spread : array_like
        Largest less smallest score R, at least 0.

    Returns
    -------
    (float or ndarray of float64, float or ndarray of float64)
        Lower and upper bound.

    Examples
    --------
    >>> low, high = weight_bounds([16, 512], 4)
    >>> high.round(4)
    array([0.7845, 0.0965])
    """
    others, r = at_least("n", n, 1) - 1, at_least("spread", spread, 0)
    small = np.exp(-r)
    return plain(small / (small + others)), plain(1 / (1 + others * small))


def spectral_entropy_bound(n: ArrayLike, norm: ArrayLike) -> Any:
    """Least entropy of n keys whose scores have a given Euclidean norm.

    ``ln(1 + (n-1) b) + norm sqrt(n (n-1)) b / (1 + (n-1) b)`` with ``b = exp(-norm sqrt(n / (n-1)))``:
    Zhai et al. 2023, arXiv 2303.06296, theorem 3.1, reached by one high score and equal others. The
    spectral norm of the query and key projections bounds the norm of the scores; its growth in
    training is what they call entropy collapse.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    norm : array_like
        At least 0.

    Returns
    -------
    float or ndarray of float64
        Nats; the arguments broadcast.

    Examples
    --------
    >>> round(spectral_entropy_bound(16, 3), 6)
    1.767526
    """
    counts, sigma = np.broadcast_arrays(at_least("n", n, 1), at_least("norm", norm, 0))
    others = counts - 1
    gap = sigma * np.sqrt(counts / np.maximum(others, 1e-300))  # between the high score and the rest
    with np.errstate(over="ignore", invalid="ignore"):
        shared = others * np.exp(-gap)
        bound = np.log1p(shared) + gap * shared / (1 + shared)
    return plain(np.where(others > 0, bound, 0.0))
