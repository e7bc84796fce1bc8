# SPDX-License-Identifier: BSD-3-Clause
"""Queries and keys of a whole model: a folder with a file, or a pair of files, for each layer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from .._base.checks import InputError
from .arrays import ARCHIVES, SINGLE
from .heads import KEY_NAMES, QUERY_NAMES, OpenHeads, StoredHeads, open_heads

#: Names of a pair of files: 0_query.npy and 0_key.npy, layer.3.q.pt and layer.3.k.pt, query_07.npy ...
_ROLES = {**dict.fromkeys(QUERY_NAMES, "query"), **dict.fromkeys(KEY_NAMES, "key")}
_ROLE_ORDER = ("query", "key", "both")
_ROLE = re.compile(rf"(^|[._-])({'|'.join(sorted(_ROLES, key=len, reverse=True))})([._-]|$)", re.IGNORECASE)


@dataclass(frozen=True)
class StoredLayer:
    """A layer of a folder; shapes and type are read from headers, numbers by :meth:`read`."""

    name: str
    layer: int
    files: tuple[Path, ...]
    layout: str = "bhsd"

    @cached_property
    def open(self) -> OpenHeads:
        """The files, opened when they are first asked for."""
        return open_heads(self.files, layout=self.layout)

    def close(self) -> None:
        """Let go of the files, and of arrays that were unpacked."""
        self.__dict__.pop("open", None)

    @property
    def shape(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of query and of key, (..., heads, n, head_dim)."""
        return self.open.query_shape, self.open.key_shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.open.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of queries and keys."""
        return self.open.nbytes

    def read(self, n: int | None = None, heads: Sequence[int] | None = None) -> StoredHeads:
        """The first n tokens of these heads, by default all, as :func:`attnscale._files.heads.read_heads`."""
        return self.open.read(n, heads)


def is_folder_of_layers(path: Path) -> bool:
    """Whether a path is a folder, but not one that is an array or a group of zarr."""
    return path.is_dir() and path.suffix != ".zarr"


def stored_layers(folder: str | Path, *, layout: str = "bhsd") -> list[StoredLayer]:
    """The layers of a folder, in the natural order of their names.

    A layer is a file with both arrays, as ``layer_00.npz`` or ``layer.3.safetensors``, or a pair of files
    whose names differ in query and key, as ``0_query.npy`` and ``0_key.npy``. Its number is the last one in
    its name, or its place if not every name has another. Other files, and hidden ones, are left alone.

    Examples
    --------
    >>> import numpy as np, tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for layer in (10, 2):
    ...     np.savez(folder / f"layer_{layer}.npz", q=np.ones((4, 8, 2)), k=np.ones((1, 8, 2)))
    >>> [(each.name, each.layer, each.shape) for each in stored_layers(folder)]
    [('layer_2', 2, ((4, 8, 2), (1, 8, 2))), ('layer_10', 10, ((4, 8, 2), (1, 8, 2)))]
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: {'is a file, not a folder' if folder.exists() else 'no such folder'}")
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):
        name, role = _named(path)
        if not role:
            continue
        there = found.setdefault(name, {})
        if there and (role in there or "both" in (role, *there)):
            raise InputError(f"{path}: {next(iter(there.values())).name} is of the same layer")
        there[role] = path
    for files in found.values():
        if len(files) == 1 and "both" not in files:
            ((role, path),) = files.items()
            raise InputError(f"{path}: there is no {'key' if role == 'query' else 'query'} of this {role}")
    if not found:
        known = ", ".join(dict.fromkeys((*ARCHIVES, *SINGLE)))
        raise InputError(f"{folder}: there is no file of queries and keys here ({known})")
    names = sorted(found, key=_natural)
    files_of = [tuple(found[name][role] for role in _ROLE_ORDER if role in found[name]) for name in names]
    return [*map(StoredLayer, names, _numbers(names), files_of, repeat(layout))]


def _named(path: Path) -> tuple[str, str]:
    """The name of a file's layer and what it has: query, key, both, or "" if it is another file."""
    if path.name.startswith("."):
        return "", ""
    found = _ROLE.search(path.stem) if path.suffix in SINGLE else None
    if found is not None:
        between = found[1] and found[3]
        return path.stem[: found.start()] + between + path.stem[found.end() :], _ROLES[found[2].lower()]
    if path.suffix == ".npy":
        raise InputError(f"{path}: the name must say query or key, as 0_query.npy and 0_key.npy")
    return path.stem, "both" if path.suffix in ARCHIVES else ""


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts layer_2 before layer_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]


def _numbers(names: Sequence[str]) -> list[int]:
    """The number of each layer."""
    last = [re.findall(r"\d+", name)[-1:] for name in names]
    numbers = [int(each[0]) for each in last if each]
    return numbers if len({*numbers}) == len(names) else [*range(len(names))]
