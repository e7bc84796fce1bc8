# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of the variants; for those of linear time without an n x n matrix and without a state per row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .._base.checks import fit_to, meant, shown
from .._call.arrays import Extents, Inputs, laid_out, shape_in
from .._call.plan import read_num_threads
from .._core import linear_gradient
from ..exact.forward import attention_statistics
from ..exact.gradients import attention_gradients
from ..exact.results import describe_arrays
from ._arrays import Whole, common_type, floats, offset_of, read_layout, read_whole, wide_type, widened
from ._composed import differential_attention, read_lam
from ._efficient import efficient_attention, efficient_form
from ._linear import (
    SSD_FORM,
    cosformer_attention,
    cosformer_form,
    decay_of,
    given_features,
    linear_attention,
    read_map,
    ssd,
)
from ._linear_form import LinearForm, LinearGradientCall
from ._performer import performer_attention, performer_form
from ._relay import relay_attention

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Pair = tuple[NDArray[Any], NDArray[Any]]

_SHARED = ("is_causal", "causal", "enable_gqa", "layout", "num_threads")


@dataclass(frozen=True, eq=False, repr=False)
class VariantGradients:
    """Gradients of sum(grad_output * output), each with its input's shape and type; None: no such input.

    Attributes
    ----------
    query, key, value : ndarray
        For :func:`differential_attention`, query and key are pairs. If ``feature_map`` holds gradients of
        features they are None: nothing else depends on them.
    log_decay : ndarray
        For :func:`ssd`.
    feature_map : tuple of two ndarrays
        For the features of query and key, if these were given as arrays.
    lam : ndarray
        For :func:`differential_attention`.
    """

    query: NDArray[Any] | tuple[NDArray[Any], NDArray[Any]] | None
    key: NDArray[Any] | tuple[NDArray[Any], NDArray[Any]] | None
    value: NDArray[Any] | None
    log_decay: NDArray[Any] | None = None
    feature_map: tuple[NDArray[Any], NDArray[Any]] | None = None
    lam: NDArray[Any] | None = None

    def __repr__(self) -> str:
        return describe_arrays(self)


def gradients(
    variant: str | Callable[..., Any],
    query: ArrayLike,
    key: ArrayLike,
    value: ArrayLike,
    grad_output: ArrayLike,
    **options: Any,
) -> VariantGradients:
    """Gradients of a variant, in its time and memory.

    Parameters
    ----------
    variant : str or callable
        ``efficient_attention``, ``linear_attention``, ``cosformer_attention``, ``performer_attention``,
        ``ssd``, ``relay_attention`` or ``differential_attention``, or its name.
    query, key, value : array_like
        As for the function. For relay_attention x, centres and value, which may be None; for
        differential_attention query and key are pairs.
    grad_output : array_like
        The gradient of a loss by the output; broadcasts to the output's shape.
    **options
        Options of the function. A projection, and the features of a feature_map that is not a name, must be
        arrays.

    Returns
    -------
    VariantGradients
        Summed over heads that share an input. A row that sees no key, and a key that no row sees, have
        gradient 0.

    Raises
    ------
    TypeError, ValueError
        If the function does not have an option, or an argument has no gradient; else as the function.

    See Also
    --------
    attnscale.attention_gradients : of softmax attention.

    Notes
    -----
    With w_i the features of a query over the divisor of its output y_i, and g_i the gradient of y_i, the
    gradients of keys and values read the sums over later queries of w_i g_i^T and of w_i (g_i . y_i), as
    outputs read the sums over earlier keys: a pass over keys, one over queries and one back over keys, each
    in blocks (Katharopoulos et al. 2020, arXiv 2006.16236, section 3.3.1; with decays Dao and Gu 2024, arXiv
    2405.21060). The gradient of a log-decay is the sum of all terms that pass it, without a difference. A
    head whose products do not fit float32 is computed in float64, like its output. Results are the same bits
    for any number of threads.

    Examples
    --------
    A step along the gradient changes the output as predicted:

    >>> import numpy as np, attnscale as at
    >>> q, k, v, g = np.random.default_rng(0).standard_normal((4, 2, 100, 8))
    >>> found = at.variants.gradients("linear_attention", q, k, v, g, is_causal=True)
    >>> change = sum(
    ...     s * (g * at.variants.linear_attention(q + s * 1e-6 * found.query, k, v, is_causal=True)).sum()
    ...     for s in (1, -1)
    ... )
    >>> bool(np.isclose(change / 2e-6, np.square(found.query).sum()))
    True
    """
    name, function = _read_variant(variant)
    own = _own_options(name, function, options)
    if function is relay_attention:
        return _of_relay(query, key, value, grad_output, **options)
    if value is None:
        raise TypeError("value must be an array, got None")
    if function is differential_attention:
        return _of_differential(query, key, value, grad_output, **options)
    return _of_sums(name, (query, key, value, grad_output), own, options)


def _of_sums(
    name: str, given: tuple[Any, Any, Any, Any], own: dict[str, Any], options: dict[str, Any]
) -> VariantGradients:
    """Gradients of a family of linear time; `own` holds the options that only some families have."""
    query, key, value, grad_output = given
    pair = own.get("feature_map") if isinstance(own.get("feature_map"), tuple) else None
    rows = [query, key] if pair is None else given_features(pair, query, key)
    layout = read_layout(options.get("layout", "bhsd"))
    inputs = read_whole(rows[0], rows[1], value, layout, enable_gqa=options.get("enable_gqa", False))
    extents, order = inputs.extents, (options.get("is_causal", False), options.get("causal"))
    offset = 0 if name == "ssd" else offset_of(extents, *order)
    form = form_of(name, extents, own, offset)
    decay = None if name != "ssd" else decay_of(extents, own)
    arrays = [_Gradient(x, inputs, layout) for x in (inputs.query, inputs.key, inputs.value)]
    changed = None if decay is None else np.empty((*inputs.leading, decay.shape[-1]))
    linear_gradient(
        LinearGradientCall(
            form,
            query=inputs.query,
            key=inputs.key,
            value=inputs.value,
            grad=laid_out(_grad(grad_output, inputs, layout), layout),
            query_out=arrays[0].heads,
            key_out=arrays[1].heads,
            value_out=arrays[2].heads,
            offset=offset,
            query_turn=form.turn(offset or 0, inputs.query.shape[-2]),
            key_turn=form.turn(0, inputs.key.shape[-2]),
            decay=decay,
            decay_out=changed,
            num_threads=read_num_threads(options.get("num_threads")),
        )
    )
    first, second, third = (each.result() for each in arrays)
    if pair is not None:
        return VariantGradients(None, None, third, feature_map=(first, second))
    log_decay = None if changed is None else _of_log_decay(changed, own["log_decay"])
    return VariantGradients(first, second, third, log_decay=log_decay)


def _of_relay(
    x: Any, centres: Any, value: Any, grad_output: Any, *, num_threads: int | None = None
) -> VariantGradients:
    given = x if value is None else value
    grad = _grad(grad_output, read_whole(centres, x, given, "bhsd", enable_gqa=False), "bhsd", "the nodes")
    found = attention_gradients(centres, x, given, grad, scale=1.0, num_threads=num_threads)
    by_x = found.key if value is not None else _added(found.key, found.value)
    return VariantGradients(by_x, found.query, None if value is None else found.value)


def _of_differential(
    query: Any, key: Any, value: Any, grad_output: Any, *, lam: Any, **options: Any
) -> VariantGradients:
    """Gradients of differential_attention by the queries and keys of both maps, value and lam."""
    pairs = [_pair(name, pair) for name, pair in (("query", query), ("key", key))]
    layout, gqa = read_layout(options.get("layout", "bhsd")), options.get("enable_gqa", False)
    v = floats("value", value)
    inputs = read_whole(pairs[0][0], pairs[1][0], v, layout, enable_gqa=gqa)
    share = read_lam(lam, inputs.row_shape)
    grad, wide = widened(_grad(grad_output, inputs, layout), v)
    one = attention_gradients(pairs[0][0], pairs[1][0], wide, grad, **options)
    second = pairs[0][1], pairs[1][1], wide
    seen = attention_statistics(*second, statistics=("lse",), **options)
    assert seen.output is not None
    with np.errstate(all="ignore"):  # overflow shows as infinity or NaN in the gradients
        by_lam = -(laid_out(grad, layout).astype(np.float64) * laid_out(seen.output, layout)).sum(-1)
        scaled = -(grad * laid_out(share.astype(grad.dtype), layout))
        two = attention_gradients(*second, scaled, forward=seen, **options)
        by_value = _added(one.value, two.value).astype(v.dtype, copy=False)
        shape = np.shape(lam)
        of_query, of_key = cast("tuple[Pair, Pair]", ((one.query, two.query), (one.key, two.key)))
        return VariantGradients(of_query, of_key, by_value, lam=_sum_to(by_lam, shape))


def _pair(name: str, pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ValueError(f"{name} must be a pair of arrays, of both maps, got {shown(pair)}")
    return pair[0], pair[1]


def _grad(grad_output: Any, inputs: Whole, layout: str, what: str = "the output") -> NDArray[Any]:
    """`grad_output`, checked and broadcast to `what`, in its layout."""
    shape = shape_in(layout, (*inputs.row_shape, inputs.value.shape[-1]))
    return np.broadcast_to(fit_to("grad_output", floats("grad_output", grad_output), shape, what), shape)


def _added(one: NDArray[Any] | None, two: NDArray[Any] | None) -> NDArray[Any]:
    assert one is not None
    assert two is not None
    total: NDArray[Any] = np.add(one, two, dtype=common_type(one, two))
    return total


def _sum_to(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Sum over the axes that were broadcast, or repeated in groups, from `shape`."""
    wanted = shape[max(len(shape) - array.ndim, 0) :]
    wanted = (1,) * (array.ndim - len(wanted)) + wanted
    split = [
        n
        for have, want in zip(array.shape, wanted, strict=True)
        for n in ((want, 1) if have == want else (want, have // want))
    ]
    summed: NDArray[Any] = array.reshape(split).sum(axis=tuple(range(1, 2 * array.ndim, 2)))
    return summed.reshape(shape)


_FUNCTIONS = {
    function.__name__: function
    for function in (
        efficient_attention,
        linear_attention,
        cosformer_attention,
        performer_attention,
        ssd,
        relay_attention,
        differential_attention,
    )
}


def form_of(name: str, extents: Extents, own: dict[str, Any], offset: int | None) -> LinearForm:
    """The form of a family of linear time by name and own options; query i has the position i + offset."""
    feature_map = own.get("feature_map", "elu")
    if isinstance(feature_map, tuple):
        return LinearForm("given")
    if callable(feature_map):
        raise ValueError(
            "a callable feature_map has no gradient: give the features of query and key as a pair of arrays, "
            f"got {shown(feature_map)}"
        )
    if name == "performer_attention":
        if own.get("projection") is None:
            raise ValueError(
                "random directions that are not given as projection have no gradient: "
                "a call would draw others than the output's"
            )
        return performer_form(extents.head_dim, **{"features": None, "scale": None, "rng": None, **own})
    if name == "efficient_attention":
        return efficient_form(**own)
    if name == "cosformer_attention":
        return cosformer_form(extents, own["max_length"], offset)
    return SSD_FORM if name == "ssd" else read_map(feature_map)


def _read_variant(variant: Any) -> tuple[str, Callable[..., Any]]:
    name = variant if isinstance(variant, str) else getattr(variant, "__name__", None)
    function = _FUNCTIONS.get(name) if isinstance(name, str) else None
    if function is None or (callable(variant) and variant is not function):
        raise ValueError(
            f"variant must be one that has a gradient here, of {', '.join(_FUNCTIONS)} (or the function), "
            f"got {shown(variant)}"
        )
    return function.__name__, function


def _own_options(name: str, function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    allowed = {n: p for n, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}
    takes_more = "options" in inspect.signature(function).parameters
    if function is ssd:
        allowed["log_decay"] = inspect.signature(function).parameters["log_decay"]
    for option in options:
        if option not in allowed and not takes_more:
            raise TypeError(f"{meant(option, [*allowed])}{name} has no option {option!r}")
    for parameter in allowed.values():
        if parameter.default is parameter.empty and parameter.name not in options:
            raise TypeError(f"{name} needs the option {parameter.name!r}")
    return {option: value for option, value in options.items() if option not in _SHARED}


class _Gradient:
    """Memory for the gradient of an input; each head writes its own, also if heads share the input."""

    def __init__(self, array: NDArray[Any], inputs: Inputs, layout: str) -> None:
        self._shape, self._dtype, self._layout = array.shape, array.dtype, layout
        self._shared = array.shape[:-2] != inputs.leading
        shape = (*inputs.leading, *array.shape[-2:])
        if self._shared:
            self.heads = np.empty(shape, wide_type(inputs.dtype))
        else:
            self._result = np.empty(shape_in(layout, shape), array.dtype)
            self.heads = laid_out(self._result, layout)

    def result(self) -> NDArray[Any]:
        """The gradient in the layout and type of the input, summed over the heads that share it."""
        if not self._shared:
            return self._result
        with np.errstate(all="ignore"):
            summed = _sum_to(self.heads, self._shape).astype(self._dtype, copy=False)
        return laid_out(summed, self._layout)


def _of_log_decay(changed: NDArray[np.float64], log_decay: Any) -> NDArray[Any]:
    array = np.asarray(log_decay)
    with np.errstate(all="ignore"):
        summed = _sum_to(changed, array.shape)
    return summed.astype(array.dtype, copy=False) if array.dtype.kind == "f" else summed
