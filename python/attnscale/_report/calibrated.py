# SPDX-License-Identifier: BSD-3-Clause
"""The law that best keeps the entropies of a report's heads.

The scale that keeps an entropy is found on the curve of the entropies at all multiples, which the report has
in any case; a head that needs another multiple is searched as :func:`attnscale.calibrate` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

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


class CountedRows(NamedTuple):
    """The rows that count in the entropies of one length."""

    rows: Rows
    curve: Array  # mean entropies at the multiples, shape (heads, multiples)
    scales: Array  # of the laws, shape (heads, rows, laws)


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
    beta = np.stack([_beta(each, wanted, multiples) for each in parts], axis=-1)
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


def _beta(each: CountedRows, target: Array, multiples: Array) -> Array:
    """The multiple at which each head has its target entropy; NaN where none has."""
    found = np.array([_on_curve(*of_head, multiples) for of_head in zip(each.curve, target, strict=True)])
    if not each.rows.n_visible.all():
        found[:] = np.nan  # solve_scale leaves out rows without keys
    left = np.flatnonzero(np.isnan(found) & ~np.isnan(target))
    if left.size:
        call = each.rows.of_heads(left).call
        solved = solve_mean(call, target[left], _TOLERANCE, (-1,))
        found[left] = np.where(solved.feasible, solved.scale * np.sqrt(call.head_dim), np.nan)
    return found


def _on_curve(curve: Array, target: float, multiples: Array) -> float:
    """The multiple with an entropy on its curve; NaN outside of it, or where the curve does not tell.

    A polynomial of the logarithm of the multiple goes through the eight nearest points. One through six of
    them says how far it can be wrong.
    """
    if not curve[-1] <= target <= curve[0]:
        return float("nan")
    after = int(np.searchsorted(-curve, -target))
    if curve[after] == target:
        return float(multiples[after])
    roots, fits = [], []
    for points in (6, 8):
        start = int(np.clip(after - points // 2, 0, len(curve) - points))
        steps = np.arange(start, start + points) - (after - 0.5)
        fits.append(np.polynomial.Polynomial.fit(steps, curve[start : start + points], points - 1))
        roots.append(_falling_root(fits[-1], target))
    if not abs(fits[1](roots[0]) - target) <= _TOLERANCE:
        return float("nan")
    return float(multiples[after - 1] * (multiples[after] / multiples[after - 1]) ** (roots[1] + 0.5))


def _falling_root(curve: np.polynomial.Polynomial, target: float) -> float:
    """Where a falling curve has a value, between -1/2 and 1/2."""
    low, high = -0.5, 0.5
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if curve(middle) > target else (low, middle)
    return (low + high) / 2
