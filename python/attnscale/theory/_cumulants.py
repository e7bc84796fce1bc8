# SPDX-License-Identifier: BSD-3-Clause
"""The scale that keeps a head's entropy, from the cumulants of its own scores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._checks import answer_infeasible, read_on_infeasible, shown
from ._arguments import at_least, finite, plain

_ORDERS = (2, 3, 4)


def score_cumulants(scores: ArrayLike, *, order: int = 2) -> Any:
    """Cumulants kappa_2 to kappa_order of the scores of each row, under equal weights.

    Parameters
    ----------
    scores : array_like
        Rows of scores at the standard scale, of shape (..., n).
    order : {2, 3, 4}, default 2

    Returns
    -------
    ndarray of float64, shape (..., order - 1)
        Variance, third and fourth cumulant. Average over the rows of a head before
        :func:`cumulant_beta`.

    Examples
    --------
    >>> score_cumulants([[1.0, -1.0, 1.0, -1.0]], order=4)
    array([[ 1.,  0., -2.]])
    """
    if order not in _ORDERS:
        raise ValueError(f"order must be one of {_ORDERS}, got {shown(order)}")
    x = finite("scores", scores)
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ValueError(f"scores must be rows of at least one score, got shape {x.shape}")
    x = x - x.mean(-1, keepdims=True)
    second, third, fourth = ((x**power).mean(-1) for power in _ORDERS)
    return np.stack([second, third, fourth - 3 * second**2][: order - 1], axis=-1)


def cumulant_beta(n: ArrayLike, *, n0: ArrayLike, cumulants: ArrayLike, on_infeasible: str = "warn") -> Any:
    """The multiple that keeps a head's annealed entropy at what n0 keys have at 1.

    With psi the cumulant function of the head's scores, ``ln E e^(beta s)``, the entropy is
    ``ln n - D(beta)`` with the deficit ``D = beta psi' - psi``, the sum of
    ``(k - 1) / k! kappa_k beta^k`` over k >= 2. The multiple solves ``D(beta) = D(1) + ln(n / n0)``.
    With the variance alone, ``beta = sqrt(1 + 2 ln(n / n0) / kappa_2)``: :func:`annealed_beta` for a
    head of its own variance.

    The deficit is annealed: it is right while many keys share the weight. Cumulants beyond the variance
    help only where rows are long enough to measure them.

    Parameters
    ----------
    n, n0 : array_like
        Numbers of keys, at least 1.
    cumulants : array_like, shape (..., order - 1)
        kappa_2, kappa_3, ... of the scores at the standard scale; kappa_2 greater than 0. The axes before the
        last are heads, against which n broadcasts.
    on_infeasible : {"warn", "nan", "raise"}, default "warn"
        What to do where no beta has that deficit.

    Returns
    -------
    float or ndarray of float64
        The smallest such multiple.

    Examples
    --------
    >>> cumulant_beta([512, 4096], n0=512, cumulants=[1.0]).round(4)  # annealed_beta
    array([1.    , 2.2713])
    >>> cumulant_beta(4096, n0=512, cumulants=[[4.0], [0.5]]).round(4)  # a sharp head, a flat one
    array([1.4282, 3.0525])
    """
    read_on_infeasible(on_infeasible)
    kappa = finite("cumulants", cumulants)
    if kappa.ndim == 0 or kappa.shape[-1] == 0 or not (kappa[..., 0] > 0).all():
        raise ValueError(f"cumulants must begin with a variance greater than 0, got {kappa.tolist()}")
    counts, starts = at_least("n", n, 1), at_least("n0", n0, 1)
    orders = np.arange(2, 2 + kappa.shape[-1])
    terms = kappa * (orders - 1) / np.array([math.factorial(k) for k in orders])
    goal = terms.sum(-1) + np.log(counts / starts)
    terms = np.broadcast_to(terms, (*goal.shape, len(orders)))
    values = [
        _first_root(row, float(g)) for row, g in zip(terms.reshape(-1, len(orders)), goal.flat, strict=True)
    ]
    beta = np.reshape(np.array(values, np.float64), goal.shape)
    if np.isnan(beta).any():
        worst = float(goal[np.isnan(beta)].flat[0])
        answer_infeasible(
            on_infeasible, f"no beta gives these cumulants an entropy deficit of {worst:.6g} nats"
        )
    return plain(beta)


def _first_root(terms: NDArray[np.float64], goal: float) -> float:
    """The smallest beta >= 0 with sum of terms beta^k = goal, k from 2; NaN if there is none."""
    if goal < 0:
        return math.nan
    roots = np.roots([*terms[::-1], 0.0, -goal])
    real = roots.real[(np.abs(roots.imag) <= 1e-9 * (1 + np.abs(roots))) & (roots.real >= -1e-12)]
    return float(max(real.min(), 0.0)) if real.size else math.nan
