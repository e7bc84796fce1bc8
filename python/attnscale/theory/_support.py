# SPDX-License-Identifier: BSD-3-Clause
"""How many of n random keys entmax gives a weight, and the scale that keeps their number."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import at_least, between, plain, together
from ._excesses import POINTS, Excesses, below_one

Array = NDArray[np.float64]

# A probability below exp(-_NEGLECTED) is left out.
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
        Of entmax, from 1.1 to 10: 2 is sparsemax.

    Returns
    -------
    float or ndarray of float64
        The arguments broadcast. Between 1 and n, right to 6 digits.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range, not finite, or not a number.

    Examples
    --------
    >>> expected_support([64, 512, 16384], 1).round(3)
    array([3.243, 3.935, 4.857])
    >>> expected_support([64, 512, 16384], 1, alpha=1.5).round(2)
    array([10.06, 16.44, 27.95])
    """
    counts, betas, alphas = _read(n, beta, alpha)
    points = zip(counts.flat, betas.flat, alphas.flat, strict=True)
    values = [_expected(*map(float, each)) for each in points]
    return plain(np.reshape(np.array(values, np.float64), counts.shape))


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
        How many probabilities, at least 1.

    Returns
    -------
    ndarray of float64
        Of the broadcast shape and one more axis of length `keys`; to 1e-8.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range, not finite, or not a number.

    Examples
    --------
    >>> support_probabilities(512, 1, keys=5).round(4)
    array([0.0308, 0.143 , 0.2482, 0.2513, 0.1759])
    """
    counts, betas, alphas = _read(n, beta, alpha)
    most = int(at_least("keys", keys, 1, integer=True))
    points = zip(counts.flat, betas.flat, alphas.flat, strict=True)
    values = [_probabilities(float(a), float(b), float(c), most) for a, b, c in points]
    return np.reshape(np.array(values, np.float64), (*counts.shape, most))


def support_invariant_beta(n: ArrayLike, *, n0: ArrayLike = 512, alpha: ArrayLike = 2.0) -> Any:
    """The multiple at which n keys have the expected support under entmax that n0 have at 1.

    It solves :func:`expected_support`. :func:`sparsity_beta` is its limit for many keys with the rank 1,
    at any alpha.

    Parameters
    ----------
    n, n0 : array_like
        Numbers of keys, more than 2; the multiple is 1 at n0.
    alpha : array_like, default 2.0
        Of entmax, from 1.1 to 10.

    Returns
    -------
    float or ndarray of float64
        NaN where no multiple of 0.05 or more gives n keys as many.

    Examples
    --------
    >>> support_invariant_beta([64, 4096, 16384]).round(4), sparsity_beta([64, 4096, 16384]).round(4)
    (array([0.7484, 1.2049, 1.3254]), array([0.7464, 1.2084, 1.3314]))
    >>> support_invariant_beta([64, 4096, 16384], alpha=1.5).round(4)
    array([0.6621, 1.2547, 1.4006])
    """
    lengths = [between(name, value, 2, math.inf) for name, value in (("n", n), ("n0", n0))]
    counts, first, alphas = together(n=lengths[0], n0=lengths[1], alpha=_alpha(alpha))
    points = zip(counts.flat, first.flat, alphas.flat, strict=True)
    values = [_invariant(*map(float, each)) for each in points]
    return plain(np.reshape(np.array(values, np.float64), counts.shape))


def sparsity_beta(n: ArrayLike, *, n0: ArrayLike = 512, keys: ArrayLike = 1) -> Any:
    """isf(keys / n) / isf(keys / n0): the multiple that keeps the support of sparse attention.

    isf is the upper quantile of the standard normal distribution, so that isf(keys / n) is about the
    score of the key of that rank. The gaps between the top scores shrink like 1 / isf(keys / n), and a
    scale that grows like isf keeps them. To first order ``sqrt(ln n / ln n0)``.

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
    from scipy.special import log1p  # that of NumPy loses small complex numbers

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
