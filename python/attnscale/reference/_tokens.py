# SPDX-License-Identifier: BSD-3-Clause
"""Twins of the theory of tokens, rows and weights: every matrix written out, every integral a sum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def self_weight(n: int, *, gamma: float, correlation: float) -> float:
    """The first weight of a row of n tokens whose first score is gamma ln n, the others rho times it."""
    scores = gamma * np.log(n) * np.array([1.0, *[correlation] * (n - 1)])
    p = np.exp(scores - scores.max())
    return float(p[0] / p.sum())


def critical_gamma(correlation: float) -> float:
    """gamma at which n^(gamma (1 - rho)) = n."""
    return float(np.log(np.e) / (1 - correlation))


def token_correlation(
    n: int, *, gamma: float, correlation: float, layers: int = 1, residual: float = 0.0
) -> float:
    """Layers of attention over the n tokens themselves, from the root of their Gram matrix."""
    values, vectors = np.linalg.eigh((1 - correlation) * np.eye(n) + correlation)
    x = vectors * np.sqrt(np.maximum(values, 0))
    for _ in range(layers):
        scores = gamma * np.log(n) * x @ x.T
        p = np.exp(scores - scores.max(-1, keepdims=True))
        y = residual * x + p @ x / p.sum(-1, keepdims=True)
        x = y / np.linalg.norm(y, axis=-1, keepdims=True)
    return float(x[0] @ x[1])


def top_gap_probability(n: int, gap: float) -> float:
    """The double integral over the largest score and the second, as a sum."""
    from scipy.stats import norm

    s = np.arange(-8, 8, 0.01)
    second = (n - 1) * norm.pdf(s) * norm.cdf(s) ** (n - 2) * 0.01
    return float(n * (second * (norm.cdf(s + gap) - norm.cdf(s))).sum())


def critical_scale_tail(n: int, level: float) -> float:
    """P(ln 2 / gap > level)."""
    return top_gap_probability(n, np.log(2) / level)


def score_cumulants(scores: Array, *, order: int = 2) -> Array:
    """Central moments, the fourth less three times the squared variance."""
    centred = scores - scores.mean(-1, keepdims=True)
    moments = [(centred**k).mean(-1) for k in range(2, order + 1)]
    if order == 4:
        moments[2] = moments[2] - 3 * moments[0] ** 2
    return np.stack(moments, axis=-1)


def cumulant_beta(n: float, *, n0: float, cumulants: Array) -> float:
    """The first crossing of beta psi' - psi with its value at 1 plus ln(n / n0), on a grid."""
    from scipy.special import factorial

    beta, orders = np.arange(0, 50, 1e-4), np.arange(2, 2 + len(cumulants))
    psi = sum(c * beta**k / factorial(k) for c, k in zip(cumulants, orders, strict=True))
    slope = sum(c * beta ** (k - 1) / factorial(k - 1) for c, k in zip(cumulants, orders, strict=True))
    deficit = beta * slope - psi
    goal = deficit[10_000] + np.log(n / n0)
    above = deficit >= goal
    return float(beta[above.argmax()]) if above.any() and goal >= 0 else np.nan


def expected_overlap(n: int, beta: float, correlation: float, rng: np.random.Generator) -> float:
    """The mean of sum_i p_i p'_i over 2000 pairs of random rows."""
    first, other = rng.standard_normal((2, 2000, n))
    second = correlation * first + np.sqrt(1 - correlation**2) * other
    p, q = (np.exp(beta * s) / np.exp(beta * s).sum(-1, keepdims=True) for s in (first, second))
    return float((p * q).sum(-1).mean())


def propagated_correlation(
    correlation: float, *, n: int, beta: float, rng: np.random.Generator, residual: float | None = None
) -> float:
    """One layer over n tokens of 256 dimensions with random W_q, W_k and W_v: the mean cosine."""
    d = 256
    shared, own = rng.standard_normal(d), rng.standard_normal((n, d))
    x = np.sqrt(correlation) * shared + np.sqrt(1 - correlation) * own
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    mixed, value = rng.standard_normal((2, d, d))
    p = np.exp(beta * x @ mixed @ x.T)
    y = (p / p.sum(-1, keepdims=True)) @ x @ value / np.sqrt(d)
    y = y if residual is None else x + residual * y
    gram = y @ y.T
    return float((gram.sum() - np.trace(gram)) / (n - 1) / np.trace(gram))


def least_entropy(n: int, spread: float) -> float:
    """The least entropy of all splits into k keys at the top and n - k at the bottom."""
    if n == 1:
        return 0.0
    k = np.arange(1, n)
    z = k + (n - k) * np.exp(-spread)
    return float((np.log(z) + spread * (1 - k / z)).min())


def softcap_for_entropy(n: int, *, entropy: float) -> float:
    """The last cap of a fine grid whose least entropy reaches `entropy`."""
    caps = np.arange(0, 20, 1e-2)
    return float(max(c for c in caps if least_entropy(n, 2 * c) >= entropy))


def score_spectrum(query: Array, key: Array) -> Array:
    """Eigenvalues of E[q q^T] Cov(k) / d, which are those of the symmetric product."""
    moment = query.T @ query / len(query)
    values = np.linalg.eigvals(moment @ np.cov(key.T, bias=True) / query.shape[-1])
    return np.sort(values.real)[::-1]


def spectrum_entropy(n: int, *, spectrum: Array, rng: np.random.Generator, beta: float = 1) -> float:
    """The mean entropy of 2000 rows: a normal query, and n keys in the axes of the spectrum."""
    query = rng.standard_normal((2000, 1, len(spectrum)))
    total = 0.0
    for q in query:
        s = beta * (q * np.sqrt(spectrum) * rng.standard_normal((n, len(spectrum)))).sum(-1)
        p = np.exp(s - s.max()) / np.exp(s - s.max()).sum()
        total += float(-(p * np.log(np.maximum(p, 1e-300))).sum()) / len(query)
    return total


def sink_entropy(weight: float, rest: Array) -> float:
    """The entropy of one weight and of the others, which are `rest` times what it leaves."""
    p = np.array([weight, *((1 - weight) * rest)])
    return float(-(p[p > 0] * np.log(p[p > 0])).sum())


def sink_weight(weight: float, *, n: int, n0: int) -> float:
    """The weight of a key that keeps its score among n - 1 others, each of the mean exponential of n0 - 1."""
    other = (1 - weight) / (n0 - 1)
    return weight / (weight + (n - 1) * other)


def fold_scale(weight: Array, beta: Array) -> Array:
    """beta_h W_h, head by head."""
    return np.stack([b * w for b, w in zip(np.broadcast_to(beta, len(weight)), weight, strict=True)])


def scale_update_residual(weight: Array, beta: float, *, rank: int) -> float:
    """What the best update of rank `rank`, the truncated singular value decomposition, leaves."""
    if beta == 1:
        return 0.0
    change = (beta - 1) * weight
    u, s, v = np.linalg.svd(change, full_matrices=False)
    best = u[:, :rank] * s[:rank] @ v[:rank]
    return float(np.linalg.norm(change - best) / np.linalg.norm(change))
