# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of a file of ``torch.save``, mapped without PyTorch.

The file is an archive: NAME/data.pkl is a pickle of the objects, whose tensors name their storages, and
NAME/data/KEY has the numbers of a storage. Only the names below are known to the pickle, and no code runs.
"""

from __future__ import annotations

import collections
import math
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .mapped import Place, bfloat16, start_of

#: Types of storages, as the pickle names them.
_TYPES = {"DoubleStorage": "f8", "FloatStorage": "f4", "HalfStorage": "f2", "BFloat16Storage": "bfloat16"}
_TYPES |= {"LongStorage": "i8", "IntStorage": "i4", "ShortStorage": "i2", "CharStorage": "i1"}
_TYPES |= {"ByteStorage": "u1", "BoolStorage": "?"}


class UnknownContentError(Exception):
    """The content of a file that PyTorch itself must read, or refuse."""


class _Storage(NamedTuple):
    key: str
    type: str
    numbers: int


class Tensor(NamedTuple):
    """A tensor of the pickle."""

    storage: _Storage
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _tensor(storage: Any, first: Any, shape: Any, strides: Any, *_: Any) -> Tensor:
    counts = [first, *shape, *strides]
    if not isinstance(storage, _Storage) or any(type(each) is not int or each < 0 for each in counts):
        raise UnknownContentError
    last = first + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    if 0 not in shape and last >= storage.numbers:
        raise UnknownContentError
    return Tensor(storage, first, tuple(shape), tuple(strides))


_KNOWN: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): lambda tensor, *_: tensor,
    ("collections", "OrderedDict"): collections.OrderedDict,
    **{("torch", name): type for name, type in _TYPES.items()},
}


class _Objects(pickle.Unpickler):
    """The objects of the pickle, with a :class:`Tensor` for each tensor."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise UnknownContentError from None

    def persistent_load(self, given: Any) -> _Storage:
        _, type, key, _, count = given
        if type not in _TYPES.values() or not isinstance(key, str) or not isinstance(count, int):
            raise UnknownContentError
        return _Storage(key, type, count)


class TorchFile:
    """The content of a file, and its tensors as arrays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with zipfile.ZipFile(path) as archive:
                self._members = {each.filename: each for each in archive.infolist()}
                if len(self._members) < len(archive.infolist()):
                    raise UnknownContentError
                (pickled,) = (name for name in self._members if name.endswith("/data.pkl"))
                self._folder = pickled.removesuffix("data.pkl")
                order = self._folder + "byteorder"
                is_big = order in self._members and archive.read(order) == b"big"
                self._order = ">" if is_big else "<"
                with archive.open(pickled) as stream:
                    self.content: Any = _Objects(stream).load()
        except Exception as error:  # whatever it is, PyTorch tells more about it
            raise UnknownContentError from error

    def array(self, tensor: Tensor) -> Place | NDArray[Any]:
        """A tensor, mapped."""
        named = tensor.storage.type
        dtype = bfloat16() if named == "bfloat16" else np.dtype(self._order + named)
        member = self._members.get(f"{self._folder}data/{tensor.storage.key}")
        if dtype is None or member is None or member.compress_type != zipfile.ZIP_STORED:
            raise UnknownContentError
        if member.file_size != tensor.storage.numbers * dtype.itemsize:
            raise UnknownContentError
        with self.path.open("rb") as stream:
            start = start_of(
                stream, member, f"{self.path}: not a readable {self.path.suffix} file of tensors"
            )
            if start + member.file_size > stream.seek(0, 2):
                raise UnknownContentError
        if tensor.strides == _usual_strides(tensor.shape):
            return Place(self.path, start + tensor.first * dtype.itemsize, dtype, tensor.shape)
        flat = Place(self.path, start, dtype, (tensor.storage.numbers,)).map()[tensor.first :]
        strides = [stride * dtype.itemsize for stride in tensor.strides]
        return np.lib.stride_tricks.as_strided(flat, tensor.shape, strides, writeable=False)


def _usual_strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
