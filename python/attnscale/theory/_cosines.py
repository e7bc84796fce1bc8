# SPDX-License-Identifier: BSD-3-Clause
"""The largest cosine of a query with n random keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._arguments import at_least, plain
from ._densities import Sphere
from ._finite_n import nodes_between


def max_cosine(n: ArrayLike, head_dim: ArrayLike) -> Any:
    """sqrt(1 - n^(-2/(head_dim - 1))): the usual estimate of the largest cosine with n random keys.

    It takes the tail of the cosine for (1 - t^2)^((d-1)/2), which leaves out a factor that falls in t
    and d, and so lies above :func:`expected_max_cosine`: by 14 % at n = 512 and head_dim 64.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    head_dim : array_like
        At least 2.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> max_cosine([512, 32768], 64).round(4), expected_max_cosine([512, 32768], 64).round(4)
    (array([0.4239, 0.5302]), array([0.3706, 0.4887]))
    """
    counts, dims = at_least("n", n, 1), at_least("head_dim", head_dim, 2, integer=True)
    return plain(np.sqrt(-np.expm1(-2 * np.log(counts) / (dims - 1))))


def expected_max_cosine(n: ArrayLike, head_dim: ArrayLike) -> Any:
    """E of the largest cosine of a query with n independent directions, exactly.

    The mean of the largest order statistic, ``integral t d(F(t)^n)``, with the tail of one cosine
    ``1 - F(t) = I_(1-t^2)((d - 1)/2, 1/2) / 2``.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    head_dim : array_like
        At least 2.

    Returns
    -------
    float or ndarray of float64
        To a relative error of 1e-8 (0 for a single key).

    Examples
    --------
    >>> expected_max_cosine([1, 2, 512], 64).round(6)
    array([0.      , 0.070659, 0.370584])
    """
    counts, dims = at_least("n", n, 1), at_least("head_dim", head_dim, 2, integer=True)
    counts, dims = np.broadcast_arrays(counts, dims)
    values = [_expected_max(float(a), int(d)) for a, d in zip(counts.flat, dims.flat, strict=True)]
    return plain(np.reshape(np.array(values, np.float64), counts.shape))


def _expected_max(n: float, head_dim: int) -> float:
    if n == 1:
        return 0.0
    density = Sphere(head_dim)
    panels = density.panels(math.log(n), 1.0)
    line = panels[::-1]
    v, weights = nodes_between(line, math.log(n) + np.log(-_log_distribution(line, head_dim)))
    p = weights * np.exp(density.log_density(v) - density.log_norm(panels))
    return float((n * p * np.exp((n - 1) * _log_distribution(v, head_dim)) * np.tanh(v)).sum())


def _log_distribution(v: np.ndarray[Any, np.dtype[np.float64]], head_dim: int) -> Any:
    """ln P(cosine < tanh v)."""
    from scipy.special import betainc  # at first use: `import attnscale` stays fast

    tail = 0.5 * betainc((head_dim - 1) / 2, 0.5, np.cosh(v) ** -2.0)
    return np.where(v > 0, np.log1p(-tail), np.log(np.maximum(tail, 1e-300)))
