# SPDX-License-Identifier: BSD-3-Clause
"""Rows of attention of a run, kept for a comparison with another run, and their file.

The file is a .npz: it holds numbers of any type beside texts, is read with NumPy alone and without pickle,
and its checksums find damage.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .._base.checks import InputError
from .whole import write_whole

Floats: TypeAlias = NDArray[np.float32]
Counts: TypeAlias = NDArray[np.int64]

_FORMAT = 1
#: Name of the JSON text in the file, by which the file is known.
_CONTENT = "recording"


@dataclass(frozen=True, eq=False)
class KeptRows:
    """Some rows of one call of attention; None stands for what is not known.

    Attributes
    ----------
    module, kind, dtype : str
        Name of the call, "self" or "cross", and the type of the model's queries.
    layer, n_keys : int
        Number of the layer, and of all keys.
    positions, key_positions : ndarray of int, shapes (rows,) and (keys,)
        Places of the kept queries and keys among all keys.
    key_of : ndarray of int, shape (heads,)
        Key head of each head.
    query, key : ndarray, shapes (heads, rows, head_dim) and (key_heads, keys, head_dim)
    scores : ndarray, shape (heads, rows, keys)
        In place of query and key, where scores are not one product of them; NaN at hidden keys.
    scale, softcap : float
    sink : ndarray, shape (heads,) or (heads, rows)
        Logits of the sink.
    bias : ndarray, shape (heads, rows, keys)
        Numbers added to the scores.
    visible, first, last : ndarray of int, shape (heads, rows)
        Number of the keys that a row sees, and the places of the first and the last one (-1 without any).
    seen : ndarray of bool, shape (heads, rows, keys)
        Whether a row sees a kept key.
    lse : ndarray, shape (heads, rows)
    input, output : ndarray, shape (rows, channels)
        Of the module that called attention.
    """

    module: str
    kind: str
    dtype: str
    layer: int
    n_keys: int
    positions: Counts
    key_positions: Counts
    key_of: Counts
    query: Floats | None = None
    key: Floats | None = None
    scores: Floats | None = None
    scale: float | None = None
    softcap: float | None = None
    sink: Floats | None = None
    bias: Floats | None = None
    visible: Counts | None = None
    first: Counts | None = None
    last: Counts | None = None
    seen: NDArray[np.bool_] | None = None
    lse: Floats | None = None
    input: Floats | None = None
    output: Floats | None = None

    @property
    def heads(self) -> int:
        return len(self.key_of)


#: Number of axes of each array.
_AXES = {
    **dict.fromkeys(("positions", "key_positions", "key_of"), (1,)),
    **dict.fromkeys(("query", "key", "scores", "bias", "seen"), (3,)),
    **dict.fromkeys(("visible", "first", "last", "lse", "input", "output"), (2,)),
    "sink": (1, 2),
}
_OF_COUNTS = ("positions", "key_positions", "key_of", "visible", "first", "last")


def write_recording(path: str | os.PathLike[str], layers: Iterable[KeptRows]) -> None:
    """Write the rows of a run to a .npz file, as a whole or not at all."""
    path = Path(path)
    if path.suffix != ".npz":
        raise InputError(f"path must end in .npz, got {str(path)!r}")
    arrays: dict[str, NDArray[Any]] = {}
    listed = []
    for number, layer in enumerate(layers):
        facts = {field.name: getattr(layer, field.name) for field in fields(layer)}
        held = {name: value for name, value in facts.items() if isinstance(value, np.ndarray)}
        arrays |= {f"{number}/{name}": _narrow(value) for name, value in held.items()}
        listed.append({name: value for name, value in facts.items() if name not in held})
    text = json.dumps({"format": _FORMAT, "layers": listed}).encode()
    stream = io.BytesIO()
    np.savez_compressed(stream, **{_CONTENT: np.frombuffer(text, np.uint8)}, **arrays)  # type: ignore[arg-type]
    write_whole(path, stream.getvalue())


def _narrow(array: NDArray[Any]) -> NDArray[Any]:
    return array.astype(np.int32) if array.dtype.kind == "i" else array


def is_recording(path: Path) -> bool:
    """Whether a file is a .npz of a recording, as far as its list of contents tells."""
    try:
        with zipfile.ZipFile(path) as archive:
            return f"{_CONTENT}.npy" in archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return False


def read_recording(path: Path) -> list[KeptRows]:
    """Rows that :func:`write_recording` wrote; a damaged file is refused in one line."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            content = json.loads(bytes(stored[_CONTENT]))
            if content["format"] != _FORMAT:
                found = content["format"]
                raise InputError(f"{path}: a recording must have the format {_FORMAT}, got {found}")
            return [_layer(number, listed, stored) for number, listed in enumerate(content["layers"])]
    except InputError:
        raise
    except Exception as error:  # NumPy, zipfile, zlib and tokenize raise their own for each kind of damage
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path}: not a readable recording ({reason})") from None


def _layer(number: int, listed: Mapping[str, Any], stored: Mapping[str, NDArray[Any]]) -> KeptRows:
    arrays: dict[str, Any] = {}
    for name, axes in _AXES.items():
        if (entry := f"{number}/{name}") in stored:
            array = stored[entry]
            kind = "i" if name in _OF_COUNTS else "b" if name == "seen" else "f"
            if array.ndim not in axes or array.dtype.kind != kind:
                raise ValueError(f"{entry} has shape {array.shape} and type {array.dtype}")
            arrays[name] = array.astype({"i": np.int64, "b": np.bool_, "f": np.float32}[kind])
    given = {name: value for name, value in listed.items() if name not in _AXES}
    layer = KeptRows(**given, **arrays)
    check_layer(layer)
    return layer


def check_layer(layer: KeptRows) -> None:
    """Raise ValueError unless the arrays of a layer fit together."""
    heads, rows, keys = layer.heads, len(layer.positions), len(layer.key_positions)
    key_heads = 0 if layer.key is None else len(layer.key)
    wanted: dict[str, tuple[int | None, ...]] = {
        "query": (heads, rows, None),
        "key": (None, keys, None),
        **dict.fromkeys(("scores", "bias", "seen"), (heads, rows, keys)),
        **dict.fromkeys(("visible", "first", "last", "lse"), (heads, rows)),
        **dict.fromkeys(("input", "output"), (rows, None)),
    }
    for name, shape in wanted.items():
        array = getattr(layer, name)
        if array is not None and not all(
            size in (None, there) for size, there in zip(shape, array.shape, strict=True)
        ):
            raise ValueError(f"{name} of {layer.module} has shape {array.shape}")
    if layer.sink is not None and layer.sink.shape not in ((heads,), (heads, rows)):
        raise ValueError(f"sink of {layer.module} has shape {layer.sink.shape}")
    if (layer.query is None) != (layer.key is None) or (layer.query is None) == (layer.scores is None):
        raise ValueError(f"{layer.module} must have query and key, or scores")
    if layer.query is not None and layer.key is not None:
        is_key = (layer.key_of >= 0) & (layer.key_of < key_heads)
        if layer.query.shape[-1] != layer.key.shape[-1] or not is_key.all():
            raise ValueError(f"query, key and key_of of {layer.module} do not fit")
