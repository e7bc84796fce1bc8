# SPDX-License-Identifier: BSD-3-Clause
"""Exact curves of experiments between the points at which they were done."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._grid.table import Table
from ..montecarlo._experiment import Grid, exact
from ..montecarlo._parameters import beta_of
from ._dense import dense
from ._style import law_of

_Array = NDArray[np.float64]


def exact_curve(
    table: Table, axes: Mapping[str, Sequence[Any]], x: str, quantity: str
) -> tuple[_Array, _Array] | None:
    """Whole numbers along `x`, and the exact values of shape (n_points, *other axes in their order).

    None where there is no theory, or where `x` or a law cannot be evaluated anew.
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
    """A function from points along `x` to values with `x` as their first axis; to None without a theory."""
    # Axes that an experiment has itself; a sweep may have others, and does each of their values alone.
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
    # Experiments without n or head_dim have no law either.
    lengths, dims = (axes.get(name, [parameters.get(name, 2)]) for name in ("n", "head_dim"))
    table = np.array([[[beta_of(law, n, d) for law in laws] for d in dims] for n in lengths])
    by_name = {"n": 0, "head_dim": 1, "law": 2}
    shape = [len(values) if axis in by_name else 1 for axis, values in axes.items()]
    kept = [by_name[axis] for axis in axes if axis in by_name]
    rest = [place for place in range(3) if place not in kept]
    return np.broadcast_to(
        table.transpose(*kept, *rest).reshape(shape), [len(values) for values in axes.values()]
    )
