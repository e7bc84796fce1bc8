# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of the families of linear time, without an n x n matrix and without a state a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import _core
from .._call.arrays import Inputs, read_plain_inputs, swap_heads
from .._call.call import read_num_threads
from .._checks import fit_to, shown
from .._results import describe_arrays
from ._arrays import floats, wide_type
from ._cosformer import cosformer_attention, cosformer_form
from ._efficient import efficient_attention, efficient_form
from ._heads import offset_of, read_layout
from ._linear import given_features, linear_attention, read_map
from ._linear_form import LinearForm
from ._performer import performer_attention, performer_form
from ._ssd import SSD_FORM, read_decay, ssd

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["VariantGradients", "gradients"]

_SHARED = ("is_causal", "causal", "enable_gqa", "layout", "num_threads")


@dataclass(frozen=True, eq=False, repr=False)
class VariantGradients:
    """Gradients of sum(grad_output * output), each of its input's shape and type.

    Attributes
    ----------
    query, key : ndarray
        None where ``feature_map`` holds gradients of their features: nothing else depends on them.
    value : ndarray
    log_decay : ndarray
        Of :func:`ssd`, otherwise None.
    feature_map : tuple of two ndarrays
        Of the features of query and key, where they were given as arrays, otherwise None.
    """

    query: NDArray[Any] | None
    key: NDArray[Any] | None
    value: NDArray[Any]
    log_decay: NDArray[Any] | None = None
    feature_map: tuple[NDArray[Any], NDArray[Any]] | None = None

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
    """Gradients of a family of linear time, in linear time and memory.

    Parameters
    ----------
    variant : {"efficient_attention", "linear_attention", "cosformer_attention", "performer_attention", "ssd"}
        Or the function itself.
    query, key, value : array_like
        As for the function.
    grad_output : array_like
        The gradient of a loss by the output; broadcasts to the output's shape.
    **options
        Those of the function. A projection, and the features of a feature_map that is no name, must be given
        as arrays.

    Returns
    -------
    VariantGradients
        Of what heads share, the sum over them. A row that sees no key, and a key that no row sees, have
        gradient 0.

    Raises
    ------
    TypeError
        An option that the function does not have, or as the function.
    ValueError
        What has no gradient, or as the function.

    Notes
    -----
    With w_i the features of a query over what its output y_i is divided by, and g_i the gradient of y_i, the
    gradients of keys and values read the sums over later queries of w_i g_i^T and of w_i (g_i . y_i), as
    outputs read the sums over earlier keys: a pass over keys, one over queries and one back over keys, each
    in blocks (Katharopoulos et al. 2020, arXiv 2006.16236, section 3.3.1; with decays Dao and Gu 2024, arXiv
    2405.21060). The gradient of a log-decay is the sum of all terms that pass it, without a difference. Where
    float32 does not hold the products, a head is done in float64, as its output is. Results are the same bits
    for any number of threads.

    Examples
    --------
    A step along its gradient changes the output as the gradient says:

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
    name, family = _read_variant(variant)
    own = _own_options(name, family.function, options)
    pair = own.get("feature_map") if isinstance(own.get("feature_map"), tuple) else None
    rows = [query, key] if pair is None else given_features(pair, query, key)
    layout = read_layout(options.get("layout", "bhsd"))
    if value is None:
        raise TypeError("value must be an array, got None")
    inputs = read_plain_inputs(rows[0], rows[1], value, options.get("enable_gqa", False), layout)
    assert inputs.value is not None
    form = LinearForm("given") if pair is not None else family.form(inputs, own)
    decay = None if name != "ssd" else _decay(inputs, own)
    offset = 0 if name == "ssd" else offset_of(inputs, options.get("is_causal", False), options.get("causal"))
    arrays = [_Gradient(x, inputs, layout) for x in (inputs.query, inputs.key, inputs.value)]
    changed = None if decay is None else np.empty((*inputs.leading, decay.shape[-1]))
    _core.linear_gradient(
        inputs.query,
        inputs.key,
        inputs.value,
        _read_grad(grad_output, inputs, layout),
        *(each.heads for each in arrays),
        offset=offset,
        query_turn=form.turn(offset or 0, inputs.query.shape[-2]),
        key_turn=form.turn(0, inputs.key.shape[-2]),
        decay=decay,
        decay_out=changed,
        num_threads=read_num_threads(options.get("num_threads")),
        **form.options(),
    )
    first, second, third = (each.result() for each in arrays)
    if pair is not None:
        return VariantGradients(None, None, third, feature_map=(first, second))
    log_decay = None if changed is None else _of_log_decay(changed, own["log_decay"])
    return VariantGradients(first, second, third, log_decay=log_decay)


class _Family(NamedTuple):
    """A function, and its own options as the core takes them."""

    function: Callable[..., Any]
    form: Callable[[Inputs, dict[str, Any]], LinearForm]


def _of_linear(inputs: Inputs, options: dict[str, Any]) -> LinearForm:
    feature_map = options.get("feature_map", "elu")
    if callable(feature_map):
        raise ValueError(
            "a callable feature_map has no gradient: give the features of query and key as a pair of arrays, "
            f"got {shown(feature_map)}"
        )
    return read_map(feature_map)


def _of_performer(inputs: Inputs, options: dict[str, Any]) -> LinearForm:
    if options.get("projection") is None:
        raise ValueError(
            "random directions that are not given as projection have no gradient: "
            "a call would draw others than the output's"
        )
    return performer_form(inputs.query.shape[-1], **{"features": None, "scale": None, "rng": None, **options})


_FAMILIES = {
    "efficient_attention": _Family(efficient_attention, lambda inputs, o: efficient_form(**o)),
    "linear_attention": _Family(linear_attention, _of_linear),
    "cosformer_attention": _Family(cosformer_attention, lambda inputs, o: cosformer_form(inputs, **o)),
    "performer_attention": _Family(performer_attention, _of_performer),
    "ssd": _Family(ssd, lambda inputs, o: SSD_FORM),
}


def _read_variant(variant: Any) -> tuple[str, _Family]:
    name = variant if isinstance(variant, str) else getattr(variant, "__name__", None)
    family = _FAMILIES.get(name) if isinstance(name, str) else None
    if family is None or (callable(variant) and variant is not family.function):
        raise ValueError(
            f"variant must be one that has a gradient here, of {', '.join(_FAMILIES)} (or the function), "
            f"got {shown(variant)}"
        )
    assert isinstance(name, str)
    return name, family


def _own_options(name: str, function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """The options that only this family has."""
    allowed = list(inspect.signature(function).parameters.values())[3:]
    for option in options:
        if option not in {parameter.name for parameter in allowed}:
            raise TypeError(f"{name} has no option {option!r}")
    for parameter in allowed:
        if parameter.default is parameter.empty and parameter.name not in options:
            raise TypeError(f"{name} needs the option {parameter.name!r}")
    return {option: value for option, value in options.items() if option not in _SHARED}


def _decay(inputs: Inputs, options: dict[str, Any]) -> NDArray[np.float64]:
    n, n_keys = inputs.query.shape[-2], inputs.key.shape[-2]
    if n != n_keys:
        raise ValueError(f"query and key must have the same number of rows, got {n} and {n_keys}")
    return read_decay(options["log_decay"], (*inputs.leading, n))


def _read_grad(grad_output: Any, inputs: Inputs, layout: str) -> NDArray[Any]:
    """(..., heads, n_queries, value_dim)."""
    assert inputs.value is not None
    grad = floats("grad_output", grad_output)
    shape = (*inputs.leading, inputs.query.shape[-2], inputs.value.shape[-1])
    if layout == "bshd" and len(shape) > 2:
        whole = (*shape[:-3], shape[-2], shape[-3], shape[-1])
        return swap_heads(np.broadcast_to(fit_to("grad_output", grad, whole, "the output"), whole))
    return np.broadcast_to(fit_to("grad_output", grad, shape, "the output"), shape)


class _Gradient:
    """Room for the gradient of an input: of every head its own."""

    def __init__(self, array: NDArray[Any] | None, inputs: Inputs, layout: str) -> None:
        assert array is not None
        self._shape, self._dtype, self._swapped = array.shape, array.dtype, layout == "bshd"
        self._shared = array.shape[:-2] != inputs.leading
        shape = (*inputs.leading, *array.shape[-2:])
        if self._shared:
            self.heads = np.empty(shape, wide_type(inputs.dtype))
        else:
            if self._swapped and len(shape) > 2:
                shape = (*shape[:-3], shape[-2], shape[-3], shape[-1])
            self._result = np.empty(shape, array.dtype)
            self.heads = swap_heads(self._result) if self._swapped else self._result

    def result(self) -> NDArray[Any]:
        """As the input lies."""
        if not self._shared:
            return self._result
        with np.errstate(all="ignore"):
            summed = _sum_to(self.heads, self._shape).astype(self._dtype, copy=False)
        return swap_heads(summed) if self._swapped else summed


def _of_log_decay(changed: NDArray[np.float64], log_decay: Any) -> NDArray[Any]:
    array = np.asarray(log_decay)
    shape = array.shape[max(array.ndim - changed.ndim, 0) :]
    with np.errstate(all="ignore"):
        summed = _sum_to(changed, shape).reshape(array.shape)
    return summed.astype(array.dtype, copy=False) if array.dtype.kind == "f" else summed


def _sum_to(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Sums over the axes that were broadcast, or repeated in groups, from `shape`."""
    wanted = (1,) * (array.ndim - len(shape)) + shape
    split = [
        n
        for have, want in zip(array.shape, wanted, strict=True)
        for n in ((want, 1) if have == want else (want, have // want))
    ]
    summed: NDArray[Any] = array.reshape(split).sum(axis=tuple(range(1, 2 * array.ndim, 2)))
    return summed.reshape(shape)
