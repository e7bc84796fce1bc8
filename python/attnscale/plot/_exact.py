# SPDX-License-Identifier: BSD-3-Clause
"""Exact curves of experiments between the points at which they were done."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._dense import dense

__all__ = ["exact_curve", "parameters_of"]

_Array = NDArray[np.float64]


def parameters_of(result: Any) -> tuple[str, dict[str, Any]]:
    """Name of the experiment and its parameters; the name is empty where they cannot be told.

    Of an ExperimentResult, of its Dataset, or of a sweep over an experiment.
    """
    if hasattr(result, "estimates"):
        return result.experiment, dict(result.parameters)
    attrs = result.attrs
    if "experiment" in attrs:
        return str(attrs["experiment"]), json.loads(attrs.get("parameters", "{}"))
    module, _, name = str(attrs.get("function", "")).partition(":")
    if not module.startswith("attnscale.montecarlo."):
        return "", {}
    try:
        experiment = getattr(import_module(module), name)
    except (ImportError, AttributeError):  # the sweep of another version
        return "", {}
    if "parameters" not in attrs:  # of a version that wrote the constants as text only
        return "", {}
    signature = inspect.signature(experiment).parameters.values()
    usual = {each.name: each.default for each in signature if each.default is not each.empty}
    given = {**usual, **json.loads(attrs["parameters"])}
    given["head_dim"] = given.get("head_dim") or 64
    about_the_run = ("samples", "rng", "options")
    return name, {key: value for key, value in given.items() if key not in about_the_run}


def exact_curve(
    result: Any, axes: Mapping[str, Sequence[Any]], x: str, quantity: str
) -> tuple[_Array, _Array] | None:
    """Whole numbers along `x`, and the exact values of shape (n_points, *other axes in their order).

    None where there is no theory, or where `x` or a law cannot be evaluated anew.
    """
    name, parameters = parameters_of(result)
    laws = [_law(label) for label in axes.get("law", [parameters.get("law", "standard")])]
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
    """From points along `x` to values with `x` as their first axis; to None where there is no theory."""
    from ..montecarlo._exact import Grid, exact

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
    from ..montecarlo._axes import beta_of

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


def _law(label: Any) -> Any:
    """The law, or the scale, that a label stands for; None where that cannot be told."""
    from .. import laws

    try:
        return laws.get(label)
    except (TypeError, ValueError):  # of another program, or registered there
        return None
