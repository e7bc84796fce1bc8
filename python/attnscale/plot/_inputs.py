# SPDX-License-Identifier: BSD-3-Clause
"""Checks of figures' arguments: a message names the argument, the rule and the value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.checks import shown

_Array = NDArray[np.float64]


def numbers(name: str, given: Any, *, ndim: int | None = None) -> _Array:
    """`given` as an array of float64, with `ndim` axes."""
    try:
        array = np.asarray(given, np.float64)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be an array of numbers, got {shown(given)}") from None
    if ndim is not None and array.ndim != ndim:
        axes = f"{ndim} {'axis' if ndim == 1 else 'axes'}"
        raise ValueError(f"{name} must have {axes}, got shape {array.shape}")
    return array


def increasing(name: str, given: Any, *, least: float, count: int = 1) -> _Array:
    """`given` as a one-dimensional array: at least `count` increasing numbers, the first at least `least`."""
    array = np.atleast_1d(numbers(name, given))
    if array.ndim != 1 or array.size < count:
        raise ValueError(f"{name} must hold at least {count} numbers in one axis, got shape {array.shape}")
    if not (np.isfinite(array).all() and (np.diff(array) > 0).all() and array[0] >= least):
        raise ValueError(f"{name} must be increasing and at least {least:g}, got {shown(array.tolist())}")
    return array


def named_numbers(name: str, given: Any, what: str) -> dict[str, _Array]:
    """`given` as a dictionary of arrays, with at least one. `what`: "nats under each law"."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a mapping from names to {what}, got {shown(given)}")
    if not given:
        raise ValueError(f"{name} must have at least one entry, got none")
    return {str(key): numbers(f"{name}[{key!r}]", values) for key, values in given.items()}


def text_list(name: str, given: Any, count: int, what: str) -> list[str]:
    """`given` as a list of `count` texts, one for each of `what`."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{name} must be a sequence of texts, got {shown(given)}")
    texts = [str(each) for each in given]
    if len(texts) != count:
        raise ValueError(f"{name} must have one entry for each of the {count} {what}, got {len(texts)}")
    return texts


def check_axes(ax: Any) -> None:
    """Refuse an object other than the axes of a figure."""
    if not (hasattr(ax, "plot") and hasattr(ax, "get_xaxis")):
        raise TypeError(f"ax must be Axes of matplotlib or None, got {shown(ax)}")
