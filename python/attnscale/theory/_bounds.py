# SPDX-License-Identifier: BSD-3-Clause
"""Bounds of weights and entropy from bounded scores, softmax's Jacobian and the smooth maximum."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.checks import answer_infeasible, read_on_infeasible
from ._arguments import at_least, finite, plain, pointwise


def entropy_lower_bound(n: ArrayLike, spread: ArrayLike) -> Any:
    """Lower bound of the entropy of n keys with scores in a range, by the variance.

    ``max(0, ln n - spread^2 / 8)``: the deficit is the integral of t Var_p(x) from 0 to the scale, and
    no variance in a range R exceeds R^2/4. Scores g cos have a spread of 2 g, a soft-cap c one of 2 c.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    spread : array_like
        Largest minus smallest score, scale included; at least 0.

    Returns
    -------
    float or ndarray of float64
        Nats; the arguments broadcast.

    Examples
    --------
    >>> round(entropy_lower_bound(512, 4), 4)
    4.2383
    """
    r = at_least("spread", spread, 0)
    return plain(np.maximum(0.0, np.log(at_least("n", n, 1)) - r * r / 8))


def least_entropy(n: ArrayLike, spread: ArrayLike) -> Any:
    """Smallest entropy of n keys with scores in a range: the sharp form of :func:`entropy_lower_bound`.

    dH/ds_i = -p_i (s_i - sum p s), so every score moves to an end of the range: k keys at the top, the
    others R below. With ``r = R / (e^R - 1)`` the best share ``k + (n - k) e^-R = n r`` gives
    ``ln n + ln r + 1 - r``; the integer k >= 1 next to it gives the value, k = 1 if r is small.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    spread : array_like
        Largest minus smallest score R, at least 0.

    Returns
    -------
    float or ndarray of float64
        Nats; the arguments broadcast.

    Examples
    --------
    >>> least_entropy(512, [4, 10, 100]).round(4), entropy_lower_bound(512, [4, 10, 100]).round(4)
    (array([4.5685, 0.2497, 0.    ]), array([4.2383, 0.    , 0.    ]))
    """
    counts, r = np.broadcast_arrays(at_least("n", n, 1), at_least("spread", spread, 0))
    low = np.exp(-r)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        best = np.where(r > 1e-8, counts * (r / np.expm1(r) - low) / -np.expm1(-r), counts / 2)
    values = [_two_levels(counts, r, k) for k in (np.floor(best), np.floor(best) + 1)]
    return plain(np.minimum(*values))


def softcap_for_entropy(n: ArrayLike, *, entropy: ArrayLike, on_infeasible: str = "warn") -> Any:
    """The largest soft-cap c that guarantees a row of n keys this entropy.

    Scores within (-c, c) have a spread of 2 c: c solves ``least_entropy(n, 2 c) = entropy``. A larger cap
    guarantees less. By the variance bound, ln n - (2 c)^2 / 8, a cap guarantees anything only below
    ``sqrt(2 ln n)``, which is :func:`critical_beta`.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 2.
    entropy : array_like
        Nats, greater than 0 and at most ln n.
    on_infeasible : {"warn", "nan", "raise"}, default "warn"
        Result for an entropy above ln n: NaN with a warning, NaN, or an error.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> softcap_for_entropy([512, 131072], entropy=1.0).round(2)
    array([4.18, 7.23])
    """
    from scipy.optimize import brentq  # at first use: `import attnscale` stays fast

    read_on_infeasible(on_infeasible)
    counts, wanted = np.broadcast_arrays(at_least("n", n, 2), at_least("entropy", entropy, 1e-9))

    def cap(a: float, h: float) -> float:
        if h > math.log(a):
            return math.nan
        return float(brentq(lambda c: least_entropy(a, 2 * c) - h, 0, 40 + math.log(a)))

    result = pointwise(cap, counts, wanted)
    if np.isnan(result).any():
        lost = tuple(np.argwhere(np.isnan(result))[0])
        answer_infeasible(
            on_infeasible,
            f"no cap gives {counts[lost]:g} keys an entropy of {wanted[lost]:g} nats: above ln n",
        )
    return plain(result)


def _two_levels(n: Any, spread: Any, k: Any) -> Any:
    """Entropy of k keys of one score and n - k keys lower by the spread."""
    k = np.clip(k, 1, np.maximum(n - 1, 1))
    others = (n - k) * np.exp(-spread)
    return np.log(k + others) + spread * others / (k + others)


def weight_bounds(n: ArrayLike, spread: ArrayLike) -> tuple[Any, Any]:
    """Smallest and largest weight of a key among n with scores in a range.

    ``1/(1 + (n - 1) e^R)`` and ``1/(1 + (n - 1) e^-R)``, reached when all other scores are equal. Both
    fall like 1/n: bounded scores cannot stay sharp (Velickovic et al. 2024, arXiv 2410.01104, who
    give 1/(n e^R) and the same upper bound).

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    spread : array_like
        Largest minus smallest score R, at least 0.

    Returns
    -------
    (float or ndarray of float64, float or ndarray of float64)
        Lower and upper bound.

    Examples
    --------
    >>> low, high = weight_bounds([16, 512], 4)
    >>> high.round(4)
    array([0.7845, 0.0965])
    """
    from scipy.special import expit  # at first use: `import attnscale` stays fast

    with np.errstate(divide="ignore"):  # -inf for a single key, whose weight is 1
        log_others = np.log(at_least("n", n, 1) - 1)
    r = at_least("spread", spread, 0)
    return plain(expit(-r - log_others)), plain(expit(r - log_others))


def spectral_entropy_bound(n: ArrayLike, norm: ArrayLike) -> Any:
    """Smallest entropy of n keys whose scores have a given Euclidean norm.

    ``ln(1 + (n-1) b) + norm sqrt(n (n-1)) b / (1 + (n-1) b)`` with ``b = exp(-norm sqrt(n / (n-1)))``:
    Zhai et al. 2023, arXiv 2303.06296, theorem 3.1, reached by one high score and equal others. The
    spectral norm of the query and key projections bounds the norm of the scores; its growth in
    training is what they call entropy collapse.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    norm : array_like
        At least 0.

    Returns
    -------
    float or ndarray of float64
        Nats; the arguments broadcast.

    Examples
    --------
    >>> round(spectral_entropy_bound(16, 3), 6)
    1.767526
    """
    counts, sigma = np.broadcast_arrays(at_least("n", n, 1), at_least("norm", norm, 0))
    others = counts - 1
    gap = sigma * np.sqrt(counts / np.maximum(others, 1e-300))  # between the high score and the rest
    with np.errstate(over="ignore", invalid="ignore"):
        shared = others * np.exp(-gap)
        bound = np.log1p(shared) + gap * shared / (1 + shared)
    return plain(np.where(others > 0, bound, 0.0))


Array = NDArray[np.float64]


def jacobian_trace(weights: ArrayLike) -> Any:
    """Trace of softmax's Jacobian diag(p) - p p^T: 1 - sum of p^2.

    Parameters
    ----------
    weights : array_like
        Rows of weights p, of shape (..., n): at least 0, with sum 1.

    Returns
    -------
    float or ndarray of float64
        Of shape (...). 0 for a one-hot row, 1 - 1/n for equal weights.

    Raises
    ------
    ValueError, TypeError
        If a row is empty, has a negative or non-finite number, or does not add up to 1.

    Examples
    --------
    >>> jacobian_trace([0.5, 0.5]), jacobian_trace([1.0, 0.0])
    (0.5, 0.0)
    """
    p = _weights(weights)
    return plain(1 - (p * p).sum(-1))


def jacobian_norm(weights: ArrayLike) -> Any:
    """Spectral norm of softmax's Jacobian diag(p) - p p^T; at most 1/2.

    It is the largest root of ``sum of p_i / (p_i - x) = 0``, which lies between the two largest weights
    (Golub 1973, SIAM Review 15). It costs a few dozen passes over the row, and no n x n matrix.

    Parameters
    ----------
    weights : array_like
        Rows of weights p, of shape (..., n): at least 0, with sum 1.

    Returns
    -------
    float or ndarray of float64
        Of shape (...).

    Examples
    --------
    >>> jacobian_norm([0.5, 0.5]), jacobian_norm([1.0, 0.0])
    (0.5, 0.0)
    """
    p = _weights(weights)
    if p.shape[-1] == 1:
        return plain(np.zeros(p.shape[:-1]))
    top = np.partition(p, -2, axis=-1)[..., -2:]
    low, high = top[..., 0].copy(), top[..., 1].copy()
    for _ in range(60):
        middle = (low + high) / 2
        gap = p - middle[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            rises = np.where(p > 0, p / gap, 0.0).sum(-1) > 0
        inside = (middle > low) & (middle < high)
        high = np.where(inside & rises, middle, high)
        low = np.where(inside & ~rises, middle, low)
    return plain(low)


def smooth_maximum(x: ArrayLike, sharpness: ArrayLike) -> Any:
    """lse(a x) / a: the maximum of x, smoothed.

    It lies between the bounds of :func:`smooth_maximum_bounds`, and its gradient is softmax(a x).

    Parameters
    ----------
    x : array_like
        Finite numbers of shape (..., n).
    sharpness : array_like
        a, greater than 0; broadcasts with the axes before the last.

    Returns
    -------
    float or ndarray of float64
        Of shape (...).

    Examples
    --------
    >>> smooth_maximum([0.0, 1.0, 1.0], [1, 10, 100]).round(4)
    array([1.862 , 1.0693, 1.0069])
    """
    numbers, a = _numbers(x, sharpness)
    top = numbers.max(-1)
    with np.errstate(under="ignore"):
        total = np.exp(a[..., None] * (numbers - top[..., None])).sum(-1)
    return plain(top + np.log(total) / a)


def smooth_maximum_bounds(x: ArrayLike, sharpness: ArrayLike) -> tuple[Any, Any]:
    """max x and max x + ln(n) / a, between which the smooth maximum lies.

    Parameters
    ----------
    x, sharpness : array_like
        As for :func:`smooth_maximum`.

    Returns
    -------
    (float or ndarray of float64, float or ndarray of float64)
        Lower and upper bound, each of the shape of the smooth maximum.

    Examples
    --------
    >>> low, high = smooth_maximum_bounds([0.0, 1.0, 1.0], 10)
    >>> low, round(high, 6)
    (1.0, 1.109861)
    """
    numbers, a = _numbers(x, sharpness)
    top = numbers.max(-1) + 0.0 * a
    return plain(top), plain(top + np.log(numbers.shape[-1]) / a)


def _weights(weights: ArrayLike) -> Array:
    p = finite("weights", weights)
    if p.ndim == 0 or p.shape[-1] == 0:
        raise ValueError(f"weights must be rows of at least one weight, got shape {p.shape}")
    if (p < 0).any():
        raise ValueError(f"weights must be at least 0, got {p.min():g}")
    off = np.abs(p.sum(-1) - 1)
    if (off > 1e-5).any():
        raise ValueError(f"weights must add up to 1 in each row, got a sum off by {off.max():.3g}")
    return p


def _numbers(x: ArrayLike, sharpness: ArrayLike) -> tuple[Array, Array]:
    numbers, a = finite("x", x), finite("sharpness", sharpness)
    if numbers.ndim == 0 or numbers.shape[-1] == 0:
        raise ValueError(f"x must be rows of at least one number, got shape {numbers.shape}")
    if not (a > 0).all():
        raise ValueError(f"sharpness must be greater than 0, got {a.min():g}")
    return numbers, a
