# SPDX-License-Identifier: BSD-3-Clause
"""Entropy between the multiples of the scale at which it was measured: what the page's slider shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.interpolate import CubicHermiteSpline

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[np.float64]

__all__ = ["BETWEEN", "MULTIPLES", "interpolate", "interpolation_error"]

#: Multiples of the head's own scale, equally far apart in the logarithm; 1 is one of them.
MULTIPLES: Array = 2.0 ** np.linspace(-2, 2, 33)
#: The middles between them, where the interpolation is furthest from what was measured.
BETWEEN: Array = np.sqrt(MULTIPLES[1:] * MULTIPLES[:-1])


def interpolate(values: Array, multiples: ArrayLike) -> Array:
    """Values at other multiples, from those at MULTIPLES, which are the last axis.

    A cubic between neighbours in the logarithm of the multiple. Its slope at each of them is the difference
    of the next and the one before, halved; at the ends, that of the parabola through three of them. The page
    does the same.
    """
    places = np.arange(len(MULTIPLES), dtype=np.float64)
    step = np.log(MULTIPLES[1] / MULTIPLES[0])
    wanted = np.log(np.asarray(multiples, np.float64) / MULTIPLES[0]) / step
    slopes = np.gradient(values, axis=-1, edge_order=2)
    found: Array = CubicHermiteSpline(places, values, slopes, axis=-1)(wanted)
    return found


def interpolation_error(values: Array, between: Array) -> float:
    """Largest distance of the interpolation from what was measured at BETWEEN."""
    errors = np.abs(interpolate(values, BETWEEN) - between)
    return float(np.nanmax(errors)) if np.isfinite(errors).any() else float("nan")
