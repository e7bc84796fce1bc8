# SPDX-License-Identifier: BSD-3-Clause
"""How near the second largest of n scores is: the tail of the critical scale."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._arguments import at_least, between, plain


def top_gap_probability(n: ArrayLike, gap: ArrayLike) -> Any:
    """P(the two largest of n independent normal scores are nearer than a gap).

    ``1 - n integral phi(s) Phi(s - gap)^(n-1) ds``: the others all lie below the largest by more. The
    density at 0 is positive, about ``isf(1/n)``, at every n.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 2.
    gap : array_like
        In standard deviations, at least 0.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> top_gap_probability([64, 4096], 0.1).round(3)
    array([0.212, 0.307])
    """
    from scipy.special import log_ndtr  # at first use: `import attnscale` stays fast

    counts, gaps = np.broadcast_arrays(at_least("n", n, 2), at_least("gap", gap, 0))
    s = np.arange(-12.0, 39.0, 0.02)
    below = log_ndtr(s)
    values = []
    for count, each in zip(counts.flat, gaps.flat, strict=True):
        # The difference to a gap of 0, whose integral is 1, keeps the digits of a small probability.
        near = np.exp((count - 1) * below) - np.exp((count - 1) * log_ndtr(s - each))
        density = np.exp(math.log(count) - s * s / 2) / math.sqrt(2 * math.pi)
        values.append(0.02 * float((density * near).sum()))
    return plain(np.clip(np.reshape(np.array(values, np.float64), counts.shape), 0, 1))


def critical_scale_tail(n: ArrayLike, level: ArrayLike) -> Any:
    """The part of P(Lambda > level) that comes from the two largest scores: nearly all at a large level.

    Lambda = max over k >= 2 of ln(k) / Delta_k is the critical scale of a row
    (:class:`attnscale.laws.CriticalScale`). It is above the level if the second score is within
    ln(2) / level of the first. For n normal scores that is :func:`top_gap_probability`, which falls
    like 1 / level: Lambda has no mean at any n, and averages of it say how many rows were looked
    at. Its quantiles are sound; the median of normal scores grows like sqrt(ln n).

    Parameters
    ----------
    n : array_like
        Number of keys, at least 2.
    level : array_like
        Greater than 0.

    Returns
    -------
    float or ndarray of float64
        A lower bound of P(Lambda > level), and its limit for a large level.

    Examples
    --------
    >>> critical_scale_tail(512, [10, 100, 1000]).round(4)
    array([0.1919, 0.0209, 0.0021])
    """
    return top_gap_probability(n, math.log(2) / between("level", level, 0, math.inf))
