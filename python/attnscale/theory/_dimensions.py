# SPDX-License-Identifier: BSD-3-Clause
"""Dimensions that n vectors need, cosines of random keys, and the reason for the scale 1/sqrt(head_dim)."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from .. import _core
from .._base.checks import choose
from ._arguments import at_least, between, finite, plain, pointwise
from ._densities import Sphere
from ._rows import nodes_between


def jl_min_dim(
    n: ArrayLike,
    *,
    eps: ArrayLike,
    failure_probability: ArrayLike | None = None,
    tail: Literal["relaxed", "chi_square"] = "relaxed",
) -> Any:
    """Dimension in which a random projection keeps all squared distances of n vectors to a factor 1 +- eps.

    ``4 ln n / rate``, rounded up, with ``rate = eps^2/2 - eps^3/3``: Dasgupta and Gupta 2003, Random
    Struct. Algorithms 22, theorem 2.1. A projection then succeeds with probability at least 1/n, enough for
    the theorem. With a failure probability delta it is ``2 ln(n (n - 1) / delta) / rate``: the
    union of n (n - 1)/2 pairs, two tails each of at most ``exp(-k rate / 2)``.

    Parameters
    ----------
    n : array_like
        Number of vectors, at least 1.
    eps : array_like
        Relative error of squared distances, in (0, 1).
    failure_probability : array_like, optional
        In (0, 1).
    tail : {"relaxed", "chi_square"}
        The rate above, or ``eps - ln(1 + eps)``, the exponent of chi-square, which "relaxed" rounds down. It
        holds for matrices of normal numbers.

    Returns
    -------
    int or ndarray of int64
        At least 1. The arguments broadcast.

    Notes
    -----
    The constant before ln n is 24 or more for every eps < 1, and 4 / (1 - ln 2) = 13.04 or more for
    "chi_square": :func:`jl_rule_of_thumb` is not such a bound. scikit-learn's
    ``johnson_lindenstrauss_min_dim`` rounds down, which is one too few.

    Examples
    --------
    >>> jl_min_dim(512, eps=[0.1, 0.5, 0.9])
    array([5348,  300,  155])
    >>> jl_min_dim(512, eps=0.5, failure_probability=0.01)
    410
    >>> jl_min_dim(512, eps=0.5, tail="chi_square")
    264
    """
    counts, error = at_least("n", n, 1), between("eps", eps, 0, 1)
    choose("tail", tail, ("relaxed", "chi_square"))
    allowed: Any = math.nan
    if failure_probability is not None:
        allowed = between("failure_probability", failure_probability, 0, 1)
    whole = _core.jl_min_dim(counts, error, allowed, tail == "chi_square")
    return whole if np.ndim(whole) else int(whole)


def jl_rule_of_thumb(n: ArrayLike, constant: ArrayLike = 8) -> Any:
    """constant * ln n: where the annealed entropy of the n^2 pairs of n vectors at scale 1 is used up.

    Su 2020 and 2023 (kexue.fm/7695, /9588) finds n > 8.33 ln N for embedding dimensions from
    2 ln N - 0.24 n < 0, and rounds it to 8; the unrounded constant is :data:`GOLDEN_DIMENSION`. It
    estimates entropy, not distances: for those see :func:`jl_min_dim`, whose constant is at least 24.

    Parameters
    ----------
    n : array_like
        Number of vectors, at least 1.
    constant : array_like, default 8
        Greater than 0.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> jl_rule_of_thumb([512, 100_000]).round(1)
    array([49.9, 92.1])
    """
    factor = at_least("constant", constant, 0)
    if not (factor > 0).all():
        raise ValueError(f"constant must be greater than 0, got {factor.min():g}")
    return plain(_core.jl_rule_of_thumb(at_least("n", n, 1), factor))


def equivalent_head_dim(n: ArrayLike, *, head_dim: ArrayLike, n0: ArrayLike = 512) -> Any:
    """head_dim ln(n) / ln(n0): the dimension by the rule of thumb for n keys, if head_dim suits n0.

    Its ratio to head_dim is the factor log_n0(n) of the law ``log_n`` (Su 2023, kexue.fm/9588): a larger
    scale stands in for a sum of more terms.

    Parameters
    ----------
    n, head_dim, n0 : array_like
        At least 1, at least 1, and greater than 1.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> round(equivalent_head_dim(512**2, head_dim=64), 9)
    128.0
    """
    base = at_least("n0", n0, 1)
    if not (base > 1).all():
        raise ValueError(f"n0 must be greater than 1, got {base.min():g}")
    dims = at_least("head_dim", head_dim, 1)
    return plain(_core.equivalent_head_dim(at_least("n", n, 1), dims, base))


def max_cosine(n: ArrayLike, head_dim: ArrayLike) -> Any:
    """sqrt(1 - n^(-2/(head_dim - 1))): the usual estimate of the largest cosine with n random keys.

    It takes (1 - t^2)^((d-1)/2) for the tail of the cosine, without a factor that falls in t and d, and so
    exceeds :func:`expected_max_cosine`: by 14 % at n = 512 and head_dim 64.

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
    """Expectation of the largest cosine of a query with n independent directions, exactly.

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
        Relative error 1e-8 (0 for a single key).

    Examples
    --------
    >>> expected_max_cosine([1, 2, 512], 64).round(6)
    array([0.      , 0.070659, 0.370584])
    """
    counts, dims = at_least("n", n, 1), at_least("head_dim", head_dim, 2, integer=True)
    return plain(pointwise(_expected_max, counts, dims))


def _expected_max(n: float, head_dim: float) -> float:
    if n == 1:
        return 0.0
    density = Sphere(int(head_dim))
    panels = density.panels(math.log(n), 1.0)
    line = panels[::-1]
    v, weights = nodes_between(line, math.log(n) + np.log(-_log_distribution(line, head_dim)))
    p = weights * np.exp(density.log_density(v) - density.log_norm(panels))
    return float((n * p * np.exp((n - 1) * _log_distribution(v, head_dim)) * np.tanh(v)).sum())


def _log_distribution(v: np.ndarray[Any, np.dtype[np.float64]], head_dim: float) -> Any:
    """ln P(cosine < tanh v)."""
    from scipy.special import betainc  # at first use: `import attnscale` stays fast

    tail = 0.5 * betainc((head_dim - 1) / 2, 0.5, np.cosh(v) ** -2.0)
    return np.where(v > 0, np.log1p(-tail), np.log(np.maximum(tail, 1e-300)))


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
    of them approach a normal distribution, with kurtosis 3.

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
    weights have 0.774 of the intended variance.

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
    # P(3/2, c^2/2) / P(1/2, c^2/2), incomplete gamma functions: no difference of close numbers.
    with np.errstate(under="ignore"):
        return plain(gammainc(1.5, c * c / 2) / erf(c / np.sqrt(2)))
