# SPDX-License-Identifier: BSD-3-Clause
"""Large n: the annealed entropy, and the limits beyond the freezing point of Gaussian scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._checks import choose
from ._arguments import at_least, between, plain
from ._models import MODELS
from ._sphere import sphere_entropy_deficit


def annealed_entropy(
    n: ArrayLike, beta: ArrayLike, *, head_dim: ArrayLike = 64, model: str = "sphere"
) -> Any:
    """ln n less the deficit that does not depend on n: the entropy while many keys share the weight.

    For Gaussian scores the deficit is beta^2/2, for keys on a sphere it is
    :func:`sphere_entropy_deficit` at scale ``beta / sqrt(head_dim)``. The value turns negative where
    few keys hold the weight and the approximation has long been wrong: for Gaussian scores at
    :func:`critical_beta`. :func:`expected_entropy` is exact on both sides.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.
    beta : array_like
        The multiple of the standard scale, at least 0.
    head_dim : array_like, default 64
        At least 2; looked at by the model "sphere" only.
    model : {"sphere", "gaussian"}

    Returns
    -------
    float or ndarray of float64
        Nats; the arguments broadcast.

    Examples
    --------
    >>> annealed_entropy([512, 4096], 1).round(3)
    array([5.749, 7.829])
    """
    counts, betas = at_least("n", n, 1), at_least("beta", beta, 0)
    dims = at_least("head_dim", head_dim, 2, integer=True)
    if choose("model", model, MODELS) == "sphere":
        deficit = sphere_entropy_deficit(betas / np.sqrt(dims), dims)
    else:
        deficit = 0.5 * betas * betas + 0.0 * dims
    return plain(np.log(counts) - deficit)


def critical_beta(n: ArrayLike) -> Any:
    """sqrt(2 ln n): where a row of n Gaussian scores freezes onto a few keys.

    The freezing point of Derrida's random energy model (Phys. Rev. B 24, 2613, 1981): there the
    annealed entropy ln n - beta^2/2 is 0. It is a transition in the limit of large n
    only, and approached slowly.

    Parameters
    ----------
    n : array_like
        Number of keys, at least 1.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> critical_beta([512, 32768]).round(4)
    array([3.5322, 4.5601])
    """
    return plain(np.sqrt(2 * np.log(at_least("n", n, 1))))


def condensed_entropy(m: ArrayLike) -> Any:
    """Limit of E[H] for large n beyond the freezing point, at beta = critical_beta(n) / m.

    ``psi(1) - psi(1 - m)``: the entropy of Poisson-Dirichlet weights of parameter m. The limit is
    reached like 1/ln n: at m = 0.8 it is 4.71 nats, and a row of 10^12 keys has 3.09.

    Parameters
    ----------
    m : array_like
        critical_beta(n) / beta, in [0, 1).

    Returns
    -------
    float or ndarray of float64
        Nats.

    Examples
    --------
    >>> round(condensed_entropy(0.8), 4)
    4.7118
    """
    from scipy.special import digamma  # at first use: `import attnscale` stays fast

    return plain(digamma(1.0) - digamma(1 - between("m", m, 0, 1, closed="low")))


def condensed_concentration(m: ArrayLike) -> Any:
    """Limit of E[sum p^2] for large n beyond the freezing point: 1 - m.

    Parameters
    ----------
    m : array_like
        critical_beta(n) / beta, in [0, 1).

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> condensed_concentration(0.75)
    0.25
    """
    return plain(1 - between("m", m, 0, 1, closed="low"))
