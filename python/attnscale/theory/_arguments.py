# SPDX-License-Identifier: BSD-3-Clause
"""Checks of numbers and arrays of them, and results that are floats for scalar arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.checks import as_array, refusal, shown

Array = NDArray[np.float64]


def finite(name: str, value: Any) -> Array:
    """`value` as finite float64 numbers of any shape."""
    array = as_array(name, value)
    if array.dtype.kind not in "iuf":
        raise refusal(TypeError, name, f"must be real numbers, got {array.dtype} ({shown(value)})")
    wide = array.astype(np.float64)
    if not np.isfinite(wide).all():
        bad = wide[~np.isfinite(wide)]
        raise refusal(ValueError, name, f"must be finite, got {bad.flat[0]}")
    return wide


def at_least(name: str, value: Any, bound: float, *, integer: bool = False) -> Array:
    """`value` as finite float64 numbers >= bound, whole ones if `integer`."""
    array = finite(name, value)
    if not (array >= bound).all():
        raise refusal(ValueError, name, f"must be at least {bound:g}, got {array.min():g}")
    if integer and (array != np.floor(array)).any():
        seen = array[array != np.floor(array)]
        raise refusal(ValueError, name, f"must be whole numbers, got {seen.flat[0]:g}")
    return array


def between(name: str, value: Any, low: float, high: float, *, closed: str = "") -> Array:
    """`value` strictly between the bounds; a bound named in `closed` ("low", "high") is included."""
    array = finite(name, value)
    above = array >= low if "low" in closed else array > low
    below = array <= high if "high" in closed else array < high
    if not (above & below).all():
        brackets = "[" if "low" in closed else "(", "]" if "high" in closed else ")"
        seen = array[~(above & below)]
        interval = f"{brackets[0]}{low:g}, {high:g}{brackets[1]}"
        raise refusal(ValueError, name, f"must be in {interval}, got {seen.flat[0]:g}")
    return array


def together(**arrays: Array) -> list[Array]:
    """The arrays broadcast to one shape; the error names them and their shapes."""
    try:
        return list(np.broadcast_arrays(*arrays.values()))
    except ValueError:
        seen = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"the shapes must broadcast, got {seen}") from None


def whole(name: str, value: Any) -> int:
    """`value` as one whole number of at least 0."""
    number = finite(name, value)
    if number.ndim or number != np.floor(number) or number < 0:
        raise refusal(ValueError, name, f"must be a whole number of at least 0, got {shown(value)}")
    return int(number)


def pointwise(function: Callable[..., Any], *arrays: Array) -> Array:
    """A function of numbers at each point of broadcast arrays; axes of its results come last."""
    broadcast = np.broadcast_arrays(*arrays)
    points = zip(*(array.flat for array in broadcast), strict=True)
    values = np.array([function(*map(float, point)) for point in points], np.float64)
    return values.reshape((*broadcast[0].shape, *values.shape[1:]))


def plain(result: Any) -> Any:
    """A float for a result without axes, else the float64 array."""
    return float(result) if np.ndim(result) == 0 else np.asarray(result, np.float64)
