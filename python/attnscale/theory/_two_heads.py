# SPDX-License-Identifier: BSD-3-Clause
"""Two heads with fixed scales do what one scale for both tasks cannot: bounds that are proved."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._arguments import at_least, between, plain, together


def needle_weight_bound(n: ArrayLike, *, gap: ArrayLike, beta: ArrayLike) -> Any:
    """A lower bound of the expected weight of one key: ``1 / (1 + n e^(beta^2/2 - beta a))``, a its gap.

    The n other scores are independent and normal. The weight is convex in their sum of exponentials, whose
    mean is ``n e^(beta^2/2)`` (Jensen). At ``beta = a`` it is ``1 / (1 + n e^(-a^2/2))``, at least 1/2 for
    all n up to :func:`retrieval_length`: one fixed scale finds the key at all lengths at which any does.

    Parameters
    ----------
    n : array_like
        Number of other keys, at least 1.
    gap : array_like
        a, in standard deviations of the scores at beta = 1; greater than 0.
    beta : array_like
        The multiple of the standard scale, at least 0.

    Returns
    -------
    float or ndarray of float64
        The arguments broadcast.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range, not finite, or not a number.

    Examples
    --------
    >>> needle_weight_bound([512, 4096, 32768], gap=4.624, beta=4.624).round(3)
    array([0.988, 0.915, 0.573])
    """
    counts, a = at_least("n", n, 1), between("gap", gap, 0, math.inf)
    counts, a, betas = together(n=counts, gap=a, beta=at_least("beta", beta, 0))
    from scipy.special import expit  # at first use: `import attnscale` stays fast

    return plain(expit(betas * (a - betas / 2) - np.log(counts)))


def averaging_excess_bound(n: ArrayLike, beta: ArrayLike) -> Any:
    """An upper bound of n E[sum p^2] for normal scores: ``(n/(n-1))^2 exp(2 beta^2 n/(n-1))``.

    At a fixed beta the error of an average over n keys is within a constant of the best, 1/n, at every n.
    The limit of n E[sum p^2] for many keys is ``e^(beta^2)``; at beta = 0 it is 1 for every n.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 2.
    beta : array_like
        The multiple of the standard scale, at least 0.

    Returns
    -------
    float or ndarray of float64
        The arguments broadcast.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range, not finite, or not a number.

    Examples
    --------
    >>> averaging_excess_bound([64, 4096], 0.5).round(3)
    array([1.715, 1.65 ])
    """
    counts, betas = together(n=at_least("n", n, 2), beta=at_least("beta", beta, 0))
    rest = counts / (counts - 1)
    return plain(rest * rest * np.exp(2 * betas * betas * rest))


def shared_excess_bound(n: ArrayLike, *, gap: ArrayLike) -> Any:
    """A lower bound of n E[sum p^2] at every beta that gives one key half of the weight: ``e^(b^2) / 8``.

    With ``b = ln(n) / a``, a the gap of the key: each beta at which its expected weight among n normal scores
    is 1/2 or more is at least b, and the error of an average rises with beta. It holds for
    ``ln n <= 2 a^2 / 3``, more than :func:`retrieval_length`. At that length it is ``n^(1/2) / 8``.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    gap : array_like
        a, in standard deviations of the scores at beta = 1; greater than 0.

    Returns
    -------
    float or ndarray of float64
        The arguments broadcast. NaN where ln n is above 2 a^2 / 3.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range, not finite, or not a number.

    Examples
    --------
    >>> shared_excess_bound([512, 4096, 32768], gap=4.624).round(2)
    array([ 0.77,  3.18, 19.62])
    """
    counts, a = together(n=at_least("n", n, 1), gap=between("gap", gap, 0, math.inf))
    log_n = np.log(counts)
    return plain(np.where(log_n <= 2 * a * a / 3, np.exp((log_n / a) ** 2) / 8, np.nan))
