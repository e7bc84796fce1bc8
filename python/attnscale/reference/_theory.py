# SPDX-License-Identifier: BSD-3-Clause
"""Twins of the theory: the integrals as they are defined, on dense grids, at moderate arguments."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
    """The integrals over u = ln z of ln Z, 1/Z and 1/Z^2, without any rearrangement."""
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
    """Cosines of equidistant angles and their probabilities, which sin(angle)^(d-2) is."""
    angle = (np.arange(4000) + 0.5) * np.pi / 4000
    p = np.sin(angle) ** (head_dim - 2)
    return np.cos(angle), p / p.sum()
