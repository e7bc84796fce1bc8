# SPDX-License-Identifier: BSD-3-Clause
"""Coordinates v of scores s in which densities are smooth, and differences keep their digits.

At large beta the neighbourhood of one score decides, far below the spacing of floating-point
numbers around that score itself: differences of scores come from differences of v.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Where beta times the distance from an end is one of these, beta s(v) bends.
_NEAR_END = np.array([50.0, 24.0, 11.0, 5.0, 2.0, 0.6, 0.1])
# beta s that is closer to its end than this is at its end.
_AT_END = 5e-14


@dataclass(frozen=True)
class Line:
    """The coordinate s = v."""

    def score(self, v: Array) -> Array:
        """s(v), rising."""
        return v

    def slope(self, v: Array) -> Array:
        """ds/dv."""
        return np.ones_like(v)

    def rise(self, v: Array, step: Array) -> Array:
        """s(v + step) - s(v), to full relative accuracy."""
        return step

    def step(self, v: Array, rise: Array) -> Array:
        """The inverse of `rise`; infinite where no v has such a score."""
        return rise

    def span(self, beta: float) -> tuple[float, float]:
        """The two v between which beta s changes."""
        return -math.inf, math.inf

    def bends(self, beta: float) -> Array:
        """The points v where beta s(v) bends."""
        return np.empty(0)


@dataclass(frozen=True)
class StretchedLine(Line):
    """The coordinate s = sinh v: the real line for densities of unknown tails."""

    def score(self, v: Array) -> Array:
        """Implement :meth:`Line.score`."""
        return np.sinh(v)

    def slope(self, v: Array) -> Array:
        """Implement :meth:`Line.slope`."""
        return np.cosh(v)

    def rise(self, v: Array, step: Array) -> Array:
        """Implement :meth:`Line.rise`."""
        return 2 * np.cosh(v + step / 2) * np.sinh(step / 2)

    def step(self, v: Array, rise: Array) -> Array:
        """Implement :meth:`Line.step`."""
        first_order = rise / np.cosh(v)
        whole = np.arcsinh(np.sinh(v) + rise) - v
        return np.where(np.abs(first_order) < 1e-6, first_order, whole)


@dataclass(frozen=True)
class HalfLine(Line):
    """The coordinate s = end + exp(v), above `end`, or s = end - exp(-v), below it (`side` 1 or -1)."""

    end: float
    side: int

    def score(self, v: Array) -> Array:
        """Implement :meth:`Line.score`."""
        return self.end + self.side * np.exp(self.side * v)

    def slope(self, v: Array) -> Array:
        """Implement :meth:`Line.slope`."""
        return np.exp(self.side * v)

    def rise(self, v: Array, step: Array) -> Array:
        """Implement :meth:`Line.rise`."""
        return self.side * np.exp(self.side * v) * np.expm1(self.side * step)

    def step(self, v: Array, rise: Array) -> Array:
        """Implement :meth:`Line.step`."""
        ratio = self.side * rise * np.exp(-self.side * v)
        with np.errstate(divide="ignore"):
            return self.side * np.log1p(np.maximum(ratio, -1.0))

    def span(self, beta: float) -> tuple[float, float]:
        """Implement :meth:`Line.span`."""
        last = math.log(_AT_END / beta)
        return (last, math.inf) if self.side > 0 else (-math.inf, -last)

    def bends(self, beta: float) -> Array:
        """Implement :meth:`Line.bends`."""
        return self.side * np.log(_NEAR_END / beta)


@dataclass(frozen=True)
class Interval(Line):
    """The coordinate s = center + half * tanh v."""

    center: float
    half: float

    def score(self, v: Array) -> Array:
        """Implement :meth:`Line.score`."""
        return self.center + self.half * np.tanh(v)

    def slope(self, v: Array) -> Array:
        """Implement :meth:`Line.slope`."""
        return self.half / np.cosh(v) ** 2

    def rise(self, v: Array, step: Array) -> Array:
        """Implement :meth:`Line.rise`."""
        # With q = exp(-2 v): tanh(v + h) - tanh(v) = 2 q (1 - exp(-2 h)) / ((1 + q) (1 + q exp(-2 h))).
        q, shrink = np.exp(-2 * v), np.exp(-2 * step)
        lost = np.where(np.abs(step) < 1e-4, 2 * step * (1 - step * (1 - step / 1.5)), 1 - shrink)
        return np.asarray((2 * self.half * q / (1 + q)) * (lost / (1 + q * shrink)))

    def step(self, v: Array, rise: Array) -> Array:
        """Implement :meth:`Line.step`."""
        part = rise / self.half
        with np.errstate(divide="ignore", invalid="ignore"):
            tangent = part / (np.cosh(v) ** -2 - part * np.tanh(v))
            inside = np.abs(tangent) < 1
            h = np.arctanh(np.where(inside, tangent, 0.0))
        return np.where(inside, h, np.copysign(np.inf, rise))

    def span(self, beta: float) -> tuple[float, float]:
        """Implement :meth:`Line.span`."""
        last = 0.5 * math.log1p(2 * beta * self.half / _AT_END)
        return -last, last

    def bends(self, beta: float) -> Array:
        """Implement :meth:`Line.bends`."""
        v = 0.5 * np.log(2 * beta * self.half / _NEAR_END)
        v = v[v > 0.2]
        return np.concatenate([-v, v[::-1]])


Coordinate = Line
