# SPDX-License-Identifier: BSD-3-Clause
"""Queries and keys of commands: a file, a pair of files, or a folder with one of them for each layer."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .._files.fingerprint import fingerprint
from .._files.heads import InputError, OpenHeads
from .._files.layers import StoredLayer, is_folder_of_layers, stored_layers

#: Sentences about FILE in the help of commands.
FILES = """\
FILE is a .npz, .safetensors, .pt, .h5 or .zarr with arrays named query and key (or q/k, queries/keys,
query_states/key_states) of shape (..., heads, n, head_dim); or two .npy, .pt or .zarr files with an array
each, queries first; or a folder with such a file or pair for each layer, as layer_00.npz and layer_01.npz, or
0_query.npy and 0_key.npy. Files are mapped and measured head by head or layer by layer, so they may be larger
than the memory.
"""


def layers_of(files: Sequence[Path], layout: str) -> list[StoredLayer]:
    """The layers of a folder; of a file or a pair, one without a name."""
    if len(files) == 1 and is_folder_of_layers(files[0]):
        return stored_layers(files[0], layout=layout)
    return [StoredLayer("", 0, tuple(files), layout)]


def files_of(layers: Iterable[StoredLayer]) -> list[str]:
    """All files, as JSON lists them."""
    return [str(path) for layer in layers for path in layer.files]


def head_names(layer: StoredLayer, heads: Sequence[int] | None) -> list[str]:
    """Names of a layer's heads in tables."""
    named = layer.open.names if heads is None else [layer.open.names[head] for head in heads]
    return [f"L{layer.layer} H{name}" if layer.name and name.isdigit() else name for name in named]


def chosen_heads(options: argparse.Namespace, opened: Iterable[OpenHeads]) -> list[int] | None:
    """The heads of ``--head``, each once; None for all."""
    if options.head is None:
        return None
    heads = [*dict.fromkeys(head for each in options.head for head in each)]
    for each in opened:
        count = each.query_shape[-3]
        if max(heads) >= count:
            where = f"the heads of {each.files[0]}"
            raise InputError(f"--head must be between 0 and {count - 1}, {where}, got {max(heads)}")
    return heads


def check_alike(layers: Sequence[StoredLayer]) -> None:
    """Refuse layers with different numbers of queries or keys, which have no length in common by default."""
    sizes = {(layer.shape[0][-2], layer.shape[1][-2]): layer.name for layer in layers}
    if len(sizes) > 1:
        seen = "; ".join(f"{name} {n_queries} and {n_keys}" for (n_queries, n_keys), name in sizes.items())
        raise InputError(f"--n must be given for layers of different numbers of queries and keys, got {seen}")


def identity_of(layer: StoredLayer) -> dict[str, Any]:
    """A layer in a store; it is recognized where its files were copied."""
    return {"layer": layer.name, "files": fingerprint(layer.files), "layout": layer.layout}
