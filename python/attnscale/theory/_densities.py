# SPDX-License-Identifier: BSD-3-Clause
"""Densities of scores, in coordinates v in which they are smooth and differences keep their digits.

At large beta the neighbourhood of one score decides, far below the spacing of floating-point
numbers around that score: differences of scores come from differences of v.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# beta s(v) bends where beta times the distance from an end is one of these.
_NEAR_END = np.array([50.0, 24.0, 11.0, 5.0, 2.0, 0.6, 0.1])
# beta s counts as at its end within this distance.
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
        """The interval of v in which beta s changes."""
        return -math.inf, math.inf

    def bends(self, beta: float) -> Array:
        """The points v where beta s(v) bends."""
        return np.empty(0)


@dataclass(frozen=True)
class StretchedLine(Line):
    """The coordinate s = sinh v: the real line for densities of unknown tails."""

    def score(self, v: Array) -> Array:
        return np.sinh(v)

    def slope(self, v: Array) -> Array:
        return np.cosh(v)

    def rise(self, v: Array, step: Array) -> Array:
        return 2 * np.cosh(v + step / 2) * np.sinh(step / 2)

    def step(self, v: Array, rise: Array) -> Array:
        first_order = rise / np.cosh(v)
        whole = np.arcsinh(np.sinh(v) + rise) - v
        return np.where(np.abs(first_order) < 1e-6, first_order, whole)


@dataclass(frozen=True)
class HalfLine(Line):
    """The coordinate s = end + exp(v), above `end`, or s = end - exp(-v), below it (`side` 1 or -1)."""

    end: float
    side: int

    def score(self, v: Array) -> Array:
        return self.end + self.side * np.exp(self.side * v)

    def slope(self, v: Array) -> Array:
        return np.exp(self.side * v)

    def rise(self, v: Array, step: Array) -> Array:
        return self.side * np.exp(self.side * v) * np.expm1(self.side * step)

    def step(self, v: Array, rise: Array) -> Array:
        ratio = self.side * rise * np.exp(-self.side * v)
        with np.errstate(divide="ignore"):
            return self.side * np.log1p(np.maximum(ratio, -1.0))

    def span(self, beta: float) -> tuple[float, float]:
        last = math.log(_AT_END / beta)
        return (last, math.inf) if self.side > 0 else (-math.inf, -last)

    def bends(self, beta: float) -> Array:
        return self.side * np.log(_NEAR_END / beta)


@dataclass(frozen=True)
class Interval(Line):
    """The coordinate s = center + half * tanh v."""

    center: float
    half: float

    def score(self, v: Array) -> Array:
        return self.center + self.half * np.tanh(v)

    def slope(self, v: Array) -> Array:
        return self.half / np.cosh(v) ** 2

    def rise(self, v: Array, step: Array) -> Array:
        # With q = exp(-2 v): tanh(v + h) - tanh(v) = 2 q (1 - exp(-2 h)) / ((1 + q) (1 + q exp(-2 h))).
        q, shrink = np.exp(-2 * v), np.exp(-2 * step)
        lost = np.where(np.abs(step) < 1e-4, 2 * step * (1 - step * (1 - step / 1.5)), 1 - shrink)
        return np.asarray((2 * self.half * q / (1 + q)) * (lost / (1 + q * shrink)))

    def step(self, v: Array, rise: Array) -> Array:
        part = rise / self.half
        with np.errstate(divide="ignore", invalid="ignore"):
            tangent = part / (np.cosh(v) ** -2 - part * np.tanh(v))
            inside = np.abs(tangent) < 1
            h = np.arctanh(np.where(inside, tangent, 0.0))
        return np.where(inside, h, np.copysign(np.inf, rise))

    def span(self, beta: float) -> tuple[float, float]:
        last = 0.5 * math.log1p(2 * beta * self.half / _AT_END)
        return -last, last

    def bends(self, beta: float) -> Array:
        v = 0.5 * np.log(2 * beta * self.half / _NEAR_END)
        v = v[v > 0.2]
        return np.concatenate([-v, v[::-1]])


Coordinate = Line


# ln of the largest share of a row for keys outside the panels.
_NEGLECTED = 30.0


@lru_cache(maxsize=8)
def gauss_legendre(n: int) -> tuple[Array, Array]:
    """Nodes and weights on (-1, 1)."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return nodes, weights


class Density(ABC):
    """Density of a score, as a function of the coordinate v."""

    coordinate: Coordinate

    @abstractmethod
    def log_density(self, v: Array) -> Array:
        """ln of the density of v, up to a constant."""

    @abstractmethod
    def panels(self, log_n: float, beta: float) -> Array:
        """Boundaries of panels of v for Gauss-Legendre rules; among n keys, scores outside do not matter."""

    def log_norm(self, panels: Array) -> float:
        """ln of the integral of exp(log_density) over the panels."""
        nodes, weights = gauss_legendre(16)
        half = np.diff(panels)[:, None] / 2
        v = panels[:-1, None] + half * (1 + nodes)
        return math.log((half * weights * np.exp(self.log_density(v))).sum())

    def mean(self) -> float:
        """E[s]; 0 unless a subclass says otherwise."""
        return 0.0


@dataclass(frozen=True)
class Gaussian(Density):
    """Standard normal scores."""

    coordinate = Line()

    def log_density(self, v: Array) -> Array:
        return -0.5 * v * v

    def panels(self, log_n: float, beta: float) -> Array:
        top = math.sqrt(2 * (log_n + _NEGLECTED)) + 1
        upper = _spread(top, lambda v: min(1.5, 10 / (1 + v)))
        lower = _spread(8.5, lambda v: 1.5)
        return np.concatenate([-lower[:0:-1], upper])


class Sphere(Density):
    """sqrt(d) times the cosine to a uniform direction: s = sqrt(d) tanh v, density sech(v)^(d - 1).

    The cosine t has density (1 - t^2)^((d-3)/2), singular at its ends for d = 2; in v it is smooth.
    """

    def __init__(self, head_dim: int) -> None:
        self.slope = head_dim - 1
        self.coordinate = Interval(0.0, math.sqrt(head_dim))

    def log_density(self, v: Array) -> Array:
        return -self.slope * (v + np.log(0.5 + 0.5 * np.exp(-2 * v)))  # ln cosh v

    def panels(self, log_n: float, beta: float) -> Array:

        def width(v: float) -> float:
            # The density times exp(beta s) has a peak of this width, wherever beta puts the peak.
            widest = 1.5 * math.cosh(v) / math.sqrt(self.slope)
            return min(widest, 10 / (self.slope * math.tanh(v) + 1e-300), 3.5)

        # Beyond the span beta s is constant, and the mass there need only be small compared with that at it.
        end = self.coordinate.span(beta)[1] + 36.0 / self.slope
        upper = _spread(min(end, self._reach(log_n + _NEGLECTED)), width)
        lower = _spread(min(end, self._reach(36.0)), width)
        return np.concatenate([-lower[:0:-1], upper])

    def _reach(self, log_mass: float) -> float:
        """v with (d - 1) ln cosh v = log_mass."""
        part = log_mass / self.slope
        return math.acosh(math.exp(part)) if part < 300 else part + math.log(2)


class Function(Density):
    """A density given by the user: a vectorised function of the score, and its support."""

    def __init__(self, density: Callable[[Array], object], support: tuple[float, float]) -> None:
        self._density = density
        low, high = support
        if math.isinf(low) and math.isinf(high):
            self.coordinate = StretchedLine()
        elif math.isinf(high):
            self.coordinate = HalfLine(low, 1)
        elif math.isinf(low):
            self.coordinate = HalfLine(high, -1)
        else:
            self.coordinate = Interval((low + high) / 2, (high - low) / 2)
        self._panels = self._resolve()
        mass = math.exp(self.log_norm(self._panels))
        if not abs(mass - 1) < 1e-6:
            raise ValueError(
                f"model must be a density that integrates to 1 over support={support}, got {mass:.9g}"
            )

    def log_density(self, v: Array) -> Array:
        with np.errstate(over="ignore"):
            s, slope = self.coordinate.score(v), self.coordinate.slope(v)
        value = np.asarray(self._density(s), np.float64)
        if value.shape != s.shape or not (value >= 0).all():
            raise ValueError(
                "model must return one density >= 0 for each score of an array, "
                f"got shape {value.shape} for {s.shape}, minimum {value.min():g}"
            )
        with np.errstate(divide="ignore"):
            return np.asarray(np.maximum(np.log(value) + np.log(slope), -1e4))

    def panels(self, log_n: float, beta: float) -> Array:
        return self._panels

    def mean(self) -> float:
        nodes, weights = gauss_legendre(16)
        half = np.diff(self._panels)[:, None] / 2
        v = self._panels[:-1, None] + half * (1 + nodes)
        p = half * weights * np.exp(self.log_density(v) - self.log_norm(self._panels))
        return float((p * self.coordinate.score(v)).sum())

    def _resolve(self) -> Array:
        """Panels halved until two rules agree on each, so that kinks lie in small ones."""
        grid = np.linspace(-60, 60, 961)
        seen = np.flatnonzero(self.log_density(grid) > -110)
        if seen.size == 0:
            raise ValueError("model must be a density with scores of order 1, got 0 everywhere")
        walls = grid[max(seen[0] - 1, 0) : min(seen[-1] + 2, grid.size) : 3]
        walls = np.unique(np.append(walls, grid[min(seen[-1] + 1, grid.size - 1)]))
        for _ in range(24):
            rough = np.abs(self._masses(walls, 6) - self._masses(walls, 12)) > 1e-11
            if not rough.any() or walls.size > 400:
                break
            walls = np.sort(np.concatenate([walls, (walls[:-1] + walls[1:])[rough] / 2]))
        return walls

    def _masses(self, walls: Array, order: int) -> Array:
        nodes, weights = gauss_legendre(order)
        half = np.diff(walls)[:, None] / 2
        values = np.exp(self.log_density(walls[:-1, None] + half * (1 + nodes)))
        return np.asarray((half * weights * values).sum(1))


def _spread(end: float, width: Callable[[float], float]) -> Array:
    """Points from 0 to `end` or a little beyond; the next is `width(v)` beyond v."""
    points = [0.0]
    while points[-1] < end:
        points.append(points[-1] + width(points[-1]))
    return np.array(points)
