# SPDX-License-Identifier: BSD-3-Clause
"""Calls on dask arrays cut along their leading axes, which stay lazy: each block is a call of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import numpy as np

from .arrays import LAYOUTS, Unread, is_float_type, read_extents


def lazily(function: Callable[..., Any], arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Any:
    """The result of a function of query, key and maybe value as a dask array; None if one call must see all.

    Each array must be a dask array cut along the same leading axes alone, and options must be the same for
    all heads.
    """
    dask = sys.modules.get("dask.array")
    if dask is None or not all(isinstance(each, dask.Array) for each in arrays.values()):
        return None
    query, *others = arrays.values()
    lead = query.chunks[:-2]
    fits = lead and all(each.chunks[:-2] == lead for each in others)
    whole = all(each.numblocks[-2:] == (1, 1) and is_float_type(each.dtype) for each in arrays.values())
    same = all(name == "window" or _is_plain(value) for name, value in options.items())
    if not (fits and whole and same) or options.get("layout", LAYOUTS[0]) != LAYOUTS[0]:
        return None
    seen = {name: Unread(each.shape, each.dtype) for name, each in arrays.items()}
    extents = read_extents(seen["query"], seen["key"], seen.get("value"), LAYOUTS[0], enable_gqa=False)
    none = [_without_rows(name, each) for name, each in arrays.items()]
    function(*none, **options)  # refuses wrong options now, and not when the array is computed
    names = tuple(f"axis{number}" for number in range(len(lead)))
    axes = {"query": (*names, "n", "d"), "key": (*names, "m", "d"), "value": (*names, "m", "e")}
    rows = "value" not in arrays
    dtype = extents.wide if rows else extents.dtype
    return dask.blockwise(
        partial(function, **options),
        (*names, "n") if rows else (*names, "n", "e"),
        *(each for name, array in arrays.items() for each in (array, axes[name])),
        concatenate=True,
        dtype=dtype,
        meta=np.empty((0,) * (len(lead) + (1 if rows else 2)), dtype),
    )


def _without_rows(name: str, array: Any) -> np.ndarray[Any, Any]:
    """Zeros like one head of an array, without queries, in no memory."""
    *lead, n, width = array.shape
    shape = (*(1 for _ in lead), 0 if name == "query" else n, width)
    return np.broadcast_to(np.zeros((), array.dtype), shape)


def _is_plain(value: Any) -> bool:
    """Whether an option is a number, text or a law of such parameters, and no array."""
    if is_dataclass(value) and not isinstance(value, type):
        return all(_is_plain(getattr(value, each.name)) for each in fields(value))
    return value is None or isinstance(value, (bool, int, float, str, np.generic))
