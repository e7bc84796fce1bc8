# SPDX-License-Identifier: BSD-3-Clause
"""Layouts, scales and masks, as several engines take them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .._draft import is_softmax, sink_of


def swap_heads(arrays: Iterable[Any], layout: str = "bhsd") -> list[Any]:
    """Arrays of (batch, n, heads, dim) from those of the layout, or arrays of the layout from them."""
    return [x if layout == "bshd" else np.asarray(x).swapaxes(1, 2) for x in arrays]


def one_number(scale: Any) -> float | None:
    """A scale as a number; rows and heads with scales of their own are refused."""
    if np.ndim(scale):
        raise NotImplementedError("no scales of rows")
    return None if scale is None else float(scale)


def two_sides(window: Any) -> tuple[int, int] | None:
    """A window with two ends; one that is open on one side is refused."""
    if window is None or tuple(window) == (None, None):
        return None
    if None in window:
        raise NotImplementedError("no window that is open on one side")
    return (int(window[0]), int(window[1]))


def mask_of(mask: Any, dtype: Any) -> Any:
    """A mask whose floating-point numbers have the type of the arrays; others as they are."""
    array = np.array(mask)
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        return array
    with np.errstate(over="ignore"):
        return array.astype(dtype)


def full_mask(mask: Any, query: Any, key: Any) -> Any:
    """A mask as an array (batch, heads, queries, keys)."""
    return np.broadcast_to(mask, (*query.shape[:3], key.shape[2]))


def added_mask(mask: Any, query: Any, key: Any, dtype: Any) -> Any:
    """A mask of floating-point numbers, made full; others are refused."""
    array = mask_of(mask, dtype)
    if array.dtype != dtype:
        raise NotImplementedError("no masks but those that are added")
    return full_mask(array, query, key)


def heads_agree(arrays: Iterable[Any], enable_gqa: bool = False) -> None:
    """Refuse batches that differ, and fewer heads of the keys where they are not asked to be shared."""
    query, key, value = arrays
    if len({x.shape[0] for x in (query, key, value)}) > 1:
        raise NotImplementedError("one batch size only")
    if key.shape[1] != value.shape[1] or (key.shape[1] != query.shape[1] and not enable_gqa):
        raise NotImplementedError("heads of key and value that agree, and of the query too unless shared")


def sink_logits(normalizer: Any, heads: int, dtype: Any = np.float64) -> Any:
    """The logit of a sink for each head, or None for the softmax; other normalizers are refused."""
    options = {"normalizer": "softmax" if normalizer is None else normalizer}
    if not is_softmax(options):
        raise NotImplementedError("no normalizer but the softmax and a sink")
    logits = sink_of(options)
    if logits is None:
        return None
    if logits.ndim and logits.shape[1:] != (1, 1):
        raise NotImplementedError("no sinks of rows")
    return np.broadcast_to(logits.ravel(), heads).astype(dtype)


def widths_agree(key: Any, value: Any) -> None:
    """Refuse values of another width than the keys'."""
    if key.shape[-1] != value.shape[-1]:
        raise NotImplementedError("no values but those as wide as keys")
