# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of a checkpoint under the names and in the form that llama.cpp's architectures want."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._base.checks import InputError
from .config import Config

Array = NDArray[Any]
Named = Iterator[tuple[str, Array]]
#: A rule for one tensor: its parts, each with the end that replaces the rule's in its name.
Change = Callable[[Config, Array], Named]

_GLOBAL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}

#: Names inside a layer, which most families have.
LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}

#: Norms behind the attention and behind the feed-forward part.
POST_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
SANDWICH = {**POST_NORMS, "pre_feedforward_layernorm": "ffn_norm"}
GLM = {"post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm"}
MIXTRAL = {
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.experts.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.w2": "ffn_down_exps",
    "block_sparse_moe.experts.w3": "ffn_up_exps",
}
GPT_OSS = {
    "post_attention_layernorm": "post_attention_norm",
    "self_attn.sinks": "attn_sinks",
    "mlp.router": "ffn_gate_inp",
}
_PARTS = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
LLAMA4 = {"feed_forward.router": "ffn_gate_inp"}
LLAMA4 |= {f"feed_forward.{name}": f"ffn_{part}" for name, part in _PARTS.items()}
LLAMA4 |= {f"feed_forward.experts.{name}": f"ffn_{part}_exps" for name, part in _PARTS.items()}
LLAMA4 |= {f"feed_forward.shared_expert.{name}": f"ffn_{part}_shexp" for name, part in _PARTS.items()}
DEEPSEEK = {f"mlp.shared_experts.{name}": f"ffn_{part}_shexp" for name, part in _PARTS.items()}
DEEPSEEK |= {
    "mlp.gate.e_score_correction": "exp_probs_b",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.k_b_proj": "attn_k_b",
    "self_attn.v_b_proj": "attn_v_b",
}


# ---- changes of numbers ----------------------------------------------------------------------------


def _interleaved(heads: Callable[[Config], int]) -> Change:
    """The rule for rows whose rotary pairs lie half a head apart: llama.cpp wants them side by side."""

    def change(config: Config, array: Array) -> Named:
        pairs = array.reshape(heads(config), 2, -1, *array.shape[1:])
        yield "", pairs.swapaxes(1, 2).reshape(array.shape)

    return change


#: Changes where transformers rotates halves of a head, and llama.cpp neighbouring channels.
PAIRS: dict[str, Change] = {
    "self_attn.q_proj.weight": _interleaved(lambda config: int(config["num_attention_heads"])),
    "self_attn.k_proj.weight": _interleaved(lambda config: config.key_heads),
}
PAIRS |= {name.replace(".weight", ".bias"): change for name, change in PAIRS.items()}


def _plus_one(config: Config, array: Array) -> Named:
    yield "", array + 1


#: The change of norms that multiply by one plus their weight.
PLUS_ONE: dict[str, Change] = {"norm.weight": _plus_one}


def _every_second(config: Config, array: Array) -> Named:
    """Gate and up of gpt-oss, which alternate along the last axis."""
    end = ".bias" if array.ndim == 2 else ".weight"
    for part, start in (("gate", 0), ("up", 1)):
        yield f"{part}_proj{end}", _rows(array)[:, start::2]


def _halves(config: Config, array: Array) -> Named:
    """Gate and up of Llama 4, one behind the other along the last axis."""
    for part, half in zip(("gate", "up"), np.split(_rows(array), 2, axis=1), strict=True):
        yield f"{part}_proj.weight", half


def _rows(array: Array) -> Array:
    """Experts' matrices with a row for each output; biases unchanged."""
    return array if array.ndim == 2 else array.swapaxes(-1, -2)


def _turned(config: Config, array: Array) -> Named:
    yield "down_proj.weight", _rows(array)


def _renamed(end: str) -> Change:
    """The rule that only the end of the name changes."""

    def change(config: Config, array: Array) -> Named:
        yield end, array

    return change


GPT_OSS_EXPERTS: dict[str, Change] = {
    "gate_up_proj": _every_second,
    "gate_up_proj_bias": _every_second,
    "down_proj": _turned,
    "down_proj_bias": _renamed("down_proj.bias"),
    "sinks": _renamed("sinks.weight"),
}
LLAMA4_EXPERTS: dict[str, Change] = {"gate_up_proj": _halves, "down_proj": _turned}


def _latent(config: Config, array: Array) -> Named:
    """Maps from the latent vector to keys, one head's transposed, and to values."""
    sizes = int(config["qk_nope_head_dim"]), int(config["v_head_dim"])
    heads = array.reshape(-1, sum(sizes), array.shape[-1])
    keys, values = np.split(heads, [sizes[0]], axis=1)
    yield "k_b_proj.weight", keys.swapaxes(1, 2)
    yield "v_b_proj.weight", values


LATENT: dict[str, Change] = {
    "kv_b_proj.weight": _latent,
    "e_score_correction_bias": _renamed("e_score_correction.bias"),
}


# ---- a whole checkpoint ----------------------------------------------------------------------------


def renamed(
    config: Config, tensors: Mapping[str, Array], names: Mapping[str, str], changes: Mapping[str, Change]
) -> dict[str, Array]:
    """The tensors of a checkpoint for llama.cpp, by its names."""
    known = {**LAYER, **names}
    return {
        _gguf_name(config, each, known): np.ascontiguousarray(part)
        for name, array in _with_experts_stacked(tensors).items()
        for each, part in _changed(config, name, array, changes)
    }


def _with_experts_stacked(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """Experts that have a tensor each in one with an axis more."""
    found: dict[str, Array] = {}
    experts: dict[str, dict[int, Array]] = {}
    for name, array in tensors.items():
        if match := re.fullmatch(r"(.*\.experts)\.(\d+)(\..*)", name):
            experts.setdefault(match[1] + match[3], {})[int(match[2])] = array
        else:
            found[name] = array
    return found | {
        name: np.stack([each[number] for number in sorted(each)]) for name, each in experts.items()
    }


def _changed(config: Config, name: str, array: Array, changes: Mapping[str, Change]) -> Named:
    """The parts of a tensor by the longest rule that its name ends with."""
    end = max((each for each in changes if name.endswith(each)), key=len, default="")
    if not end:
        yield name, array
        return
    for other, part in changes[end](config, array):
        yield name.removesuffix(end) + (other or end), part


def _gguf_name(config: Config, name: str, known: Mapping[str, str]) -> str:
    stem, _, end = name.rpartition(".")
    if stem in _GLOBAL:
        return f"{_GLOBAL[stem]}.{end}"
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", stem)
    if match is None or match[2] not in known:
        raise InputError(f"tensor {name} has no place in a GGUF file of {config.kind}")
    return f"blk.{match[1]}.{known[match[2]]}.{end}"
