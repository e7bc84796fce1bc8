# SPDX-License-Identifier: BSD-3-Clause
"""Results of cases by attnscale.reference in float64; derivatives of parameters are central differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import attnscale as at
import numpy as np
from attnscale.conformance import CASES, Case, _cases

#: Cases for 16-bit types, whose sums are in float32.
SIXTEEN_BITS = ["plain", "causal + mask", "bshd", "grouped", "sparsemax: mask", "everything"]
SIXTEEN_BITS += ["factors", "rms"]
#: Statistics of softmax rows that have a gradient.
SMOOTH = ("lse", "entropy", "mean_score", "score_variance", "concentration", "max_score", "max_weight")
SMOOTH += ("renyi2",)
_READ = {"scale": at.laws.get, "normalizer": at.normalizers.get}
_PARAMETERS = {at.normalizers.Sink: "logits", at.normalizers.Sigmoid: "bias", at.normalizers.Entmax: "alpha"}


def parameters(options: Mapping[str, Any]) -> dict[str, Any]:
    """Differentiated values among the options, by the names of options and parameters."""
    found = {}
    for name in ("scale", "attn_mask", "distance_scale", "distance_bias"):
        given = options.get(name)
        if isinstance(given, np.ndarray) and given.dtype == np.float64:
            found[name] = given
    law, normalizer = options.get("scale"), options.get("normalizer")
    if isinstance(law, at.laws.Law):
        found |= {name: np.array(law.parameter(name)) for name in learnt_names(law)}
    if type(normalizer) in _PARAMETERS:
        name = _PARAMETERS[type(normalizer)]
        found[name] = np.array(getattr(normalizer, name))
    return found


def learnt_names(law: Any) -> tuple[str, ...]:
    """Learned parameters of a law: all, or the factor of a multiple."""
    return ("amplitude",) if isinstance(law, at.laws.Scaled) else tuple(law.derivatives(3.0, 1))


def with_parameters(options: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Options with other numbers for some of the names in `parameters`."""
    law, normalizer = options.get("scale"), options.get("normalizer")
    changed = {name: x for name, x in values.items() if name in options}
    rest = {name: x.tolist() for name, x in values.items() if name not in options}
    if rest and type(normalizer) in _PARAMETERS:
        changed["normalizer"] = type(normalizer)(**rest)
    elif rest:
        plain = {name: tuple(x) if isinstance(x, list) else x for name, x in rest.items()}
        changed["scale"] = replace(law, **plain)
    return options | changed


def _wide(case: Case) -> tuple[list[Any], dict[str, Any]]:
    """Arrays with heads first and all leading axes, and options without names of laws or normalizers."""
    options = {
        name: _READ[name](x) if name in _READ and isinstance(x, str) else x
        for name, x in case.options.items()
    }
    bshd = options.pop("layout", "bhsd") == "bshd"
    arrays = [x.swapaxes(-3, -2) if bshd and x is not None and x.ndim > 2 else x for x in case.arrays()]
    kept = 3 if options.get("enable_gqa") else 2
    lead = np.broadcast_shapes(*(x.shape[:-kept] for x in arrays if x is not None))
    wide = [None if x is None else np.broadcast_to(x, (*lead, *x.shape[-kept:])) for x in arrays]
    return wide, options


def _as_given(wide: Any, case: Case, shape: tuple[int, ...]) -> Any:
    """Sum the gradient of a broadcast array to the shape of the given array."""
    if case.options.get("layout") == "bshd" and len(shape) > 2:
        shape = (*shape[:-3], shape[-2], shape[-3], shape[-1])
    gradient = wide.sum(tuple(range(wide.ndim - len(shape))))
    axes = tuple(i for i, n in enumerate(shape) if n != gradient.shape[i])
    gradient = gradient.sum(axes, keepdims=True)
    return gradient.swapaxes(-3, -2) if case.options.get("layout") == "bshd" and len(shape) > 2 else gradient


def statistics_of(case: Case) -> tuple[str, ...]:
    """Statistics of the rows of a call."""
    return tuple(at.normalizers.get(case.options.get("normalizer", "softmax")).statistics)


@cache
def values(name: str) -> dict[str, Any]:
    """The output and all statistics of a case."""
    return _values(CASES[name], {})


@np.errstate(invalid="ignore")
def _values(case: Case, given: dict[str, Any]) -> dict[str, Any]:
    arrays, options = _wide(case)
    rows = at.reference.attention_statistics(*arrays, **with_parameters(options, given))
    found = {each: getattr(rows, each) for each in statistics_of(case)}
    found = {each: np.broadcast_to(x, rows.n_visible.shape) for each, x in found.items()}
    if case.value is not None:
        bshd = case.options.get("layout") == "bshd" and rows.output.ndim > 2
        found["output"] = rows.output.swapaxes(-3, -2) if bshd else rows.output
    return found


@cache
def cotangents(name: str, lacks: tuple[str, ...] = ()) -> dict[str, Any]:
    """Weights of the results in the differentiated sum, without those that a backend lacks."""
    case, want = CASES[name], values(name)
    normalizer = at.normalizers.get(case.options.get("normalizer", "softmax"))
    is_softmax = normalizer.name in ("softmax", "softmax_n", "sink")
    wanted = [
        each for each in ("output", *(SMOOTH if is_softmax else ())) if each in want and each not in lacks
    ]
    return {each: _cases.draw(*want[each].shape, seed=3 + i) for i, each in enumerate(wanted)}


@cache
@np.errstate(invalid="ignore", over="ignore")
def gradients(name: str, lacks: tuple[str, ...] = ()) -> dict[str, Any]:
    """Gradients of query, key and value, and the derivative of each parameter along its `direction`."""
    case, weights = CASES[name], cotangents(name, lacks).copy()
    arrays, options = _wide(case)
    given = weights.pop("output", None)
    bshd = case.options.get("layout") == "bshd" and given is not None and given.ndim > 2
    of = at.reference.attention_gradients(
        *arrays,
        given.swapaxes(-3, -2) if bshd else given,
        **{f"grad_{each}": x for each, x in weights.items()},
        **options,
    )
    shapes = {"query": case.query, "key": case.key, "value": case.value}
    found = {each: _as_given(getattr(of, each), case, x) for each, x in shapes.items() if x is not None}
    weights = cotangents(name, lacks)
    for each, x in parameters(case.options).items():
        moved = [_loss(case, weights, {each: x + step * direction(x)}) for step in (1e-5, -1e-5)]
        found[each] = (moved[0] - moved[1]) / 2e-5
    return found


def direction(parameter: Any) -> Any:
    """Random direction of a parameter, 0 for keys that a mask hides."""
    hidden = parameter <= np.finfo(np.float64).min / 2
    return np.where(hidden, 0, _cases.draw(*parameter.shape, seed=2))


def _loss(case: Case, weights: dict[str, Any], given: dict[str, Any]) -> float:
    found = _values(case, given)
    terms = (w * np.where(np.isfinite(found[each]), found[each], 0) for each, w in weights.items())
    return float(sum(x.sum() for x in terms))
