# SPDX-License-Identifier: BSD-3-Clause
"""Arrays of a call, checked and converted to the type of the arithmetic, and their alignment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import as_array, choose, shown
from .._call.arrays import LAYOUTS, Extents, Inputs, in_native_order, is_float_type, make_output, read_inputs
from .._call.rows import read_causal
from .._core import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._call.options import LayoutOptions


def floats(name: str, value: Any) -> NDArray[Any]:
    """`value` as an array of a float type, in native byte order."""
    return in_native_order(name, as_array(name, value), value)


def reals(name: str, value: Any) -> NDArray[np.float64]:
    """`value` as an array of float64, also from integers."""
    array = as_array(name, value)
    if array.dtype.kind not in "iu" and not is_float_type(array.dtype.newbyteorder("=")):
        raise TypeError(f"{name} must be real numbers, got {array.dtype}")
    return array.astype(np.float64)


def vectors(name: str, value: Any) -> NDArray[Any]:
    array = floats(name, value)
    if array.ndim < 2:
        raise ValueError(f"{name} must have at least 2 axes (..., n, embed_dim), got shape {array.shape}")
    return array


def matrix(name: str, value: Any, columns: int, *, heads: bool = False) -> NDArray[Any]:
    """`value` as a weight (head_dim, columns), or (heads, head_dim, columns) where heads are allowed."""
    array = floats(name, value)
    if array.ndim != 2 and not (heads and array.ndim == 3):
        wanted = "(head_dim, embed_dim)" + (" or (heads, head_dim, embed_dim)" if heads else "")
        raise ValueError(f"{name} must be {wanted}, got shape {array.shape}")
    if array.shape[-1] != columns:
        raise ValueError(
            f"{name} must have embed_dim = {columns} columns, as many as x has channels, "
            f"got shape {array.shape}"
        )
    return array


def wide_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """float64 for float64, else float32: 16-bit types are storage."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def widened(*arrays: NDArray[Any]) -> list[NDArray[Any]]:
    """The arrays, converted to the widest of their arithmetic types; copied only if the type changes."""
    wide = np.result_type(*(wide_type(array.dtype) for array in arrays))
    return [array.astype(wide, copy=False) for array in arrays]


def common_type(*arrays: NDArray[Any]) -> np.dtype[Any]:
    """The type of a result: that of the arrays if they agree, else the arithmetic type."""
    first = arrays[0].dtype
    if all(array.dtype == first for array in arrays):
        return first.newbyteorder("=") if first.kind == "f" else first
    return np.result_type(*(wide_type(array.dtype) for array in arrays))


class Whole(Inputs):
    """Inputs of a call that has a value."""

    __slots__ = ()

    value: NDArray[Any]


def read_layout(layout: Any) -> str:
    return choose("layout", layout, LAYOUTS)


def read_whole(query: Any, key: Any, value: Any, layout: Any, *, enable_gqa: bool) -> Whole:
    """The arrays of a call that needs a value, checked as in exact attention."""
    inputs = read_inputs(query, key, value, read_layout(layout), enable_gqa=enable_gqa)
    if inputs.value is None:
        raise TypeError("value must be an array, got None")
    return Whole._make(inputs)


def read_with_output(
    query: Any, key: Any, value: Any, options: LayoutOptions
) -> tuple[Whole, NDArray[Any], NDArray[Any]]:
    """The inputs, the array to return, and its view (..., heads, n, dim)."""
    layout = options.get("layout", "bhsd")
    inputs = read_whole(query, key, value, layout, enable_gqa=options.get("enable_gqa", False))
    return inputs, *make_output(inputs, inputs.value.shape[-1], layout, None)


def offset_of(extents: Extents, is_causal: Any, causal: Any) -> int | None:
    """The offset by which query i sees the keys 0 ... i + offset; None: all keys."""
    causal = read_causal(is_causal, causal)
    if causal is None:
        return None
    return int(Intervals(extents.n_queries, extents.n_keys, (), causal, None, None, None).offset)


def refuse_causal(name: str, why: str, is_causal: Any, causal: Any) -> None:
    if is_causal is not False or causal is not None:
        seen = f"is_causal={shown(is_causal)}" if causal is None else f"causal={shown(causal)}"
        raise ValueError(f"{name} has no causal form: {why}; got {seen}")
