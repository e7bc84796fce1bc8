# SPDX-License-Identifier: BSD-3-Clause
"""Twins of what a scale may keep: the number of keys, the variance of the output, one key's weight."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ._montecarlo import random_scores
from ._theory import expected_statistics

__all__ = [
    "expected_support",
    "retrieval_beta",
    "retrieval_length",
    "retrieval_trade_off",
    "sparsity_beta",
    "variance_invariant_beta",
]


def expected_support(n: int, beta: float) -> float:
    """n E[P(S < 1)]: S sums n - 1 excesses over one key's score, convolved on a grid below 1."""
    from scipy.stats import norm

    total, cells = 0.0, 801  # the grid of the sum has steps of 1/800
    for z in np.arange(-6, 7, 0.1):
        edges = z + (np.arange(cells) + 0.5) / 800 / beta
        one = np.diff(norm.cdf(edges), prepend=0.0)  # sums above 1 can be left out
        power, rest, result = one, n - 1, np.eye(1, cells)[0]
        while rest:
            result = np.convolve(result, power)[:cells] if rest % 2 else result
            power, rest = np.convolve(power, power)[:cells], rest // 2
        total += 0.1 * norm.pdf(z) * (result.sum() - result[-1] / 2)
    return float(n * total)


def sparsity_beta(n: Any, *, n0: float = 512, keys: float = 1) -> Any:
    """isf(keys / n) / isf(keys / n0)."""
    from scipy.stats import norm

    return norm.isf(keys / np.asarray(n)) / norm.isf(keys / n0)


def variance_invariant_beta(n: float, *, n0: float = 512, **model: Any) -> float:
    """The root of E[sum p^2] at n keys less that at n0 keys and beta = 1."""
    from scipy.optimize import brentq

    goal = expected_statistics(n0, 1.0, **model).concentration
    return float(brentq(lambda beta: expected_statistics(n, beta, **model).concentration - goal, 0.01, 9))


def retrieval_beta(n: float, *, gap: float, weight: float = 0.5) -> float:
    """The smaller root of beta^2 / 2 - gap beta + ln n + ln(w / (1 - w))."""
    roots = np.roots([0.5, -gap, np.log(n * weight / (1 - weight))])
    return float(max(0.0, roots.real.min())) if np.isreal(roots).all() else np.nan


def retrieval_length(gap: float, *, weight: float = 0.5) -> float:
    """The n at which the two roots are one."""
    return float(np.exp(gap**2 / 2 - np.log(weight / (1 - weight))))


def retrieval_trade_off(
    n: int, beta: float, *, cosine: float, rng: np.random.Generator, head_dim: int = 64
) -> SimpleNamespace:
    """Means over 4000 random rows, with the needle as first key and without."""
    scores = beta * random_scores("sphere", n, head_dim, 4000, rng)
    needle = scores.copy()
    needle[:, 0] = beta * np.sqrt(head_dim) * cosine
    p, found = (np.exp(s) / np.exp(s).sum(-1, keepdims=True) for s in (scores, needle))
    error = float((p * p).sum(-1).mean())
    return SimpleNamespace(needle_weight=found[:, 0].mean(), averaging_error=error, excess=n * error)
