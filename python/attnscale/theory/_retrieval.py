# SPDX-License-Identifier: BSD-3-Clause
"""The scale that finds one key among many, and the scale that averages over all keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._checks import answer_infeasible, read_on_infeasible
from ._arguments import at_least, between, plain
from ._expected import expected_concentration
from ._needle import needle_weight


def retrieval_beta(
    n: ArrayLike, *, gap: ArrayLike, weight: ArrayLike = 0.5, on_infeasible: str = "warn"
) -> Any:
    """The least multiple at which one key holds its weight: ``a - sqrt(a^2 - 2 ln n)``, a its gap.

    The key's score is a standard deviations above the mean of the n others, whose scores are
    independent and normal. Their sum of exponentials is ``n e^(beta^2 / 2)`` while many of them
    share it, so the key has the weight w where ``beta a >= ln n + beta^2 / 2 + ln(w / (1 - w))``. That is
    from the smaller root on, and possible if and only if n is at most :func:`retrieval_length`. The larger
    root is no end: it lies beyond the freezing point, where the sum grows like ``e^(beta sqrt(2 ln n))``
    only, and the key keeps its weight.

    Parameters
    ----------
    n : array_like
        Number of other keys, at least 1.
    gap : array_like
        a, in standard deviations of the scores at beta = 1; greater than 0. ``cosine * sqrt(head_dim)``
        for a key with that cosine on a sphere.
    weight : array_like, default 0.5
        In (0, 1).
    on_infeasible : {"warn", "nan", "raise"}, default "warn"
        What to do where the row is too long: NaN with a warning or without, or an error.

    Returns
    -------
    float or ndarray of float64
        The arguments broadcast; 0 where equal weights are enough.

    Examples
    --------
    Beside the exact multiples of :func:`needle_beta`, 1.628, 2.390 and 3.409:

    >>> retrieval_beta([512, 4096, 32768], gap=0.578 * 8).round(3)
    array([1.64 , 2.446, 3.858])
    """
    read_on_infeasible(on_infeasible)
    counts, a = at_least("n", n, 1), between("gap", gap, 0, math.inf)
    share = between("weight", weight, 0, 1)
    counts, a, share = np.broadcast_arrays(counts, a, share)
    noise = np.log(counts) + np.log(share / (1 - share))
    square = a * a - 2 * noise
    # a - sqrt(a^2 - 2 noise) without the cancellation.
    root = np.sqrt(np.where(square >= 0, square, np.nan))
    beta = np.maximum(2 * noise / (a + root), 0.0)
    if np.isnan(beta).any():
        lost = tuple(np.argwhere(np.isnan(beta))[0])
        answer_infeasible(
            on_infeasible,
            f"no beta gives a key {a[lost]:g} standard deviations above {counts[lost]:g} others the weight "
            f"{share[lost]:g}: their scores reach as far",
        )
    return plain(beta)


def retrieval_length(gap: ArrayLike, *, weight: ArrayLike = 0.5) -> Any:
    """exp(a^2 / 2) (1 - w) / w: the most keys for which :func:`retrieval_beta` exists.

    It is the n at which the freezing point :func:`critical_beta` is the gap a: the largest of n normal
    scores is as high as the key.

    Parameters
    ----------
    gap, weight : array_like
        As for :func:`retrieval_beta`.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> round(retrieval_length(0.45 * 128**0.5))
    425066
    """
    a, share = between("gap", gap, 0, math.inf), between("weight", weight, 0, 1)
    return plain(np.exp(a * a / 2) * (1 - share) / share)


@dataclass(frozen=True)
class RetrievalTradeOff:
    """What one scale does for retrieval and for averaging, each a float or an array of the broadcast shape.

    Attributes
    ----------
    needle_weight : float or ndarray
        Expected weight of the key to find.
    averaging_error : float or ndarray
        E[sum p^2] of a row of random keys: the variance of the average of independent values of variance 1.
    excess : float or ndarray
        n times ``averaging_error``: how many times the error of equal weights. It is near
        ``e^(beta^2)`` while many keys share the weight.
    """

    needle_weight: Any
    averaging_error: Any
    excess: Any


def retrieval_trade_off(
    n: ArrayLike, beta: ArrayLike, *, head_dim: ArrayLike = 64, cosine: ArrayLike
) -> RetrievalTradeOff:
    """Weight of a needle and error of an average under one multiple, exactly, for keys on a sphere.

    Both rise with beta. An average over more keys gets better as 1/n at a bounded beta only; a needle keeps
    its weight only if beta grows as :func:`retrieval_beta`. So no rule beta(n) does both.

    Parameters
    ----------
    n, beta, head_dim, cosine : array_like
        As for :func:`needle_weight`; they broadcast.

    Returns
    -------
    RetrievalTradeOff

    Examples
    --------
    >>> both = retrieval_trade_off([64, 1024], 1, cosine=0.578386)
    >>> both.needle_weight.round(3), both.excess.round(2)
    (array([0.5  , 0.057]), array([2.41, 2.58]))
    """
    counts = at_least("n", n, 1)
    found = needle_weight(counts, head_dim=head_dim, cosine=cosine, beta=beta)
    error = expected_concentration(counts, beta, head_dim=head_dim)
    shape = np.shape(found)
    error = np.broadcast_to(error, shape)
    return RetrievalTradeOff(found, plain(error), plain(error * np.broadcast_to(counts, shape)))
