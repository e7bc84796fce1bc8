# SPDX-License-Identifier: BSD-3-Clause
"""Query, key and value of one call: checked, grouped by key head, and cut into parts for threads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._call.arrays import LAYOUTS, Inputs, make_output, read_inputs
from .._call.rows import causal_offset
from .._checks import choose

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "Heads",
    "group",
    "offset_of",
    "parts",
    "read_heads",
    "read_layout",
    "refuse_causal",
    "split_heads",
]


class Heads(NamedTuple):
    """Views (..., heads, n, dim) whose leading axes broadcast; `output` has all of them."""

    query: NDArray[Any]
    key: NDArray[Any]
    value: NDArray[Any]
    output: NDArray[Any]


def read_layout(layout: Any) -> str:
    """`layout`, if it is one."""
    return choose("layout", layout, LAYOUTS)


def read_heads(
    query: Any, key: Any, value: Any, *, enable_gqa: bool, layout: str
) -> tuple[Inputs, NDArray[Any], Heads]:
    """(what was read, the array to return, its views). The checks are those of exact attention."""
    if value is None:
        raise TypeError("value must be an array, got None")
    inputs = read_inputs(query, key, value, enable_gqa, read_layout(layout))
    assert inputs.value is not None
    result, output = make_output(inputs, layout, None)
    q, k, v = group(inputs.query, inputs.key, inputs.value, enable_gqa)
    if q.ndim > inputs.query.ndim:  # (..., kv_heads, group, n, dim)
        output = split_heads(output, q.shape[-4])
    return inputs, result, Heads(q, k, v, output)


def group(
    query: NDArray[Any], key: NDArray[Any], value: NDArray[Any], enable_gqa: bool
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """With shared key heads: (..., kv_heads, group, n, dim), so that each is summed once."""
    if not enable_gqa or query.ndim < 3 or key.ndim < 3 or value.ndim < 3:
        return query, key, value
    heads = query.shape[-3]
    if key.shape[-3] != value.shape[-3]:
        key, value = (np.repeat(x, heads // x.shape[-3], axis=-3) for x in (key, value))
    kv_heads = key.shape[-3]
    if kv_heads == heads:
        return query, key, value
    return split_heads(query, kv_heads), key[..., None, :, :], value[..., None, :, :]


def split_heads(array: NDArray[Any], kv_heads: int) -> NDArray[Any]:
    """A view: splitting one axis never copies."""
    *lead, heads, n, dim = array.shape
    strides = array.strides
    size = heads // kv_heads
    return np.lib.stride_tricks.as_strided(
        array, (*lead, kv_heads, size, n, dim), (*strides[:-3], strides[-3] * size, *strides[-3:])
    )


def offset_of(inputs: Inputs, is_causal: Any, causal: Any) -> int | None:
    """Query i sees the keys 0 ... i + offset; None: all of them."""
    offset: int | None = causal_offset(is_causal, causal, inputs.query.shape[-2], inputs.key.shape[-2])
    return offset


def refuse_causal(name: str, why: str, is_causal: Any, causal: Any) -> None:
    """The error of a form that has no causal variant."""
    if is_causal is not False or causal is not None:
        seen = f"is_causal={is_causal!r}" if causal is None else f"causal={causal!r}"
        raise ValueError(f"{name} has no causal form: {why}; got {seen}")


def parts(heads: Heads, count: int, leading: int | None = None) -> Iterator[Heads]:
    """The heads in at most `count` parts of about equal size, along a leading axis (None: the longest)."""
    lead = heads.output.shape[:-2]
    if count == 1 or not lead or max(lead) < 2:
        yield heads
        return
    axis = (int(np.argmax(lead)) - len(lead) if leading is None else leading) - 2
    extent = heads.output.shape[axis]
    bounds = np.linspace(0, extent, min(count, extent) + 1).astype(int)
    for begin, end in pairwise(bounds.tolist()):
        yield Heads(*(_cut(x, axis, begin, end) for x in heads))


def _cut(array: NDArray[Any], axis: int, begin: int, end: int) -> NDArray[Any]:
    if array.ndim < -axis or array.shape[axis] == 1:
        return array
    index = [slice(None)] * array.ndim
    index[axis] = slice(begin, end)
    return array[tuple(index)]
