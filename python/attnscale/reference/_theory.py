# SPDX-License-Identifier: BSD-3-Clause
"""Twins of the theory: integrals and sums by definition, on dense grids, at moderate arguments."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._montecarlo import random_scores

Array = NDArray[Any]


def sphere_entropy_deficit(scale: float, head_dim: int) -> float:
    """kappa E[t e^(kappa t)] / M - ln M, the mean over the cosine t by equidistant angles."""
    cosine, p = _cosines(head_dim)
    tilted = p * np.exp(scale * head_dim * cosine)
    log_m = np.log(tilted.sum())
    return float(scale * head_dim * (tilted * cosine).sum() / tilted.sum() - log_m)


def expected_statistics(
    n: float, beta: float, *, head_dim: int = 64, model: str = "sphere"
) -> SimpleNamespace:
    """The integrals over u = ln z of ln Z, 1/Z and 1/Z^2, as they stand."""
    if model == "sphere":
        cosine, p = _cosines(head_dim)
        score = beta * np.sqrt(head_dim) * cosine
    else:
        score, p = beta * (grid := np.linspace(-12, 12, 4001)), np.exp(-(grid**2) / 2)
        p /= p.sum()
    step, u = 0.1, np.arange(-np.log(n) - 35 - score.max(), 5 - score.min(), 0.1)
    e = np.exp(np.minimum(u[:, None] + score, 50.0))
    kept = np.exp(-e) * p
    f = 1 - (-np.expm1(-e) * p).sum(1)
    others = n * np.maximum(f, 0) ** (n - 1) * step
    lse = ((np.exp(-np.exp(np.minimum(u, 50.0))) - np.maximum(f, 0) ** n) * step).sum()
    mean_score = (others * (score * e * kept).sum(1)).sum()
    concentration = (others * (e * e * kept).sum(1)).sum()
    return SimpleNamespace(entropy=lse - mean_score, lse=lse, concentration=concentration)


def expected_max_cosine(n: float, head_dim: int) -> float:
    """The integral of the cosine over d(F^n), F summed from its density."""
    cosine, p = _cosines(head_dim)
    below = np.maximum(1 - np.cumsum(p), 0)  # F at the lower end of each cell
    return float((cosine * ((below + p) ** n - below**n)).sum())


def critical_limit_beta(n: float, t: float, *, head_dim: int = 64) -> float:
    """t (n C)^(1/a) / sqrt(d), with C from the share of keys within 1 - cosine < 1e-7; a = (d - 1) / 2."""
    from scipy.special import betainc

    half = (head_dim - 1) / 2
    log_c = np.log(betainc(half, half, 5e-8)) - half * np.log(1e-7)  # (1 - cosine) / 2 has a beta law
    return float(t * np.exp((np.log(n) + log_c) / half) / np.sqrt(head_dim))


def critical_limit_entropy(t: float, *, head_dim: int = 64) -> float:
    """-gamma - integral exp(-F(u) / t^a) E[(u - x) e^(u-x) exp(-e^(u-x))] du over the points x = s^2."""
    s = (np.arange(4000) + 0.5) * 16 / 4000
    density = (head_dim - 1) * s ** (head_dim - 2) * t ** (-(head_dim - 1) / 2) * 16 / 4000
    step, total = 0.05, 0.0
    for u in np.arange(-90.0, 90.0, step):
        e = np.exp(np.minimum(u - s * s, 50.0))
        missing = (-np.expm1(-e) * density).sum()  # F(u) / t^a
        total += step * np.exp(-missing) * ((u - s * s) * e * np.exp(-e) * density).sum()
    return float(-np.euler_gamma - total)


def _cosines(head_dim: int) -> tuple[Array, Array]:
    """Cosines of equidistant angles and their probabilities, proportional to sin(angle)^(d-2)."""
    angle = (np.arange(4000) + 0.5) * np.pi / 4000
    p = np.sin(angle) ** (head_dim - 2)
    return np.cos(angle), p / p.sum()


CELLS = 801  # the grid of the sum has steps of 1/800; sums above 1 can be left out
SCORES = np.arange(-6, 7, 0.1)


def expected_support(n: int, beta: float, *, alpha: float = 2.0) -> float:
    """n E[P(S < 1)]: S sums n - 1 shares of the parts above one key's score."""
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
    """The root of the expected support of n keys minus that of n0 at 1."""
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


def variance_invariant_beta(n: float, *, n0: float = 512, **model: Any) -> float:
    """The root of E[sum p^2] at n keys minus that at n0 keys and beta = 1."""
    from scipy.optimize import brentq

    goal = expected_statistics(n0, 1.0, **model).concentration
    return float(brentq(lambda beta: expected_statistics(n, beta, **model).concentration - goal, 0.01, 9))


def retrieval_beta(n: float, *, gap: float, weight: float = 0.5) -> float:
    """The smaller root of beta^2 / 2 - gap beta + ln n + ln(w / (1 - w))."""
    roots = np.roots([0.5, -gap, np.log(n * weight / (1 - weight))])
    return float(max(0.0, roots.real.min())) if np.isreal(roots).all() else np.nan


def retrieval_length(gap: float, *, weight: float = 0.5) -> float:
    """The n at which the two roots coincide."""
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
    """The weight if the others' sum of exponentials equals its mean."""
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


def self_weight(n: int, *, gamma: float, correlation: float) -> float:
    """First weight of a row of n tokens with the first score gamma ln n, and rho times it for the others."""
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
    """Central moments; the fourth minus three times the squared variance."""
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
    """Smallest entropy of all splits into k keys at the top and n - k at the bottom."""
    if n == 1:
        return 0.0
    k = np.arange(1, n)
    z = k + (n - k) * np.exp(-spread)
    return float((np.log(z) + spread * (1 - k / z)).min())


def softcap_for_entropy(n: int, *, entropy: float) -> float:
    """The last cap of a fine grid with a smallest entropy of at least `entropy`."""
    caps = np.arange(0, 20, 1e-2)
    return float(max(c for c in caps if least_entropy(n, 2 * c) >= entropy))


def score_spectrum(query: Array, key: Array) -> Array:
    """Eigenvalues of E[q q^T] Cov(k) / d, equal to those of the symmetric product."""
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
    """Entropy of one weight together with the others, `rest` times the remaining weight."""
    p = np.array([weight, *((1 - weight) * rest)])
    return float(-(p[p > 0] * np.log(p[p > 0])).sum())


def sink_weight(weight: float, *, n: int, n0: int) -> float:
    """Weight of a key that keeps its score among n - 1 others, each with the mean exponential of n0 - 1."""
    other = (1 - weight) / (n0 - 1)
    return weight / (weight + (n - 1) * other)


def fold_scale(weight: Array, beta: Array) -> Array:
    """beta_h W_h, head by head."""
    return np.stack([b * w for b, w in zip(np.broadcast_to(beta, len(weight)), weight, strict=True)])


def scale_update_residual(weight: Array, beta: float, *, rank: int) -> float:
    """Residual of the best update of rank `rank`, the truncated singular value decomposition."""
    if beta == 1:
        return 0.0
    change = (beta - 1) * weight
    u, s, v = np.linalg.svd(change, full_matrices=False)
    best = u[:, :rank] * s[:rank] @ v[:rank]
    return float(np.linalg.norm(change - best) / np.linalg.norm(change))
