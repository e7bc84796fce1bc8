# SPDX-License-Identifier: BSD-3-Clause
"""One key among many: its weight, the scale it needs, and the cost of that scale for an average."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._base.checks import answer_infeasible, read_on_infeasible
from ._arguments import at_least, between, plain, pointwise, together
from ._densities import Sphere
from ._expected import expected_concentration
from ._rows import Inner, Points

# The integrand is analytic within pi/2 of the real line; the trapezoidal rule errs by exp(-pi^2 / h).
_STEP = 0.35


def needle_weight(n: ArrayLike, *, head_dim: ArrayLike = 64, cosine: ArrayLike, beta: ArrayLike) -> Any:
    """Expected weight of a key with a given cosine to the query, among n - 1 random ones.

    The random keys are uniform on the sphere, all norms are sqrt(head_dim). With s0 the needle's
    score at beta = 1 and f as for :func:`expected_statistics`::

        E[w] = integral e^x exp(-e^x) f(u)^(n-1) du,   x = u + beta s0

    Parameters
    ----------
    n : array_like
        Number of keys, the needle included; at least 1.
    head_dim : array_like, default 64
        At least 2.
    cosine : array_like
        Cosine of query and needle, in [-1, 1].
    beta : array_like
        The multiple of the standard scale, at least 0.

    Returns
    -------
    float or ndarray of float64
        Between 0 and 1; the arguments broadcast.

    Examples
    --------
    Dilution under the standard scale:

    >>> needle_weight([64, 256, 1024], cosine=0.578386, beta=1).round(3)
    array([0.5  , 0.197, 0.057])
    """
    counts, betas = at_least("n", n, 1), at_least("beta", beta, 0)
    dims = at_least("head_dim", head_dim, 2, integer=True)
    cosines = between("cosine", cosine, -1, 1, closed="low high")
    return plain(pointwise(_weight, counts, dims, cosines, betas))


def needle_beta(
    n: ArrayLike,
    *,
    head_dim: ArrayLike = 64,
    cosine: ArrayLike,
    weight: ArrayLike = 0.5,
    on_infeasible: str = "warn",
) -> Any:
    """The smallest multiple of the standard scale at which the needle's expected weight is `weight`.

    It solves :func:`needle_weight` for beta: nearly ``beta s0 = ln n + ln M(beta)`` for a weight of 1/2,
    with M of :func:`sphere_log_mgf`. It differs from :func:`invariant_beta`, which keeps entropy.

    Parameters
    ----------
    n, head_dim, cosine : array_like
        As for :func:`needle_weight`.
    weight : array_like, default 0.5
        In (0, 1).
    on_infeasible : {"warn", "nan", "raise"}, default "warn"
        Random keys closer to the query than the needle bound its weight at every beta. Result then: NaN with
        a warning, NaN, or an error.

    Returns
    -------
    float or ndarray of float64
        0 if equal weights are enough.

    Examples
    --------
    >>> needle_beta([512, 4096, 32768], cosine=0.578).round(2)
    array([1.63, 2.39, 3.41])
    """
    read_on_infeasible(on_infeasible)
    counts, dims = at_least("n", n, 1), at_least("head_dim", head_dim, 2, integer=True)
    cosines, wanted = between("cosine", cosine, -1, 1, closed="low high"), between("weight", weight, 0, 1)
    arrays = np.broadcast_arrays(counts, dims, cosines, wanted)
    result = pointwise(_solve, *arrays)
    if np.isnan(result).any():
        a, d, c, w = (array[np.isnan(result)].flat[0] for array in arrays)
        answer_infeasible(
            on_infeasible,
            f"no beta gives a key with cosine {c:g} the weight {w:g} among {a:g} keys of dimension {d:g}",
        )
    return plain(result)


def _weight(n: float, head_dim: float, cosine: float, beta: float) -> float:
    from scipy.special import expit  # at first use: `import attnscale` stays fast

    if n == 1 or beta == 0:
        return 1 / n
    inner = Inner(n, beta, Sphere(int(head_dim)))
    bottom, top = inner.panels[0], inner.panels[-1]
    x = np.arange(-40.0, 4.0, _STEP)  # x of the needle: below the range e^x is negligible, above it exp(-e^x)
    # The transition of the other keys lies at a score, or beyond all of them. Cosines are counted from the
    # end nearer to the needle, where their differences keep their digits.
    side, reach = math.copysign(1.0, cosine), beta * math.sqrt(head_dim)
    end = 1 - abs(cosine)
    part = np.clip((end + side * x / reach) / 2, 0.0, 1.0)
    with np.errstate(divide="ignore"):
        v = np.clip(side * (np.log1p(-part) - np.log(part)) / 2, bottom, top)
    beyond = (v == bottom) | (v == top)
    a = np.where(beyond, x - side * reach * (2 * expit(-2 * side * v) - end), 0.0)
    log_f = inner.moments(Points(a, v)).log_f
    return float(_STEP * np.exp(x - np.exp(x) + (n - 1) * log_f).sum())


def _solve(n: float, head_dim: float, cosine: float, weight: float) -> float:
    from scipy.optimize import brentq  # at first use: `import attnscale` stays fast

    if weight <= 1 / n:
        return 0.0
    low, high, best = 0.0, 0.25, 1 / n
    # The weight rises, and may fall again to the chance of being the largest.
    while (reached := _weight(n, head_dim, cosine, high)) < weight:
        if reached < best or high > 1e12:
            return math.nan
        low, high, best = high, (1.3 if high < 100 else 3) * high, reached
    return float(brentq(lambda beta: _weight(n, head_dim, cosine, beta) - weight, low, high, xtol=1e-12))


def retrieval_beta(
    n: ArrayLike, *, gap: ArrayLike, weight: ArrayLike = 0.5, on_infeasible: str = "warn"
) -> Any:
    """The smallest multiple at which one key holds its weight: ``a - sqrt(a^2 - 2 ln n)``, a its gap.

    The key's score is a standard deviations above the mean of the n others, whose scores are independent and
    normal. Their sum of exponentials is ``n e^(beta^2 / 2)`` while many of them share it, so the key has the
    weight w if ``beta a >= ln n + beta^2 / 2 + ln(w / (1 - w))``. That holds from the smaller root on, which
    exists only for n up to :func:`retrieval_length`. The larger root is not an end: it lies beyond the
    freezing point, where the sum grows only like ``e^(beta sqrt(2 ln n))``, and the key keeps its weight.

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
        Result if the row is too long: NaN with a warning, NaN, or an error.

    Returns
    -------
    float or ndarray of float64
        The arguments broadcast; 0 if equal weights are enough.

    Examples
    --------
    The exact multiples of :func:`needle_beta` are 1.628, 2.390 and 3.409:

    >>> retrieval_beta([512, 4096, 32768], gap=0.578 * 8).round(3)
    array([1.64 , 2.446, 3.858])
    """
    read_on_infeasible(on_infeasible)
    counts, a = at_least("n", n, 1), between("gap", gap, 0, math.inf)
    share = between("weight", weight, 0, 1)
    counts, a, share = np.broadcast_arrays(counts, a, share)
    noise = np.log(counts) + np.log(share / (1 - share))
    square = a * a - 2 * noise
    # a - sqrt(a^2 - 2 noise) without cancellation.
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
    """exp(a^2 / 2) (1 - w) / w: the largest number of keys for which :func:`retrieval_beta` exists.

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
    """Effect of one scale on retrieval and averaging, each a float or an array of the broadcast shape.

    Attributes
    ----------
    needle_weight : float or ndarray
        Expected weight of the key to find.
    averaging_error : float or ndarray
        E[sum p^2] of a row of random keys: the variance of the average of independent values of variance 1.
    excess : float or ndarray
        n times ``averaging_error``: the error relative to equal weights, near ``e^(beta^2)`` while many keys
        share the weight.
    """

    needle_weight: Any
    averaging_error: Any
    excess: Any


def retrieval_trade_off(
    n: ArrayLike, beta: ArrayLike, *, head_dim: ArrayLike = 64, cosine: ArrayLike
) -> RetrievalTradeOff:
    """Weight of a needle and error of an average under one multiple, exactly, for keys on a sphere.

    Both rise with beta. An average over more keys improves like 1/n only at a bounded beta; a needle keeps
    its weight only if beta grows like :func:`retrieval_beta`. So no rule beta(n) does both.

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


def needle_weight_bound(n: ArrayLike, *, gap: ArrayLike, beta: ArrayLike) -> Any:
    """A lower bound of the expected weight of one key: ``1 / (1 + n e^(beta^2/2 - beta a))``, a its gap.

    The n other scores are independent and normal. The weight is convex in their sum of exponentials, with
    mean ``n e^(beta^2/2)`` (Jensen). At ``beta = a`` it is ``1 / (1 + n e^(-a^2/2))``, at least 1/2 for
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

    Examples
    --------
    >>> averaging_excess_bound([64, 4096], 0.5).round(3)
    array([1.715, 1.65 ])
    """
    counts, betas = together(n=at_least("n", n, 2), beta=at_least("beta", beta, 0))
    rest = counts / (counts - 1)
    with np.errstate(over="ignore"):  # infinity is a bound, too
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

    Examples
    --------
    >>> shared_excess_bound([512, 4096, 32768], gap=4.624).round(2)
    array([ 0.77,  3.18, 19.62])
    """
    counts, a = together(n=at_least("n", n, 1), gap=between("gap", gap, 0, math.inf))
    log_n = np.log(counts)
    return plain(np.where(log_n <= 2 * a * a / 3, np.exp((log_n / a) ** 2) / 8, np.nan))
