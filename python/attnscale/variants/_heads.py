# SPDX-License-Identifier: BSD-3-Clause
"""Query, key and value of one call, checked, and which keys its queries see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._call.arrays import LAYOUTS, Inputs, make_output, read_inputs
from .._call.rows import read_causal
from .._checks import choose, shown
from .._core import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .._call.types import FormOptions


class Whole(Inputs):
    """Inputs of a call that has a value."""

    __slots__ = ()

    value: NDArray[Any]


def read_layout(layout: Any) -> str:
    """`layout`; what is no name of a layout is refused."""
    return choose("layout", layout, LAYOUTS)


def read_whole(query: Any, key: Any, value: Any, layout: Any, *, enable_gqa: bool) -> Whole:
    """The arrays of a call that needs a value, checked as those of exact attention."""
    inputs = read_inputs(query, key, value, read_layout(layout), enable_gqa=enable_gqa)
    if inputs.value is None:
        raise TypeError("value must be an array, got None")
    return Whole._make(inputs)


def read_call(
    query: Any, key: Any, value: Any, options: FormOptions
) -> tuple[Whole, NDArray[Any], NDArray[Any]]:
    """(what was read, the array to return, its view (..., heads, n, dim))."""
    layout = options.get("layout", "bhsd")
    inputs = read_whole(query, key, value, layout, enable_gqa=options.get("enable_gqa", False))
    return inputs, *make_output(inputs, inputs.value.shape[-1], layout, None)


def offset_of(inputs: Inputs, is_causal: Any, causal: Any) -> int | None:
    """Query i sees the keys 0 ... i + offset; None: all of them."""
    n_queries, n_keys = inputs.query.shape[-2], inputs.key.shape[-2]
    causal = read_causal(is_causal, causal)
    if causal is None:
        return None
    return int(Intervals(n_queries, n_keys, (), causal, None, None, None).offset)


def refuse_causal(name: str, why: str, is_causal: Any, causal: Any) -> None:
    """The error of a form that has no causal variant."""
    if is_causal is not False or causal is not None:
        seen = f"is_causal={shown(is_causal)}" if causal is None else f"causal={shown(causal)}"
        raise ValueError(f"{name} has no causal form: {why}; got {seen}")
