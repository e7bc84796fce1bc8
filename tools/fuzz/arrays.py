# SPDX-License-Identifier: BSD-3-Clause
"""Arrays from plain data: values by profile, any float type, any strides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from attnscale import simd_level

__all__ = ["LAYOUTS", "PROFILES", "RANDOM", "dtype_of", "make", "poison", "unchanged", "values"]

Array = np.ndarray[Any, Any]

# Profiles whose errors are those of random rounding: the sharper bound of the promises holds for them.
RANDOM = frozenset({"normal"})
PROFILES = (
    *("normal", "tiny", "wide", "mixed", "equal", "repeats", "peaked", "onehot", "zeros"),
    *("offset", "denormal", "extreme", "whole"),
)
LAYOUTS = ("c", "f", "negative", "step", "broadcast", "transposed", "misaligned", "readonly")

# Names of types, as NumPy spells foreign byte orders.
_FOREIGN = {"float64": ">f8", "float32": ">f4", "float16": ">f2"}


def dtype_of(name: str) -> np.dtype[Any]:
    """float64, float32, float16, bfloat16, or one of them with "foreign " before it."""
    if name == "bfloat16":
        return np.dtype(ml_dtypes.bfloat16)
    kind = name.removeprefix("foreign ")
    return np.dtype(_FOREIGN[kind] if kind != name else kind)


def multiplies_bfloat16(*types: np.dtype[Any]) -> bool:
    """Whether such arrays may be multiplied as bfloat16, where a number below the normal ones is 0."""
    native = {each.newbyteorder("=") for each in types}
    return simd_level().endswith("_bf16") and native == {np.dtype(ml_dtypes.bfloat16)}


def values(rng: np.random.Generator, shape: Sequence[int], profile: str, dtype: np.dtype[Any]) -> Array:
    """float64 numbers that are finite in this type."""
    shape = tuple(shape)
    normal = rng.standard_normal(shape)
    info = ml_dtypes.finfo(dtype.newbyteorder("="))
    largest, least = float(info.max), float(info.smallest_subnormal)
    if profile in _SIMPLE:
        return _SIMPLE[profile](normal, rng)
    if profile == "denormal" and multiplies_bfloat16(dtype):
        least = float(info.smallest_normal)
        return np.where(np.abs(normal) < 1 / 8, 0, normal * 8 * least)
    if profile == "denormal":
        return normal * 8 * least
    exponents = rng.integers(-12, 13, shape) if dtype.itemsize == 2 else rng.integers(-60, 61, shape)
    if profile == "mixed":
        found = normal * np.ldexp(1.0, exponents // 4)
    else:  # extreme: a few numbers near the end of the range, the others ordinary
        size = rng.choice([largest / 8, np.sqrt(largest) / 8, largest**0.25])
        found = np.where(rng.random(shape) < 0.2, normal * size, normal)
    return np.clip(found, -largest / 2, largest / 2)


def _repeats(normal: Array, rng: np.random.Generator) -> Array:
    """Few different rows, each many times."""
    if normal.ndim < 2 or not normal.size:
        return normal
    return np.take(normal, rng.integers(0, min(3, normal.shape[-2]), normal.shape[-2]), axis=-2)


def _onehot(normal: Array, rng: np.random.Generator) -> Array:
    if not normal.size:
        return normal
    found = np.zeros_like(normal)
    at = rng.integers(0, normal.shape[-1], normal.shape[:-1])
    np.put_along_axis(found, at[..., None], 4.0, -1)
    return found


def _equal(normal: Array, rng: np.random.Generator) -> Array:
    return np.full_like(normal, rng.standard_normal())


_SIMPLE: dict[str, Any] = {
    "normal": lambda x, rng: x,
    "tiny": lambda x, rng: x * 2.0 ** rng.integers(-30, -5),
    "wide": lambda x, rng: x * rng.choice([4.0, 30.0]),
    "equal": _equal,
    "repeats": _repeats,
    "peaked": lambda x, rng: np.where(rng.random(x.shape) < 0.1, 6 * x, 0.1 * x),
    "onehot": _onehot,
    "zeros": lambda x, rng: x * 0.0,
    "offset": lambda x, rng: x * 0.125 + rng.choice([-6.0, 3.0, 20.0]),
    "whole": lambda x, rng: np.rint(2 * x),
}


def make(spec: dict[str, Any], rng: np.random.Generator) -> Array:
    """The array of {"shape", "dtype", "profile", "strides"}."""
    dtype = dtype_of(spec["dtype"])
    x = values(rng, spec["shape"], spec["profile"], dtype).astype(dtype)
    return strided(x, spec["strides"])


def strided(x: Array, how: str) -> Array:
    """An array of the same numbers (of the same first number along an axis, for "broadcast")."""
    if not x.ndim:
        return x
    if how == "f":
        return np.asfortranarray(x)
    if how == "negative":
        return (
            np.ascontiguousarray(x[..., ::-1, ::-1])[..., ::-1, ::-1] if x.ndim > 1 else x[::-1].copy()[::-1]
        )
    if how == "step":
        wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1] + 1), x.dtype)
        wide[..., 1::2] = x
        return wide[..., 1::2]
    if how == "broadcast" and x.ndim and x.shape[0]:
        return np.broadcast_to(x[:1].copy(), x.shape)
    if how == "transposed" and x.ndim > 1:
        return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
    if how == "misaligned":
        memory = np.zeros(x.nbytes + 1, np.uint8)[1:]
        view = memory.view(x.dtype).reshape(x.shape) if x.nbytes else x
        view[...] = x
        return view
    if how == "readonly":
        x = x.copy()
        x.flags.writeable = False
    return x


def poison(x: Array, rng: np.random.Generator, share: float) -> Array:
    """The array with some rows' numbers replaced by NaN or infinity."""
    if not x.size or not x.flags.writeable or 0 in x.strides:
        x = x.copy()
    rows = rng.random(x.shape[:-1]) < share if x.size else np.zeros(0, bool)
    for at in np.argwhere(rows)[:4]:
        x[tuple(at)][rng.integers(x.shape[-1])] = rng.choice([np.nan, np.inf, -np.inf])
    return x


def unchanged(arrays: Sequence[Array]) -> list[bytes]:
    """Content of the arrays, compared after a call."""
    return [x.tobytes() for x in arrays]
