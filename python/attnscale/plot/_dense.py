# SPDX-License-Identifier: BSD-3-Clause
"""The points at which an exact curve is evaluated, so that lines between them show the curve."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.float64]

_FIRST = 25
_ROUNDS = 24  # halvings of a gap of 25 points: enough to come from 10^6 keys to one
_MOST = 500
_BEND = 0.005  # a share of the range of the curve


def dense(curve: Callable[[_Array], _Array], low: float, high: float) -> tuple[_Array, _Array]:
    """Whole numbers from `low` to `high` and the values there: denser where the curve bends or jumps.

    Parameters
    ----------
    curve : callable
        From an array of n to values of shape (n_points, ...): several curves, on the same points.
    low, high : float
        Whole numbers, low <= high. A jump comes out as two neighbouring ones.
    """
    n = np.unique(np.geomspace(low, max(high, low), _FIRST).round())
    values = np.asarray(curve(n), np.float64)
    for _ in range(_ROUNDS):
        more = _gaps(n, values)[: max(_MOST - n.size, 0)]
        if not more.size:
            break
        order = np.argsort(np.concatenate([n, more]), kind="stable")
        values = np.concatenate([values, curve(more)])[order]
        n = np.concatenate([n, more])[order]
    return n, values


def _gaps(n: _Array, values: _Array) -> _Array:
    """The middles of the gaps beside points that are off the straight line of their neighbours."""
    flat = values.reshape(n.size, -1)
    height = np.nanmax(flat, 0, initial=-np.inf) - np.nanmin(flat, 0, initial=np.inf)
    log_n = np.log(n)
    share = ((log_n[1:-1] - log_n[:-2]) / (log_n[2:] - log_n[:-2]))[:, None]
    off = np.abs(flat[1:-1] - (1 - share) * flat[:-2] - share * flat[2:])
    known = np.isfinite(flat)
    # Where a curve begins or ends, one of three values is missing.
    edge = (known[1:] != known[:-1]).any(1)
    with np.errstate(invalid="ignore"):
        bends = (off > _BEND * height + 1e-9 * np.abs(flat[1:-1])).any(1)  # a constant is straight
    wide = np.zeros(n.size - 1, bool)
    wide[:-1] |= bends
    wide[1:] |= bends
    middles = np.sqrt(n[:-1] * n[1:]).round()
    fresh = (middles > n[:-1]) & (middles < n[1:])
    found: _Array = middles[(wide | edge) & fresh]
    return found
