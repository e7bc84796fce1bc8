# SPDX-License-Identifier: BSD-3-Clause
"""Tokens of one pairwise cosine: the weight that each gives itself, and their cosine after a layer."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._checks import shown
from ._arguments import at_least, between, finite, plain


def self_weight(n: ArrayLike, *, gamma: ArrayLike, correlation: ArrayLike) -> Any:
    """Weight of a token on itself among n unit tokens of one pairwise cosine, scores gamma ln(n) x.y.

    ``1 / (1 + (n - 1) n^(-gamma (1 - rho)))``: the model of Chen, Lin, Polyanskiy and Rigollet 2025,
    arXiv 2510.05554. For n to infinity it jumps from 0 to 1 at :func:`critical_gamma`. At finite n it is
    the logistic function of ``gamma (1 - rho) ln n - ln(n - 1)``: it goes from 0.27 to 0.73 while
    gamma changes by ``2 / ((1 - rho) ln n)``, which no length in use makes small.

    Parameters
    ----------
    n : array_like
        Number of tokens, at least 2.
    gamma : array_like
        The scale over ln n.
    correlation : array_like
        rho, the cosine of two tokens, in (-1, 1).

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> self_weight([64, 4096], gamma=2.0, correlation=0.5).round(4)  # at the critical gamma
    array([0.5039, 0.5001])
    """
    from scipy.special import expit  # at first use: `import attnscale` stays fast

    count, rho = at_least("n", n, 2), between("correlation", correlation, -1, 1)
    return plain(expit(finite("gamma", gamma) * (1 - rho) * np.log(count) - np.log(count - 1)))


def critical_gamma(correlation: ArrayLike) -> Any:
    """1 / (1 - rho): where :func:`self_weight` passes one half, in the limit of many tokens.

    Parameters
    ----------
    correlation : array_like
        rho, in (-1, 1).

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> critical_gamma([0.0, 0.5])
    array([1., 2.])
    """
    return plain(1 / (1 - between("correlation", correlation, -1, 1)))


def token_correlation(
    n: ArrayLike, *, gamma: ArrayLike, correlation: ArrayLike, layers: int = 1, residual: float = 0.0
) -> Any:
    """Cosine of two tokens after some layers of :func:`self_weight`, each token at unit length again.

    A layer makes of x_i the sum ``residual x_i + sum_j p_ij x_j``. By symmetry all cosines stay
    equal, so that one number describes the layer, exactly and at every n.

    Parameters
    ----------
    n, gamma, correlation : array_like
        As for :func:`self_weight`; they broadcast. Not below -1/(n - 1), which no n tokens have.
    layers : int, default 1
        At least 0.
    residual : float, default 0
        Weight of the token beside its attention, at least 0.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    Below the critical gamma one layer leaves one direction, above it little is lost:

    >>> token_correlation(4096, gamma=[1.0, 2.0, 3.0], correlation=0.5).round(3)
    array([1.   , 0.8  , 0.508])
    """
    if isinstance(layers, bool) or layers != math.floor(layers) or layers < 0:
        raise ValueError(f"layers must be a whole number of at least 0, got {shown(layers)}")
    kept = float(at_least("residual", residual, 0))
    count, g = at_least("n", n, 2), finite("gamma", gamma)
    count, g, rho = np.broadcast_arrays(count, g, between("correlation", correlation, -1, 1))
    if (rho < -1 / (count - 1)).any():
        raise ValueError(
            f"correlation must be at least -1/(n - 1), got {rho.min():g} for n = {count.max():g}"
        )
    for _ in range(int(layers)):
        own = self_weight(count, gamma=g, correlation=np.minimum(rho, 1 - 1e-16))
        other = (1 - own) / (count - 1)
        # y_i = (kept + own - other) x_i + other sum_j x_j
        alone, to_sum = kept + own - other, 1 + (count - 1) * rho
        shared = 2 * alone * other * to_sum + other**2 * count * to_sum
        rho = (alone**2 * rho + shared) / (alone**2 + shared)
    return plain(rho)
