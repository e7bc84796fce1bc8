# SPDX-License-Identifier: BSD-3-Clause
"""Judgement of gradients: those of query, key and value by the output, and of query and key by lse."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import reference
from ...exact.gradients import attention_gradients
from ...exact.lse import read_numbers
from .call import Judged, StatisticOutcome, difference

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

#: Rounding of float32, in which engines keep lse.
_EPS = float(np.finfo(np.float32).eps)
#: Gradients are sums over queries or keys, so that their errors add up.
_ROOM = 4


def judge_gradients(call: Judged, given: Mapping[str, Any]) -> StatisticOutcome | None:
    """The outcome of the gradients of query, key and value, by a gradient of the output that is drawn.

    None where a rounded lse, from which engines compute weights again, is too coarse for the scores.
    """
    size = np.abs(np.where(call.seen, call.stages["soft-capped, bias added"], 0)).max(initial=0)
    if size * _EPS > call.allowed:
        return None
    with np.errstate(all="ignore"):
        output = reference.attention(*call.arrays, **call.options)
    grad = _draw(output.shape).astype(_type_of(given.get("output")))
    found = given["gradients"](grad)
    wide = grad.astype(np.float64)
    query, key, value = call.arrays
    truth = attention_gradients(query, key, value, wide, wanted=("query", "key", "value"), **call.options)
    return _judged("gradients", found, truth, call, _slips_of_output(call, wide))


def judge_lse_gradients(call: Judged, given: Mapping[str, Any]) -> StatisticOutcome | None:
    """The outcome of the gradients of query and key, by a gradient of lse that is drawn."""
    query, key, _ = call.arrays
    if call.key.shape != key.shape:  # rows of the value's batch are not those of a call without it
        return None
    grad = _draw(call.rows.lse.shape).astype(_type_of(given.get("lse")))
    found = given["lse_gradients"](grad)
    wide = grad.astype(np.float64)
    truth = attention_gradients(query, key, None, grad_lse=wide, wanted=("query", "key"), **call.options)
    return _judged("lse_gradients", found, truth, call, _slips_of_scores(call, call.rows.p * wide[..., None]))


def _draw(shape: tuple[int, ...]) -> Array:
    """Normal numbers that every float type holds exactly."""
    drawn = np.random.default_rng([64, *shape]).standard_normal(shape, np.float32)
    return (drawn.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def _type_of(array: Any) -> Any:
    """The type in which an engine gets a gradient: that of its own result."""
    if array is None or isinstance(array, tuple):
        return np.float64
    found = read_numbers("the output", array).dtype
    return np.float64 if found.kind in "iu" else found


_Slip = tuple[str, dict[str, Any]]


def _judged(name: str, found: Any, truth: Any, call: Judged, slips: Iterator[_Slip]) -> StatisticOutcome:
    """The outcome over all inputs; a slip is named with the inputs that have it."""
    given = dict(zip(("query", "key", "value"), found, strict=False))
    arrays = {
        n: read_numbers(f"gradient of {n}", x).astype(np.float64) for n, x in given.items() if x is not None
    }
    right = {n: np.asarray(getattr(truth, n)) for n in arrays if getattr(truth, n) is not None}
    allowed, errors = _ROOM * call.allowed, {}
    for each, wanted in right.items():
        fits = arrays[each].shape == wanted.shape
        errors[each] = difference(arrays[each], wanted) if fits else math.inf
    wrong = [each for each, error in errors.items() if error > allowed]
    worst = max(errors.values(), default=math.nan)
    if not wrong:
        return StatisticOutcome(name, "right", worst, "")
    if {"query", "key"} <= set(wrong) and _exchanged(arrays, right, allowed):
        return StatisticOutcome(name, "wrong", worst, "gradients of query and key are exchanged")
    known = list(slips)
    says: dict[str, list[str]] = {}
    for each in wrong:
        says.setdefault(_named(arrays[each], right[each], each, known, allowed), []).append(each)
    said = "; ".join(f"gradient of {' and '.join(names)}: {slip}" for slip, names in says.items())
    return StatisticOutcome(name, "wrong", worst, said)


def _exchanged(found: Mapping[str, Array], right: Mapping[str, Array], allowed: float) -> bool:
    pairs = ((found["query"], right["key"]), (found["key"], right["query"]))
    return all(a.shape == b.shape and difference(a, b) <= allowed for a, b in pairs)


def _named(found: Array, right: Array, name: str, known: list[_Slip], allowed: float) -> str:
    """The slip behind the gradient of one input."""
    if found.shape == right.shape:
        if not found.any():
            return "0"
        if difference(found, -right) <= allowed:
            return "the sign is reversed"
    for says, wrong in known:
        each = wrong.get(name)
        if each is not None and each.shape == found.shape and difference(found, each) <= allowed:
            return says
    if found.shape != right.shape:
        return f"shape {found.shape} in place of {right.shape}"
    return "NaN" if np.isnan(found).any() else "not explained"


def _slips_of_output(call: Judged, grad: Array) -> Iterator[_Slip]:
    """Gradients by the output under typical slips, by name of the input."""
    query, key, value = call.arrays
    layout = call.options.get("layout", "bhsd")
    with np.errstate(all="ignore"):
        rows = reference.attention_gradients(query, key, value, grad, **call.options)
    g, p = _heads_first(grad, layout), call.rows.p
    v = _repeated(_heads_first(value, layout), _heads_first(query, layout), call)
    dp = np.where(call.seen, np.einsum("...ic,...jc->...ij", g, v), 0)
    yield from _slips_of_scores(call, rows.attn_mask)
    for says, wrong in _slips_of_scores(call, p * dp):
        if says == "":
            yield "the mean of the row is not subtracted", wrong
    whole = np.einsum("...ij,...ic->...jc", p, g)
    yield from ((says, {"value": each}) for says, each in _unsummed(whole, value, layout))
    yield "the scale is applied", {"value": _summed(whole * call.parts.scale, value, layout)}


def _slips_of_scores(call: Judged, of_scores: Array) -> Iterator[_Slip]:
    """Gradients of query and key from that of each score; the right ones have the name ""."""
    if call.options.get("qk_norm") is not None:
        return
    query, key, _ = call.arrays
    layout, parts = call.options.get("layout", "bhsd"), call.parts
    q, cap = _heads_first(query, layout), call.options.get("softcap")
    k = _repeated(_heads_first(key, layout), q, call)
    slope = 1.0
    if cap is not None:
        slope = 1 / np.cosh(parts.product * parts.factor * parts.scale / cap) ** 2
    x = np.where(call.seen, of_scores, 0) * parts.factor
    every = {
        "": x * slope * parts.scale,
        "the scale is missing": x * slope,
        "the scale is applied twice": x * slope * parts.scale**2,
        "the derivative of the soft-cap is missing": x * parts.scale,
    }
    for says, each in every.items():
        of_query = np.einsum("...ij,...jc->...ic", each, k)
        of_key = np.einsum("...ij,...ic->...jc", each, q)
        yield says, {"query": _summed(of_query, query, layout), "key": _summed(of_key, key, layout)}
        if says == "":
            yield from ((slip, {"key": wrong}) for slip, wrong in _unsummed(of_key, key, layout))


def _unsummed(whole: Array, array: Array, layout: str) -> Iterator[tuple[str, Array]]:
    """Gradients of an array whose heads are shared, from those of the heads that share them."""
    own = _heads_first(array, layout)
    if own.ndim < 3 or own.shape[-3] == whole.shape[-3]:
        return
    yield "not summed over the heads that share it", _heads_first(whole, layout)
    heads, groups = own.shape[-3], whole.shape[-3] // own.shape[-3]
    split = whole.reshape(*whole.shape[:-3], heads, groups, *whole.shape[-2:])
    yield "of the first head that shares it alone", _summed(split[..., 0, :, :], array, layout)
    yield "of the last head that shares it alone", _summed(split[..., -1, :, :], array, layout)
    yield "the mean over the heads that share it", _summed(split.mean(-3), array, layout)
    tiled = whole.reshape(*whole.shape[:-3], groups, heads, *whole.shape[-2:]).sum(-4)
    yield "summed over other heads than those that share it", _summed(tiled, array, layout)


def _heads_first(array: Array, layout: str) -> Array:
    return array.swapaxes(-2, -3) if layout == "bshd" and array.ndim > 2 else array


def _repeated(array: Array, query: Array, call: Judged) -> Array:
    """Shared key or value heads, repeated for each head of the query."""
    if not call.options.get("enable_gqa") or array.ndim < 3:
        return array
    return np.repeat(array, query.shape[-3] // array.shape[-3], axis=-3)


def _summed(gradient: Array, array: Array, layout: str) -> Array:
    """A gradient summed over the axes along which its array was repeated, in the layout of the array."""
    shape = _heads_first(array, layout).shape
    gradient = gradient.sum(tuple(range(gradient.ndim - len(shape))))
    for axis in range(len(shape) - 2):
        n, m = shape[axis], gradient.shape[axis]
        if n != m:
            split = (*gradient.shape[:axis], n, m // n, *gradient.shape[axis + 1 :])
            gradient = gradient.reshape(split).sum(axis + 1)
    return _heads_first(gradient, layout)
