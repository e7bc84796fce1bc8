# SPDX-License-Identifier: BSD-3-Clause
"""Logarithms and ratios of modified Bessel functions at every order and argument.

Plain Bessel functions underflow long before the quantities made of them lose their meaning:
``scipy.special.ive`` is 0 from order 305 on at the argument that attention uses. Here a uniform
(Debye) expansion gives both quantities at a raised order, and recurrences lead down from there, in
which every term has the same sign.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# The expansion is taken at an order raised by _RAISE; its first neglected term is below 1e-16 there.
_RAISE = 30
_N_TERMS = 9


class BesselTerms(NamedTuple):
    """What the sphere model needs of I_nu, each without cancellation; nu = d/2 - 1.

    ``log_m`` is ln M(kappa) and loses digits to kappa only where kappa is large; ``log_m_less_kappa``
    is ln M(kappa) - kappa; ``ratio`` is A = I_(nu+1)/I_nu and ``one_less_ratio`` is 1 - A.
    """

    log_m: Array
    log_m_less_kappa: Array
    ratio: Array
    one_less_ratio: Array


def bessel_terms(nu: Array, kappa: Array) -> BesselTerms:
    """The terms at orders nu >= -1/2 and arguments kappa >= 0, which broadcast."""
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
    """Debye's expansion (DLMF 10.41.3 with its logarithm taken), for nu >= _RAISE - 1/2."""
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
