# SPDX-License-Identifier: BSD-3-Clause
"""One key with a given cosine among random ones: the weight it gets, and the scale it needs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._checks import answer_infeasible, read_on_infeasible
from ._arguments import at_least, between, plain
from ._densities import Sphere
from ._finite_n import Inner, Points

# The integrand is analytic within pi/2 of the real line; see _atoms.
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

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range, not finite, or not a number.

    Examples
    --------
    Dilution under the standard scale:

    >>> needle_weight([64, 256, 1024], cosine=0.578386, beta=1).round(3)
    array([0.5  , 0.197, 0.057])
    """
    counts, betas = at_least("n", n, 1), at_least("beta", beta, 0)
    dims = at_least("head_dim", head_dim, 2, integer=True)
    cosines = between("cosine", cosine, -1, 1, closed="low high")
    arrays = np.broadcast_arrays(counts, dims, cosines, betas)
    values = [_weight(*map(float, each)) for each in zip(*(array.flat for array in arrays), strict=True)]
    return plain(np.reshape(np.array(values, np.float64), arrays[0].shape))


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
    with M of :func:`sphere_log_mgf`. The multiple that keeps entropy is another: :func:`invariant_beta`.

    Parameters
    ----------
    n, head_dim, cosine : array_like
        As for :func:`needle_weight`.
    weight : array_like, default 0.5
        In (0, 1).
    on_infeasible : {"warn", "nan", "raise"}, default "warn"
        Random keys that are closer to the query than the needle bound its weight at every beta. The result
        is NaN there, with a warning or without, or an error.

    Returns
    -------
    float or ndarray of float64
        0 where equal weights are enough.

    Examples
    --------
    >>> needle_beta([512, 4096, 32768], cosine=0.578).round(2)
    array([1.63, 2.39, 3.41])
    """
    read_on_infeasible(on_infeasible)
    counts, dims = at_least("n", n, 1), at_least("head_dim", head_dim, 2, integer=True)
    cosines, wanted = between("cosine", cosine, -1, 1, closed="low high"), between("weight", weight, 0, 1)
    arrays = np.broadcast_arrays(counts, dims, cosines, wanted)
    values = [_solve(*map(float, each)) for each in zip(*(array.flat for array in arrays), strict=True)]
    result = np.reshape(np.array(values, np.float64), arrays[0].shape)
    if np.isnan(result).any():
        a, d, c, w = (array[np.isnan(result)].flat[0] for array in arrays)
        answer_infeasible(
            on_infeasible,
            f"no beta gives a key with cosine {c:g} the weight {w:g} among {a:g} keys of dimension {d:g}",
        )
    return plain(result)


def _weight(n: float, head_dim: float, cosine: float, beta: float) -> float:
    if n == 1 or beta == 0:
        return 1 / n
    inner = Inner(n, beta, Sphere(int(head_dim)))
    coordinate, bottom, top = inner.density.coordinate, inner.panels[0], inner.panels[-1]
    v0 = np.arctanh(np.clip(cosine, -1 + 2**-53, 1 - 2**-53))
    x = np.arange(-40.0, 4.0, _STEP)  # x of the needle: below the range e^x is negligible, above it exp(-e^x)
    # Where the transition of the other keys lies: at a score, or beyond all of them.
    v = np.clip(v0 + coordinate.step(v0, -x / beta), bottom, top)
    beyond = (v == bottom) | (v == top)
    a = np.where(beyond, x - beta * coordinate.rise(v, v0 - v), 0.0)
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
