# SPDX-License-Identifier: BSD-3-Clause
"""Scales that keep the expected entropy, or the concentration, of a row at what it is at another length."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._checks import answer_infeasible, read_on_infeasible
from .._options import hinted
from ._arguments import at_least, plain
from ._rows import Averages, row_function

Array = NDArray[np.float64]


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

    The multiple solves ``expected_entropy(n, beta) = expected_entropy(n0, 1)``. This, and not
    log(n)/log(n0), is the entropy-invariant law of the model; to first order it is
    :func:`annealed_beta`.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    n0 : array_like, default 512
        The length at which beta is 1.
    target_entropy : array_like, optional
        The entropy to reach, in nats, instead of the one at n0; greater than 0.
    head_dim, model, support
        As for :func:`expected_statistics`.
    on_infeasible : {"warn", "nan", "raise"}, default "warn"
        n keys have at most ln n nats, and tied samples cannot go below the entropy of their tie. A
        target outside is NaN in the result, with a warning or without, or an error.

    Returns
    -------
    float or ndarray of float64
        Multiples of the broadcast shape of n, n0 (or target_entropy) and head_dim.

    Raises
    ------
    ValueError, TypeError
        As for :func:`expected_statistics`; for an infeasible target if asked.

    Examples
    --------
    >>> invariant_beta([512, 4096, 32768]).round(4)
    array([1.    , 2.4333, 3.4712])
    """
    row = row_function(model, support)
    read_on_infeasible(on_infeasible)
    counts, dims = at_least("n", n, 1), at_least("head_dim", head_dim, 2, integer=True)
    if target_entropy is None:
        starts, ends = np.broadcast_arrays(at_least("n0", n0, 1), dims)
        points = zip(starts.flat, ends.flat, strict=True)
        target = np.reshape([row(float(a), 1.0, int(d)).entropy for a, d in points], starts.shape)
    else:
        target = at_least("target_entropy", target_entropy, 0)
    counts, dims, target = np.broadcast_arrays(counts, dims, target)
    solved = [
        _solve(float(h), float(a), partial(_entropy, row, float(a), int(d)))
        for a, d, h in zip(counts.flat, dims.flat, target.flat, strict=True)
    ]
    result = np.reshape(np.array(solved, np.float64), counts.shape)
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
        n keys with equal weights have sum p^2 = 1/n. A smaller target, below n of about n0 / e, is NaN in
        the result, with a warning or without, or an error.

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
    points = list(zip(counts.flat, dims.flat, starts.flat, strict=True))
    # -ln sum p^2 is between 0 and ln n and falls in beta, as the entropy does.
    target = [_spread(row, float(start), int(d), 1.0) for _, d, start in points]
    solved = [
        _solve(goal, float(a), partial(_spread, row, float(a), int(d)))
        for (a, d, _), goal in zip(points, target, strict=True)
    ]
    result = np.reshape(np.array(solved, np.float64), counts.shape)
    if np.isnan(result).any():
        lost = tuple(np.argwhere(np.isnan(result))[0])
        wanted = math.exp(-np.reshape(target, counts.shape)[lost])
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
        What to do below n = n0 / sqrt(e), where no beta reaches the entropy; see :func:`invariant_beta`.

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


def _entropy(row: Callable[[float, float, int], Averages], n: float, head_dim: int, beta: float) -> float:
    return row(n, beta, head_dim).entropy


def _spread(row: Callable[[float, float, int], Averages], n: float, head_dim: int, beta: float) -> float:
    return -math.log(row(n, beta, head_dim).concentration)


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
