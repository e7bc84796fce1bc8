# SPDX-License-Identifier: BSD-3-Clause
"""Exact averages over rows of n independent scores, by quadrature, for each kind of ``model=``.

With x = u + beta s, f(u) = E exp(-e^x) and gamma Euler's constant::

    E ln Z           = -gamma - n integral u E[e^x exp(-e^x)]   f^(n-1) du
    E H              = -gamma - n integral   E[x e^x exp(-e^x)] f^(n-1) du
    E[sum over p^2]  =          n integral   E[e^2x exp(-e^x)]  f^(n-1) du

They follow from ln Z = integral (exp(-z) - exp(-z Z)) dz/z, 1/Z = integral exp(-z Z) dz and
1/Z^2 = integral z exp(-z Z) dz, with z = e^u, because the scores are independent. In the second
line the parts of E ln Z and of the mean score that grow with beta have been cancelled on paper.

A value of u is a pair (a, v) with u = a - beta s(v), so that x = a + beta (s' - s(v)) keeps its
digits at any beta. Panels of u end where n (1 - f) takes given values: that resolves the outer
integrals whether many small weights make the row or a few large ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._base.checks import choose, shown
from ._arguments import finite
from ._densities import Density, Function, Gaussian, Sphere, gauss_legendre

MODELS = ("sphere", "gaussian")

# Beyond this beta only beta itself changes: H, E[sum p^2] and lse / beta have their limits.
_LARGEST_BETA = 1e60


def row_function(model: Any, support: Any) -> Callable[[float, float, int], Averages]:
    """A function of n, beta and head_dim that returns the averages; only the sphere uses head_dim."""
    if support is not None and (isinstance(model, str) or not callable(model)):
        raise TypeError("support needs a model that is a function of the score")
    if isinstance(model, str):
        if choose("model", model, MODELS) == "sphere":
            return _sphere_row
        return lambda n, beta, head_dim: _gaussian_row(n, beta)
    if callable(model) or hasattr(model, "pdf"):
        density = _read_density(model, support)
        return lambda n, beta, head_dim: _density_row(n, beta, density)
    samples = finite("model", model).ravel()
    if samples.size == 0:
        raise ValueError("model must be at least one score, got an array of size 0")
    atoms = Atoms(samples)
    return lambda n, beta, head_dim: _atoms_row(n, beta, atoms)


@lru_cache(maxsize=4096)
def _sphere_row(n: float, beta: float, head_dim: int) -> Averages:
    return _density_row(n, beta, Sphere(head_dim))


@lru_cache(maxsize=4096)
def _gaussian_row(n: float, beta: float) -> Averages:
    return _density_row(n, beta, Gaussian())


def _density_row(n: float, beta: float, density: Density) -> Averages:
    if n == 1:
        return Averages(beta * density.mean(), 0.0, 1.0)
    if beta == 0:
        return _equal_weights(n)
    lse, entropy, concentration = row_averages(n, min(beta, _LARGEST_BETA), density)
    return _within_bounds(n, lse * max(beta / _LARGEST_BETA, 1.0), entropy, concentration)


def _atoms_row(n: float, beta: float, atoms: Atoms) -> Averages:
    if n == 1:
        return Averages(beta * atoms.mean, 0.0, 1.0)
    return _within_bounds(n, *atoms.row_averages(n, beta)) if beta else _equal_weights(n)


def _equal_weights(n: float) -> Averages:
    return Averages(math.log(n), math.log(n), 1 / n)


def _within_bounds(n: float, lse: float, entropy: float, concentration: float) -> Averages:
    """Clip rounding errors that leave the bounds of the averages."""
    return Averages(lse, min(max(entropy, 0.0), math.log(n)), min(max(concentration, 1 / n), 1.0))


def _read_density(model: Any, support: Any) -> Density:
    if hasattr(model, "pdf"):  # a frozen distribution of SciPy
        return Function(model.pdf, _read_support(model.support() if support is None else support))
    return Function(model, _read_support((-math.inf, math.inf) if support is None else support))


def _read_support(support: Any) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in support)
    except (TypeError, ValueError):
        raise TypeError(f"support must be a pair of numbers, got {shown(support)}") from None
    if not low < high:
        raise ValueError(f"support must be (low, high) with low < high, got {shown(support)}")
    return low, high


Array = NDArray[np.float64]

EULER_GAMMA = 0.57721566490153286

_INNER, _OUTER = 8, 8  # nodes of a panel
_BLOCK = 4_000  # nodes at a time: temporaries that stay in the cache, and below malloc's mmap threshold
# Ends of the inner panels, which continue by factors: exp(-e^x) is below 1e-17 above the first.
_X = np.array([3.7, 2.8, 1.9, 1.0, 0.0, -1.2, -3.0, -6.0])
# Values of ln(-n ln f) at the ends of outer panels. Beyond, 1 - f^n or f^n is below 1e-10.
_LEVELS = np.array([-24.0, -18.0, -13.0, -9.0, -6.0, -4.0, -2.4, -1.1, 0.0, 0.8, 1.5, 2.2, 2.9, 3.5])


class Averages(NamedTuple):
    """E of the log-sum-exp, entropy and sum of squared weights of a row."""

    lse: float
    entropy: float
    concentration: float


class Points(NamedTuple):
    """Values u = a - beta s(v)."""

    a: Array
    v: Array


class Moments(NamedTuple):
    """ln f and the averages of x^i e^(jx) exp(-e^x) over one score, at each u."""

    log_f: Array
    e1: Array
    x_e1: Array
    e2: Array


def row_averages(n: float, beta: float, density: Density) -> Averages:
    """Averages over rows of n > 1 scores beta s, beta > 0, to 1e-6 or better."""
    inner = Inner(n, beta, density)
    points, weights = _outer_nodes(inner)
    u = points.a - beta * density.coordinate.score(points.v)
    return integrate_outer(n, u, weights, inner.moments(points))


def integrate_outer(n: float, u: Array, weights: Array, moments: Moments) -> Averages:
    """The three integrals from their values at u."""
    scaled = n * weights * np.exp((n - 1) * moments.log_f)
    return Averages(
        -EULER_GAMMA - float((scaled * moments.e1 * u).sum()),
        -EULER_GAMMA - float((scaled * moments.x_e1).sum()),
        float((scaled * moments.e2).sum()),
    )


class Inner:
    """Averages over one score."""

    def __init__(self, n: float, beta: float, density: Density) -> None:
        self.log_n, self.beta, self.density = math.log(n), beta, density
        panels = density.panels(self.log_n, beta)
        bends = np.clip(density.coordinate.bends(beta), panels[0], panels[-1])
        self.panels = np.unique(np.concatenate([panels, bends]))
        self.log_norm = density.log_norm(panels)
        # Below the last break e^x is below 1e-12 / n.
        tail = [_X[-1]]
        while tail[-1] > -self.log_n - 28:
            tail.append(1.7 * tail[-1])
        self.x_breaks = np.concatenate([_X, tail[1:]])

    def moments(self, points: Points) -> Moments:
        """Quadrature over panels that end where the density's do and where x takes given values."""
        nodes = (self.panels.size + self.x_breaks.size - 1) * _INNER
        step = max(1, _BLOCK // nodes)
        blocks = [Points(*(each[i : i + step] for each in points)) for i in range(0, points.a.size, step)]
        return Moments(*map(np.concatenate, zip(*map(self._moments, blocks), strict=True)))

    def _moments(self, points: Points) -> Moments:
        h, weights = self._steps(points)
        x = points.a[:, None] + self.beta * self.density.coordinate.rise(points.v[:, None], h)
        weights *= np.exp(self.density.log_density(points.v[:, None] + h) - self.log_norm)
        e = np.exp(np.minimum(x, 50.0))
        kept = np.exp(-e)
        # 1 - exp(-e) to 1e-11; expm1 would take longer than all the rest.
        lost = (np.where(e < 1e-5, e * (1 - e / 2), 1 - kept) * weights).sum(1)
        kept *= weights
        f = np.maximum(kept.sum(1), 1e-300)
        kept *= e
        log_f = np.where(lost < 0.5, np.log1p(-np.minimum(lost, 0.5)), np.log(f))
        return Moments(log_f, kept.sum(1), (kept * x).sum(1), (kept * e).sum(1))

    def _steps(self, points: Points) -> tuple[Array, Array]:
        """Steps from v to the nodes, and their weights, each of shape (points, nodes)."""
        a, v = points.a[:, None], points.v[:, None]
        walls = self.panels - v
        with np.errstate(over="ignore"):
            edges = self.density.coordinate.step(v, (self.x_breaks - a) / self.beta)
        edges = np.clip(edges, walls[:, :1], walls[:, -1:])
        cuts = np.sort(np.concatenate([walls, edges], axis=1), axis=1)
        nodes, weights = gauss_legendre(_INNER)
        half = np.diff(cuts, axis=1)[:, :, None] / 2
        shape = (v.size, -1)
        return (cuts[:, :-1, None] + half * (1 + nodes)).reshape(shape), (half * weights).reshape(shape)


def _outer_nodes(inner: Inner) -> tuple[Points, Array]:
    """Nodes and weights of the integral over u, in three stretches of rising u.

    First all scores lie below the transition of exp(-e^x) at x = 0, then the transition crosses them
    from the top (a = 0), then all lie above.
    """
    line = np.unique(np.clip(inner.panels, *inner.density.coordinate.span(inner.beta)))
    below, above = np.linspace(inner.x_breaks[-1] - 2, 0.0, 12), np.array([0.0, 1.0, 2.0, 3.5])
    stretches = (
        Points(below, np.full_like(below, line[-1])),
        Points(np.zeros_like(line), line[::-1]),
        Points(above, np.full_like(above, line[0])),
    )
    log_f = inner.moments(Points(*(np.concatenate(each) for each in zip(*stretches, strict=True)))).log_f
    level = np.log(np.maximum(-log_f, 1e-320)) + inner.log_n
    levels = np.split(level, np.cumsum([each.a.size for each in stretches])[:-1])
    a_below, w_below = nodes_between(below, levels[0])
    v, w = nodes_between(line[::-1], levels[1])
    a_above, w_above = nodes_between(above, levels[2])
    points = Points(
        np.concatenate([a_below, np.zeros_like(v), a_above]),
        np.concatenate([np.full_like(a_below, line[-1]), v, np.full_like(a_above, line[0])]),
    )
    w *= inner.beta * inner.density.coordinate.slope(v)  # du = -beta s'(v) dv
    return points, np.concatenate([w_below, w, w_above])


def nodes_between(line: Array, level: Array) -> tuple[Array, Array]:
    """Nodes and weights on the part of `line` where `level`, known at its points, is in _LEVELS."""
    reached = _LEVELS[(level[0] < _LEVELS) & (level[-1] > _LEVELS)]
    inside = (level > _LEVELS[0]) & (level < _LEVELS[-1])
    cuts = np.sort(np.concatenate([np.interp(reached, level, line), line[[0, -1]][inside[[0, -1]]]]))
    # A stretch in which the level hardly moves may cross several panels of the density.
    walls = np.sort(line)
    first, last = np.searchsorted(walls, cuts[:-1]), np.searchsorted(walls, cuts[1:])
    crossed = [walls[i:j] for i, j in zip(first, last, strict=True) if j - i > 1]
    cuts = np.unique(np.concatenate([cuts, *crossed]))
    nodes, weights = gauss_legendre(_OUTER)
    half = np.diff(cuts)[:, None] / 2
    return (cuts[:-1, None] + half * (1 + nodes)).ravel(), (half * weights).ravel()


# All integrands are analytic within pi/2 of the real line: the trapezoidal rule errs by exp(-pi^2 / h).
_STEP = 0.35
_PAIRS = 1 << 18  # pairs of u and score at a time
# Scores whose differences times beta are below rounding are taken at a beta where they are not.
_LARGEST_RANGE = 1e9


class Atoms:
    """Scores at beta = 1, all equally likely; equal ones count together."""

    def __init__(self, samples: Array) -> None:
        self.scores, counts = np.unique(samples, return_counts=True)
        self.shares = counts / samples.size
        # Shares of the scores from each one up, for scores so large that exp(-e^x) is 0.
        self._upper = np.append(np.cumsum(self.shares[::-1])[::-1], 0.0)
        self.mean = float(samples.mean())

    def row_averages(self, n: float, beta: float) -> Averages:
        """Averages over rows of n > 1 scores beta s, drawn with replacement; beta > 0."""
        spread = float(self.scores[-1] - self.scores[0])
        largest = _LARGEST_RANGE / spread if spread else beta
        if beta > largest:
            lse, entropy, concentration = self.row_averages(n, largest)
            return Averages(lse * (beta / largest), entropy, concentration)
        scores = beta * (self.scores - self.scores[-1])
        u = np.asarray(_STEP * self._grid(n, scores), np.float64)
        parts = [self._moments(block, scores) for block in np.array_split(u, math.ceil(u.size / 64))]
        moments = Moments(*map(np.concatenate, zip(*parts, strict=True)))
        lse, entropy, concentration = integrate_outer(n, u, np.full(u.size, _STEP), moments)
        return Averages(lse + beta * float(self.scores[-1]), entropy, concentration)

    def _grid(self, n: float, scores: Array) -> NDArray[np.int64]:
        """Multiples of the step that reach some score, between n (1 - f) = 1e-11 and f^n = 1e-15."""
        reach = math.log(n) + 28
        low, high = math.floor(-reach / _STEP), math.ceil((4 - scores[0]) / _STEP)
        low = self._crossing(low, high, math.log(1e-11 / n), scores)
        high = self._crossing(low, high, math.log(35 / n), scores)
        begin = np.maximum(np.floor((-reach - scores[::-1]) / _STEP), low).astype(np.int64)
        end = np.minimum(np.ceil((4 - scores[::-1]) / _STEP), high).astype(np.int64) + 1
        begin[1:] = np.maximum(begin[1:], np.maximum.accumulate(end)[:-1])  # without earlier intervals
        return np.concatenate([np.arange(i, j) for i, j in zip(begin, end, strict=True) if i < j])

    def _crossing(self, low: int, high: int, level: float, scores: Array) -> int:
        """The multiple of the step where ln(-ln f) passes `level`."""
        while high - low > 1:
            middle = (low + high) // 2
            log_f = self._moments(np.array([_STEP * middle]), scores).log_f[0]
            low, high = (low, middle) if math.log(max(-log_f, 1e-320)) > level else (middle, high)
        return high

    def _moments(self, u: Array, scores: Array) -> Moments:
        """Sums over the scores with x from -90 to 4: above, exp(-e^x) is 0; below, e^x is."""
        first, last = np.searchsorted(scores, [-90 - u[-1], 4 - u[0]])
        sums = np.zeros((5, u.size))
        sums[0] = self._upper[last]
        width = max(1, _PAIRS // u.size)
        for begin in range(first, last, width):
            part = slice(begin, min(begin + width, last))
            x, share = u[:, None] + scores[part], self.shares[part]
            e = np.exp(np.minimum(x, 50.0))
            kept = np.exp(-e)
            g = e * kept
            sums += [-np.expm1(-e) @ share, kept @ share, g @ share, (g * x) @ share, (g * e) @ share]
        lost, f = sums[0], sums[1] + (1 - self._upper[first])
        with np.errstate(divide="ignore"):
            log_f = np.where(lost < 0.5, np.log1p(-np.minimum(lost, 0.5)), np.log(np.maximum(f, 1e-300)))
        return Moments(log_f, *sums[2:])
