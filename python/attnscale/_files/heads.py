# SPDX-License-Identifier: BSD-3-Clause
"""Queries and keys from files: .npz, .safetensors, .pt, or a pair of .npy or .pt files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._base.checks import InputError as InputError
from .._base.checks import refusal, shown, warn
from .._base.pieces import PIECE, slices, windows
from .arrays import Stored, arrays_of, is_in_place, one_array
from .mapped import Place

# Spellings in use: this package's, PyTorch's, those of notebooks, and transformers' names of the states.
QUERY_NAMES = ("query", "q", "queries", "query_states")
KEY_NAMES = ("key", "k", "keys", "key_states")
_WANTED = {*QUERY_NAMES, *KEY_NAMES, "layers", "heads", "provenance", "tokens"}
#: Bytes of the heads that are read together where they are not mapped in place.
_PART = 2**25


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


@dataclass(frozen=True)
class OpenHeads:
    """Queries and keys of files, of which only the headers were read.

    Shapes, and cuts of them, have the order (..., heads, n, head_dim) whatever the files' order is.
    """

    files: tuple[Path, ...]
    query: Stored
    key: Stored
    layout: str
    names: tuple[str, ...]
    about: Mapping[str, Any]
    tokens: tuple[str, ...]

    @cached_property
    def query_shape(self) -> tuple[int, ...]:
        return _in_order(self.query.shape, self.layout)

    @cached_property
    def key_shape(self) -> tuple[int, ...]:
        return _in_order(self.key.shape, self.layout)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the queries."""
        return self.query.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of queries and keys."""
        query, key = self.query, self.key
        return math.prod(query.shape) * query.dtype.itemsize + math.prod(key.shape) * key.dtype.itemsize

    @property
    def most(self) -> int:
        """The largest number of tokens that there are of queries and of keys."""
        return min(self.query_shape[-2], self.key_shape[-2])

    def read(
        self,
        n: int | None = None,
        heads: Sequence[int] | None = None,
        *,
        check: bool = True,
        as_stored: bool = False,
    ) -> StoredHeads:
        """The first n tokens of these heads, by default all, mapped where the core reads the file in place.

        Copied are numbers in another byte order or between multiples of their size, as most arrays in a .npz
        file are (unless they are wanted `as_stored`), heads that are not evenly spaced, and keys of query
        heads that share them unevenly.
        """
        chosen = self._chosen(n, heads)
        of_keys = _key_heads(chosen, self.query_shape[-3], self.key_shape[-3])
        if check:
            self.check(n, heads)
        query = _cut(self.query, self.layout, n, chosen, as_stored)
        key = _cut(self.key, self.layout, n, of_keys, as_stored)
        names = self.names if heads is None else tuple(self.names[head] for head in chosen)
        return StoredHeads(query, key, names, self.about, self.tokens[:n])

    def check(self, n: int | None = None, heads: Sequence[int] | None = None) -> None:
        """Refuse a number that is not finite among those that :meth:`read` returns, piece by piece."""
        chosen = self._chosen(n, heads)
        of_keys = _key_heads(chosen, self.query_shape[-3], self.key_shape[-3])
        for file, name, stored, of in (
            (self.files[0], "query", self.query, chosen),
            (self.files[-1], "key", self.key, [*dict.fromkeys(of_keys)]),
        ):
            if isinstance(stored, Place) and n is None and heads is None:
                stored.check_sum(name)
            _check_finite(f"{file}: {name}", stored, self.layout, n, of)

    def parts(self, n: int | None = None, heads: Sequence[int] | None = None) -> Iterator[StoredHeads]:
        """The heads of :meth:`read` in parts, which need no memory for all heads at once; not checked.

        One part if all of it is mapped in place; else key heads of a few MiB with their query heads.
        """
        chosen = self._chosen(n, heads)
        of_keys = _key_heads(chosen, self.query_shape[-3], self.key_shape[-3])
        in_place = is_in_place(self.query) and is_in_place(self.key)
        share = self.nbytes / self.key_shape[-3] * (1 if n is None else n / self.key_shape[-2])
        if share * len(of_keys) < _PART or (in_place and len(_runs(chosen)) == len(_runs(of_keys)) == 1):
            yield self.read(n, heads, check=False)
            return
        together = self.query_shape[-3] // self.key_shape[-3] * max(1, int(_PART // share))
        for _, group in groupby(chosen, lambda head: head // together):
            yield self.read(n, [*group], check=False)

    def _chosen(self, n: int | None, heads: Sequence[int] | None) -> Sequence[int]:
        """The heads' numbers, checked as n is."""
        most = max(self.query_shape[-2], self.key_shape[-2])
        if n is not None and not 1 <= n <= most:
            raise refusal(InputError, "n", f"must be between 1 and {most}, the tokens in the file, got {n}")
        count = self.query_shape[-3]
        if heads is None:
            return range(count)
        for head in heads:
            if not 0 <= head < count:
                rule = f"must be between 0 and {count - 1}, the heads in the file, got {head}"
                raise refusal(InputError, "heads", rule)
        if not heads or len({*heads}) < len(heads):
            raise refusal(InputError, "heads", f"must name heads once each, got {shown([*heads])}")
        return [*heads]


def open_heads(files: Iterable[str | Path], *, layout: str = "bhsd") -> OpenHeads:
    """Open files as :func:`read_heads` does, and read their headers: types and shapes are checked."""
    paths = tuple(Path(file) for file in files)
    for path in paths:
        if path.suffix != ".zarr" or not path.is_dir():
            check_is_file(path)
    if len(paths) == 2:
        arrays: Mapping[str, Stored] = {"query": one_array(paths[0]), "key": one_array(paths[1])}
    else:
        arrays = arrays_of(paths[0], _WANTED)
    query, key = _pick(arrays, QUERY_NAMES, paths[0]), _pick(arrays, KEY_NAMES, paths[0])
    _check_array(f"{paths[0]}: query", query)
    _check_array(f"{paths[-1]}: key", key)
    shapes = _in_order(query.shape, layout), _in_order(key.shape, layout)
    _check_shapes(" and ".join(dict.fromkeys(map(str, paths))), *shapes)
    names = _head_names(arrays, shapes[0][-3], paths[0])
    if layout == "bhsd" and names is None:
        _warn_of_layout(*shapes, paths[0])
    names = names or tuple(str(head) for head in range(shapes[0][-3]))
    return OpenHeads(paths, query, key, layout, names, _provenance(arrays), _tokens(arrays))


def read_heads(
    files: Iterable[str | Path],
    *,
    layout: str = "bhsd",
    n: int | None = None,
    heads: Sequence[int] | None = None,
) -> StoredHeads:
    """Read one file with both arrays, or a file of queries and one of keys, .npy or .pt.

    Arrays are mapped where the format allows it: their numbers take no memory of the process. Compressed
    arrays of a ``.npz`` file are read as a whole, and zarr and HDF5 with chunks as far as they are cut.

    Parameters
    ----------
    files : one or two paths
        ``.npz``, ``.safetensors``, ``.h5``, ``.zarr``, or ``.pt`` of ``torch.save``, with arrays named query
        and key (also q/k, queries/keys, query_states/key_states, in any case), or two ``.npy`` files, or two
        ``.pt`` or ``.zarr`` files with an array each, queries first. Optional integer arrays ``layers`` and
        ``heads`` name the heads, a JSON text ``provenance`` is the source, and an array of str ``tokens`` in
        a ``.npz`` file is the text.
    layout : {"bhsd", "bshd"}
        Axis order: (..., heads, n, head_dim) or (..., n, heads, head_dim). 2-D arrays are one head in both.
    n : int, optional
        Only the first n queries and keys, or all if there are fewer; no others are read or checked.
    heads : sequence of int, optional
        Only these query heads, counted from 0, and their key heads.

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
    >>> read_heads([path], n=3, heads=[1]).key.shape
    (1, 3, 4)
    """
    return open_heads(files, layout=layout).read(n, heads)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text in UTF-8 ({error.reason} at byte {error.start})") from None


def _pick(arrays: Mapping[str, Stored], spellings: tuple[str, ...], path: Path) -> Stored:
    found = [name for name in arrays if name.lower() in spellings]
    if len(found) == 1:
        return arrays[found[0]]
    seen = ", ".join(sorted(arrays)) or "nothing"
    problem = (
        f"several arrays could be the {spellings[0]}" if found else f"no array named {' or '.join(spellings)}"
    )
    raise InputError(f"{path}: {problem}; the file has {seen}")


def _in_order(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """The shape (..., heads, n, head_dim) of an array with the axes of the layout, and back."""
    if len(shape) == 2:
        return (1, *shape)
    return (*shape[:-3], shape[-2], shape[-3], shape[-1]) if layout == "bshd" else shape


def _key_heads(heads: Sequence[int], n_heads: int, n_key_heads: int) -> Sequence[int]:
    """The key heads of these query heads: one for each group of them, if the groups are of one size."""
    if heads == range(n_heads):
        return range(n_key_heads)
    each = [head // (n_heads // n_key_heads) for head in heads]
    groups = [(key, len([*of])) for key, of in groupby(each)]
    once = len({key for key, _ in groups}) == len(groups) and len({size for _, size in groups}) == 1
    return [key for key, _ in groups] if once else each


def _runs(heads: Sequence[int]) -> list[range]:
    """The numbers as ranges: one if they are evenly spaced, else each run of neighbours."""
    if isinstance(heads, range):
        return [heads]
    step = heads[1] - heads[0] if len(heads) > 1 else 1
    if step > 0 and all(b - a == step for a, b in pairwise(heads)):
        return [range(heads[0], heads[-1] + 1, step)]
    runs: list[range] = []
    for head in heads:
        if runs and head == runs[-1].stop:
            runs[-1] = range(runs[-1].start, head + 1)
        else:
            runs.append(range(head, head + 1))
    return runs


def _bounds(stored: Stored, layout: str, n: int | None, run: range) -> list[range]:
    """Indices of the first n tokens of a run of heads, on the axes of the file."""
    bounds = [*map(range, stored.shape)]
    rows, of_heads = (-3, -2) if layout == "bshd" and len(bounds) > 2 else (-2, -3)
    bounds[rows] = bounds[rows][:n]
    if len(bounds) > 2:
        bounds[of_heads] = run
    return bounds


def _cut(
    stored: Stored, layout: str, n: int | None, heads: Sequence[int], as_stored: bool
) -> npt.NDArray[Any]:
    """The first n tokens of the heads, (..., heads, n, head_dim); a view if it is a regular part."""
    parts: list[npt.NDArray[Any]] = [stored[slices(_bounds(stored, layout, n, run))] for run in _runs(heads)]
    if not as_stored:
        parts = [*map(_aligned, parts)]
    if parts[0].ndim == 2:
        return parts[0][None]
    if layout == "bshd":
        parts = [np.swapaxes(part, -3, -2) for part in parts]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-3)


def _aligned(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array, copied unless the core reads it in place."""
    if array.flags.aligned and array.dtype.isnative:
        return array
    return np.array(array, array.dtype.newbyteorder("="))


def _check_finite(name: str, stored: Stored, layout: str, n: int | None, heads: Sequence[int]) -> None:
    """Refuse NaN and infinity, with their number and the index of the first."""
    count, first = 0, None
    most = PIECE if isinstance(stored, (np.ndarray, Place)) else _PART  # a chunk is unpacked in each piece
    for run in _runs(heads):
        for window in windows(_bounds(stored, layout, n, run), stored.dtype.itemsize, most):
            bad = ~np.isfinite(stored[slices(window)])
            if bad.any():
                count += int(bad.sum())
                found = np.argwhere(bad if bad.ndim == 2 or layout == "bhsd" else np.swapaxes(bad, -3, -2))[0]
                order = _in_order(tuple(range(len(window))), layout)[-len(window) :]
                place = tuple(window[axis][int(i)] for axis, i in zip(order, found, strict=True))
                first = place if first is None else min(first, place)
    if count:
        where = (0, *first) if first and len(first) == 2 else first
        raise InputError(f"{name} holds {count} NaN or infinite values, the first at index {where}")


def _check_array(name: str, array: Stored) -> None:
    """Refuse an array of another type than floats, or without the axes (n, head_dim)."""
    if array.dtype.kind != "f" and array.dtype.name != "bfloat16":
        # NumPy saves bfloat16 as two bytes without a name.
        hint = "; bfloat16 goes into .safetensors, or .astype(np.float32)" if array.dtype.str == "|V2" else ""
        raise InputError(f"{name} must be floating point, got {array.dtype}{hint}")
    if len(array.shape) < 2:
        raise InputError(f"{name} must have 2 axes (n, head_dim) or more, got shape {array.shape}")


def _check_shapes(where: str, query: tuple[int, ...], key: tuple[int, ...]) -> None:
    shapes = f"query {query} and key {key}"
    if query[:-3] != key[:-3]:
        raise InputError(f"{where}: query and key must have the same batch axes, got {shapes}")
    if query[-1] != key[-1]:
        raise InputError(f"{where}: query and key must have the same last dimension, got {shapes}")
    if 0 in query or 0 in key:
        raise InputError(f"{where}: query and key must not be empty, got {shapes}")
    if query[-3] % key[-3]:
        raise InputError(
            f"{where}: the number of query heads must be a multiple of that of key heads, got {shapes}"
        )


def _head_names(arrays: Mapping[str, Stored], n_heads: int, path: Path) -> tuple[str, ...] | None:
    """Head names from the arrays layers and heads; None without them."""
    labels = {name: arrays[name] for name in ("layers", "heads") if name in arrays}
    if not labels:
        return None
    if len(labels) < 2 or any(each.shape != (n_heads,) for each in labels.values()):
        seen = " and ".join(f"{name} of shape {each.shape}" for name, each in labels.items())
        raise InputError(
            f"{path}: layers and heads must both have one number for each of the {n_heads} heads, got {seen}"
        )
    numbers = (each[()] for each in labels.values())
    return tuple(f"L{layer} H{head}" for layer, head in zip(*numbers, strict=True))


def _warn_of_layout(query: tuple[int, ...], key: tuple[int, ...], path: Path) -> None:
    """Warn where an array has more heads than tokens: its axes are probably in the other order."""
    heads, tokens = query[-3:-1]
    if heads > tokens and key[-3] > key[-2]:
        warn(
            f"{path}: read as {heads} heads of {tokens} tokens; with layout bshd it has {tokens} heads of "
            f"{heads} tokens"
        )


def _provenance(arrays: Mapping[str, Stored]) -> Mapping[str, Any]:
    """The object of the JSON text named provenance, as in the package's own files; empty without one."""
    try:
        text = arrays["provenance"][()]
        found = json.loads(text if isinstance(text, bytes) else str(text))
    except (KeyError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _tokens(arrays: Mapping[str, Stored]) -> tuple[str, ...]:
    """The text of an array of str named tokens."""
    stored = arrays.get("tokens")
    if stored is None or stored.dtype.kind != "U" or len(stored.shape) != 1:
        return ()
    return tuple(stored[()].tolist())
