# SPDX-License-Identifier: BSD-3-Clause
"""Tokens layer by layer: weight on themselves, overlap of two rows, and cosine of two tokens."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._arguments import at_least, between, finite, plain, pointwise, whole
from ._expected import expected_concentration


def self_weight(n: ArrayLike, *, gamma: ArrayLike, correlation: ArrayLike) -> Any:
    """Weight of a token on itself among n unit tokens with one pairwise cosine, scores gamma ln(n) x.y.

    ``1 / (1 + (n - 1) n^(-gamma (1 - rho)))``: the model of Chen, Lin, Polyanskiy and Rigollet 2025,
    arXiv 2510.05554. For n to infinity it jumps from 0 to 1 at :func:`critical_gamma`. At finite n it is
    the logistic function of ``gamma (1 - rho) ln n - ln(n - 1)``: it goes from 0.27 to 0.73 while
    gamma changes by ``2 / ((1 - rho) ln n)``, which no length in use makes small.

    Parameters
    ----------
    n : array_like
        Number of tokens, at least 2.
    gamma : array_like
        The scale over ln n.
    correlation : array_like
        rho, the cosine of two tokens, in (-1, 1).

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> self_weight([64, 4096], gamma=2.0, correlation=0.5).round(4)  # at the critical gamma
    array([0.5039, 0.5001])
    """
    from scipy.special import expit  # at first use: `import attnscale` stays fast

    count, rho = at_least("n", n, 2), between("correlation", correlation, -1, 1)
    return plain(expit(finite("gamma", gamma) * (1 - rho) * np.log(count) - np.log(count - 1)))


def critical_gamma(correlation: ArrayLike) -> Any:
    """1 / (1 - rho): where :func:`self_weight` passes one half, in the limit of many tokens.

    Parameters
    ----------
    correlation : array_like
        rho, in (-1, 1).

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> critical_gamma([0.0, 0.5])
    array([1., 2.])
    """
    return plain(1 / (1 - between("correlation", correlation, -1, 1)))


def token_correlation(
    n: ArrayLike, *, gamma: ArrayLike, correlation: ArrayLike, layers: int = 1, residual: float = 0.0
) -> Any:
    """Cosine of two tokens after some layers of :func:`self_weight`, each token rescaled to unit length.

    A layer replaces x_i by ``residual x_i + sum_j p_ij x_j``. By symmetry all cosines stay equal, so that one
    number describes the layer, exactly and at every n.

    Parameters
    ----------
    n, gamma, correlation : array_like
        As for :func:`self_weight`; they broadcast. At least -1/(n - 1), the minimum for n tokens.
    layers : int, default 1
        At least 0.
    residual : float, default 0
        Weight of the token itself, added to its attention; at least 0.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    Below the critical gamma one layer leaves one direction, above it little is lost:

    >>> token_correlation(4096, gamma=[1.0, 2.0, 3.0], correlation=0.5).round(3)
    array([1.   , 0.8  , 0.508])
    """
    steps, kept = whole("layers", layers), float(at_least("residual", residual, 0))
    count, g = at_least("n", n, 2), finite("gamma", gamma)
    count, g, rho = np.broadcast_arrays(count, g, between("correlation", correlation, -1, 1))
    if (rho < -1 / (count - 1)).any():
        raise ValueError(
            f"correlation must be at least -1/(n - 1), got {rho.min():g} for n = {count.max():g}"
        )
    for _ in range(steps):
        own = self_weight(count, gamma=g, correlation=np.minimum(rho, 1 - 1e-16))
        other = (1 - own) / (count - 1)
        # y_i = (kept + own - other) x_i + other sum_j x_j
        alone, to_sum = kept + own - other, 1 + (count - 1) * rho
        shared = 2 * alone * other * to_sum + other**2 * count * to_sum
        rho = (alone**2 * rho + shared) / (alone**2 + shared)
    return plain(rho)


_NEAR_ONE = 0.999


def expected_overlap(n: ArrayLike, beta: ArrayLike, correlation: ArrayLike) -> Any:
    """E[sum_i p_i p'_i] of two rows of n normal scores, correlated key by key.

    ``n E[e^(a + b) / (Z Z')]`` as an integral over both u = ln z, with
    ``f(u, v) = E exp(-e^(u + a) - e^(v + b))``, like :func:`expected_statistics` for one row. Between
    1/n without correlation and :func:`expected_concentration` at correlation 1; about
    ``e^(beta^2 rho) / n`` while many keys share the weight.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    beta : array_like
        Standard deviation of the scores, in [0, 20].
    correlation : array_like
        Correlation of the two scores of a key, in [0, 1].

    Returns
    -------
    float or ndarray of float64
        The arguments broadcast.

    Examples
    --------
    >>> (512 * expected_overlap(512, 1, [0, 0.5, 1])).round(2)
    array([1.  , 1.64, 2.68])
    """
    counts, betas = at_least("n", n, 1), between("beta", beta, 0, 20, closed="low high")
    rho = between("correlation", correlation, 0, 1, closed="low high")
    return plain(pointwise(_overlap, counts, betas, rho))


def propagated_correlation(
    correlation: ArrayLike,
    *,
    n: ArrayLike,
    beta: ArrayLike,
    residual: ArrayLike | None = None,
    layers: int = 1,
) -> Any:
    """Cosine of two tokens after layers of attention with random weights, at every n.

    Tokens of unit length and pairwise cosine rho have scores of total variance ``beta^2``,
    ``beta^2 (1 - rho)`` of it within a row, and two rows are correlated by rho. With C = E[sum p^2] and
    O = :func:`expected_overlap` there, and independent values, the Gram matrix becomes
    ``rho + (1 - rho) C`` on and ``rho + (1 - rho) O`` off the diagonal.
    For n to infinity C is that of the random energy model, 0 below the freezing point, and O is 0: the
    reading of Giorlandino and Goldt 2025, arXiv 2505.24333. Here both are exact; only the average of the
    ratio is replaced by the ratio of averages.

    Parameters
    ----------
    correlation : array_like
        rho before the first layer, in [0, 1].
    n : array_like
        Number of tokens, at least 1.
    beta : array_like
        Standard deviation of the scores, in [0, 20].
    residual : array_like, optional
        Strength alpha of the attention added to the token itself, ``x + alpha y`` at unit length again;
        at least 0. Without it there is no skip connection.
    layers : int, default 1
        At least 0.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> propagated_correlation(0.5, n=512, beta=[1, 8], layers=1).round(3)
    array([0.999, 0.705])
    """
    steps, rho = whole("layers", layers), between("correlation", correlation, 0, 1, closed="low high")
    counts, betas = at_least("n", n, 1), between("beta", beta, 0, 20, closed="low high")
    skip = 0.0 if residual is None else 1.0
    alpha = at_least("residual", 1.0 if residual is None else residual, 0) ** 2
    rho, counts, betas, alpha = np.broadcast_arrays(rho, counts, betas, alpha)
    for _ in range(steps):
        within = betas * np.sqrt(1 - rho)
        own = expected_concentration(counts, within, model="gaussian")
        both = expected_overlap(counts, within, rho)
        on, off = rho + (1 - rho) * own, rho + (1 - rho) * both
        rho = np.clip((skip * rho + alpha * off) / (skip + alpha * on), 0, 1)
    return plain(rho)


@lru_cache(maxsize=4096)
def _overlap(n: float, beta: float, rho: float) -> float:
    if beta == 0 or n == 1:
        return 1 / n
    if rho > _NEAR_ONE:  # near 1 the map is nearly linear, and its integral would need ever finer steps
        same, near = float(expected_concentration(n, beta, model="gaussian")), _overlap(n, beta, _NEAR_ONE)
        return same - (same - near) * (1 - rho) / (1 - _NEAR_ONE)
    # Trapezoid rule on scores; fine enough for e^(beta s), and for two scores that are nearly equal.
    step = min(0.1, 0.35 / beta, 0.5 * math.sqrt(1 - rho * rho))
    s = np.arange(-9, 9 + step, step)
    pair = np.exp(-(s[:, None] ** 2 - 2 * rho * s[:, None] * s + s**2) / (2 * (1 - rho * rho)))
    pair /= pair.sum()
    middle = -math.log(n) - beta * min(beta, math.sqrt(2 * math.log(n) + 1)) / 2
    u = np.arange(middle - 9 * beta - 18, 9 * beta + 4, 0.35)
    e = np.exp(np.minimum(u[:, None] + beta * s, 60.0))
    kept = np.exp(-e)
    f = kept @ pair @ kept.T
    with np.errstate(under="ignore"):
        total = ((e * kept) @ pair @ (e * kept).T * f ** (n - 1)).sum()
    return float(n * total * 0.35**2)
