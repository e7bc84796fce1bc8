# SPDX-License-Identifier: BSD-3-Clause
"""Twins of how many keys entmax gives a weight: sums of shares, convolved on a grid below 1."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CELLS = 801  # the grid of the sum has steps of 1/800; what is above 1 can be left out
SCORES = np.arange(-6, 7, 0.1)


def expected_support(n: int, beta: float, *, alpha: float = 2.0) -> float:
    """n E[P(S < 1)]: S sums n - 1 shares of what lies above one key's score."""
    from scipy.stats import norm

    total = 0.0
    for z in SCORES:
        one = np.diff(norm.cdf(z + _distances(alpha) / beta), prepend=0.0)
        power, rest, result = one, n - 1, np.eye(1, CELLS)[0]
        while rest:
            result = np.convolve(result, power)[:CELLS] if rest % 2 else result
            power, rest = np.convolve(power, power)[:CELLS], rest // 2
        total += 0.1 * norm.pdf(z) * (result.sum() - result[-1] / 2)
    return float(n * total)


def support_probabilities(n: int, beta: float, *, alpha: float = 2.0, keys: int = 32) -> Array:
    """Differences of P(one score has k above it, whose shares sum to less than 1)."""
    from scipy.stats import norm

    more = np.eye(1, keys + 1)[0]
    for z in SCORES:
        one = np.diff(norm.cdf(z + _distances(alpha) / beta), prepend=norm.cdf(z))
        result = np.eye(1, CELLS)[0]
        for k in range(1, min(keys, n - 1) + 1):
            result = np.convolve(result, one)[:CELLS]
            rest = n * math.comb(n - 1, k) * norm.cdf(z) ** (n - 1 - k) * norm.pdf(z)
            more[k] += 0.1 * rest * (result.sum() - result[-1] / 2)
    return np.asarray(-np.diff(more))


def support_limit(ratio: float, *, alpha: float = 2.0) -> float:
    """1 plus the sum over k of P(k shares of exponential numbers sum to less than 1)."""
    one = -np.diff(np.exp(-_distances(alpha) * ratio), prepend=1.0)
    result, total = np.eye(1, CELLS)[0], 0.0
    while (below := result.sum() - result[-1] / 2) > 1e-9:
        total += below
        result = np.convolve(result, one)[:CELLS]
    return float(total)


def support_distance_bound(n: float, beta: float) -> float:
    """The bound of the theorem, its constants taken from the largest slope of Q_k on a grid."""
    from scipy.stats import norm, poisson

    b = norm.isf(1 / n)
    ratio, total, share = b / beta, 0.0, np.linspace(1e-4, 1, 2000)
    for k in range(1, 200):
        before = poisson.pmf(k - 1, np.linspace(0, ratio, 2000)).max() * ratio
        if k - 1 < ratio:  # the smaller of two bounds of the mean slope from a lower rate to this one
            before = min(before, poisson.sf(k - 1, ratio) / (1 - (k - 1) / ratio))
        slope = (poisson.sf(k - 1, ratio) - poisson.sf(k - 1, ratio * (1 - share))) / share
        assert slope.max() < before + 1e-3
        total += before * np.log(k + 2)
    return float((1.25 * ratio + ratio**2) / b**2 + total / np.log(n))


def support_invariant_beta(n: int, *, n0: int = 512, alpha: float = 2.0) -> float:
    """The root of the expected support of n keys less that of n0 at 1."""
    from scipy.optimize import brentq

    goal = expected_support(n0, 1.0, alpha=alpha)
    return float(brentq(lambda beta: expected_support(n, beta, alpha=alpha) - goal, 0.5, 2, xtol=1e-3))


def sparsity_beta(n: Any, *, n0: float = 512, keys: float = 1) -> Any:
    """isf(keys / n) / isf(keys / n0)."""
    from scipy.stats import norm

    return norm.isf(keys / np.asarray(n)) / norm.isf(keys / n0)


def _distances(alpha: float) -> Array:
    """y (at beta = 1) at the ends of the cells of ((alpha-1) y)^(1/(alpha-1))."""
    return np.asarray(((np.arange(CELLS) + 0.5) / 800) ** (alpha - 1) / (alpha - 1))
