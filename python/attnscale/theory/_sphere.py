# SPDX-License-Identifier: BSD-3-Clause
"""Keys uniform on the sphere: the annealed entropy and its parts, in closed form.

The closed forms are logarithms and ratios of modified Bessel functions. Plain Bessel functions underflow long
before these quantities lose their meaning: ``scipy.special.ive`` is 0 from order 305 on at the argument that
attention uses. A uniform (Debye) expansion gives both quantities at a raised order, and recurrences lead down
from there, in which every term has the same sign.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._arguments import at_least, plain

Array = NDArray[np.float64]

#: ln(golden ratio)/2: the deficit per dimension at scale 1 for large head_dim, printed as 0.24.
GOLDEN_DEFICIT: float = 0.5 * math.log((1 + math.sqrt(5)) / 2)

#: 2/GOLDEN_DEFICIT = 4/ln(golden ratio): the exact value of the 8.33 in "dimension > 8.33 ln n".
GOLDEN_DIMENSION: float = 2 / GOLDEN_DEFICIT

# Above this mean cosine the deficit is a difference of large numbers unless kappa is taken out first.
_CONCENTRATED = 0.5


def sphere_entropy_deficit(scale: ArrayLike, head_dim: ArrayLike) -> Any:
    """Deficit of a row's entropy against equal weights, ln n - H, for keys uniform on a sphere.

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


# The expansion is taken at an order raised by _RAISE; its first neglected term is below 1e-16 there.
_RAISE = 30
_N_TERMS = 9


class BesselTerms(NamedTuple):
    """Functions of I_nu for the sphere model, each without cancellation; nu = d/2 - 1.

    ``log_m`` is ln M(kappa) and loses digits to kappa only at large kappa; ``log_m_less_kappa``
    is ln M(kappa) - kappa; ``ratio`` is A = I_(nu+1)/I_nu and ``one_less_ratio`` is 1 - A.
    """

    log_m: Array
    log_m_less_kappa: Array
    ratio: Array
    one_less_ratio: Array


def bessel_terms(nu: Array, kappa: Array) -> BesselTerms:
    """The terms at broadcast orders nu >= -1/2 and arguments kappa >= 0."""
    terms = _expand(nu + _RAISE, kappa)
    log_m, less_kappa, ratio, rest = terms
    for step in range(_RAISE, 0, -1):
        order = nu + step  # the recurrence leads from this order to the one below
        # M_(nu-1) / M_nu = 1 + kappa A_nu / (2 nu), from I_(nu-1) - I_(nu+1) = (2 nu / kappa) I_nu.
        gain = np.log1p(kappa * ratio / (2 * order))
        log_m, less_kappa = log_m + gain, less_kappa + gain
        # 1 / A_(nu-1) = 2 nu / kappa + A_nu, for A and for 1 - A.
        denominator = 2 * order + kappa * ratio
        ratio, rest = kappa / denominator, (2 * order - kappa * rest) / denominator
    return BesselTerms(log_m, less_kappa, ratio, rest)


def _expand(nu: Array, kappa: Array) -> BesselTerms:
    """Debye's expansion (DLMF 10.41.3 in logarithms), for nu >= _RAISE - 1/2."""
    z = kappa / nu
    w = np.hypot(1.0, z)
    p = 1 / w
    w_less_1 = z * (z / (1 + w))
    quotients, derivatives = _polynomials()
    # ln M = nu (w - 1 - ln((1 + w)/2)) - ln(w)/2 + sum over k of (D_k(p) - D_k(1)) / nu^k:
    # Stirling's series for Gamma(nu + 1) is the sum of the D_k(1).
    correction = (-w_less_1 * p) * _series(quotients, p, nu) - np.log1p(w_less_1) / 2
    half = np.log1p(w_less_1 / 2)
    log_m = nu * (w_less_1 - half) + correction
    less_kappa = nu * (1 / (w + z) - 1 - half) + correction
    # A = d ln M / d kappa; dp/dz = -z p^3. The products are in an order that does not underflow.
    bend = (z * p) * p * (1 / (2 * nu) + p * _series(derivatives, p, nu) / nu)
    ratio = z / (1 + w) - bend
    rest = (1 + 1 / (w + z)) / (1 + w) + bend
    return BesselTerms(log_m, less_kappa, ratio, rest)


def _series(polynomials: list[Array], p: Array, nu: Array) -> Array:
    """Sum over k >= 1 of polynomials[k - 1](p) / nu^k."""
    total = np.zeros(np.broadcast_shapes(p.shape, nu.shape))
    for polynomial in reversed(polynomials):
        total = (total + np.polynomial.polynomial.polyval(p, polynomial)) / nu
    return total


@lru_cache(maxsize=1)
def _polynomials() -> tuple[list[Array], list[Array]]:
    """(D_k(p) - D_k(1)) / (p - 1) and D_k'(p) for k = 1 ... _N_TERMS, by rising powers."""
    logs = _log_polynomials()
    quotients = []
    for d in logs:  # synthetic division by p - 1: sums of the higher coefficients
        sums = [sum(d[i:], Fraction(0)) for i in range(1, len(d))]
        quotients.append(np.array(sums, np.float64))
    derivatives = [np.array([i * c for i, c in enumerate(d)][1:], np.float64) for d in logs]
    return quotients, derivatives


def _log_polynomials() -> list[list[Fraction]]:
    """D_k with ln sum U_k nu^-k = sum D_k nu^-k; the U_k by DLMF 10.41.9."""
    u = [[Fraction(1)]]
    for _ in range(_N_TERMS):
        u.append(_next_u(u[-1]))
    d: list[list[Fraction]] = []
    for k in range(1, _N_TERMS + 1):
        total = list(u[k])
        for j in range(1, k):
            for a, x in enumerate(d[j - 1]):
                for b, y in enumerate(u[k - j]):
                    total[a + b] -= Fraction(j, k) * x * y
        d.append(total)
    return d


def _next_u(u: list[Fraction]) -> list[Fraction]:
    """p^2 (1 - p^2) U'/2 + (integral from 0 to p of (1 - 5 t^2) U dt)/8."""
    result = [Fraction(0)] * (len(u) + 3)
    for i, c in enumerate(u):
        result[i + 1] += Fraction(i, 2) * c + c / (8 * (i + 1))
        result[i + 3] -= Fraction(i, 2) * c + 5 * c / (8 * (i + 3))
    return result
