# SPDX-License-Identifier: BSD-3-Clause
"""FlashInfer Trace: Definitions and Workloads in JSON, arrays in safetensors.

The schema is that of the package flashinfer-bench 0.1.2 (flashinfer_bench.data): a dataset is a folder with
definitions, workloads and the files that these name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..._base.text import grouped
from ..._files.safetensors import write_safetensors
from .plain import PlainCall, slug

_TYPE = "attention"  # compute category of every definition

#: Axes of the arrays, batch and heads first.
_AXES = {
    "query": ("batch", "heads", "queries", "dim"),
    "key": ("batch", "key_heads", "keys", "dim"),
    "value": ("batch", "key_heads", "keys", "value_dim"),
    "output": ("batch", "heads", "queries", "value_dim"),
    "attn_mask": ("mask_batch", "mask_heads", "mask_queries", "mask_keys"),
    "key_lengths": ("batch",),
    "document_ids": ("batch", "keys"),
    "sink": ("heads",),
}

_MEANINGS = {
    "attn_mask": "True for a visible key, or a number to add to the score; axes of length 1 are repeated",
    "key_lengths": "keys from this number on are hidden",
    "document_ids": "a query sees the keys with the number of the key at its own position",
    "causal_offset": "the position of query i is i + causal_offset, and later keys are hidden",
    "window_left": "number of visible keys before the position of the query; -1: all",
    "window_right": "number of visible keys behind the position of the query; -1: all",
    "scale": "factor of query . key; 1 / sqrt(dim) without it",
    "softcap": "c of c * tanh(score / c), before the mask",
    "sink": "score of an outcome without value, in each head",
}


def write(folder: Path, calls: Mapping[str, PlainCall]) -> dict[str, str]:
    """Write calls as a dataset, and return why some are left out."""
    left_out = {
        name: "the answer has a NaN or an infinity, which FlashInfer-Bench refuses"
        for name, call in calls.items()
        if not np.isfinite(call.output.astype(np.float64)).all()
    }
    kept = {name: call for name, call in calls.items() if name not in left_out}
    for definition, names in grouped(kept, lambda name: _name(kept[name])).items():
        content = _definition(definition, kept[names[0]])
        _text(folder / "definitions" / _TYPE / f"{definition}.json", json.dumps(content, indent=2))
        lines = [_workload(folder, definition, slug(name), kept[name]) for name in names]
        _text(folder / "workloads" / _TYPE / f"{definition}.jsonl", "\n".join(map(json.dumps, lines)))
    return left_out


def _text(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n", encoding="utf-8")


def _inputs(call: PlainCall) -> dict[str, Any]:
    """Arrays and numbers of a call by the names of the definition's inputs."""
    mask = call.mask
    given = {
        "query": call.query,
        "key": call.key,
        "value": call.value,
        "attn_mask": None if mask is None else mask.reshape((1,) * (4 - mask.ndim) + mask.shape),
        "key_lengths": None if call.lengths is None else call.lengths.astype(np.int32),
        "document_ids": call.documents,
        "causal_offset": call.offset if call.causal == "offset" else None,
        "window_left": None if call.window is None else call.window[0],
        "window_right": None if call.window is None else call.window[1],
        "scale": call.scale,
        "softcap": call.softcap,
        "sink": call.sink,
    }
    return {name: each for name, each in given.items() if each is not None}


def _name(call: PlainCall) -> str:
    """The name of the definition for calls with the same options and types."""
    parts = [f"causal_{call.causal}"] if call.causal else []
    kinds = {"attn_mask": "mask" if call.mask is None or call.mask.dtype == np.bool_ else "bias"}
    names = [*_inputs(call)][3:]
    parts += [kinds.get(name, name) for name in names if name not in ("causal_offset", "window_right")]
    parts = ["window" if part == "window_left" else part for part in parts]
    return "_".join((_TYPE, *parts, *(["bshd"] if call.bshd else []), call.query.dtype.name))


def _axes(call: PlainCall, name: str) -> list[str]:
    axes = _AXES[name]
    if call.bshd and name in ("query", "key", "value", "output"):
        axes = (axes[0], axes[2], axes[1], axes[3])
    return list(axes)


def _spec(call: PlainCall, name: str, given: Any) -> dict[str, Any]:
    """Shape and type of an input or output; a number has no shape."""
    about = {"description": _MEANINGS[name]} if name in _MEANINGS else {}
    if isinstance(given, np.ndarray):
        return {"shape": _axes(call, name), "dtype": given.dtype.name, **about}
    return {"shape": None, "dtype": "int64" if isinstance(given, int) else "float32", **about}


def _definition(name: str, call: PlainCall) -> dict[str, Any]:
    inputs = {each: _spec(call, each, given) for each, given in _inputs(call).items()}
    output = _spec(call, "output", call.output)
    used = dict.fromkeys(axis for spec in (*inputs.values(), output) for axis in spec["shape"] or ())
    return {
        "name": name,
        "op_type": _TYPE,
        "description": "Attention of attnscale; a query without visible keys has the output 0.",
        "tags": ["status:draft"],
        "axes": {axis: {"type": "var"} for axis in used},
        "constraints": ["heads % key_heads == 0"],
        "inputs": inputs,
        "outputs": {"output": output},
        "reference": _reference(call),
    }


def _reference(call: PlainCall) -> str:
    """Code in PyTorch for a definition: the whole function, and a call with its options."""
    source = Path(__file__).with_name("torch_reference.py").read_text(encoding="utf-8")
    names = list(_inputs(call))
    given = [*names[:3], *(f"{name}={name}" for name in names[3:])]
    given += [f'causal="{call.causal}"'] if call.causal else []
    given += ["bshd=True"] if call.bshd else []
    return f"{source}\n\ndef run({', '.join(names)}):\n    return attend({', '.join(given)})\n"


def _workload(folder: Path, definition: str, uuid: str, call: PlainCall) -> dict[str, Any]:
    """A line about a call, whose arrays are written to a file; the answer lies beside them."""
    inputs = _inputs(call)
    arrays = {name: each for name, each in inputs.items() if isinstance(each, np.ndarray)}
    file = Path("blob", "workloads", _TYPE, definition, f"{definition}_{uuid}.safetensors")
    (folder / file).parent.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / file, {**arrays, "output": call.output})
    axes = call.sizes
    if "attn_mask" in arrays:
        axes |= dict(zip(_AXES["attn_mask"], arrays["attn_mask"].shape, strict=True))
    sources = {
        name: {"type": "safetensors", "path": file.as_posix(), "tensor_key": name}
        if name in arrays
        else {"type": "scalar", "value": each}
        for name, each in inputs.items()
    }
    workload = {"uuid": uuid, "axes": axes, "inputs": sources}
    return {"definition": definition, "workload": workload, "solution": None, "evaluation": None}
