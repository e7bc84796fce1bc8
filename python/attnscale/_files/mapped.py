# SPDX-License-Identifier: BSD-3-Clause
"""Arrays in files that are mapped: their place is read from headers, their numbers when they are used.

A mapped array takes memory of the page cache, which the system takes back when it needs it, and no memory of
the process. The file must stay as it is meanwhile.
"""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from .._base.checks import InputError, shown
from .._base.pieces import PIECE

_LOCAL = struct.Struct("<4s5H3L2H")  # the header before each member of a zip archive
_ELSEWHERE = 0xFFFFFFFF  # a size that stands in the header's 64-bit field


@dataclass(frozen=True)
class Place:
    """An array's place in a file, with the names that arrays use for shape and type."""

    file: Path
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    by_columns: bool = False  # Fortran's order
    crc: int | None = None  # of the `header` bytes before the array and of its own, in a zip archive
    header: int = 0

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def is_in_place(self) -> bool:
        """Whether the core reads the mapped numbers as they are: at multiples of their size, byte order."""
        return self.dtype.isnative and self.offset % self.dtype.itemsize == 0

    def map(self) -> NDArray[Any]:
        """The array, mapped for reading; numbers in another byte order or place keep it."""
        if not self.nbytes:
            return np.empty(self.shape, self.dtype)
        order: Any = "F" if self.by_columns else "C"
        return np.asarray(np.memmap(self.file, self.dtype, "r", self.offset, self.shape, order))

    def __getitem__(self, index: Any) -> NDArray[Any]:
        found: NDArray[Any] = self.map()[index]
        return found

    def check_sum(self, name: str) -> None:
        """Refuse an array of a zip archive whose bytes are not those that were written."""
        if self.crc is None:
            return
        size = self.header + self.nbytes
        raw = Place(self.file, self.offset - self.header, np.dtype(np.uint8), (size,)).map()
        found = 0
        for start in range(0, size, PIECE):
            found = zlib.crc32(raw[start : start + PIECE].data, found)
        if found != self.crc:
            raise InputError(f"{self.file}: {name} is damaged: its checksum does not fit its bytes")


def bfloat16() -> np.dtype[Any] | None:
    """The type bfloat16 of ml_dtypes, if that is installed."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def npy_place(path: Path) -> Place:
    """The array of a .npy file."""
    check_magic(path, ".npy", npy.MAGIC_PREFIX)
    with path.open("rb") as stream:
        shape, by_columns, dtype = _npy_header(stream, f"{path}: not a readable .npy file")
        found = Place(path, stream.tell(), dtype, shape, by_columns)
        size = stream.seek(0, 2) - found.offset
    if size < found.nbytes:
        why = f"its header says {found.nbytes} bytes of numbers, the file has {size}"
        raise InputError(f"{path}: not a readable .npy file ({why})")
    return found


def check_magic(path: Path, suffix: str, magic: bytes) -> None:
    """Refuse a file that is not what its suffix says: NumPy would take it for a pickle, which is unsafe."""
    with path.open("rb") as stream:
        start = stream.read(6)
    if not start:
        raise InputError(f"{path}: not an {suffix} file, but an empty one")
    if not start.startswith(magic):
        what = {b"PK": ", but an archive as .npz", b"\x93N": ", but an array as .npy"}.get(start[:2], "")
        raise InputError(f"{path}: not an {suffix} file{what}")


def _npy_header(stream: IO[bytes], where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether it is in Fortran's order, and type; the stream is then at the numbers."""
    try:
        version = npy.read_magic(stream)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}.get(version)
        if read is None:
            raise ValueError(f"its version is {version[0]}.{version[1]}")
        shape, by_columns, dtype = read(stream)
        if any(extent < 0 for extent in shape):
            raise ValueError(f"its header says the shape {shown(shape)[:60]}")
    except (ValueError, EOFError) as error:
        raise InputError(f"{where} ({' '.join(str(error).split())})") from None
    if dtype.hasobject:
        raise InputError(f"{where} (it holds Python objects)")
    return shape, by_columns, dtype


@dataclass(frozen=True)
class Packed:
    """A compressed array of a .npz file, which is read as a whole, once, when it is first used."""

    file: Path
    member: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def is_in_place(self) -> bool:
        """Whether the core takes the array as it is."""
        return self.dtype.isnative

    @cached_property
    def _array(self) -> NDArray[Any]:
        try:
            with zipfile.ZipFile(self.file) as archive, archive.open(self.member) as stream:
                array: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
                stream.read()  # the end of the member, where its checksum is compared
        except Exception as error:  # zipfile, zlib and NumPy raise their own for each kind of damage
            raise _unreadable(self.file, self.member, error) from None
        return array

    def __getitem__(self, index: Any) -> NDArray[Any]:
        found: NDArray[Any] = self._array[index]
        return found


def npz_places(path: Path, wanted: set[str]) -> dict[str, Place | Packed | None]:
    """Arrays of a .npz file by name; None for those that are not `wanted`, in any case of letters."""
    check_magic(path, ".npz", b"PK")
    found: dict[str, Place | Packed | None] = {}
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
            for member in archive.infolist():
                name = member.filename.removesuffix(".npy")
                if name in found:
                    raise InputError(f"{path}: not a readable .npz file (it has two arrays {shown(name)})")
                found[name] = None
                if name.lower() in wanted:
                    found[name] = _member(path, archive, stream, member)
    except InputError:
        raise
    except Exception as error:  # a damaged archive fails in many ways, such as NotImplementedError
        raise _unreadable(path, "", error) from None
    return found


def _unreadable(path: Path, member: str, error: Exception) -> InputError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return InputError(f"{path}: not a readable .npz file ({member and f'{member}: '}{reason})")


def _member(
    path: Path, archive: zipfile.ZipFile, stream: IO[bytes], member: zipfile.ZipInfo
) -> Place | Packed:
    """The place of an array in an archive, or how it is read; headers must agree on its size."""
    where = f"{path}: not a readable .npz file"
    start = start_of(stream, member, where)
    with archive.open(member) as numbers:
        shape, by_columns, dtype = _npy_header(numbers, where)
        header = numbers.tell()
    size = math.prod(shape) * dtype.itemsize
    if size != member.file_size - header:
        why = f"{member.filename} says {size} bytes of numbers, and the archive {member.file_size - header}"
        raise InputError(f"{where} ({why})")
    if member.compress_type != zipfile.ZIP_STORED:
        return Packed(path, member.filename, dtype, shape)
    if start + member.file_size > stream.seek(0, 2):
        raise InputError(f"{where} ({member.filename} goes beyond the end of the file)")
    return Place(path, start + header, dtype, shape, by_columns, member.CRC, header)


def start_of(stream: IO[bytes], member: zipfile.ZipInfo, where: str) -> int:
    """The first byte of a member; its own header must agree with the archive's list."""
    stream.seek(member.header_offset)
    fields = _LOCAL.unpack(stream.read(_LOCAL.size))
    flags, method, packed, unpacked, length, more = fields[2], fields[3], *fields[7:]
    extra = stream.read(length + more)[length:]
    sizes = _wide_sizes(extra) if _ELSEWHERE in (packed, unpacked) else (packed, unpacked)
    listed = (member.compress_size, member.file_size)
    in_list_alone = flags & 8  # sizes that were unknown when the header was written
    if method != member.compress_type or (sizes != listed and not in_list_alone):
        raise InputError(
            f"{where} (the header of {member.filename} and the archive's list say different sizes)"
        )
    return stream.tell()


def _wide_sizes(extra: bytes) -> tuple[int, ...]:
    """Packed and unpacked size from the 64-bit field of a header; nothing without one."""
    while len(extra) >= 4:
        kind, length = struct.unpack_from("<2H", extra)
        if kind == 1 and length >= 16 and len(extra) >= 20:
            return struct.unpack_from("<2Q", extra, 4)[::-1]
        extra = extra[4 + length :]
    return ()
