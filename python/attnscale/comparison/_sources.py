# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a run from a log, a file of one, a file of heads, or a model that is run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from .._base.checks import refusal, shown
from .._files.heads import StoredHeads, check_is_file, open_heads
from .._files.recording import KeptRows, is_recording, read_recording

_TOKENS = 64  # of the default input

Run: TypeAlias = Sequence[KeptRows]


def is_model(run: Any) -> bool:
    """Whether a run is a model, which has to be run."""
    return callable(run) and hasattr(run, "named_modules")


def stored_run(name: str, run: Any) -> Run:
    """Rows of a log or of a file; `name` is the argument's."""
    if hasattr(run, "kept_rows"):
        found: Run = run.kept_rows()
        return found
    if isinstance(run, (str, os.PathLike)):
        path = Path(run)
        if path.suffix != ".zarr":
            check_is_file(path)
        return (
            read_recording(path)
            if is_recording(path)
            else _layers_of(open_heads([path]).read(as_stored=True))
        )
    kinds = "a log of record(model, to_compare=True), the file of one, a file of heads, or a torch model"
    raise refusal(TypeError, name, f"must be {kinds}, got {shown(run)}")


def _layers_of(stored: StoredHeads) -> list[KeptRows]:
    """Layers of a file of heads, by the names of its heads; without layers all are one."""
    lead = (0,) * (stored.query.ndim - 3)
    query, key = stored.query[lead], stored.key[lead]
    found = [re.fullmatch(r"L(\d+) H\d+", name) for name in stored.names]
    layers = np.array([0 if each is None else int(each[1]) for each in found])
    key_of = np.arange(len(query)) * len(key) // len(query)
    return [
        _layer(int(layer), query, key, key_of, layers == layer) for layer in dict.fromkeys(layers.tolist())
    ]


def _layer(layer: int, query: Any, key: Any, key_of: Any, own: Any) -> KeptRows:
    """The heads `own` of a file as one layer; its numbers are those of the file, mapped."""
    names, places = np.unique(key_of[own], return_inverse=True)
    positions, key_positions = (np.arange(x.shape[1], dtype=np.int64) for x in (query, key))
    heads = np.flatnonzero(own)
    kept = (positions, key_positions, places.astype(np.int64), _some(query, heads), _some(key, names))
    return KeptRows(f"layer {layer}", "self", "float32", layer, key.shape[1], *kept)


def _some(array: Any, places: Any) -> Any:
    """Entries of the first axis: a view of neighbours, and a copy of others."""
    first, last = int(places[0]), int(places[-1])
    return array[first : last + 1] if last - first == len(places) - 1 else array[places]


def runs_of_models(models: Sequence[Any], inputs: Mapping[str, Any] | None) -> list[Run]:
    """Rows of models, which all run on the same inputs."""
    given = _tokens(models) if inputs is None and models else inputs or {}
    return [_run(model, given) for model in models]


def _run(model: Any, inputs: Mapping[str, Any]) -> Run:
    import torch

    from ..torch import record
    from ..torch._measured.passes import evaluated

    device = next((x.device for x in model.parameters()), torch.device("cpu"))
    placed = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
    with evaluated(model), torch.no_grad(), record(model, statistics=("lse",), to_compare=True) as log:
        model(**placed)
    return log.kept_rows()


def _tokens(models: Iterable[Any]) -> Mapping[str, Any]:
    """Random tokens that all models know, from a fixed seed."""
    import torch

    sizes, most = [], [_TOKENS]
    for model in models:
        config: Any = getattr(model, "config", None)
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        sizes.append(getattr(text, "vocab_size", None))
        limit = getattr(text, "max_position_embeddings", None)
        most.append(limit if isinstance(limit, int) else _TOKENS)
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) < len(sizes):
        rule = "must be given for models without config.vocab_size: keyword arguments of both, got None"
        raise refusal(ValueError, "inputs", rule)
    generator = torch.Generator().manual_seed(0)
    return {"input_ids": torch.randint(min(known), (1, min(most)), generator=generator)}
