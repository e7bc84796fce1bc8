# SPDX-License-Identifier: BSD-3-Clause
"""The Jacobian of softmax and the smooth maximum."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import finite, plain

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
        If a row is empty, holds a negative or non-finite number, or does not add up to 1.

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
