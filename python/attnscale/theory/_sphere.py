# SPDX-License-Identifier: BSD-3-Clause
"""Keys uniform on the sphere: the annealed entropy and what it is made of, in closed form."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import at_least, plain
from ._debye import BesselTerms, bessel_terms

Array = NDArray[np.float64]

#: ln(golden ratio)/2: the deficit per dimension at scale 1 for large head_dim, printed as 0.24.
GOLDEN_DEFICIT: float = 0.5 * math.log((1 + math.sqrt(5)) / 2)

#: 2/GOLDEN_DEFICIT = 4/ln(golden ratio): the exact value of the 8.33 in "dimension > 8.33 ln n".
GOLDEN_DIMENSION: float = 2 / GOLDEN_DEFICIT

# Above this mean cosine the deficit is a difference of large numbers unless kappa is taken out first.
_CONCENTRATED = 0.5


def sphere_entropy_deficit(scale: ArrayLike, head_dim: ArrayLike) -> Any:
    """What a row gives up against equal weights, ln n - H, for keys uniform on a sphere.

    The query has norm sqrt(head_dim) and the many keys are uniform on the sphere of that radius. The
    deficit is then the Kullback-Leibler divergence of the von Mises-Fisher distribution from the
    uniform one::

        kappa A(kappa) - ln M(kappa),  kappa = scale * head_dim,  nu = head_dim/2 - 1
        M = Gamma(nu + 1) (2/kappa)^nu I_nu(kappa),  A = I_(nu+1)(kappa) / I_nu(kappa)

    It is the limit n -> inf at a fixed scale ("annealed"); :func:`expected_entropy` has every n.

    Parameters
    ----------
    scale : array_like
        The multiplier of q . k, at least 0.
    head_dim : array_like
        At least 2. Broadcasts with ``scale``.

    Returns
    -------
    float or ndarray of float64
        Nats, to a relative error of 1e-10 or less (measured: 2e-14).

    Raises
    ------
    ValueError, TypeError
        If an argument is out of range, not finite, or not a number.

    Notes
    -----
    The set-up is that of Su 2021, kexue.fm/8823; the exact form is Mardia and Jupp, Directional
    Statistics, 2000, section 9.3. For small scales the deficit is scale^2 head_dim / 2, not linear.

    Examples
    --------
    >>> round(sphere_entropy_deficit(1 / 8, 64), 12)
    0.488994259846
    """
    kappa, terms = _terms(scale, head_dim)
    diffuse = kappa * terms.ratio - terms.log_m
    with np.errstate(invalid="ignore"):
        concentrated = -terms.log_m_less_kappa - kappa * terms.one_less_ratio
    return plain(np.where(terms.ratio < _CONCENTRATED, diffuse, concentrated))


def sphere_mean_cosine(scale: ArrayLike, head_dim: ArrayLike) -> Any:
    """Mean cosine of query and key under the weights, for keys uniform on a sphere.

    ``A(kappa) = I_(d/2)(kappa) / I_(d/2-1)(kappa)`` with ``kappa = scale * head_dim``, the mean
    resultant length of a von Mises-Fisher distribution. Arguments as for :func:`sphere_entropy_deficit`.

    Parameters
    ----------
    scale, head_dim : array_like
        At least 0 and at least 2.

    Returns
    -------
    float or ndarray of float64
        Between 0 and 1.

    Examples
    --------
    >>> round(sphere_mean_cosine(1 / 8, 64), 9)
    0.123159839
    """
    return plain(_terms(scale, head_dim)[1].ratio)


def sphere_log_mgf(scale: ArrayLike, head_dim: ArrayLike) -> Any:
    """ln M = ln E exp(scale q . k), for keys uniform on a sphere.

    ``ln n + ln M`` is the annealed log-sum-exp of n keys. Arguments and source as for
    :func:`sphere_entropy_deficit`.

    Parameters
    ----------
    scale, head_dim : array_like
        At least 0 and at least 2.

    Returns
    -------
    float or ndarray of float64

    Examples
    --------
    >>> round(sphere_log_mgf(1 / 8, 64), 9)
    0.496284453
    """
    return plain(_terms(scale, head_dim)[1].log_m)


def sphere_entropy_deficit_rate(scale: ArrayLike) -> Any:
    """Deficit per dimension in the limit of large head_dim, at a fixed scale.

    ``-ln(1 - r^2)/2`` with ``r = 2 scale / (1 + sqrt(1 + 4 scale^2))``, the saddle point of the
    integral over the cosine. At scale 1 it is :data:`GOLDEN_DEFICIT`.

    Parameters
    ----------
    scale : array_like
        At least 0.

    Returns
    -------
    float or ndarray of float64
        Nats per dimension.

    Examples
    --------
    >>> round(sphere_entropy_deficit_rate(1), 9), round(sphere_entropy_deficit(1, 10_000) / 10_000, 9)
    (0.240605913, 0.240613306)
    """
    twice = 2 * at_least("scale", scale, 0)
    # 1 - r^2 = 2 / (1 + w), w = sqrt(1 + 4 scale^2).
    return plain(0.5 * np.log1p(0.5 * twice * (twice / (1 + np.hypot(1.0, twice)))))


def _terms(scale: ArrayLike, head_dim: ArrayLike) -> tuple[Array, BesselTerms]:
    d = at_least("head_dim", head_dim, 2, integer=True)
    with np.errstate(over="ignore"):
        kappa = at_least("scale", scale, 0) * d
    if not np.isfinite(kappa).all():
        raise ValueError(f"scale * head_dim must be finite, got scale up to {np.max(scale):g}")
    kappa, nu = np.broadcast_arrays(kappa, d / 2 - 1)
    return kappa, bessel_terms(nu, kappa)
