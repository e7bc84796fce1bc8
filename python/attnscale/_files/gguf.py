# SPDX-License-Identifier: BSD-3-Clause
"""The metadata of a GGUF file; tensors are not read.

The format: magic, version, numbers of tensors and of keys, then each key with the type of its value and the
value (https://github.com/ggml-org/ggml, docs/gguf.md). ``_rules/llama_cpp.py`` has the meaning of the keys.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np

from .._base.checks import shown
from .heads import InputError

#: Types of values by number, in the codes of struct; strings and arrays have their own rules.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_KEYS, _KEPT = 100_000, 4096  # largest number of keys of a file, and of kept entries of an array

#: Key with the name of the architecture, which begins the names of its own keys.
ARCHITECTURE = "general.architecture"

#: Name for the list of tensors with frequencies of rotary positions.
ROPE_TENSORS = "tensors of frequencies"


def read_gguf(path: Path) -> dict[str, Any]:
    """Keys and values of a file as written; of an array only the first entries."""
    metadata = _metadata(path)
    kind = metadata.get(ARCHITECTURE)
    if not isinstance(kind, str):
        raise InputError(f"{path}: {ARCHITECTURE} must be a name, got {shown(kind)}")
    return metadata


def _metadata(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            if stream.read(4) != b"GGUF":
                raise InputError(f"{path} is not a GGUF file: it does not begin with GGUF")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Reader(path, content).metadata()
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


class _Reader:
    """A place in a file, which moves forward with each read and never beyond the end."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self.content, self.place = path, content, 4

    def metadata(self) -> dict[str, Any]:
        version = self.number("I")
        if version not in (2, 3):
            raise InputError(f"{self.path}: the version of GGUF must be 2 or 3, little endian, got {version}")
        tensors, count = self.number("Q"), self.number("Q")
        if count > _MOST_KEYS:
            raise InputError(f"{self.path}: the header must have at most {_MOST_KEYS} keys, got {count}")
        found = {self.string(): self.value(self.number("I")) for _ in range(count)}
        if (named := self.rope_tensors(tensors)) and isinstance(kind := found.get(ARCHITECTURE), str):
            found[f"{kind}.{ROPE_TENSORS}"] = named
        return found

    def rope_tensors(self, count: int) -> list[str]:
        """Names of the tensors with frequencies of rotary positions, at most three."""
        self.check(24 * count)
        found = []
        for _ in range(count):
            name = self.string()
            self.skip(8 * self.number("I") + 12)  # sizes, type and place
            if "rope_f" in name:
                found.append(name)
        return found[:3]

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(_SCALARS.get(kind) or self.unknown(kind))
        inner, count = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            size = struct.calcsize(_SCALARS[inner])
            start = self.skip(count * size)
            kept = min(count, _KEPT)
            found = struct.unpack(f"<{kept}{_SCALARS[inner]}", self.content[start : start + kept * size])
            return [_shortest(each) for each in found] if _SCALARS[inner] == "f" else list(found)
        if inner == _STRING:
            self.check(8 * count)
            self.skip_strings(count)
            return []
        if inner != _ARRAY or depth > 3:
            self.unknown(inner)
        self.check(12 * count)
        return [self.value(inner, depth + 1) for _ in range(count)][:_KEPT]

    def skip_strings(self, count: int) -> None:
        """Skip strings, such as the tokens, some 100 000 of them."""
        unpack, content, place = struct.Struct("<Q").unpack_from, self.content, self.place
        for _ in range(count):
            if place + 8 > len(content):
                self.check(place + 8 - self.place)
            place += 8 + unpack(content, place)[0]
        self.skip(place - self.place)

    def unknown(self, kind: int) -> Any:
        raise InputError(f"{self.path}: the header has a value of type {kind}, which GGUF does not have")

    def number(self, code: str) -> Any:
        size = struct.calcsize(code)
        (found,) = struct.unpack_from(f"<{code}", self.content, self.skip(size))
        return _shortest(found) if code == "f" else found

    def string(self) -> str:
        length = self.number("Q")
        start = self.skip(length)
        return self.content[start : start + length].decode("utf-8", errors="replace")

    def skip(self, size: int) -> int:
        """Move forward; returns the place before."""
        self.check(size)
        self.place += size
        return self.place - size

    def check(self, size: int) -> None:
        left = len(self.content) - self.place
        if size > left:
            raise InputError(
                f"{self.path}: the header is cut: {size} bytes at {self.place} must follow, {left} do"
            )


def _shortest(number: float) -> float:
    """The shortest decimal number equal to this one in single precision: 0.1 for 0.10000000149."""
    return float(str(np.float32(number)))
