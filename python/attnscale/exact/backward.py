# SPDX-License-Identifier: BSD-3-Clause
"""The backward pass of a call: its inputs, and the gradients of the caller's arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._base.checks import as_array, fit_to, shown, sum_over_repeats
from .._base.statistics import COUNTS, DIFFERENTIABLE
from .._call.arrays import ARRAY, FLOAT32, FLOAT64, in_native_order, is_float_type, laid_out, shape_in
from .._call.distance import PRODUCTS, law_factor, matrix_of
from .._call.rows import shows
from .._call.weights import normalizer_of
from .._core import pull_back_rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._call.call import Call
    from ..normalizers import Normalizer
    from .results import AttentionStatistics

#: Statistics of a forward pass that the backward pass can reuse.
_OF_USE = (*(name for name in DIFFERENTIABLE if name not in ("max_score", "renyi2")), "argmax")


class RawGradients(NamedTuple):
    """Gradients in the type of the arithmetic, (..., heads, n, dim) like the arrays of the call."""

    query: NDArray[Any]
    key: NDArray[Any]
    value: NDArray[Any] | None
    scale: NDArray[np.float64]  # of each row
    sink: NDArray[np.float64] | None  # of each row
    attn_mask: NDArray[Any] | None
    distance_scale: NDArray[Any] | None  # of each distance, as call.form
    distance_bias: NDArray[Any] | None
    bias: NDArray[np.float64] | None  # of a sigmoid, of each row
    alpha: NDArray[np.float64] | None  # of entmax, each row's share


def _read_cotangents(call: Call, given: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """The given gradients of statistics, one number a row in the type of the arithmetic."""
    found = {}
    for name, rows in given.items():
        if rows is None:
            continue
        array = as_array(f"grad_{name}", rows)
        if array.dtype.kind not in "iuf" and not is_float_type(array.dtype):
            raise TypeError(f"grad_{name} must be numbers, got {shown(rows)}")
        fitted = fit_to(f"grad_{name}", array, call.row_shape, "(..., heads, n_queries)")
        found[name] = _rows(fitted, call)
    return found


def pull_back(
    call: Call,
    grad_output: Any,
    of_rows: dict[str, Any],
    forward: AttentionStatistics | None,
    wanted: tuple[str, ...],
) -> dict[str, Any]:
    """The wanted fields of :class:`attnscale.AttentionGradients` that the call has."""
    normalizer, cotangents = normalizer_of(call.options), _read_cotangents(call, of_rows)
    if grad_output is None and not cotangents:
        raise ValueError("grad_output or the gradient of a statistic must be given, got none of them")
    _refuse_without_gradient(normalizer, cotangents)
    raw = _differentiate_call(call, normalizer, grad_output, cotangents, forward, wanted)
    with np.errstate(all="ignore"):  # gradients show infinities and NaN
        found = _as_given(call, raw, normalizer)
    found |= {
        name: _table_gradient(name, call.options[name], getattr(raw, name), call)
        for name in ("distance_scale", "distance_bias")
        if call.options.get(name) is not None and name in wanted
    }
    return {name: each for name, each in found.items() if name in wanted}


def _differentiate_call(
    call: Call,
    normalizer: Normalizer | None,
    grad_output: Any,
    cotangents: dict[str, NDArray[Any]],
    forward: AttentionStatistics | None,
    wanted: tuple[str, ...],
) -> RawGradients:
    """Gradients of a call; fields of `forward` are not computed again."""
    grad = None if grad_output is None else _read_grad_output(call, grad_output)
    saved = {} if forward is None else _read_forward(call, forward, with_output=grad is not None)

    def run(saved: dict[str, NDArray[Any]], scale: Any) -> RawGradients:
        return _differentiate(call, normalizer, grad, saved, cotangents, scale, wanted)

    found = run(saved, call.scale)
    if normalizer is None:
        return found
    given = tuple(x for x in (found.scale, found.query, found.key, found.value) if x is not None)
    powers = powers_of_small_sums(call, normalizer, given)
    if powers is None:
        return found
    # The saved statistics have lost digits where scores are denormal, so they are not used here.
    again = run({}, np.ldexp(np.broadcast_to(call.scale, powers.shape), powers))
    own = found._replace(query=again.query, key=again.key, value=again.value)
    return own._replace(scale=np.ldexp(again.scale, powers), distance_scale=again.distance_scale)


def _differentiate(
    call: Call,
    normalizer: Normalizer | None,
    grad: NDArray[Any] | None,
    saved: dict[str, NDArray[Any]],
    cotangents: dict[str, NDArray[Any]],
    scales: Any,
    wanted: tuple[str, ...],
) -> RawGradients:
    """Gradients of the call with these scales instead of its own."""
    inputs, form = call.inputs, call.form
    rule = None if normalizer is None else normalizer._rule(call)
    value = None if grad is None else inputs.value
    query, key, d_value = _zeros(inputs.query, call), _zeros(inputs.key, call), _zeros(value, call)
    into: dict[str, NDArray[Any] | None] = {"query": query, "key": key, "value": d_value}
    mask = factor = offset = bias = alpha = None
    if call.mask is not None and "attn_mask" in wanted and call.mask.dtype != np.bool_:
        into["attn_mask"] = mask = np.zeros(call.mask.shape, _arithmetic(call))
    if form is not PRODUCTS:
        factor = _zeros_of_distances(form.distance_scale, call, wanted="distance_scale" in wanted)
        offset = _zeros_of_distances(form.distance_bias, call, wanted="distance_bias" in wanted)
        into |= {
            "distance_scale": matrix_of(factor, call.extents),
            "distance_bias": matrix_of(offset, call.extents),
        }
    if rule is not None and rule.kind == "sigmoid" and "bias" in wanted:
        into["bias"] = bias = np.zeros(call.row_shape)
    if getattr(normalizer, "alpha", None) is not None and "alpha" in wanted:
        into["alpha"] = alpha = np.zeros(call.row_shape)
    scale, sink = call.core.gradients(value, grad, into, saved, cotangents, scales, rule)
    if not np.isfinite(scale).all():  # also 0 for a query that holds a NaN and sees no key
        scale[np.broadcast_to(call.visible_keys() == 0, scale.shape)] = 0
    return RawGradients(query, key, d_value, scale, sink, mask, factor, offset, bias, alpha)


def receive(
    call: Call, normalizer: Normalizer | None, forward: AttentionStatistics | None, *, largest: bool
) -> NDArray[np.float64]:
    """Sum or largest of the weights that each key gets from the queries, (..., heads, n_keys).

    The gradients' pass recomputes the weights; statistics of `forward` are reused.
    """
    saved = {} if forward is None else _read_forward(call, forward, with_output=False)
    rule = None if normalizer is None else normalizer._rule(call)
    shape = (*call.inputs.leading, call.inputs.key.shape[-2])

    def run(saved: dict[str, NDArray[Any]], scale: Any) -> NDArray[np.float64]:
        found = np.zeros(shape)
        into: dict[str, NDArray[Any] | None] = {"most_received" if largest else "received": found}
        call.core.gradients(None, None, into, saved, {}, scale, rule)
        return found

    found = run(saved, call.scale)
    if normalizer is None:
        return found
    powers = powers_of_small_sums(call, normalizer, (np.full(call.row_shape, found.sum()),))
    return found if powers is None else run({}, np.ldexp(np.broadcast_to(call.scale, powers.shape), powers))


def law_gradients(rows: NDArray[np.float64], call: Call) -> dict[str, NDArray[np.float64]] | None:
    """Gradients of a law's parameters from those of the scales of rows, (..., heads, n_queries).

    A number for each parameter, or one a head for a parameter per head. None if the scale is not a law of the
    row.
    """
    if call.law is None or call.counts is None:
        return None
    found = {}
    for name, derivative in call.law.derivatives(call.counts, call.head_dim).items():
        given = call.law.parameter(name)
        shape = (len(given), 1) if isinstance(given, tuple) else ()
        found[name] = sum_over_repeats(rows * derivative, shape).reshape(shape[:1])
    return found


def _table_gradient(name: str, table: Any, gradient: NDArray[Any] | None, call: Call) -> NDArray[np.float64]:
    """The gradient of a table, or of a function's numbers, from that at each distance, (..., n_distances).

    The gradient at each distance is None if there are no pairs.
    """
    distances = call.intervals.distances()
    if gradient is None:
        return np.zeros(np.shape(table(distances) if callable(table) else as_array(name, table)))
    gradient = gradient.astype(np.float64)
    if call.law is not None and call.law.meaning.is_distance and name == "distance_scale":
        gradient *= law_factor(call.law, distances, call.head_dim)
    if callable(table):
        return sum_over_repeats(gradient, np.shape(table(distances)))
    shape = np.shape(as_array(name, table))
    steps = np.broadcast_to(np.minimum(np.abs(distances), max(shape[-1] - 1, 0)), gradient.shape)
    found = np.zeros((*gradient.shape[:-1], shape[-1]))
    for lead in np.ndindex(gradient.shape[:-1]):
        if shape[-1]:
            found[lead] = np.bincount(steps[lead], gradient[lead], shape[-1])
    return sum_over_repeats(found, shape)


def _arithmetic(call: Call) -> np.dtype[Any]:
    dtype = call.inputs.dtype
    return FLOAT64 if dtype is not FLOAT32 and dtype == FLOAT64 else FLOAT32  # `is` settles most calls


def _rows(array: NDArray[Any], call: Call) -> NDArray[Any]:
    if array.shape == call.row_shape and array.dtype is _arithmetic(call) and array.flags.c_contiguous:
        return array
    return np.ascontiguousarray(np.broadcast_to(array, call.row_shape), _arithmetic(call))


def _zeros(array: NDArray[Any] | None, call: Call) -> Any:
    """Zeros of the shape of an array, laid out as the layout orders it; None for None."""
    if array is None:
        return None
    if call.layout != "bshd":
        return np.zeros(array.shape, _arithmetic(call))
    return laid_out(np.zeros(shape_in(call.layout, array.shape), _arithmetic(call)), call.layout)


def _zeros_of_distances(table: NDArray[Any] | None, call: Call, *, wanted: bool) -> NDArray[Any] | None:
    """A zero for each distance of a table of the form; None if there is no table or it is not wanted."""
    if table is None or not wanted:
        return None
    return np.zeros((*table.shape[:-2], table.shape[-2] + table.shape[-1] - 1), _arithmetic(call))


def _output_shape(call: Call) -> tuple[int, ...]:
    """Shape of the output in the caller's layout."""
    assert call.inputs.value is not None
    return shape_in(call.layout, (*call.row_shape, call.inputs.value.shape[-1]))


def _read_output(name: str, value: Any, call: Call) -> NDArray[Any]:
    array = value if type(value) is ARRAY else as_array(name, value)
    array = array if array.dtype is FLOAT32 else in_native_order(name, array)
    if array.shape != (shape := _output_shape(call)):
        raise ValueError(f"{name} must have the shape of the output, {shape}, got {array.shape}")
    return laid_out(array, call.layout)


def _read_grad_output(call: Call, grad_output: Any) -> NDArray[Any]:
    if call.inputs.value is None:
        raise ValueError("grad_output needs a value, got value=None")
    return _read_output("grad_output", grad_output, call)


def _read_forward(call: Call, forward: AttentionStatistics, *, with_output: bool) -> dict[str, NDArray[Any]]:
    """The fields of a forward pass that a backward pass can reuse."""
    saved = {}
    there, row_shape = vars(forward), call.row_shape  # an absent field would raise
    for name in _OF_USE:
        if (rows := there.get(name)) is None:
            continue
        array = np.asarray(rows)
        if array.shape != row_shape:
            raise ValueError(
                f"forward must be of the same call, with rows {row_shape}, got {name} {array.shape}"
            )
        saved[name] = np.ascontiguousarray(array, np.int64) if name in COUNTS else _rows(array, call)
    if with_output and forward.output is not None:
        saved["output"] = _read_output("forward.output", forward.output, call)
    return saved


def _refuse_without_gradient(found: Normalizer | None, cotangents: dict[str, Any]) -> None:
    if found is None or not cotangents:
        return
    from ..normalizers import Sink, SoftmaxN

    if not isinstance(found, SoftmaxN) and found.name != Sink.name:
        raise ValueError(
            f"rows of {found!r} have the gradient of the output alone here, got grad_{next(iter(cotangents))}"
        )


def _as_given(call: Call, raw: RawGradients, found: Normalizer | None) -> dict[str, Any]:
    """The existing gradients, in the types, shapes and layout of the caller's arrays."""
    query, key, value, _ = call.given
    scale, qk_norm = call.options.get("scale"), call.options.get("qk_norm")
    d_query, d_key = raw.query, raw.key
    if qk_norm is not None:
        d_query, d_key = np.ascontiguousarray(d_query), np.ascontiguousarray(d_key)
        pull_back_rows(query, qk_norm, d_query)
        pull_back_rows(key, qk_norm, d_key)
    given: dict[str, Any] = {"query": _typed(call, d_query, query), "key": _typed(call, d_key, key)}
    if raw.value is not None and value is not None:
        given["value"] = _typed(call, raw.value, value)
    if scale is not None:
        given["scale"] = _of_scale(call, raw.scale, scale)
        given["law"] = law_gradients(raw.scale, call)
    if raw.attn_mask is not None and call.mask is not None:
        given["attn_mask"] = raw.attn_mask.astype(call.mask.dtype)
    if found is not None:
        given["sink"] = _of_sink(raw.sink, found)
        given["bias"] = of_numbers(raw.bias, getattr(found, "bias", None))
        given["alpha"] = of_numbers(raw.alpha, getattr(found, "alpha", None))
    return given


def _typed(call: Call, gradient: NDArray[Any], array: NDArray[Any]) -> NDArray[Any]:
    if gradient.dtype is not array.dtype:
        gradient = gradient.astype(array.dtype, copy=False)
    return laid_out(gradient, call.layout)


def _of_scale(call: Call, rows: NDArray[np.float64], scale: Any) -> NDArray[Any] | None:
    if call.law is not None and call.law.meaning.is_distance:
        return None
    gradient = sum_over_repeats(rows, np.shape(call.scale))
    dtype = getattr(scale, "dtype", None)
    return gradient.astype(dtype) if isinstance(dtype, np.dtype) and dtype.kind == "f" else gradient


def _of_sink(rows: NDArray[np.float64] | None, found: Any) -> NDArray[np.float64] | None:
    """Gradient of a sink's logits, 0 without rows; None if the normalizer has no sink."""
    from ..normalizers import Sink, SoftmaxN

    logits = getattr(found, "logits", 0.0)
    if rows is None:
        return np.zeros(np.shape(logits)) if isinstance(found, (Sink, SoftmaxN)) else None
    return of_numbers(rows, logits)


def of_numbers(rows: NDArray[np.float64] | None, given: Any) -> NDArray[np.float64] | None:
    """Gradient of a normalizer's numbers: one for all, a head or a row (attnscale.torch)."""
    if rows is None or given is None:
        return None
    shape = np.shape(given)
    if len(shape) > 1:  # one a row
        return sum_over_repeats(rows, shape)
    heads = np.atleast_1d(rows.sum(-1))  # a query without heads may come with one number too
    return sum_over_repeats(heads, shape) if shape else np.asarray(heads.sum())


# ---- rows whose sum has no inverse in the type -----------------------------------------------------

#: Target magnitude of a row, as a power of two, by when a factor keeps its weights: for the sum of |e^s - 1|,
#: so small that e^s - 1 is s in float64; for the largest score, so that its square and the inverse fit
#: float32.
_SUM, _LARGEST = -62, -40
_TARGETS = {"while small": _SUM, "always": _LARGEST, "never": None}
#: Rows within this many powers of two of the target are left alone.
_FAR = 10
#: A soft-cap this many powers of two above the scaled scores changes none of their digits.
_BELOW_CAP = 31


def powers_of_small_sums(
    call: Call, normalizer: Normalizer | None, gradients: tuple[NDArray[Any], ...]
) -> NDArray[np.int64] | None:
    """The power of two for the scale of each row, mostly 0; None if no row needs one.

    Some normalizers give the same weights when all scores of a row are multiplied by one number: max(s, 0)^p
    over its sum always does; max(e^s - 1, 0) over the sum of |e^s - 1| does while the scores are so small
    that e^s - 1 equals s. The gradients of query, key and value then stay the same, and that of the row's
    scale is multiplied by the number. So a power of two moves such a row to where its sum has an inverse.
    Rows whose scores have a term besides the scaled product are left alone. `gradients` are those of the
    scale of each row, query, key and value, before scaling.
    """
    target = None if normalizer is None else _TARGETS[normalizer._keeps_weights]
    if normalizer is None or target is None or not _may_be_lost(normalizer, gradients):
        return None
    if 0 < call.form.softcap < 2.0 ** (target + _BELOW_CAP):
        return None
    rows = call.core.attend(None, None, ("max_score", "max_weight"), call.scale, normalizer._rule(call))
    top, weight = (np.asarray(each, np.float64) for each in rows)
    size = np.where(top > 0, top, 1.0)
    if target == _SUM:
        size = size / np.where(weight > 0, weight, 1.0)  # the sum of absolute values
    powers = np.where(np.isfinite(size), target - np.frexp(size)[1], 0)
    # Rows of very large scores are scaled down in the same way.
    proportional = call.form.softcap == 0 and target == _LARGEST
    far = (powers > _FAR) | (proportional & (powers < -2 * _FAR))
    powers = np.where((top > 0) & (weight > 0) & far, powers, 0)
    if target == _SUM:  # any factor keeps a row whose weights are all 0
        no_weight = (top <= 0) & ~np.isfinite(gradients[0])
        powers = np.where(no_weight, 960 if call.inputs.dtype == FLOAT64 else 80, powers)
    powers = np.where(_added_to(call), 0, powers)
    return powers.astype(np.int64) if powers.any() else None


def _may_be_lost(normalizer: Normalizer, gradients: tuple[NDArray[Any], ...]) -> bool:
    """Whether a sum may have no inverse: a gradient is not finite, or a row of squares is all 0."""
    if not all(np.isfinite(each).all() for each in gradients):
        return True
    return normalizer.name == "squared_relu" and not bool(gradients[0].all())


def _added_to(call: Call) -> Any:
    """Whether a term is added to the scores, row by row; for all rows at once if a table does."""
    mask, table = call.mask, call.form.distance_bias
    if table is not None and ((table[..., 0, :] != 0).any() or (table[..., 0] != 0).any()):
        return True
    if mask is None or mask.dtype == np.bool_:
        return False
    return ((mask != 0) & shows(mask)).any(-1)
