# SPDX-License-Identifier: BSD-3-Clause
"""solve_scale for rows that share a scale: the mean entropy of a group reaches the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .results import ScaleSolution

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._call.call import Call

    Array = NDArray[np.float64]

_MAX_STEPS = 100


class Groups(NamedTuple):
    """A search: the rows of a call, and how they are grouped for averages."""

    call: Call
    axes: tuple[int, ...]
    counted: NDArray[np.bool_]  # rows that see a key

    def mean(self, rows: NDArray[np.floating]) -> Array:
        """Mean over the counted rows of each group; 0 where there are none."""
        number = self.counted.sum(self.axes)
        total = np.where(self.counted, rows, 0).sum(self.axes, dtype=np.float64)
        return np.asarray(total / np.maximum(number, 1))

    def evaluate(self, scale: Array) -> tuple[Array, Array]:
        """Mean entropy at these scales, and minus its derivative in ln(scale)."""
        scales = np.expand_dims(scale, self.axes)
        rows = self.call.core.attend(None, None, ("entropy", "score_variance"), scales, None)
        return self.mean(rows[0]), self.mean(rows[1])


def solve_mean(call: Call, target: Array, tolerance: float, axes: tuple[int, ...]) -> ScaleSolution:
    """The solution of solve_scale; `axes` are those of the rows that share a scale, counted from the last."""
    # With an infinite target this finds the limits and evaluates nothing.
    _, _, lowest_rows, highest_rows, *_ = call.core.solve(np.array(np.inf), tolerance)
    groups = Groups(call, axes, np.broadcast_to(call.core.count() > 0, call.row_shape))
    lowest, highest = groups.mean(lowest_rows), groups.mean(highest_rows)
    scale, entropy, steps = _search(groups, target, tolerance, lowest, highest)
    return ScaleSolution(
        scale=scale,
        entropy=entropy,
        lowest=lowest,
        highest=highest,
        converged=np.asarray(np.abs(entropy - target) <= tolerance),
        feasible=np.asarray((target >= lowest - tolerance) & (target <= highest + tolerance)),
        iterations=steps,
    )


def _search(
    groups: Groups, target: Array, tolerance: float, lowest: Array, highest: Array
) -> tuple[Array, Array, NDArray[np.int64]]:
    """(scale, entropy, steps): Newton on ln((highest - H) / (H - lowest)) inside a bracket."""
    flat, narrow = target >= highest, target < lowest - tolerance
    scale = np.where(flat, 0.0, np.where(narrow | (lowest == highest), np.inf, np.nan))
    entropy = np.where(flat, highest, np.where(narrow, lowest, highest))
    entropy = np.where(np.isnan(lowest), np.nan, entropy)
    steps = np.zeros(target.shape, np.int64)
    searching = np.isnan(scale) & ~np.isnan(lowest)
    low, high = np.zeros(target.shape), np.full(target.shape, np.inf)
    trial = np.where(searching, 1 / np.sqrt(groups.call.head_dim), 0.0)
    aim = _logit(target, lowest, highest, tolerance)
    best = before = np.full(target.shape, np.inf)
    for _ in range(_MAX_STEPS):
        if not searching.any():
            break
        mean, slope = groups.evaluate(trial)
        steps += searching
        error = mean - target
        better = searching & (np.abs(error) < best)
        best = np.where(better, np.abs(error), best)
        scale, entropy = np.where(better, trial, scale), np.where(better, mean, entropy)
        low, high = np.where(error > 0, trial, low), np.where(error > 0, high, trial)
        searching &= (best > tolerance) & (high > low * (1 + 1e-15))
        guess = _newton(trial, mean, slope, aim, lowest, highest)
        # Steps would creep where only rounding is left of the entropy.
        creeps = (np.abs(error) > before / 2) & (np.abs(guess - trial) < trial / 16)
        before = np.abs(error)
        trial = np.where(searching, _inside(np.where(creeps, np.nan, guess), trial, low, high), 0.0)
    return scale, entropy, steps


def _logit(entropy: Array, lowest: Array, highest: Array, inside: float) -> Array:
    with np.errstate(all="ignore"):
        ratio = np.maximum(highest - entropy, 0) / np.maximum(entropy - lowest, inside / 2)
        return np.asarray(np.log(ratio))


def _newton(trial: Array, mean: Array, slope: Array, aim: Array, lowest: Array, highest: Array) -> Array:
    with np.errstate(all="ignore"):
        above, below = highest - mean, mean - lowest
        step = (np.log(above / below) - aim) / (slope / above + slope / below)
        return np.asarray(trial * np.exp(np.clip(-step, -3, 3)))


def _inside(guess: Array, trial: Array, low: Array, high: Array) -> Array:
    """The guess, or the middle of the bracket if the guess is outside or NaN."""
    with np.errstate(all="ignore"):
        middle = np.where(low == 0, trial / 8, np.where(np.isinf(high), trial * 8, np.sqrt(low * high)))
        return np.where((guess > low) & (guess < high), guess, middle)
