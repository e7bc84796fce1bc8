# SPDX-License-Identifier: BSD-3-Clause
"""Exact expectations over rows of n independent scores, and the scales that keep them at another length."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._base.checks import answer_infeasible, read_on_infeasible
from .._base.hints import hinted
from ._arguments import at_least, plain, pointwise, together
from ._rows import row_function

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ExpectedStatistics:
    """Expectations over rows, each a float or an array of the broadcast shape of n, beta and head_dim.

    Attributes
    ----------
    entropy : float or ndarray
        E[H], nats.
    lse : float or ndarray
        E[ln sum exp(score)].
    mean_score : float or ndarray
        E of the mean score under the weights: lse - entropy.
    concentration : float or ndarray
        E[sum p^2]; its inverse is a number of keys.
    jacobian_trace : float or ndarray
        E[1 - sum p^2], the trace of the Jacobian of softmax.
    """

    entropy: Any
    lse: Any
    mean_score: Any
    concentration: Any
    jacobian_trace: Any


@hinted
def expected_statistics(
    n: ArrayLike, beta: ArrayLike, *, head_dim: ArrayLike = 64, model: Any = "sphere", support: Any = None
) -> ExpectedStatistics:
    """Exact expectations over rows of n independent scores, at any n and beta.

    The score of a key is beta s, where s has the density of the model, with variance 1 for the named
    ones. Averages are over the keys ("quenched"): n need not be large, unlike in
    :func:`sphere_entropy_deficit`. With ``f(u) = E exp(-e^(u + beta s))``::

        E[H] = -gamma - n integral E[x e^x exp(-e^x)] f(u)^(n-1) du,   x = u + beta s

    and similarly for the others, from 1/Z = integral exp(-z Z) dz.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1; up to 1e15 tested.
    beta : array_like
        The multiple of the standard scale, ``scale * sqrt(head_dim)``, at least 0.
    head_dim : array_like, default 64
        At least 2; used only by the model "sphere".
    model : str, array_like, or callable
        "sphere": s = sqrt(head_dim) times the cosine to a uniform direction. "gaussian": s standard
        normal, Derrida's random energy model. An array: scores at beta = 1, such as measured ones, from
        which rows are drawn with replacement. A callable: the density of s, a function of an array,
        with scores of order 1; or a frozen distribution of SciPy.
    support : pair of float, optional
        Interval outside of which a callable density is 0; default: all numbers. Ends may be infinite.

    Returns
    -------
    ExpectedStatistics
        Each entry of the broadcast shape of n, beta and head_dim. Errors are below 1e-6 (measured:
        2e-7), of lse relative to its size where that is above 1.

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range, not finite or not a number, or a density does not integrate to 1.

    Examples
    --------
    >>> row = expected_statistics(512, 1)
    >>> f"{row.entropy:.4f} {row.lse:.4f} {row.jacobian_trace:.4f}"
    '5.7523 6.7331 0.9950'
    """
    counts, betas = at_least("n", n, 1), at_least("beta", beta, 0)
    dims = at_least("head_dim", head_dim, 2, integer=True)
    row = row_function(model, support)
    counts, betas, dims = together(n=counts, beta=betas, head_dim=dims)
    values = pointwise(lambda a, b, d: row(a, b, int(d)), counts, betas, dims)
    lse, entropy, concentration = values.reshape(-1, 3).T.reshape((3, *counts.shape))
    results = (entropy, lse, lse - entropy, concentration, 1 - concentration)
    return ExpectedStatistics(*map(plain, results))


@hinted
def expected_entropy(
    n: ArrayLike, beta: ArrayLike, *, head_dim: ArrayLike = 64, model: Any = "sphere", support: Any = None
) -> Any:
    """E[H] of a row of n independent scores, in nats.

    Parameters
    ----------
    n, beta, head_dim, model, support
        As for :func:`expected_statistics`.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    The law log_512(n)/sqrt(d) slows the growth of entropy; it does not stop it:

    >>> n = np.array([512, 4096, 32768])
    >>> expected_entropy(n, np.log(n) / np.log(512)).round(4)
    array([5.7523, 7.4642, 9.0894])
    """
    return expected_statistics(n, beta, head_dim=head_dim, model=model, support=support).entropy


@hinted
def expected_lse(
    n: ArrayLike, beta: ArrayLike, *, head_dim: ArrayLike = 64, model: Any = "sphere", support: Any = None
) -> Any:
    """E[ln sum exp(score)] of a row.

    Parameters
    ----------
    n, beta, head_dim, model, support
        As for :func:`expected_statistics`.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> from attnscale.theory import sphere_log_mgf
    >>> annealed = np.log(512) + sphere_log_mgf(1 / 8, 64)
    >>> print(f"{expected_lse(512, 1):.4f} {annealed:.4f}")
    6.7331 6.7346
    """
    return expected_statistics(n, beta, head_dim=head_dim, model=model, support=support).lse


@hinted
def expected_concentration(
    n: ArrayLike, beta: ArrayLike, *, head_dim: ArrayLike = 64, model: Any = "sphere", support: Any = None
) -> Any:
    """E[sum of p^2] of a row.

    Parameters
    ----------
    n, beta, head_dim, model, support
        As for :func:`expected_statistics`.

    Returns
    -------
    float or ndarray of float64
        Between 1/n and 1.

    Examples
    --------
    >>> round(expected_concentration(512, 0), 6), round(expected_concentration(512, 6, model="gaussian"), 4)
    (0.001953, 0.511)
    """
    return expected_statistics(n, beta, head_dim=head_dim, model=model, support=support).concentration


@hinted
def expected_jacobian_trace(
    n: ArrayLike, beta: ArrayLike, *, head_dim: ArrayLike = 64, model: Any = "sphere", support: Any = None
) -> Any:
    """E[1 - sum of p^2]: the trace of softmax's Jacobian.

    Parameters
    ----------
    n, beta, head_dim, model, support
        As for :func:`expected_statistics`.

    Returns
    -------
    float or ndarray of float64
        Between 0 (all weight on one key) and 1 - 1/n.

    Examples
    --------
    Under ln n the trace falls slowly; gradients do not vanish:

    >>> n = np.array([512, 4096, 32768])
    >>> expected_jacobian_trace(n, np.log(n)).round(4)
    array([0.5059, 0.4802, 0.4625])
    """
    return expected_statistics(n, beta, head_dim=head_dim, model=model, support=support).jacobian_trace


@hinted
def invariant_beta(
    n: ArrayLike,
    *,
    n0: ArrayLike = 512,
    target_entropy: ArrayLike | None = None,
    head_dim: ArrayLike = 64,
    model: Any = "sphere",
    support: Any = None,
    on_infeasible: str = "warn",
) -> Any:
    """The multiple of the standard scale at which n keys have the entropy that n0 keys have at 1.

    It solves ``expected_entropy(n, beta) = expected_entropy(n0, 1)``. This, and not log(n)/log(n0), is the
    entropy-invariant law of the model; to first order it is :func:`annealed_beta`.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    n0 : array_like, default 512
        The length at which beta is 1.
    target_entropy : array_like, optional
        Entropy to reach, in nats, instead of the one at n0; greater than 0.
    head_dim, model, support
        As for :func:`expected_statistics`.
    on_infeasible : {"warn", "nan", "raise"}, default "warn"
        Result for a target outside the possible entropies (at most ln n, and for tied samples at least that
        of their tie): NaN with a warning, NaN, or an error.

    Returns
    -------
    float or ndarray of float64
        Multiples of the broadcast shape of n, n0 (or target_entropy) and head_dim.

    Examples
    --------
    >>> invariant_beta([512, 4096, 32768]).round(4)
    array([1.    , 2.4333, 3.4712])
    """
    row = row_function(model, support)
    read_on_infeasible(on_infeasible)
    counts, dims = at_least("n", n, 1), at_least("head_dim", head_dim, 2, integer=True)
    if target_entropy is None:
        target = pointwise(lambda a, d: row(a, 1.0, int(d)).entropy, at_least("n0", n0, 1), dims)
    else:
        target = at_least("target_entropy", target_entropy, 0)
    counts, dims, target = np.broadcast_arrays(counts, dims, target)
    result = pointwise(
        lambda a, d, h: _solve(h, a, lambda beta: row(a, beta, int(d)).entropy), counts, dims, target
    )
    return plain(_checked(result, counts, target, on_infeasible))


def variance_invariant_beta(
    n: ArrayLike,
    *,
    n0: ArrayLike = 512,
    head_dim: ArrayLike = 64,
    model: Any = "sphere",
    support: Any = None,
    on_infeasible: str = "warn",
) -> Any:
    """The multiple of the standard scale at which the output has the variance that n0 keys give it at 1.

    The output sum p_j v_j over independent values of variance 1 has the variance sum p^2: solves
    ``expected_concentration(n, beta) = expected_concentration(n0, 1)``. While many keys share the weight
    the concentration of normal scores is ``e^(beta^2) / n``, so beta is ``sqrt(1 + ln(n / n0))`` to first
    order: slower than :func:`annealed_beta`, which keeps the entropy.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    n0 : array_like, default 512
        The length at which beta is 1.
    head_dim, model, support
        As for :func:`expected_statistics`.
    on_infeasible : {"warn", "nan", "raise"}, default "warn"
        Result for a target below 1/n, the concentration of equal weights (n below about n0 / e): NaN with a
        warning, NaN, or an error.

    Returns
    -------
    float or ndarray of float64
        Multiples of the broadcast shape of n, n0 and head_dim.

    Examples
    --------
    >>> variance_invariant_beta([512, 4096, 32768], model="gaussian").round(4)
    array([1.    , 1.7887, 2.357 ])
    """
    row = row_function(model, support)
    read_on_infeasible(on_infeasible)
    counts, dims = at_least("n", n, 1), at_least("head_dim", head_dim, 2, integer=True)
    counts, dims, starts = np.broadcast_arrays(counts, dims, at_least("n0", n0, 1))

    def spread(a: float, d: float, beta: float) -> float:
        """-ln sum p^2, between 0 and ln n and falling in beta like the entropy."""
        return -math.log(row(a, beta, int(d)).concentration)

    target = pointwise(lambda a, d: spread(a, d, 1.0), starts, dims)
    result = pointwise(
        lambda a, d, goal: _solve(goal, a, lambda beta: spread(a, d, beta)), counts, dims, target
    )
    if np.isnan(result).any():
        lost = tuple(np.argwhere(np.isnan(result))[0])
        wanted = math.exp(-target[lost])
        answer_infeasible(
            on_infeasible,
            f"no beta gives {counts[lost]:g} keys an expected sum of squared weights of {wanted:.6g}: it is "
            f"at least 1/n = {1 / counts[lost]:.6g}",
        )
    return plain(result)


def annealed_beta(n: ArrayLike, *, n0: ArrayLike = 512, on_infeasible: str = "warn") -> Any:
    """sqrt(1 + 2 ln(n / n0)): the entropy-invariant multiple to first order.

    It keeps the annealed entropy of Gaussian scores, ln n - beta^2/2. It lies below the exact
    :func:`invariant_beta` for keys on a sphere, by 20 % at n = 2^20 and head_dim 64.

    Parameters
    ----------
    n, n0 : array_like
        At least 1.
    on_infeasible : {"warn", "nan", "raise"}, default "warn"
        Result below n = n0 / sqrt(e), where no beta reaches the entropy; see :func:`invariant_beta`.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> annealed_beta([256, 512, 4096], on_infeasible="nan").round(4)
    array([   nan, 1.    , 2.2713])
    """
    read_on_infeasible(on_infeasible)
    counts, starts = np.broadcast_arrays(at_least("n", n, 1), at_least("n0", n0, 1))
    square = 1 + 2 * np.log(counts / starts)
    result = np.sqrt(np.where(square >= 0, square, np.nan))
    return plain(_checked(result, counts, np.log(starts) - 0.5, on_infeasible))


def _solve(target: float, n: float, entropy: Callable[[float], float]) -> float:
    """beta with entropy(beta) = target, or NaN. The entropy falls in beta, from ln n at 0."""
    from scipy.optimize import brentq  # at first use: `import attnscale` stays fast

    most = math.log(n)
    if abs(most - target) <= 1e-12:
        return 0.0 if target > 0 else math.nan  # a single key: every beta will do
    if not 0 < target < most:
        return math.nan
    low, high = 0.0, math.sqrt(2 * (most - target))
    while entropy(high) > target:
        low, high = high, 1.5 * high
        if high > 1e9:
            return math.nan
    return float(brentq(lambda beta: entropy(beta) - target, low, high, xtol=1e-12, rtol=1e-11))


def _checked(beta: Array, n: Array, target: Array, on_infeasible: str) -> Array:
    lost = np.isnan(beta)
    if lost.any():
        first = tuple(np.argwhere(lost)[0])
        answer_infeasible(
            on_infeasible,
            f"no beta gives {n[first]:g} keys an expected entropy of {np.asarray(target)[first]:.6g} nats: "
            f"they have at most ln n = {math.log(n[first]):.6g}",
        )
    return beta
