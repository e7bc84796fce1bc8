# SPDX-License-Identifier: BSD-3-Clause
"""GGUF files of probe checkpoints: keys and tensors as llama.cpp's own converter would write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._base.checks import InputError, shown
from ..._files.gguf_writer import BLOCK, KINDS, Tensor, write_gguf_file
from .config import Config
from .converter import convert as convert
from .families import Family, family_of
from .keys import tokens
from .names import renamed

#: Numbers of the file types, which llama.cpp shows to users.
_FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}


def write_gguf(
    config: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any]],
    path: Path,
    kind: str = "f32",
) -> None:
    """Write a checkpoint as one GGUF file.

    Parameters
    ----------
    config : mapping
        The content of its config.json, of a text model.
    tensors : mapping of str to ndarray
        The checkpoint under the names of transformers; experts one by one where the original has them so.
    path : Path
        The file; it is replaced as a whole.
    kind : {"f32", "f16", "bf16", "q8_0"}
        Type of the matrices; vectors and the router are float32. A matrix given as float16 stays so in
        place of "f32", and rows that are no multiple of 32 numbers are float16 in place of "q8_0".

    Raises
    ------
    InputError
        For a family without an architecture in llama.cpp, or one whose converter refuses the config.
    """
    if kind not in KINDS:
        raise InputError(f"kind must be one of {', '.join(KINDS)}, got {shown(kind)}")
    family = family_of(config.get("model_type"))
    read = Config(config, family.usual)
    if reason := family.refuses(read):
        raise InputError(f"{read.kind} has no GGUF file for this config: {reason}")
    kept = {name: array for name, array in tensors.items() if not family.skips(read, name)}
    arrays = {**renamed(read, kept, family.layer_names, family.changes)}
    for rule in family.extra_tensors:
        arrays |= rule(read)
    stored = {name: Tensor(array, _kind(name, array, kind)) for name, array in arrays.items()}
    write_gguf_file(path, {**_metadata(family, read), "general.file_type": _FILE_TYPES[kind]}, stored)


def _metadata(family: Family, config: Config) -> dict[str, Any]:
    found = family.first_keys(config)
    for rule in family.further_keys:
        found |= rule(config)
    return {
        "general.architecture": family.architecture,
        "general.type": "model",
        "general.name": "attnscale probe",
        **{f"{family.architecture}.{name}": value for name, value in found.items()},
        **tokens(config),
        "general.quantization_version": 2,
    }


def _kind(name: str, array: NDArray[Any], kind: str) -> str:
    """The type of one tensor: vectors and the router are read as float32 only."""
    if (
        array.ndim == 1
        or not name.endswith(".weight")
        or name.endswith(("_norm.weight", "ffn_gate_inp.weight"))
    ):
        return "f32"
    if kind == "f32" and array.dtype == np.float16:
        return "f16"
    return "f16" if kind == "q8_0" and array.shape[-1] % BLOCK else kind
