# SPDX-License-Identifier: BSD-3-Clause
"""Arrays of a file by name, in each format that holds queries and keys; numbers are read when used.

Mapped: .npy, .npz unless compressed, .safetensors, .pt, and HDF5 without chunks. Read at each use, the wanted
heads alone: zarr, and HDF5 with chunks. Read as a whole: compressed arrays of a .npz file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .._base.checks import InputError, as_array
from .mapped import Packed, Place, npy_place, npz_places
from .safetensors import stored_tensors
from .torch_zip import Tensor, TorchFile, UnknownContentError

OF_TORCH = (".pt", ".pth")
OF_HDF5 = (".h5", ".hdf5")
#: Suffixes of files with several arrays, and of files with one.
ARCHIVES = (".npz", ".safetensors", *OF_TORCH, *OF_HDF5, ".zarr")
SINGLE = (".npy", *OF_TORCH, ".zarr")


class Stored(Protocol):
    """An array of a file: an ndarray, a place to map, or a data set of a library."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    def __getitem__(self, index: Any, /) -> Any: ...


_NOTHING: NDArray[Any] = np.empty(0)


def is_in_place(stored: Stored) -> bool:
    """Whether the array is in memory, or mapped where the core reads it without a copy."""
    if isinstance(stored, (Place, Packed)):
        return stored.is_in_place
    return isinstance(stored, np.ndarray) and stored.flags.aligned and stored.dtype.isnative


def one_array(path: Path) -> Stored:
    """The array of a file that holds a single array."""
    if path.suffix not in SINGLE:
        raise InputError(f"{path}: with two files both must be .npy, .pt or .zarr, queries first, then keys")
    if path.suffix == ".npy":
        return npy_place(path)
    if path.suffix == ".zarr":
        return _zarr_array(path)
    stored, array = _load_torch(path)
    if not _is_tensor(stored):
        raise InputError(
            f"{path}: with two files each must hold one tensor, got {type(stored).__name__}; a mapping with "
            "query and key is one file"
        )
    return array(str(path), stored)


def arrays_of(path: Path, wanted: set[str]) -> Mapping[str, Stored]:
    """Arrays of a file by name; those that are not `wanted`, in any case of letters, are empty."""
    if path.suffix == ".npz":
        return {name: _NOTHING if each is None else each for name, each in npz_places(path, wanted).items()}
    if path.suffix == ".safetensors":
        return _of_safetensors(path, wanted)
    if path.suffix in OF_TORCH:
        return _of_torch(path, wanted)
    if path.suffix in OF_HDF5:
        return _of_hdf5(path, wanted)
    if path.suffix == ".zarr":
        return _of_zarr(path, wanted)
    if path.suffix == ".npy":
        raise InputError(f"{path}: one .npy holds one array; give two, queries first, then keys")
    known = ".npz, .safetensors, .pt, .h5, .zarr, two .npy or two .pt files"
    raise InputError(f"{path}: expected {known}, got {path.suffix or 'no suffix'}")


def _of_safetensors(path: Path, wanted: set[str]) -> Mapping[str, Stored]:
    stored = stored_tensors(path)
    return {name: _NOTHING if name.lower() not in wanted else each.place() for name, each in stored.items()}


def _load_torch(path: Path) -> tuple[Any, Callable[[str, Any], Stored]]:
    """The content of a file of ``torch.save``, and what makes an array of a tensor; no code runs."""
    try:
        file = TorchFile(path)
        tensors = file.content.values() if isinstance(file.content, Mapping) else [file.content]
        arrays = {id(each): file.array(each) for each in tensors if isinstance(each, Tensor)}
        return file.content, lambda name, tensor: arrays[id(tensor)]
    except UnknownContentError:
        return _loaded_by_torch(path), lambda name, x: as_array(name, x.detach())


def _is_tensor(found: Any) -> bool:
    return isinstance(found, Tensor) or hasattr(found, "detach")


def _loaded_by_torch(path: Path) -> Any:
    """The objects of a file as PyTorch reads them, mapped if possible; tensors alone are read."""
    try:
        import torch
    except ImportError:
        raise InputError(f"{path}: reading {path.suffix} needs PyTorch: pip install torch") from None
    with path.open("rb") as stream:
        mapped = stream.read(2) == b"PK"  # the older form has no places to map
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # pickle, zipfile and torch raise their own for each kind of damage
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise InputError(f"{path}: not a readable {path.suffix} file of tensors ({reason})") from None


def _of_torch(path: Path, wanted: set[str]) -> Mapping[str, Stored]:
    """The tensors of a mapping in a ``torch.save`` file."""
    stored, array = _load_torch(path)
    if not isinstance(stored, Mapping):
        named = "Tensor" if _is_tensor(stored) else type(stored).__name__
        raise InputError(
            f"{path}: must hold a mapping with query and key, got {named}; "
            'torch.save({"query": query, "key": key}, path) writes one; two files may hold a tensor each'
        )
    found: dict[str, Stored] = {}
    for name, x in stored.items():
        if isinstance(name, str):
            own = name.lower() in wanted
            found[name] = _NOTHING if not own else array(name, x) if _is_tensor(x) else as_array(name, x)
    return found


def _of_hdf5(path: Path, wanted: set[str]) -> Mapping[str, Stored]:
    """The data sets at the top of an HDF5 file."""
    try:
        import h5py
    except ImportError:
        raise InputError(f"{path}: reading {path.suffix} needs h5py: pip install h5py") from None
    try:
        file = h5py.File(path, "r")
        names = [name for name in file if isinstance(file[name], h5py.Dataset)]
        return {
            name: _of_data_set(path, file[name]) if name.lower() in wanted else _NOTHING for name in names
        }
    except OSError as error:
        raise InputError(f"{path}: not a readable HDF5 file ({' '.join(str(error).split())})") from None


def _of_data_set(path: Path, found: Any) -> Stored:
    """A data set of HDF5, mapped if its numbers lie beside each other in the file."""
    start = found.id.get_offset()  # None with chunks, filters, other files, or nothing written
    if found.dtype.kind != "f" or start is None or found.file.userblock_size:
        return found if found.dtype.kind == "f" else np.asarray(found[()])
    return Place(path, start, found.dtype, found.shape)


def _open_zarr(path: Path) -> Any:
    try:
        import zarr
    except ImportError:
        raise InputError(f"{path}: reading .zarr needs zarr: pip install zarr") from None
    try:
        return zarr.open(path, mode="r")
    except Exception as error:  # zarr and its codecs raise their own for each kind of damage
        raise InputError(f"{path}: not a readable zarr folder ({' '.join(str(error).split())})") from None


def _zarr_array(path: Path) -> Stored:
    """The array of a zarr folder."""
    found = _open_zarr(path)
    if not hasattr(found, "dtype"):
        raise InputError(
            f"{path}: with two files each must hold one array, got a group; a group with query and key is one"
        )
    array: Stored = found
    return array


def _of_zarr(path: Path, wanted: set[str]) -> Mapping[str, Stored]:
    """The arrays at the top of a zarr group."""
    found = _open_zarr(path)
    if hasattr(found, "dtype"):
        raise InputError(f"{path}: one zarr array; give two, queries first, then keys, or a group of both")
    return {name: found[name] if name.lower() in wanted else _NOTHING for name in found.array_keys()}
