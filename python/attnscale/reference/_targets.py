# SPDX-License-Identifier: BSD-3-Clause
"""Twins of what a scale may keep: the variance of the output, one key's weight."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from ._montecarlo import random_scores
from ._theory import expected_statistics


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


def needle_weight_bound(n: float, *, gap: float, beta: float) -> float:
    """The weight where the others' sum of exponentials is its mean."""
    others = n * np.exp(beta**2 / 2)
    return float(np.exp(beta * gap) / (np.exp(beta * gap) + others))


def averaging_excess_bound(n: float, beta: float) -> float:
    """n^2 E[e^(2 beta s)] E[e^(-2 beta m)] / (n-1)^2, m the mean of the n - 1 other scores."""
    s = np.linspace(-15, 15, 6001)
    density = np.exp(-(s**2) / 2) / np.exp(-(s**2) / 2).sum()
    own, others = (density * np.exp(2 * beta * s)).sum(), density * np.exp(-2 * beta * s / np.sqrt(n - 1))
    return float(n**2 * own * others.sum() / (n - 1) ** 2)


def shared_excess_bound(n: float, *, gap: float) -> float:
    """e^(b^2) / 8 with b = ln(n) / gap."""
    return float(n ** (np.log(n) / gap**2) / 8)
