# SPDX-License-Identifier: BSD-3-Clause
"""Laplace transforms of what lies above a normal score, and their inversion at 1."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ._densities import gauss_legendre

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]

# A Laplace transform is inverted by Abate and Whitt 1995, ORSA J. Computing 7, 36: the Fourier series of
# the Bromwich integral, its tail summed by Euler's transformation. The error is exp(-_SHIFT).
_SHIFT, _TERMS, _EULER = 23.0, 60, 15
#: Where a transform is needed; the first is a real number.
POINTS: Complex = np.asarray(_SHIFT / 2 + 1j * np.pi * np.arange(_TERMS + _EULER + 1), np.complex128)

_NODES = 12  # of a panel
_FARTHEST = 20.0  # from the lowest score that matters to where the normal density ends
_LARGEST = 3.5  # exp(-POINTS w) is below 1e-17 for larger w


def below_one(transform: Complex) -> Array:
    """P(W < 1) from E exp(-POINTS W), along the last axis."""
    from scipy.special import comb  # at first use: `import attnscale` stays fast

    terms = (-1.0) ** np.arange(POINTS.size) * (transform / POINTS).real
    terms[..., 0] /= 2
    partial = math.exp(_SHIFT / 2) * np.cumsum(terms, axis=-1)[..., _TERMS:]
    return np.asarray(partial @ (comb(_EULER, np.arange(_EULER + 1)) / 2**_EULER), np.float64)


def power_nodes(slope: float, alpha: float, farthest: float) -> tuple[Array, Array, Array]:
    """y <= farthest, weights of an integral over y, and w = (slope y)^(1/(alpha-1)) <= 3.5.

    The variable v with ``y ~ v^max(1, alpha-1)`` and ``w = v^max(1, 1/(alpha-1))`` has neither power below 1.
    Panels resolve the oscillation of exp(-POINTS w) and a density of y at any distance from 0.
    """
    y_power, w_power = max(1.0, alpha - 1), max(1.0, 1 / (alpha - 1))
    last = min(_LARGEST ** (1 / w_power), (slope * farthest) ** (1 / y_power))
    distances = np.concatenate([0.5 * 2.0 ** -np.arange(12), np.arange(1.0, farthest, 0.5)])
    cuts = np.concatenate(
        [np.linspace(0, _LARGEST, 113) ** (1 / w_power), (slope * distances) ** (1 / y_power), [last]]
    )
    cuts = np.unique(np.minimum(cuts, last))
    nodes, weights = gauss_legendre(_NODES)
    half = np.diff(cuts)[:, None] / 2
    v = (cuts[:-1, None] + half * (1 + nodes)).ravel()
    y = v**y_power / slope
    return y, (half * weights).ravel() * y_power * y / v, v**w_power


class Excesses:
    """Distances y of normal scores above a score z, and w = ((alpha-1) beta y)^(1/(alpha-1)) of each.

    A key with score beta z has a weight under entmax if and only if the w of all keys above it sum to less
    than 1.
    """

    def __init__(self, beta: float, alpha: float) -> None:
        slope = (alpha - 1) * beta
        self._y, weights, w = power_nodes(slope, alpha, _FARTHEST)
        self._weights = weights / math.sqrt(2 * math.pi)
        self._end = min(_LARGEST ** (alpha - 1) / slope, _FARTHEST)
        # 1 - exp(-t w), whose digits count where many keys lie above. Real and imaginary parts: a product of
        # real matrices is faster.
        self._lost = np.ascontiguousarray(-np.expm1(-w[:, None] * POINTS)).view(np.float64)

    def lost(self, z: Array) -> Complex:
        """Integral over y > 0 of phi(z + y) (1 - exp(-t w)) at the points t, of shape (z, t)."""
        from scipy.special import ndtr  # at first use: `import attnscale` stays fast

        inside = (self._density(z) @ self._lost).view(np.complex128)
        return np.asarray(inside + ndtr(-(z + self._end))[:, None], np.complex128)

    def least_lost(self, z: Array) -> Array:
        """A lower bound of the first column of :meth:`lost`, which is real."""
        return np.asarray(self._density(z) @ self._lost[:, 0], np.float64)

    def _density(self, z: Array) -> Array:
        return np.exp(-((z[:, None] + self._y) ** 2) / 2) * self._weights
