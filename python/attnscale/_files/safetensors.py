# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of safetensors files: the header first, then only the requested tensors.

A file is the length of its header (8 bytes, little endian), the header in JSON, and the numbers of all
tensors beside each other: https://huggingface.co/docs/safetensors (the format).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._base.checks import InputError, shown
from .json import RepeatedKeyError, each_key_once
from .mapped import Place, bfloat16

#: Largest header in bytes, as in the safetensors package.
_MOST_HEADER = 100_000_000
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2"}
_TYPES |= {"I8": "i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?"}


class Stored(NamedTuple):
    """Place of a stored tensor: its file, type (as the file names it), shape and first byte."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    start: int

    def read(self) -> NDArray[Any]:
        """The tensor in the machine's byte order; bfloat16 becomes float32, exactly."""
        raw = self.read_bits()
        if self.kind == "BF16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return raw

    def read_bits(self) -> NDArray[Any]:
        """The tensor as :meth:`read` gives it, but bfloat16 as the 16 bits of each number."""
        self._check_kind()
        dtype = np.dtype(_TYPES[self.kind])
        count = math.prod(self.shape)
        found = np.fromfile(self.file, dtype, count, offset=self.start).reshape(self.shape)
        return found if sys.byteorder == "little" else found.astype(dtype.newbyteorder("="))

    def place(self) -> Place:
        """The tensor's place, to map it."""
        self._check_kind()
        dtype = bfloat16() if self.kind == "BF16" else np.dtype(_TYPES[self.kind])
        if dtype is None:
            needs = "reading bfloat16 needs its package: pip install ml_dtypes"
            raise InputError(f"{self.file}: {needs}")
        return Place(self.file, self.start, dtype, self.shape)

    def _check_kind(self) -> None:
        if self.kind not in _TYPES:
            known = ", ".join(_TYPES)
            raise InputError(f"{self.file}: numbers must be of type {known}, got {shown(self.kind)}")


def stored_tensors(path: Path, wanted: Callable[[str], bool] = lambda name: True) -> dict[str, Stored]:
    """Tensors of a checkpoint by name; only headers are read.

    `path` is a file, the index of several, or their folder. Only names with ``wanted(name)`` are listed;
    files of an index without such names are not opened.
    """
    if path.is_dir():
        indices = sorted(path.glob("*.safetensors.index.json"))
        files = sorted(path.glob("*.safetensors"))
        if not (indices or files):
            raise InputError(f"{path}: there is no .safetensors file here")
        if indices:
            return stored_tensors(indices[0], wanted)
    elif path.suffix == ".json":
        files = _indexed(path, wanted)
    else:
        files = [path]
    return {name: each for file in files for name, each in _header(file).items() if wanted(name)}


def _indexed(index: Path, wanted: Callable[[str], bool]) -> list[Path]:
    """The files of an index that hold wanted tensors; a file outside its folder is refused."""
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = {file for name, file in listed.items() if wanted(name)}
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise InputError(f"{index}: not a readable index of .safetensors files") from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise InputError(
                f"{index}: a file of weight_map must be a name without a folder, got {shown(name)}"
            )
    return [index.parent / name for name in sorted(names)]


def _header(file: Path) -> dict[str, Stored]:
    try:
        with file.open("rb") as stream:
            size = file.stat().st_size
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(size - 8, _MOST_HEADER):
                seen = f"its header has {length} bytes, the file {size}" if size >= 8 else "it has no header"
                raise InputError(f"{file}: not a readable .safetensors file ({seen})")
            content = json.loads(stream.read(length), object_pairs_hook=each_key_once)
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except RepeatedKeyError as error:
        raise InputError(f"{file}: not a readable .safetensors file (its header {error})") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file}: not a readable .safetensors file (its header is not JSON)") from None
    if not isinstance(content, dict):
        raise InputError(f"{file}: not a readable .safetensors file (its header is not a JSON object)")
    content.pop("__metadata__", None)
    return {name: _checked(file, name, entry, 8 + length, size) for name, entry in content.items()}


def _checked(file: Path, name: str, entry: Any, first: int, size: int) -> Stored:
    """The place of a tensor; an invalid entry, or one beyond the end of the file, is refused."""
    try:
        kind, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        good = isinstance(kind, str) and all(type(x) is int and x >= 0 for x in (*shape, start, stop))
        good = good and start <= stop <= size - first
        if good and kind in _TYPES:
            good = stop - start == math.prod(shape) * np.dtype(_TYPES[kind]).itemsize
    except (KeyError, TypeError, ValueError):
        good = False
    if not good:
        raise InputError(f"{file}: the entry of {shown(name)} does not fit the file, got {shown(entry)}")
    return Stored(file, kind, shape, first + start)


#: Types of arrays that are written.
_WRITTEN = {"float32": "F32", "float16": "F16", "uint16": "BF16", "bfloat16": "BF16"}
_WRITTEN |= {"int32": "I32", "int64": "I64", "bool": "BOOL"}


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays; bfloat16 may also be given as the 16 bits of each number, in uint16."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": _WRITTEN[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [start, start + tensor.nbytes],
        }
        start += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            bits = tensor.view(np.uint16) if tensor.dtype.name == "bfloat16" else tensor
            file.write(bits.astype(bits.dtype.newbyteorder("<"), copy=False).tobytes())
