# SPDX-License-Identifier: BSD-3-Clause
"""Number of random keys with a weight under entmax, and the scale that keeps it."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import at_least, between, plain, pointwise, together
from ._densities import gauss_legendre

Array = NDArray[np.float64]

# Probabilities below exp(-_NEGLECTED) are left out.
_NEGLECTED = 50.0


def expected_support(n: ArrayLike, beta: ArrayLike, *, alpha: ArrayLike = 2.0) -> Any:
    """Expected number of keys with a weight under entmax, of n with independent normal scores.

    A key with score beta z has a weight if and only if the keys above it are near enough: ``S < 1`` with
    ``S = sum of ((alpha-1) beta (s_j - z)_+)^(1/(alpha-1))`` over the other keys. The Laplace transform of
    one term is ``L(t) = 1 - integral phi(z + y) (1 - exp(-t ((alpha-1) beta y)^(1/(alpha-1)))) dy`` over
    y > 0, that of S is its power n - 1, and ``E = n integral phi(z) P(S < 1) dz``.

    For many keys the number depends on ``isf(1/n) / beta`` alone: :func:`support_limit`, which
    :func:`sparsity_beta` keeps.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    beta : array_like
        The multiple of the standard scale, at least 0.05.
    alpha : array_like, default 2.0
        Parameter of entmax, from 1.1 to 10: 2 is sparsemax.

    Returns
    -------
    float or ndarray of float64
        The arguments broadcast. Between 1 and n, correct to 6 digits.

    Examples
    --------
    >>> expected_support([64, 512, 16384], 1).round(3)
    array([3.243, 3.935, 4.857])
    >>> expected_support([64, 512, 16384], 1, alpha=1.5).round(2)
    array([10.06, 16.44, 27.95])
    """
    return plain(pointwise(_expected, *_read(n, beta, alpha)))


def support_probabilities(
    n: ArrayLike, beta: ArrayLike, *, alpha: ArrayLike = 2.0, keys: int = 32
) -> NDArray[np.float64]:
    """P(1, 2, ... keys have a weight) under entmax, of n keys with independent normal scores.

    More than k keys have a weight if and only if the first k, which lie above the next one by y_j, have
    ``sum of ((alpha-1) beta y_j)^(1/(alpha-1)) < 1``. Given the next one's score these are independent. The
    probability is an inversion of the k-th power of their transform, averaged over that score.

    Parameters
    ----------
    n, beta, alpha : array_like
        As for :func:`expected_support`; they broadcast.
    keys : int, default 32
        Number of probabilities, at least 1.

    Returns
    -------
    ndarray of float64
        The broadcast shape and one more axis of length `keys`; to 1e-8.

    Examples
    --------
    >>> support_probabilities(512, 1, keys=5).round(4)
    array([0.0308, 0.143 , 0.2482, 0.2513, 0.1759])
    """
    counts, betas, alphas = _read(n, beta, alpha)
    most = int(at_least("keys", keys, 1, integer=True))
    found = pointwise(partial(_probabilities, keys=most), counts, betas, alphas)
    return found.reshape((*counts.shape, most))


def support_invariant_beta(n: ArrayLike, *, n0: ArrayLike = 512, alpha: ArrayLike = 2.0) -> Any:
    """The multiple at which n keys have the expected support under entmax that n0 have at 1.

    It solves :func:`expected_support`. :func:`sparsity_beta` is its limit for many keys with the rank 1,
    at any alpha.

    Parameters
    ----------
    n, n0 : array_like
        Numbers of keys, more than 2; the multiple is 1 at n0.
    alpha : array_like, default 2.0
        Parameter of entmax, from 1.1 to 10.

    Returns
    -------
    float or ndarray of float64
        NaN if no multiple of at least 0.05 gives n keys as large a support.

    Examples
    --------
    >>> support_invariant_beta([64, 4096, 16384]).round(4), sparsity_beta([64, 4096, 16384]).round(4)
    (array([0.7484, 1.2049, 1.3254]), array([0.7464, 1.2084, 1.3314]))
    >>> support_invariant_beta([64, 4096, 16384], alpha=1.5).round(4)
    array([0.6621, 1.2547, 1.4006])
    """
    lengths = [between(name, value, 2, math.inf) for name, value in (("n", n), ("n0", n0))]
    counts, first, alphas = together(n=lengths[0], n0=lengths[1], alpha=_alpha(alpha))
    return plain(pointwise(_invariant, counts, first, alphas))


def sparsity_beta(n: ArrayLike, *, n0: ArrayLike = 512, keys: ArrayLike = 1) -> Any:
    """isf(keys / n) / isf(keys / n0): the multiple that keeps the support of sparse attention.

    isf is the upper quantile of the standard normal distribution, so that isf(keys / n) is about the
    score of the key of that rank. The gaps between the top scores shrink like 1 / isf(keys / n), and a
    scale that grows like isf compensates. To first order ``sqrt(ln n / ln n0)``.

    Parameters
    ----------
    n, n0 : array_like
        Numbers of keys, more than 2 keys each; the multiple is 1 at n0.
    keys : array_like, default 1
        The rank, greater than 0: 1 for sparsemax, 3 for entmax-1.5.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> sparsity_beta([512, 4096, 32768]).round(4)
    array([1.    , 1.2084, 1.3892])
    """
    from scipy.special import ndtri  # at first use: `import attnscale` stays fast

    rank = between("keys", keys, 0, math.inf)
    shares = [rank / at_least(name, value, 1) for name, value in (("n", n), ("n0", n0))]
    for name, share in zip(("n", "n0"), shares, strict=True):
        if (share >= 0.5).any():
            raise ValueError(f"{name} must be more than 2 keys, got {float((rank / share).min()):g}")
    return plain(ndtri(shares[0]) / ndtri(shares[1]))


def _alpha(alpha: ArrayLike) -> Array:
    return between("alpha", alpha, 1.1, 10, closed="low high")


def _read(n: ArrayLike, beta: ArrayLike, alpha: ArrayLike) -> list[Array]:
    return together(n=at_least("n", n, 1), beta=at_least("beta", beta, 0.05), alpha=_alpha(alpha))


def _scores(n: float, excesses: Excesses) -> tuple[Array, float]:
    """Scores at which one of n keys may have a weight, and the step between them."""
    step = 0.2 / (1 + math.sqrt(2 * math.log(n) + 1))
    z = np.arange(-7.0, 39.0, step)
    z = z[math.log(n) - z * z / 2 > -_NEGLECTED]
    # P(S < 1) is at most e^t E exp(-t S) for each t > 0.
    least = POINTS[0].real - (n - 1) * excesses.least_lost(z)
    return z[least > -_NEGLECTED], step


def _expected(n: float, beta: float, alpha: float) -> float:
    from scipy.special import log1p  # NumPy's loses small complex numbers

    excesses = Excesses(beta, alpha)
    z, step = _scores(n, excesses)
    below = below_one(np.exp((n - 1) * log1p(-excesses.lost(z))))
    density = np.exp(math.log(n) - z * z / 2) / math.sqrt(2 * math.pi)
    return float(np.clip((density * below).sum() * step, 1, n))


def _probabilities(n: float, beta: float, alpha: float, keys: int) -> Array:
    from scipy.special import log_ndtr, ndtr

    excesses = Excesses(beta, alpha)
    z, step = _scores(n, excesses)
    density = np.exp(math.log(n) - z * z / 2) / math.sqrt(2 * math.pi) * step
    log_kept, log_below = np.log(ndtr(-z)[:, None] - excesses.lost(z)), log_ndtr(z)[:, None]
    more, log_choices = np.zeros(keys + 1), 0.0  # P(more than k keys)
    more[0] = 1.0
    for k in range(1, min(keys, math.ceil(n) - 1) + 1):
        log_choices += math.log((n - k) / k)
        more[k] = density @ below_one(np.exp(log_choices + (n - 1 - k) * log_below + k * log_kept))
    return -np.diff(np.clip(more, 0, 1))


def _invariant(n: float, n0: float, alpha: float) -> float:
    from scipy.optimize import brentq

    if n == n0:
        return 1.0
    goal = _expected(n0, 1.0, alpha)
    low, high = 0.05, 2.0
    while _expected(n, high, alpha) > goal:
        low, high = high, 2 * high
    if _expected(n, low, alpha) < goal:
        return math.nan
    return float(brentq(lambda beta: _expected(n, beta, alpha) - goal, low, high, xtol=1e-9))


_FARTHEST = 60.0  # for an exponential number


def support_limit(ratio: ArrayLike, *, alpha: ArrayLike = 2.0) -> Any:
    """Limit of the expected support under entmax for many normal scores with ``isf(1/n) / beta = ratio``.

    The number of keys tends to 1 + N: N counts the events of a renewal process up to
    ``(ratio / (alpha-1))^(1/(alpha-1))``, whose waiting times have a Weibull distribution of shape alpha - 1.
    Under sparsemax (alpha = 2) they are exponential, and N is Poisson(ratio). The value is 1 plus the
    renewal function, by the inversion of a Laplace transform.

    Parameters
    ----------
    ratio : array_like
        isf(1/n) / beta, greater than 0, at most 1000.
    alpha : array_like, default 2.0
        Parameter of entmax, from 1.1 to 10.

    Returns
    -------
    float or ndarray of float64
        The arguments broadcast; correct to 6 digits.

    Notes
    -----
    The limit is proved on the page "The support of entmax" of the documentation. It is approached like
    1 / ln n: :func:`expected_support` has every n.

    Examples
    --------
    >>> support_limit(3, alpha=[1.5, 2, 3]).round(4)
    array([20.9445,  4.    ,  2.0135])
    """
    ratios = between("ratio", ratio, 0, 1000, closed="high")
    ratios, alphas = together(ratio=ratios, alpha=_alpha(alpha))
    return plain(pointwise(_limit, ratios, alphas))


def support_distance_bound(n: ArrayLike, beta: ArrayLike) -> Any:
    """Bound of the distance between the support of sparsemax and 1 + Poisson(ratio), for normal scores.

    With ``b = isf(1/n)``, ``r = b / beta``, and the Poisson probabilities ``P_k`` of k and ``Q_k`` of k or
    more at rate r, the total variation and the Wasserstein distance are both at most::

        (5 r / 4 + r^2) / b^2 + sum over k >= 1 of c_k ln(k + 2) / ln(n)
        c_k = r P_(k-1)                                             if k - 1 >= r
            = min(r (k-1)^(k-1) e^(1-k) / (k-1)!, Q_k r / (r - k + 1))  else

    Parameters
    ----------
    n : array_like
        Number of keys, at least 3.
    beta : array_like
        The multiple of the standard scale, greater than 0.

    Returns
    -------
    float or ndarray of float64
        The arguments broadcast. Above 1 it says nothing about the total variation, but the expected number is
        still that near to 1 + r.

    Notes
    -----
    The theorem and its proof are on the page "The support of entmax" of the documentation.

    Examples
    --------
    >>> support_distance_bound([1e3, 1e12, 1e200], [3.09, 7.03, 30.2]).round(3)
    array([0.474, 0.105, 0.006])
    """
    counts, betas = together(n=at_least("n", n, 3), beta=between("beta", beta, 0, math.inf))
    from scipy.special import ndtri  # at first use: `import attnscale` stays fast

    b = -ndtri(1 / counts)
    ratio = b / betas
    below = np.array([_below(float(each)) for each in ratio.flat], np.float64).reshape(ratio.shape)
    return plain((1.25 * ratio + ratio * ratio) / (b * b) + below / np.log(counts))


def _limit(ratio: float, alpha: float) -> float:
    x, weights, w = power_nodes((alpha - 1) / ratio, alpha, _FARTHEST)
    kept = (np.exp(-x) * weights) @ np.exp(-w[:, None] * POINTS)
    return float(below_one(np.asarray(1 / (1 - kept), np.complex128)))


def _below(ratio: float) -> float:
    """Sum of c_k ln(k + 2)."""
    from scipy.special import gammainc, gammaln, xlogy

    k = np.arange(1.0, math.ceil(ratio + 12 * math.sqrt(ratio) + 60))
    before = k - 1 < ratio
    highest = np.where(before, k - 1, ratio)  # rate of the largest Poisson probability of k - 1
    c = ratio * np.exp(xlogy(k - 1, highest) - highest - gammaln(k))
    # P(k or more), a sum of such probabilities, over the share of the rate that is above k - 1.
    share = np.where(before, 1 - (k - 1) / ratio, 1.0)
    c = np.where(before, np.minimum(c, gammainc(k, ratio) / share), c)
    return float((c * np.log(k + 2)).sum())


Complex = NDArray[np.complex128]

# A Laplace transform is inverted by Abate and Whitt 1995, ORSA J. Computing 7, 36: the Fourier series of
# the Bromwich integral, its tail summed by Euler's transformation. The error is exp(-_SHIFT).
_SHIFT, _TERMS, _EULER = 23.0, 60, 15
#: Points at which a transform is needed; the first is real.
POINTS: Complex = np.asarray(_SHIFT / 2 + 1j * np.pi * np.arange(_TERMS + _EULER + 1), np.complex128)

_NODES = 12  # nodes of a panel
_FARTHEST_SCORE = 20.0  # from the lowest score that matters to the end of the normal density
_LARGEST = 3.5  # exp(-POINTS w) is below 1e-17 for larger w


def below_one(transform: Complex) -> Array:
    """P(W < 1) from E exp(-POINTS W), along the last axis."""
    from scipy.special import comb  # at first use: `import attnscale` stays fast

    terms = (-1.0) ** np.arange(POINTS.size) * (transform / POINTS).real
    terms[..., 0] /= 2
    partial = math.exp(_SHIFT / 2) * np.cumsum(terms, axis=-1)[..., _TERMS:]
    return np.asarray(partial @ (comb(_EULER, np.arange(_EULER + 1)) / 2**_EULER), np.float64)


def power_nodes(slope: float, alpha: float, farthest: float) -> tuple[Array, Array, Array]:
    """y <= farthest, weights of an integral over y, and w = (slope y)^(1/(alpha-1)) <= 3.5.

    The variable v with ``y ~ v^max(1, alpha-1)`` and ``w = v^max(1, 1/(alpha-1))`` has neither power below 1.
    Panels resolve the oscillation of exp(-POINTS w) and a density of y at any distance from 0.
    """
    y_power, w_power = max(1.0, alpha - 1), max(1.0, 1 / (alpha - 1))
    last = min(_LARGEST ** (1 / w_power), (slope * farthest) ** (1 / y_power))
    distances = np.concatenate([0.5 * 2.0 ** -np.arange(12), np.arange(1.0, farthest, 0.5)])
    cuts = np.concatenate(
        [np.linspace(0, _LARGEST, 113) ** (1 / w_power), (slope * distances) ** (1 / y_power), [last]]
    )
    cuts = np.unique(np.minimum(cuts, last))
    nodes, weights = gauss_legendre(_NODES)
    half = np.diff(cuts)[:, None] / 2
    v = (cuts[:-1, None] + half * (1 + nodes)).ravel()
    y = v**y_power / slope
    return y, (half * weights).ravel() * y_power * y / v, v**w_power


class Excesses:
    """Distances y of normal scores above a score z, and w = ((alpha-1) beta y)^(1/(alpha-1)) of each.

    A key with score beta z has a weight under entmax if and only if the w of all keys above it sum to less
    than 1.
    """

    def __init__(self, beta: float, alpha: float) -> None:
        slope = (alpha - 1) * beta
        self._y, weights, w = power_nodes(slope, alpha, _FARTHEST_SCORE)
        self._weights = weights / math.sqrt(2 * math.pi)
        self._end = min(_LARGEST ** (alpha - 1) / slope, _FARTHEST_SCORE)
        # 1 - exp(-t w), whose digits count where many keys lie above. Real and imaginary parts apart: a
        # product of real matrices is faster.
        self._lost = np.ascontiguousarray(-np.expm1(-w[:, None] * POINTS)).view(np.float64)

    def lost(self, z: Array) -> Complex:
        """Integral over y > 0 of phi(z + y) (1 - exp(-t w)) at the points t, of shape (z, t)."""
        from scipy.special import ndtr  # at first use: `import attnscale` stays fast

        inside = (self._density(z) @ self._lost).view(np.complex128)
        return np.asarray(inside + ndtr(-(z + self._end))[:, None], np.complex128)

    def least_lost(self, z: Array) -> Array:
        """A lower bound of the first column of :meth:`lost`, which is real."""
        return np.asarray(self._density(z) @ self._lost[:, 0], np.float64)

    def _density(self, z: Array) -> Array:
        return np.exp(-((z[:, None] + self._y) ** 2) / 2) * self._weights
