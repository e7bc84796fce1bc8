# SPDX-License-Identifier: BSD-3-Clause
"""Changes of a config that the scan makes: each key that could belong to the scale, in each spelling."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Iterator
from typing import Any

from attnscale.audit._unknown import SUSPICIOUS

from . import oracle
from .cases import CASES
from .kinds import KEYS
from .measure import TRAINED, accepted

_ROPE = re.compile(
    r"^(rope|rotary|partial_rot|original_max)|query_pre|multiplier$|softcap|qk_scale_factor|scale_attn"
)

_THETA = {"rope_theta": 10000.0}
_ORIGINAL = {"original_max_position_embeddings": TRAINED}
_YARN = {"factor": 4.0, **_ORIGINAL}
_LISTS = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
_HALF_LISTS = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **_ORIGINAL}

#: Rotary positions by their type, without the key of the type.
BLOCKS: dict[str, dict[str, Any]] = {
    "yarn": _YARN,
    "yarn attention_factor": {**_YARN, "attention_factor": 1.5},
    "yarn mscale": {**_YARN, "mscale": 0.8, "mscale_all_dim": 0.5},
    "yarn mscale_all_dim": {**_YARN, "mscale_all_dim": 0.5},
    "yarn factor null": {**_YARN, "factor": None},
    "yarn factor 1": {**_YARN, "factor": 1.0},
    "yarn no original": {"factor": 4.0},
    "longrope": {**_LISTS, "factor": 4.0, **_ORIGINAL},
    "longrope no factor": {**_LISTS, **_ORIGINAL},
    "longrope attention_factor": {**_LISTS, "factor": 4.0, **_ORIGINAL, "attention_factor": 1.25},
    "su": {**_LISTS, "factor": 4.0, **_ORIGINAL},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "llama3": _LLAMA3,
    "default": {},
    "proportional": {"partial_rotary_factor": 0.5},
    "mrope": {"mrope_section": [2, 3, 3]},
}

_NESTED = ("full_attention", "sliding_attention", "both", "main", "compress")
_SHARES = ("partial_rotary_factor", "rotary_pct", "rotary_dim", "rotary_percent")
_SIZES = (
    *("head_dim", "d_kv", "kv_channels", "attention_head_dim", "global_head_dim", "swa_head_dim", "dim_head"),
    *("d_head", "attention_head_size", "qk_nope_head_dim", "qk_rope_head_dim", "q_lora_rank", "kv_lora_rank"),
    *("hidden_size", "num_attention_heads", "num_hidden_layers"),
)
_LAYERS = (
    *("layer_types", "layers_block_type", "no_rope_layers", "no_rope_layer_interval", "sliding_window"),
    *("sliding_window_pattern", "global_attn_every_n_layers", "first_k_dense_replace", "use_sliding_window"),
    *("max_window_layers", "attn_layer_period", "attn_layer_offset", "attn_layer_indices", "block_types"),
    *("full_attention_interval", "layer_group_size", "layer_rope_theta", "hybrid_override_pattern"),
    *("prefix_dense_sliding_window_pattern", "full_attn_idxs", "local_layer_ids", "compress_ratios"),
    *("rope_scaling_layers", "force_rope", "position_embedding_type", "use_mem_rope", "alibi"),
    *("attn_temperature_tuning", "use_qk_norm", "qk_layernorm", "qk_norm", "rope_theta"),
    *("rope_local_base_freq", "swa_rope_theta", "global_rope_theta", "local_rope_theta"),
    *("relative_attention", "position_biased_input"),
)
#: Types whose keys, in the derivatives, come from an encoder without rotary positions.
_UNTURNED = ("t5gemma2_decoder",)
_ANYWHERE = ("layer_types", "layers_block_type", "hybrid_override_pattern")


def base(kind: str) -> dict[str, Any]:
    """The least that a small model of the type needs, without keys that the scan changes."""
    first = next((keys for name, keys in CASES if name == kind), {})
    plain = {name: value for name, value in first.items() if not _ROPE.search(name)}
    return {**plain, **KEYS.get(kind, {})}


def changes(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(what is changed, keys of the config)."""
    sections = KEYS.get(kind, {}).get("rope_parameters", {}).get("mrope_section")
    for label, keys in _changes(kind):
        yield label, keys if sections is None else _with_sections(keys, sections)


def _with_sections(keys: dict[str, Any], sections: list[int]) -> dict[str, Any]:
    """Rotary positions with several axes need to know which channels belong to which."""
    ropes = {name: keys[name] for name in ("rope_parameters", "rope_scaling") if keys.get(name)}
    return {**keys, **{name: {"mrope_section": sections, **block} for name, block in ropes.items()}}


def _changes(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    keys, has = base(kind), accepted(kind)
    rotates = "rope_parameters" in has and kind not in _UNTURNED
    yield "none", keys
    if kind not in _UNTURNED:
        yield from _ropes(keys, rotates)
    if rotates:
        yield from _shares(keys)
    for name in has:
        if name == "attn_logit_softcapping" and name in KEYS.get(kind, {}):
            continue  # a derivative shows a soft-cap as another scale
        if SUSPICIOUS.search(name) or name in _LAYERS:
            for what, value in _values(name, has[name]):
                yield f"{name} {what}", {**keys, name: value}
    for name in _SIZES:
        yield from _sizes(name, keys, has, kind)
    for name in _LAYERS if rotates else _ANYWHERE:
        if name not in has:
            what, value = list(_values(name, None))[1]
            yield f"{name} {what}", {**keys, name: value}


def _ropes(keys: dict[str, Any], rotates: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    if not rotates:
        yield "legacy type yarn", {**keys, "rope_scaling": {**_YARN, "type": "yarn"}}
        yield "flat yarn", {**keys, "rope_parameters": {**_THETA, **_YARN, "rope_type": "yarn"}}
        return
    for name, block in BLOCKS.items():
        kind = name.split()[0]
        if kind == "longrope" and "o_lora_rank" in keys:
            continue  # DeepSeek V4: lists of another length than the rotated pairs are broadcast
        yield f"flat {name}", {**keys, "rope_parameters": {**_THETA, **block, "rope_type": kind}}
        yield f"legacy type {name}", {**keys, "rope_scaling": {**block, "type": kind}}
        if name in ("yarn", "yarn attention_factor", "longrope", "linear"):
            yield f"legacy rope_type {name}", {**keys, "rope_scaling": {**block, "rope_type": kind}}
            for which in _NESTED if name == "yarn" else ("both",):
                yield f"nested {which} {name}", {**keys, "rope_parameters": _nested(which, block, kind)}
    yarn, outside = {"rope_type": "yarn", **_YARN}, {"rope_parameters": None}
    plain = {**_THETA, "rope_type": "default"}
    yield "rope_parameters null", {**keys, **outside}
    yield "rope_parameters empty", {**keys, "rope_parameters": {}}
    yield "rope_scaling null", {**keys, "rope_scaling": None}
    yield "rope_scaling empty", {**keys, "rope_scaling": {}}
    yield "null and legacy", {**keys, **outside, "rope_scaling": yarn}
    yield "flat default and legacy", {**keys, "rope_parameters": plain, "rope_scaling": yarn}
    yield "flat yarn and null legacy", {**keys, "rope_parameters": {**_THETA, **yarn}, "rope_scaling": None}
    yield "type beside rope_type", {**keys, "rope_scaling": {**yarn, "type": "linear"}}
    yield "original beside", {**keys, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}, **_ORIGINAL}
    yield "longrope original beside", {**keys, "rope_scaling": {"type": "longrope", **_LISTS}, **_ORIGINAL}
    yield "flat without theta", {**keys, "rope_parameters": yarn}


def _nested(which: str, block: dict[str, Any], kind: str) -> dict[str, Any]:
    plain, scaled = {**_THETA, "rope_type": "default"}, {**_THETA, **block, "rope_type": kind}
    if which in ("main", "compress"):
        return {name: dict(scaled if name == which else plain) for name in ("main", "compress")}
    names = ("full_attention", "sliding_attention")
    return {name: dict(scaled if which in (name, "both") else plain) for name in names}


def _shares(keys: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yarn = {"rope_type": "yarn", **_YARN}
    for name in _SHARES:
        value = 8 if name == "rotary_dim" else 0.5
        given = {**keys, name: value}
        yield f"{name} alone", given
        yield f"{name} null", {**keys, name: None}
        yield f"{name} and legacy yarn", {**given, "rope_scaling": yarn}
        yield f"{name} and flat yarn", {**given, "rope_parameters": {**_THETA, **yarn}}
        yield f"{name} and default block", {**given, "rope_parameters": {**_THETA, "rope_type": "default"}}
        inside = {**_THETA, **yarn, "partial_rotary_factor": 0.75}
        yield f"{name} and another inside", {**given, "rope_parameters": inside}
        if "o_lora_rank" in keys:
            continue  # DeepSeek V4, as above
        longrope = {"rope_type": "longrope", **_HALF_LISTS, "factor": 4.0, **_ORIGINAL}
        yield f"{name} and legacy longrope", {**given, "rope_scaling": longrope}
    both = {
        name: {**_THETA, **yarn, "partial_rotary_factor": 0.5}
        for name in ("full_attention", "sliding_attention")
    }
    yield "share inside nested yarn", {**keys, "rope_parameters": both}
    yield (
        "share inside flat yarn",
        {**keys, "rope_parameters": {**_THETA, **yarn, "partial_rotary_factor": 0.5}},
    )


def _values(name: str, usual: Any) -> Iterator[tuple[str, Any]]:
    """Other values of one key."""
    yield "null", None
    if name in ("layer_types", "layers_block_type"):
        for kinds in (("full_attention", "sliding_attention"), ("sliding_attention", "full_attention")):
            yield f"{kinds[0]} first", [*kinds] * 2
        yield "all full", ["full_attention"] * 4
        yield "all sliding", ["sliding_attention"] * 4
        yield "mamba and attention", ["mamba", "attention"] * 2
        yield "linear and full", ["linear_attention", "full_attention"] * 2
    elif name in ("no_rope_layers", "layer_rope_theta"):
        yield "list", [1, 0, 1, 0]
        yield "empty", []
    elif name in ("attn_layer_indices", "full_attn_idxs", "local_layer_ids"):
        yield "list", [1, 3]
    elif name == "compress_ratios":
        yield "list", [0, 4, 128, 0]
    elif name == "hybrid_override_pattern":
        yield "pattern", "M*M*"
    elif name == "block_types":
        yield "list", ["attention", "recurrent"]
    elif isinstance(usual, bool):
        yield "flipped", not usual
    elif isinstance(usual, int):
        yield "2", 2
    elif isinstance(usual, float):
        yield "other", usual * 1.5 + 0.25
    elif isinstance(usual, str) or "type" in name:
        yield "text", "absolute"
    elif usual is None:
        yield "number", 2 if re.search("window|period|interval|offset|replace|pattern|layers", name) else 1.5
        yield "true", True


def _sizes(
    name: str, keys: dict[str, Any], has: dict[str, Any], kind: str
) -> Iterator[tuple[str, dict[str, Any]]]:
    stored = getattr(oracle.config_class(kind), "attribute_map", {}).get(name, name)
    if stored not in has and name != "head_dim":
        return
    keys = {each: value for each, value in keys.items() if each != name}  # not under two names
    other = {"hidden_size": 96, "num_attention_heads": 2, "num_hidden_layers": 3}.get(name, 24)
    if name.startswith("num_") or name == "hidden_size":
        yield f"{name} other", {**keys, stored: other}
        return
    yield f"{name} {other}", {**keys, stored: other}
    yield f"{name} null", {**keys, stored: None}


#: Changes whose configs are also written by save_pretrained and read again.
_SAVED = ("none", "flat yarn", "nested both yarn")


def saved_forms(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Configs as save_pretrained writes them, and in full."""
    for label, keys in changes(kind):
        if label in _SAVED and (label == "none" or kind not in _UNTURNED):
            small = oracle.small_keys(kind, keys)
            with contextlib.suppress(Exception):  # measured above, with the reason
                instance = oracle.config_class(kind)(**copy.deepcopy({**small, **keys}))
                for form, use_diff in (("saved", True), ("in full", False)):
                    stored = json.loads(instance.to_json_string(use_diff=use_diff))
                    yield f"{form}: {label}", {n: v for n, v in stored.items() if n != "model_type"}
