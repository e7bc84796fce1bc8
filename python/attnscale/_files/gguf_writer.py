# SPDX-License-Identifier: BSD-3-Clause
"""GGUF files, version 3: metadata of every type, and tensors as F32, F16, BF16 or Q8_0.

A file is its header, the metadata, a list of tensors (name, sizes with the row's first, type, place), and
their numbers, each at a multiple of 32 bytes: https://github.com/ggml-org/ggml, docs/gguf.md (the format).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._base.checks import shown
from .whole import write_whole

_ALIGNMENT = 32
_VERSION = 3
_STRING, _ARRAY, _BOOL = 8, 9, 7

#: Numbers of the types of metadata, by the codes of NumPy.
_NUMBERS = {"u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "u8": 10, "i8": 11, "f8": 12}

#: Numbers in a block of Q8_0, which have one scale.
BLOCK = 32


class _Kind(NamedTuple):
    """A type of stored tensors."""

    number: int
    block: int  # numbers in a block
    size: int  # bytes of a block
    encode: Callable[[NDArray[Any]], NDArray[Any]]


def _bfloat16(array: NDArray[Any]) -> NDArray[Any]:
    """The upper 16 bits of float32, rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(array, "<f4").view("<u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(array), (bits >> 16) | 64, rounded).astype("<u2")


def _q8_0(array: NDArray[Any]) -> NDArray[Any]:
    """Blocks of 32 numbers: a float16 scale, then 32 integers from -127 to 127."""
    blocks = np.ascontiguousarray(array, np.float32).reshape(-1, BLOCK)
    scale = np.abs(blocks).max(axis=1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore"):
        steps = blocks * np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    whole = np.trunc(steps)
    whole += np.trunc(2 * (steps - whole))  # halves away from zero
    return np.hstack([scale.astype("<f2").view(np.uint8), whole.astype(np.int8).view(np.uint8)])


#: Types of stored tensors by name.
KINDS = {
    "f32": _Kind(0, 1, 4, lambda array: array.astype("<f4")),
    "f16": _Kind(1, 1, 2, lambda array: array.astype("<f2")),
    "q8_0": _Kind(8, BLOCK, BLOCK + 2, _q8_0),
    "bf16": _Kind(30, 1, 2, _bfloat16),
}


class Tensor(NamedTuple):
    """A tensor to be written: its numbers, and the type of :data:`KINDS` to write them as."""

    array: NDArray[Any]
    kind: str

    @property
    def size(self) -> int:
        """Bytes of the stored numbers."""
        kind = KINDS[self.kind]
        return self.array.size // kind.block * kind.size


def write_gguf_file(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a whole file: after a failure the old file is still there, or none.

    Values are text, numbers, flags, NumPy scalars (which keep their type), or a list or array of one of
    these. A Python int is stored in 32 bits if it fits, without a sign if it has none; a float in single
    precision; the ints of a list with a sign.
    """
    head = _head(metadata, tensors)
    write_whole(path, _padded(chain([head], (_encoded(*each) for each in tensors.items()))))


def _head(metadata: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    parts = [b"GGUF" + struct.pack("<IQQ", _VERSION, len(tensors), len(metadata))]
    parts += [_text(name) + _value(name, value) for name, value in metadata.items()]
    place = 0
    for name, (array, kind) in tensors.items():
        _check(name, array, kind)
        sizes = array.shape[::-1]
        parts.append(_text(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes))
        parts.append(struct.pack("<IQ", KINDS[kind].number, place))
        place += math.ceil(tensors[name].size / _ALIGNMENT) * _ALIGNMENT
    return b"".join(parts)


def _check(name: str, array: NDArray[Any], kind: str) -> None:
    if kind not in KINDS:
        raise ValueError(f"kind of tensor {name} must be one of {', '.join(KINDS)}, got {shown(kind)}")
    if not 1 <= array.ndim <= 4:
        raise ValueError(f"tensor {name} must have 1 to 4 axes, got the shape {array.shape}")
    if array.shape[-1] % KINDS[kind].block:
        raise ValueError(
            f"rows of tensor {name} must be a multiple of {BLOCK} numbers as {kind}, got {array.shape[-1]}"
        )


def _encoded(name: str, tensor: Tensor) -> bytes:
    """The stored numbers of a tensor; a finite number beyond the type's range is refused."""
    array = np.asarray(tensor.array)
    with np.errstate(over="ignore"):
        stored = KINDS[tensor.kind].encode(array)
    if tensor.kind in ("f32", "f16") and not np.array_equal(np.isfinite(stored), np.isfinite(array)):
        raise ValueError(f"tensor {name} must fit {tensor.kind}, got {shown(float(np.abs(array).max()))}")
    return stored.tobytes()


def _padded(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Parts of a file, and behind each the zeros up to a multiple of the alignment."""
    for part in parts:
        yield part
        yield bytes(-len(part) % _ALIGNMENT)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(name: str, value: Any) -> bytes:
    """The number of a value's type, and the value."""
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, (list, tuple)) and (not value or isinstance(value[0], str)):
        texts = b"".join(_texts(name, value))
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + texts
    array = _array(name, value)
    number = _BOOL if array.dtype == bool else _NUMBERS.get(array.dtype.str[1:])
    if number is None or array.ndim > 1:
        raise ValueError(
            f"{name} must be text, a number, a flag or a list of one of them, got {shown(value)}"
        )
    content = array.astype(array.dtype.newbyteorder("<")).tobytes()
    if array.ndim == 0:
        return struct.pack("<I", number) + content
    return struct.pack("<IIQ", _ARRAY, number, array.size) + content


def _texts(name: str, values: Any) -> Iterator[bytes]:
    for each in values:
        if not isinstance(each, str):
            raise ValueError(f"{name} must be a list of texts alone, got {shown(each)} in it")
        yield _text(each)


def _array(name: str, value: Any) -> NDArray[Any]:
    """Numbers in the type they are stored as."""
    array = np.asarray(value)
    if isinstance(value, (np.generic, np.ndarray)):
        return array
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype == np.int64:
        for dtype in (np.int32,) if array.ndim else (np.uint32, np.int32):
            limits = np.iinfo(dtype)
            if array.size == 0 or (limits.min <= array.min() and array.max() <= limits.max):
                return array.astype(dtype)
    return array
