# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of what is composed of softmax attention: relay nodes, and the difference of two maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .._call.arrays import laid_out, shape_in
from .._checks import fit_to, shown
from .._results import describe_arrays
from ..attention import attention_statistics
from ..gradients import attention_gradients
from ._arrays import common_type, floats, widened
from ._differential import read_lam
from ._heads import read_layout, read_whole

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Pair = tuple[NDArray[Any], NDArray[Any]]


@dataclass(frozen=True, eq=False, repr=False)
class VariantGradients:
    """Gradients of sum(grad_output * output), each of its input's shape and type; None: no such input.

    Attributes
    ----------
    query, key, value : ndarray
        Of :func:`differential_attention`, query and key are pairs. Where ``feature_map`` holds gradients of
        features they are None: nothing else depends on them.
    log_decay : ndarray
        Of :func:`ssd`.
    feature_map : tuple of two ndarrays
        Of the features of query and key, where they were given as arrays.
    lam : ndarray
        Of :func:`differential_attention`.
    """

    query: NDArray[Any] | tuple[NDArray[Any], NDArray[Any]] | None
    key: NDArray[Any] | tuple[NDArray[Any], NDArray[Any]] | None
    value: NDArray[Any] | None
    log_decay: NDArray[Any] | None = None
    feature_map: tuple[NDArray[Any], NDArray[Any]] | None = None
    lam: NDArray[Any] | None = None

    def __repr__(self) -> str:
        return describe_arrays(self)


def relay_gradients(
    x: Any, centres: Any, value: Any, grad_output: Any, *, num_threads: int | None = None
) -> VariantGradients:
    """Gradients of relay_attention by x, centres and value."""
    given = x if value is None else value
    inputs = read_whole(centres, x, given, "bhsd", enable_gqa=False)
    shape = (*inputs.row_shape, inputs.value.shape[-1])
    grad = np.broadcast_to(
        fit_to("grad_output", floats("grad_output", grad_output), shape, "the nodes"), shape
    )
    found = attention_gradients(centres, x, given, grad, scale=1.0, num_threads=num_threads)
    by_x = found.key if value is not None else _added(found.key, found.value)
    return VariantGradients(by_x, found.query, None if value is None else found.value)


def differential_gradients(
    query: Any, key: Any, value: Any, grad_output: Any, *, lam: Any, **options: Any
) -> VariantGradients:
    """Gradients of differential_attention by the queries and keys of both maps, by value and by lam."""
    pairs = [_pair(name, pair) for name, pair in (("query", query), ("key", key))]
    layout, gqa = read_layout(options.get("layout", "bhsd")), options.get("enable_gqa", False)
    v = floats("value", value)
    inputs = read_whole(pairs[0][0], pairs[1][0], v, layout, enable_gqa=gqa)
    share = read_lam(lam, inputs.row_shape)
    grad = _grad(grad_output, (*inputs.row_shape, inputs.value.shape[-1]), layout)
    grad, wide = widened(grad, v)
    one = attention_gradients(pairs[0][0], pairs[1][0], wide, grad, **options)
    second = pairs[0][1], pairs[1][1], wide
    seen = attention_statistics(*second, statistics=("lse",), **options)
    assert seen.output is not None
    with np.errstate(all="ignore"):  # what overflows shows as infinity or NaN in the gradients
        by_lam = -(laid_out(grad, layout).astype(np.float64) * laid_out(seen.output, layout)).sum(-1)
        scaled = -(grad * laid_out(share.astype(grad.dtype), layout))
        two = attention_gradients(*second, scaled, forward=seen, **options)
        by_value = _added(one.value, two.value).astype(v.dtype, copy=False)
        shape = np.shape(lam)
        of_query, of_key = cast("tuple[Pair, Pair]", ((one.query, two.query), (one.key, two.key)))
        return VariantGradients(of_query, of_key, by_value, lam=sum_to(by_lam, shape))


def _pair(name: str, pair: Any) -> tuple[Any, Any]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise ValueError(f"{name} must be a pair of arrays, of both maps, got {shown(pair)}")
    return pair[0], pair[1]


def _grad(grad_output: Any, shape: tuple[int, ...], layout: str) -> NDArray[Any]:
    """`grad_output`, broadcast to the output of that layout, whose shape is `shape` with heads first."""
    whole = shape_in(layout, shape)
    grad = fit_to("grad_output", floats("grad_output", grad_output), whole, "the output")
    return np.broadcast_to(grad, whole)


def _added(one: NDArray[Any] | None, two: NDArray[Any] | None) -> NDArray[Any]:
    assert one is not None
    assert two is not None
    total: NDArray[Any] = np.add(one, two, dtype=common_type(one, two))
    return total


def sum_to(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Sums over the axes that were broadcast, or repeated in groups, from `shape`."""
    wanted = shape[max(len(shape) - array.ndim, 0) :]
    wanted = (1,) * (array.ndim - len(wanted)) + wanted
    split = [
        n
        for have, want in zip(array.shape, wanted, strict=True)
        for n in ((want, 1) if have == want else (want, have // want))
    ]
    summed: NDArray[Any] = array.reshape(split).sum(axis=tuple(range(1, 2 * array.ndim, 2)))
    return summed.reshape(shape)
