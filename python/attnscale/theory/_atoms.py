# SPDX-License-Identifier: BSD-3-Clause
"""The integrals of ``_finite_n`` for scores drawn from given ones, whose averages are sums over them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ._finite_n import Averages, Moments, integrate_outer

Array = NDArray[np.float64]

# All integrands are analytic within pi/2 of the real line: the trapezoidal rule errs by exp(-pi^2 / h).
_STEP = 0.35
_BLOCK = 1 << 18  # pairs of u and score in one go
# Scores whose differences times beta are below rounding are taken at the beta where they are not.
_LARGEST_RANGE = 1e9


class Atoms:
    """Scores at beta = 1, each as likely as the others; equal ones count together."""

    def __init__(self, samples: Array) -> None:
        self.scores, counts = np.unique(samples, return_counts=True)
        self.shares = counts / samples.size
        # Shares of the scores from each one up, for those so large that exp(-e^x) is 0.
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
        begin[1:] = np.maximum(begin[1:], np.maximum.accumulate(end)[:-1])  # without what earlier ones cover
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
        width = max(1, _BLOCK // u.size)
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
