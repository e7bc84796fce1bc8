# SPDX-License-Identifier: BSD-3-Clause
"""How many keys entmax gives a weight in the limit of many keys, and how near a row of n is to it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._arguments import at_least, between, plain, together
from ._excesses import POINTS, below_one, power_nodes

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
        Of entmax, from 1.1 to 10.

    Returns
    -------
    float or ndarray of float64
        The arguments broadcast; right to 6 digits.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range, not finite, or not a number.

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
    alphas = between("alpha", alpha, 1.1, 10, closed="low high")
    ratios, alphas = together(ratio=ratios, alpha=alphas)
    values = [_limit(float(a), float(b)) for a, b in zip(ratios.flat, alphas.flat, strict=True)]
    return plain(np.reshape(np.array(values, np.float64), ratios.shape))


def support_distance_bound(n: ArrayLike, beta: ArrayLike) -> Any:
    """Bound of the distance between the support of sparsemax and 1 + Poisson(ratio), for normal scores.

    With ``b = isf(1/n)``, ``r = b / beta``, and the Poisson probabilities ``P_k`` of k and ``Q_k`` of k or
    more at rate r, the total variation and the distance of Wasserstein are both at most::

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
        The arguments broadcast. Above 1 it says nothing about the total variation; about the expected
        number it does: that is as near to 1 + r.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range, not finite, or not a number.

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
    highest = np.where(before, k - 1, ratio)  # of the Poisson probability of k - 1 at rates up to ratio
    c = ratio * np.exp(xlogy(k - 1, highest) - highest - gammaln(k))
    # P(k or more), a sum of such probabilities, over the share of the rate that is above k - 1.
    share = np.where(before, 1 - (k - 1) / ratio, 1.0)
    c = np.where(before, np.minimum(c, gammainc(k, ratio) / share), c)
    return float((c * np.log(k + 2)).sum())
