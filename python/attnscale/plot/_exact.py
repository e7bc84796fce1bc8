# SPDX-License-Identifier: BSD-3-Clause
"""Exact curves of experiments, and the choice of points for any exact curve."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._grid.table import Table
from ..montecarlo._experiment import Grid, exact
from ..montecarlo._parameters import beta_of
from ._style import law_of

_Array = NDArray[np.float64]
_FIRST = 25
_ROUNDS = 24  # halvings of a gap between 25 points: enough to come from 10^6 keys to one
_MOST = 500
_BEND = 0.005  # as a share of the range of the curve


def dense(curve: Callable[[_Array], _Array], low: float, high: float) -> tuple[_Array, _Array]:
    """Whole numbers from `low` to `high` and the values there: denser where the curve bends or jumps.

    `curve` maps an array of n to values of shape (n_points, ...): several curves on the same points. A jump
    gets two adjacent points.
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
    """Middles of the gaps beside points that are off the straight line of their neighbours."""
    flat = values.reshape(n.size, -1)
    height = np.nanmax(flat, 0, initial=-np.inf) - np.nanmin(flat, 0, initial=np.inf)
    log_n = np.log(n)
    share = ((log_n[1:-1] - log_n[:-2]) / (log_n[2:] - log_n[:-2]))[:, None]
    off = np.abs(flat[1:-1] - (1 - share) * flat[:-2] - share * flat[2:])
    known = np.isfinite(flat)
    # At the beginning or end of a curve, one of three values is missing.
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


def exact_curve(
    table: Table, axes: Mapping[str, Sequence[Any]], x: str, quantity: str
) -> tuple[_Array, _Array] | None:
    """Whole numbers along `x`, and the exact values of shape (n_points, *other axes in their order).

    None without a theory, or if `x` or a law cannot be evaluated anew.
    """
    name, parameters = table.experiment, table.parameters
    laws = [law_of(label) for label in axes.get("law", [parameters.get("law", "standard")])]
    if x not in ("n", "head_dim") or any(law is None for law in laws):
        return None
    evaluate = _evaluation(name, axes, parameters, laws, x, quantity)
    first = np.asarray(axes[x], np.float64)
    if evaluate(first[:1]) is None:
        return None
    return dense(evaluate, float(first.min()), float(first.max()))


def _evaluation(
    name: str,
    axes: Mapping[str, Sequence[Any]],
    parameters: dict[str, Any],
    laws: list[Any],
    x: str,
    quantity: str,
) -> Callable[[_Array], Any]:
    """A function of points along `x` with values whose first axis is `x`; None without a theory."""
    # The experiment's own axes; a sweep may have others, each of whose values is evaluated alone.
    own = [axis for axis in axes if axis in ("n", "head_dim", "law", "distribution")]
    others = [axis for axis in axes if axis not in own]
    order = [*others, *own]
    wanted = [order.index(x), *(order.index(axis) for axis in axes if axis != x)]

    def evaluate(points: _Array) -> Any:
        here = {axis: tuple(map(int, points)) if axis == x else tuple(axes[axis]) for axis in own}
        shape = [len(values) for values in here.values()]
        parts = []
        for values in itertools.product(*(axes[axis] for axis in others)):
            given = {**parameters, **dict(zip(others, values, strict=True))}
            found = exact(name, Grid(here, given, _betas(here, given, laws))).get(quantity)
            parts.append(np.full(shape, np.nan) if found is None else found)
        table = np.reshape(parts, [*(len(axes[axis]) for axis in others), *shape])
        return None if np.isnan(table).all() else table.transpose(wanted)

    return evaluate


def _betas(axes: Mapping[str, Sequence[Any]], parameters: dict[str, Any], laws: list[Any]) -> _Array:
    """Beta of each law at each point of the axes."""
    # Experiments without n or head_dim have no law.
    lengths, dims = (axes.get(name, [parameters.get(name, 2)]) for name in ("n", "head_dim"))
    table = np.array([[[beta_of(law, n, d) for law in laws] for d in dims] for n in lengths])
    by_name = {"n": 0, "head_dim": 1, "law": 2}
    shape = [len(values) if axis in by_name else 1 for axis, values in axes.items()]
    kept = [by_name[axis] for axis in axes if axis in by_name]
    rest = [place for place in range(3) if place not in kept]
    return np.broadcast_to(
        table.transpose(*kept, *rest).reshape(shape), [len(values) for values in axes.values()]
    )
