# SPDX-License-Identifier: BSD-3-Clause
"""The law that best keeps the entropies of a report's heads.

The multiple that keeps an entropy is read from the curve of the entropies at all multiples, and corrected by
the entropy there. A head that needs another multiple is searched as :func:`attnscale.calibrate` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..calibration.calibration import RESOLUTION, Calibration
from ..calibration.fit import amplitude_of
from ..exact.solve_mean import solve_mean

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..calibration.fit import Length
    from ..laws import Law
    from .rows import Rows

    Array = NDArray[np.float64]

_TOLERANCE = 1e-6  # nats, as for float32 in solve_scale
_POINTS = 8
_NEAR = 1e-3  # nats from which one step of Newton's method leaves less than the tolerance


class Guess(NamedTuple):
    """The multiple with a target entropy for each head, and the slope of the entropy in its logarithm."""

    multiple: Any
    slope: Any


class CountedRows(NamedTuple):
    """The rows that count in the entropies of one length."""

    rows: Rows
    curve: Array  # mean entropies at the multiples, shape (heads, multiples)
    scales: Array  # of the laws, shape (heads, rows, laws)
    guess: Guess  # of the multiple that keeps the entropy of the first length
    entropy: Array  # there, shape (heads,)


def law_scales(counted: Length, laws: tuple[Law, ...], rows: NDArray[np.int64]) -> Array:
    """Scales of the laws in some of the counted rows, shape (heads, rows, laws)."""
    return np.stack([counted.law_scale(law)[:, rows] for law in laws], axis=-1)


def calibrated(
    kept: Mapping[int, CountedRows], laws: tuple[Law, ...], multiples: Array, *, is_causal: bool
) -> dict[str, Array]:
    """The law that best keeps each head's entropy, its constant, and the error of each law.

    Under a soft-cap, with a bias or beside a sink, several multiples of the scale or none may keep the
    entropy: nothing is determined there.
    """
    parts = list(kept.values())
    n_heads = len(parts[0].curve)
    if any(each.rows.normalizer is not None or not each.rows.is_plain for each in parts):
        return {
            "beta": np.full((n_heads, len(parts)), np.nan),
            "best": np.full(n_heads, -1.0),
            "best_constant": np.full(n_heads, np.nan),
            "misses": np.full((n_heads, len(laws)), np.nan),
        }
    found = _calibration(kept, laws, multiples, is_causal=is_causal)
    heads, best, known = np.arange(n_heads), np.maximum(found.best, 0), found.best >= 0
    return {
        "beta": found.beta,
        "best": found.best.astype(np.float64),
        "best_constant": np.where(known, found.amplitude[best, heads], np.nan),
        "misses": np.where(known[:, None], np.moveaxis(found.entropy_error, 0, -1), np.nan),
    }


def _calibration(
    kept: Mapping[int, CountedRows], laws: tuple[Law, ...], multiples: Array, *, is_causal: bool
) -> Calibration:
    parts, own = list(kept.values()), int(np.flatnonzero(multiples == 1)[0])
    target, equal = parts[0].curve[:, own], np.log(parts[0].rows.outcomes).mean(1)
    flat = target >= equal - RESOLUTION
    wanted = np.where(flat, np.nan, target)
    beta = np.stack([_beta(each, wanted) for each in parts], axis=-1)
    root = np.sqrt(parts[0].rows.call.head_dim)
    multiplier = np.stack([each.scales.mean(1).T for each in parts], axis=-1) * root
    amplitude = np.stack([amplitude_of(of_law, beta) for of_law in multiplier])
    entropy = [each.rows.mean_entropies(amplitude.T[:, None] * each.scales).T for each in parts]
    return Calibration(
        n0=next(iter(kept)),
        lengths=np.array(list(kept), np.int64),
        target=target,
        beta=beta,
        standard_entropy=np.stack([each.curve[:, own] for each in parts], axis=-1),
        laws=laws,
        amplitude=amplitude,
        law_beta=amplitude[..., None] * multiplier,
        law_entropy=np.stack(entropy, axis=-1),
        median_entropy=np.full(beta.shape, np.nan),
        equal_scores=flat,
        is_causal=is_causal,
    )


def _beta(each: CountedRows, target: Array) -> Array:
    """The multiple at which each head has its target entropy; NaN where none has."""
    error = each.entropy - target
    with np.errstate(invalid="ignore", divide="ignore"):
        found = each.guess.multiple * np.exp(-error / each.guess.slope)
    # solve_scale leaves out rows without keys.
    found[~((np.abs(error) <= _NEAR) & each.rows.n_visible.all(1))] = np.nan
    left = np.flatnonzero(np.isnan(found) & ~np.isnan(target))
    if left.size:
        call = each.rows.of_heads(left).call
        solved = solve_mean(call, target[left], _TOLERANCE, (-1,))
        found[left] = np.where(solved.feasible, solved.scale * np.sqrt(call.head_dim), np.nan)
    return np.asarray(found)


def guessed(curve: Array, target: Array, multiples: Array) -> Guess:
    """The multiples of the heads with these entropies on their curves."""
    found = [_on_curve(*head, multiples) for head in zip(curve, target, strict=True)]
    return Guess(*np.array(found).T)


def _on_curve(curve: Array, target: float, multiples: Array) -> Guess:
    """A multiple by the polynomial of its logarithm through the eight nearest points of a curve."""
    if not curve[-1] <= target <= curve[0]:
        return Guess(np.nan, np.nan)
    after = max(int(np.searchsorted(-curve, -target)), 1)
    start = min(max(after - _POINTS // 2, 0), len(curve) - _POINTS)
    near = slice(start, start + _POINTS)
    line = np.polynomial.Polynomial.fit(np.log(multiples[near]), curve[near], _POINTS - 1)
    low, high = np.log(multiples[after - 1 : after + 1])
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if line(middle) > target else (low, middle)
    return Guess(np.exp(middle), line.deriv()(middle))
