# SPDX-License-Identifier: BSD-3-Clause
"""Queries and keys from files: .npz, .safetensors, .pt, or a pair of .npy or .pt files."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._base.checks import InputError as InputError
from .._base.checks import as_array, warn
from .safetensors import stored_tensors

# Spellings in use: this package's, PyTorch's, those of notebooks, and transformers' names of the states.
_QUERY_NAMES = ("query", "q", "queries", "query_states")
_KEY_NAMES = ("key", "k", "keys", "key_states")
_OF_TORCH = (".pt", ".pth")
_WANTED = {*_QUERY_NAMES, *_KEY_NAMES, "layers", "heads", "provenance"}


class StoredHeads(NamedTuple):
    """Arrays of shape (..., heads, n, head_dim), the names of the heads, and the file's own description."""

    query: npt.NDArray[Any]
    key: npt.NDArray[Any]
    names: tuple[str, ...]
    about: Mapping[str, Any] = MappingProxyType({})  # the file's provenance: model, text, licences
    tokens: tuple[str, ...] = ()  # the text in pieces, where a .npz file has it


def check_is_file(path: Path, name: str = "") -> None:
    """Refuse a path that is not a file; `name` is the option that gave it, if any."""
    if not path.is_file():
        seen = "is a folder, not a file" if path.is_dir() else "no such file"
        raise InputError(f"{f'{name} {path}'.strip()}: {seen}")


def read_heads(files: Iterable[str | Path], *, layout: str = "bhsd") -> StoredHeads:
    """Read one file with both arrays, or a file of queries and one of keys, .npy or .pt.

    Parameters
    ----------
    files : one or two paths
        ``.npz``, ``.safetensors``, or ``.pt`` of ``torch.save``, with arrays named query and key (also q/k,
        queries/keys, query_states/key_states, in any case), or two ``.npy`` files, or two ``.pt`` files with
        a tensor each, queries first. Optional integer arrays ``layers`` and ``heads`` name the heads, a JSON
        text ``provenance`` is the source, and an array of str ``tokens`` in a ``.npz`` file is the text.
    layout : {"bhsd", "bshd"}
        Axis order: (..., heads, n, head_dim) or (..., n, heads, head_dim). 2-D arrays are one head in both.

    Returns
    -------
    StoredHeads
        In the order (..., heads, n, head_dim), at least 3-D, checked: floating point, finite,
        shapes that fit.

    Raises
    ------
    InputError
        If the files cannot be used: one line names the file, the array and what was seen.

    Examples
    --------
    >>> import numpy as np, tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "heads.npz"
    >>> np.savez(path, q=np.ones((2, 8, 4)), k=np.ones((2, 8, 4)))
    >>> read_heads([path]).names
    ('0', '1')
    """
    paths = [Path(file) for file in files]
    for path in paths:
        check_is_file(path)
    if len(paths) == 2:
        arrays: Mapping[str, npt.NDArray[Any]] = {"query": _read_one(paths[0]), "key": _read_one(paths[1])}
    else:
        arrays = _read_archive(paths[0])
    query, key = _pick(arrays, _QUERY_NAMES, paths[0]), _pick(arrays, _KEY_NAMES, paths[0])
    query = _arrange(f"{paths[0]}: query", query, layout)
    key = _arrange(f"{paths[-1]}: key", key, layout)
    _check_shapes(" and ".join(dict.fromkeys(map(str, paths))), query, key)
    names = _head_names(arrays, query.shape[-3], paths[0])
    if layout == "bhsd" and names is None:
        _warn_of_layout(query, key, paths[0])
    names = names or tuple(str(head) for head in range(query.shape[-3]))
    tokens = arrays.get("tokens", np.empty(0))
    words = tuple(tokens.tolist()) if tokens.dtype.kind == "U" and tokens.ndim == 1 else ()
    return StoredHeads(query, key, names, _provenance(arrays), words)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text in UTF-8 ({error.reason} at byte {error.start})") from None


def _read_one(path: Path) -> npt.NDArray[Any]:
    """The array of a file that holds a single array."""
    if path.suffix not in (".npy", *_OF_TORCH):
        raise InputError(f"{path}: with two files both must be .npy or .pt, queries first, then keys")
    if path.suffix == ".npy":
        return _read_npy(path)
    stored = _load_torch(path)
    if not hasattr(stored, "detach"):
        raise InputError(
            f"{path}: with two files each must hold one tensor, got {type(stored).__name__}; a mapping with "
            "query and key is one file"
        )
    return as_array(str(path), stored.detach())


def _read_npy(path: Path) -> npt.NDArray[Any]:
    _check_magic(path, ".npy", b"\x93NUMPY")
    try:
        # An open file: np.load does not close the file that it opened if it fails.
        with path.open("rb") as stream:
            array: npt.NDArray[Any] = np.load(stream, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InputError(f"{path}: not a readable .npy file ({_without_pickle(error)})") from None
    return array


def _check_magic(path: Path, suffix: str, magic: bytes) -> None:
    """Refuse a file that is not what its suffix says: NumPy would take it for a pickle, which is unsafe."""
    with path.open("rb") as stream:
        start = stream.read(6)
    if not start.startswith(magic):
        what = {b"PK": ", but an archive as .npz", b"\x93N": ", but an array as .npy"}.get(start[:2], "")
        raise InputError(f"{path}: not an {suffix} file{what}")


def _without_pickle(error: Exception) -> str:
    return "it holds Python objects" if "allow_pickle" in str(error) else str(error)


def _read_archive(path: Path) -> Mapping[str, npt.NDArray[Any]]:
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix in _OF_TORCH:
        return _read_torch(path)
    if path.suffix == ".npy":
        raise InputError(f"{path}: one .npy holds one array; give two, queries first, then keys")
    known = ".npz, .safetensors, .pt, two .npy or two .pt files"
    raise InputError(f"{path}: expected {known}, got {path.suffix or 'no suffix'}")


def _read_npz(path: Path) -> Mapping[str, npt.NDArray[Any]]:
    _check_magic(path, ".npz", b"PK")
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            # Only these arrays are read; the other names are kept for the message.
            empty = np.empty(0)
            wanted = {*_WANTED, "tokens"}
            return {name: stored[name] if name.lower() in wanted else empty for name in stored.files}
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path}: not a readable .npz file ({_without_pickle(error)})") from None


def _read_safetensors(path: Path) -> Mapping[str, npt.NDArray[Any]]:
    stored = stored_tensors(path)
    wanted = {name: name.lower() in _WANTED for name in stored}
    if any(stored[name].kind == "BF16" for name in wanted if wanted[name]):
        bfloat16 = _need_bfloat16(path)
    empty = np.empty(0)
    return {
        name: empty
        if not wanted[name]
        else each.read_bits().view(bfloat16)
        if each.kind == "BF16"
        else each.read()
        for name, each in stored.items()
    }


def _load_torch(path: Path) -> Any:
    """The content of a file of ``torch.save``; only tensors are read, no code runs."""
    try:
        import torch
    except ImportError:
        raise InputError(f"{path}: reading {path.suffix} needs PyTorch: pip install torch") from None
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zipfile and torch raise their own for each kind of damage
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise InputError(f"{path}: not a readable {path.suffix} file of tensors ({reason})") from None


def _read_torch(path: Path) -> Mapping[str, npt.NDArray[Any]]:
    """The tensors of a mapping in a ``torch.save`` file."""
    stored = _load_torch(path)
    if not isinstance(stored, Mapping):
        raise InputError(
            f"{path}: must hold a mapping with query and key, got {type(stored).__name__}; "
            'torch.save({"query": query, "key": key}, path) writes one; two files may hold a tensor each'
        )
    tensors = {name: x for name, x in stored.items() if isinstance(name, str)}
    return {
        name: as_array(name, x.detach() if hasattr(x, "detach") else x)
        if name.lower() in _WANTED
        else np.empty(0)
        for name, x in tensors.items()
    }


def _need_bfloat16(path: Path) -> np.dtype[Any]:
    """The type bfloat16 of ml_dtypes."""
    try:
        import ml_dtypes
    except ImportError:
        raise InputError(f"{path}: reading bfloat16 needs its package: pip install ml_dtypes") from None
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def _pick(arrays: Mapping[str, npt.NDArray[Any]], spellings: tuple[str, ...], path: Path) -> npt.NDArray[Any]:
    found = [name for name in arrays if name.lower() in spellings]
    if len(found) == 1:
        return arrays[found[0]]
    seen = ", ".join(sorted(arrays)) or "nothing"
    problem = (
        f"several arrays could be the {spellings[0]}" if found else f"no array named {' or '.join(spellings)}"
    )
    raise InputError(f"{path}: {problem}; the file has {seen}")


def _arrange(name: str, array: npt.NDArray[Any], layout: str) -> npt.NDArray[Any]:
    """The array, checked, with the axes (..., heads, n, head_dim); `name` begins with the file's."""
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        # NumPy saves bfloat16 as two bytes without a name.
        hint = "; bfloat16 goes into .safetensors, or .astype(np.float32)" if array.dtype.str == "|V2" else ""
        raise InputError(f"{name} must be floating point, got {array.dtype}{hint}")
    if array.ndim < 2:
        raise InputError(f"{name} must have 2 axes (n, head_dim) or more, got shape {array.shape}")
    if array.ndim == 2:
        array = array[None]
    elif layout == "bshd":
        array = np.swapaxes(array, -3, -2)
    bad = ~np.isfinite(array)
    if bad.any():
        where = tuple(int(index) for index in np.argwhere(bad)[0])
        raise InputError(f"{name} holds {int(bad.sum())} NaN or infinite values, the first at index {where}")
    return array


def _check_shapes(where: str, query: npt.NDArray[Any], key: npt.NDArray[Any]) -> None:
    shapes = f"query {query.shape} and key {key.shape}"
    if query.ndim != key.ndim or query.shape[:-3] != key.shape[:-3]:
        raise InputError(f"{where}: query and key must have the same batch axes, got {shapes}")
    if query.shape[-1] != key.shape[-1]:
        raise InputError(f"{where}: query and key must have the same last dimension, got {shapes}")
    if 0 in query.shape or 0 in key.shape:
        raise InputError(f"{where}: query and key must not be empty, got {shapes}")
    if query.shape[-3] % key.shape[-3]:
        raise InputError(
            f"{where}: the number of query heads must be a multiple of that of key heads, got {shapes}"
        )


def _head_names(arrays: Mapping[str, npt.NDArray[Any]], n_heads: int, path: Path) -> tuple[str, ...] | None:
    """Head names from the arrays layers and heads; None without them."""
    labels = {name: arrays[name] for name in ("layers", "heads") if name in arrays}
    if not labels:
        return None
    if len(labels) < 2 or any(each.shape != (n_heads,) for each in labels.values()):
        seen = " and ".join(f"{name} of shape {each.shape}" for name, each in labels.items())
        raise InputError(
            f"{path}: layers and heads must both have one number for each of the {n_heads} heads, got {seen}"
        )
    return tuple(f"L{layer} H{head}" for layer, head in zip(*labels.values(), strict=True))


def _warn_of_layout(query: npt.NDArray[Any], key: npt.NDArray[Any], path: Path) -> None:
    """Warn where an array has more heads than tokens: its axes are probably in the other order."""
    heads, tokens = query.shape[-3:-1]
    if heads > tokens and key.shape[-3] > key.shape[-2]:
        warn(
            f"{path}: read as {heads} heads of {tokens} tokens; with layout bshd it has {tokens} heads of "
            f"{heads} tokens"
        )


def _provenance(arrays: Mapping[str, npt.NDArray[Any]]) -> Mapping[str, Any]:
    """The object of the JSON text named provenance, as in the package's own files; empty without one."""
    try:
        found = json.loads(str(arrays["provenance"]))
    except (KeyError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
