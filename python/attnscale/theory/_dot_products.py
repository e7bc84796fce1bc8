# SPDX-License-Identifier: BSD-3-Clause
"""Moments of q . k for independent components: why the scale is 1/sqrt(head_dim)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._arguments import at_least, finite, plain


def dot_product_variance(
    head_dim: ArrayLike,
    *,
    query_variance: ArrayLike = 1,
    key_variance: ArrayLike = 1,
    query_mean: ArrayLike = 0,
    key_mean: ArrayLike = 0,
) -> Any:
    """Variance of q . k for independent components of given mean and variance.

    ``head_dim (vq vk + vq mk^2 + vk mq^2)``: each of the head_dim products has the variance in the
    bracket. With unit variances and no means it is head_dim, hence 1/sqrt(head_dim) as the scale
    (Vaswani et al. 2017, arXiv 1706.03762, footnote 4).

    Parameters
    ----------
    head_dim : array_like
        At least 1.
    query_variance, key_variance : array_like, default 1
        At least 0.
    query_mean, key_mean : array_like, default 0
        Any finite numbers. All arguments broadcast.

    Returns
    -------
    float or ndarray of float64

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range, not finite, or not a number.

    Examples
    --------
    >>> dot_product_variance(64), dot_product_variance(64, query_mean=0.5)
    (64.0, 80.0)
    """
    d = at_least("head_dim", head_dim, 1)
    vq, vk = at_least("query_variance", query_variance, 0), at_least("key_variance", key_variance, 0)
    mq, mk = finite("query_mean", query_mean), finite("key_mean", key_mean)
    return plain(d * (vq * vk + vq * mk**2 + vk * mq**2))


def dot_product_kurtosis(
    head_dim: ArrayLike, *, query_kurtosis: ArrayLike = 3, key_kurtosis: ArrayLike = 3
) -> Any:
    """Kurtosis E[x^4]/E[x^2]^2 of q . k for independent components without mean.

    ``3 + (Kq Kk - 3) / head_dim``: products of components have kurtosis Kq Kk, and sums of head_dim
    of them come close to a normal distribution, whose kurtosis is 3.

    Parameters
    ----------
    head_dim : array_like
        At least 1.
    query_kurtosis, key_kurtosis : array_like, default 3
        Kurtosis of the components, at least 1; 3 for normal ones, 1.8 for uniform, 6 for Laplace.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> dot_product_kurtosis([1, 64])
    array([9.     , 3.09375])
    """
    kq, kk = at_least("query_kurtosis", query_kurtosis, 1), at_least("key_kurtosis", key_kurtosis, 1)
    return plain(3 + (kq * kk - 3) / at_least("head_dim", head_dim, 1))


def truncated_normal_variance(cut: ArrayLike = 2.0) -> Any:
    """Variance of a standard normal number that is drawn again if it is beyond +- cut.

    ``1 - 2 cut phi(cut) / (2 Phi(cut) - 1)``. BERT initialises with cut = 2 and does not rescale: its
    weights have 0.774 of the variance that was asked for.

    Parameters
    ----------
    cut : array_like, default 2
        In standard deviations, at least 1e-100.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> round(truncated_normal_variance(2), 6)
    0.773741
    """
    from scipy.special import erf, gammainc  # at first use: `import attnscale` stays fast

    c = at_least("cut", cut, 1e-100)
    # P(3/2, c^2/2) / P(1/2, c^2/2), incomplete gamma functions: no difference of near numbers.
    with np.errstate(under="ignore"):
        return plain(gammainc(1.5, c * c / 2) / erf(c / np.sqrt(2)))
