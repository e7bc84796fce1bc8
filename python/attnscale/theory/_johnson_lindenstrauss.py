# SPDX-License-Identifier: BSD-3-Clause
"""Dimensions for n vectors: the Johnson-Lindenstrauss lemma, and a rule of thumb that is not the lemma."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from .. import _core
from .._checks import choose
from ._arguments import at_least, between, plain


def jl_min_dim(
    n: ArrayLike,
    *,
    eps: ArrayLike,
    failure_probability: ArrayLike | None = None,
    tail: Literal["relaxed", "chi_square"] = "relaxed",
) -> Any:
    """Dimension in which a random projection keeps all squared distances of n vectors to a factor 1 +- eps.

    ``4 ln n / rate``, rounded up, with ``rate = eps^2/2 - eps^3/3``: Dasgupta and Gupta 2003, Random
    Struct. Algorithms 22, theorem 2.1. A projection then succeeds with probability 1/n or more, which is
    all the theorem needs. With a failure probability delta it is ``2 ln(n (n - 1) / delta) / rate``: the
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
        The rate as above, or ``eps - ln(1 + eps)``: the exponent of chi-square itself, from which the
        other one is rounded down. It holds for matrices of normal numbers.

    Returns
    -------
    int or ndarray of int64
        At least 1. The arguments broadcast.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range, not finite, or not a number.

    Notes
    -----
    The constant in front of ln n is 24 or more for every eps < 1, and 4 / (1 - ln 2) = 13.04 or more under
    "chi_square": :func:`jl_rule_of_thumb` is no such bound. scikit-learn's
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
    2 ln N - 0.24 n < 0, and rounds it to 8. With the constant unrounded it is :data:`GOLDEN_DIMENSION`.
    It is an estimate of entropy, not of distances: :func:`jl_min_dim` answers that question, with a
    constant of 24 at the very least.

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
    """head_dim ln(n) / ln(n0): the dimension that the rule of thumb gives n keys, if head_dim suits n0.

    Its ratio to head_dim is the factor log_n0(n) of the law ``log_n``, as Su 2023 (kexue.fm/9588)
    connects the two; a sum of more terms stood in for by a larger scale.

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
