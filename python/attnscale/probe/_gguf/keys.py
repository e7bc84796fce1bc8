# SPDX-License-Identifier: BSD-3-Clause
"""Metadata of GGUF files by family: the keys that llama.cpp's converter writes for a config.

Read in its folder ``conversion`` and compared with it for every family of ``families.py``. What it drops is
left out here too, such as `mscale`, `truncate` and, but for Llama and EXAONE, the factors of llama3.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..._base.checks import InputError, shown
from .. import _layout as lay
from .config import Config

Metadata = dict[str, Any]
#: A rule: keys of an architecture, without the prefix of its name.
Keys = Callable[[Config], Metadata]


def common(config: Config) -> Metadata:
    """Sizes and rotary positions, as nearly all families have them."""
    return _present(
        {
            "block_count": config["num_hidden_layers"],
            "context_length": config["max_position_embeddings"],
            "embedding_length": config["hidden_size"],
            "feed_forward_length": config["intermediate_size"],
            "attention.head_count": config["num_attention_heads"],
            "attention.head_count_kv": config.key_heads,
            "attention.layer_norm_rms_epsilon": _number(config.get("rms_norm_eps")),
            "attention.layer_norm_epsilon": _number(config.get("layer_norm_eps")),
            "attention.key_length": config.get("head_dim"),
            "attention.value_length": config.get("head_dim"),
            "rope.freq_base": float(config.rope["rope_theta"]),
            "rope.freq_base_swa": config.window_theta,
            **_scaling(config.rope),
        }
    )


def _present(keys: Metadata) -> Metadata:
    return {name: value for name, value in keys.items() if value is not None}


def _number(value: Any) -> float | None:
    """A number as float, so that an integer of a config is stored in the type of the key."""
    return None if value is None else float(value)


def _scaling(rope: dict[str, Any]) -> Metadata:
    kind, factor = rope["rope_type"], _number(rope.get("factor"))
    if kind in ("su", "longrope"):
        return {"rope.scaling.type": "longrope"}
    if kind not in ("linear", "yarn") or factor is None:
        return {}
    keys: Metadata = {"rope.scaling.type": kind, "rope.scaling.factor": factor}
    if kind == "linear":
        return keys
    keys["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    attention = rope.get("attention_factor", rope.get("attn_factor"))
    weights = {"yarn_ext_factor": rope.get("extrapolation_factor"), "yarn_attn_factor": attention}
    weights |= {f"yarn_{name}": rope.get(name) for name in ("beta_fast", "beta_slow")}
    return keys | {f"rope.scaling.{name}": _number(value) for name, value in weights.items()}


def every_head_dim(config: Config) -> Metadata:
    """Size of the heads, stated also where it follows from other keys."""
    return {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}


def vocabulary_size(config: Config) -> Metadata:
    return {"vocab_size": config["vocab_size"]}


def rotated(config: Config) -> Metadata:
    """All channels of a head as rotated ones."""
    return {"rope.dimension_count": config.head_dim}


def partly_rotated(config: Config) -> Metadata:
    return {"rope.dimension_count": int(config.head_dim * config.rope["partial_rotary_factor"])}


def window(config: Config) -> Metadata:
    return {"attention.sliding_window": config["sliding_window"]}


def window_by_layer(config: Config) -> Metadata:
    """The window, and which layers have it."""
    if config.get("sliding_window") is None:
        return {}
    listed = config.get("layer_types")
    if listed is None:
        pattern = config.get("sliding_window_pattern", 4)
        letters = pattern if isinstance(pattern, str) else "L" * (pattern - 1) + "G"
        listed = [
            "sliding_attention" if letters[layer % len(letters)] == "L" else "full_attention"
            for layer in range(config["num_hidden_layers"])
        ]
    return {**window(config), "attention.sliding_window_pattern": [x == "sliding_attention" for x in listed]}


def expert_counts(config: Config) -> Metadata:
    """Numbers of experts, under any of the names that config classes have for all of them."""
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    name = next((each for each in names if config.get(each) is not None), names[0])
    return {"expert_count": config[name], "expert_used_count": config["num_experts_per_tok"]}


def expert_width(name: str) -> Keys:
    """The rule for the width of an expert, which is the value of this key."""
    return lambda config: {"expert_feed_forward_length": config[name]}


# ---- one family each -------------------------------------------------------------------------------


def ministral3(config: Config) -> Metadata:
    """The weight of YaRN's logarithm, and the slope of the temperature by position."""
    rope = config.rope
    return {
        "rope.scaling.yarn_log_multiplier": float(_stated(rope, "mscale_all_dim")),
        "attention.temperature_scale": float(_stated(rope, "llama_4_scaling_beta")),
    }


def _stated(rope: dict[str, Any], name: str) -> Any:
    if rope.get(name) is None:
        raise InputError(f"rope_parameters must have {name} for a GGUF file, got {shown(rope)}")
    return rope[name]


def gemma2(config: Config) -> Metadata:
    """All keys of Gemma 2: its converter writes none of rotary positions."""
    kept = {name: value for name, value in common(config).items() if not name.startswith("rope.")}
    softcaps = ("attn_logit_softcapping", "final_logit_softcapping")
    return {**kept, **window(config), **{name: float(config[name]) for name in softcaps}}


def gemma3(config: Config) -> Metadata:
    cap = _number(config.get("final_logit_softcapping"))
    keys = {} if config.get("sliding_window_pattern") == 1 else window(config)
    return {**keys, "final_logit_softcapping": cap} if cap else keys


def phi3(config: Config) -> Metadata:
    """All keys of Phi-3: its converter writes a longrope factor, and no type of scaling."""
    scaling = ("rope.scaling.", "attention.key_length", "attention.value_length")
    kept = {name: value for name, value in common(config).items() if not name.startswith(scaling)}
    rope, longest = config.rope, config["max_position_embeddings"]
    original = rope["original_max_position_embeddings"]
    size = int(rope["partial_rotary_factor"] * config["hidden_size"]) // config["num_attention_heads"]
    keys = {"rope.scaling.original_context_length": original, "rope.dimension_count": size}
    keys["attention.sliding_window"] = config.get("sliding_window", 0)
    if rope.get("long_factor"):
        growth = math.log(max(longest / original, 1.0))
        keys["rope.scaling.attn_factor"] = math.sqrt(1 + growth / math.log(original))
    return {**kept, **keys}


def cohere2(config: Config) -> Metadata:
    """The logits' scale; rotary positions of type none, whatever the config says."""
    size = int(config["rotary_pct"] * (config["hidden_size"] // config["num_attention_heads"]))
    scale = float(config["logit_scale"])
    return {"logit_scale": scale, "rope.dimension_count": size, "rope.scaling.type": "none"}


def llama4(config: Config) -> Metadata:
    """The experts and their place; a window of 0 where no layer is chunked."""
    keys = {
        "feed_forward_length": config["intermediate_size_mlp"],
        "expert_feed_forward_length": config["intermediate_size"],
        **expert_counts(config),
        "interleave_moe_layer_step": config["interleave_moe_layer_step"],
    }
    kinds = set(config.get("layer_types") or _llama4_kinds(config))
    return {**keys, "attention.sliding_window": 0} if kinds == {"full_attention"} else keys


def _llama4_kinds(config: Config) -> list[str]:
    """Kinds of layers: those without rotary positions see all keys, and all do without a size of chunks."""
    if config.get("attention_chunk_size") is None:
        return ["full_attention"]
    interval = config.get("no_rope_layer_interval", 4)
    rotates = config.get("no_rope_layers") or [
        int((layer + 1) % interval != 0) for layer in range(config["num_hidden_layers"])
    ]
    return ["chunked_attention" if each else "full_attention" for each in rotates]


#: Multipliers: keys in GGUF, and in the config.
GRANITE = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}


def granite(config: Config) -> Metadata:
    """The multipliers of Granite; 0 counts as missing."""
    stated = {name: _number(config.get(key)) for name, key in GRANITE.items()}
    return {name: value for name, value in stated.items() if value}


def deepseek(config: Config) -> Metadata:
    """Latent heads as one key head of the latent vector, and the experts."""
    latent, turned = config["kv_lora_rank"], config["qk_rope_head_dim"]
    weight = _number(config.rope.get("mscale_all_dim"))
    return _present(
        {
            "attention.head_count_kv": 1,
            "leading_dense_block_count": config["first_k_dense_replace"],
            "attention.q_lora_rank": config.get("q_lora_rank"),
            "attention.kv_lora_rank": latent,
            "attention.key_length": latent + turned,
            "attention.value_length": latent,
            "attention.key_length_mla": config["qk_nope_head_dim"] + turned,
            "attention.value_length_mla": config["v_head_dim"],
            **expert_counts(config),
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_group_count": config.get("n_group"),
            "expert_group_used_count": config.get("topk_group"),
            "expert_gating_func": {"softmax": 1, "sigmoid": 2}.get(config.get("scoring_func")),
            "expert_shared_count": config["n_shared_experts"],
            "expert_weights_scale": _number(config.get("routed_scaling_factor")),
            "expert_weights_norm": config.get("norm_topk_prob") or None,
            "rope.dimension_count": turned,
            "rope.scaling.yarn_log_multiplier": None if weight is None else 0.1 * weight,
        }
    )


def tokens(config: Config) -> Metadata:
    """A vocabulary whose words are the ids: `<p12>` is token 12.

    The tokens are those that a user defines, which are found in any text before it is cut. The rest is cut
    by the rules of GPT-2, for which no token is left: spaces and lines between words are dropped.
    """
    count = config["vocab_size"]
    unknown, control, user_defined = 2, 3, 4
    kinds = [unknown, control, control, *[user_defined] * (count - 3)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": lay.words(count),
        "tokenizer.ggml.token_type": np.array(kinds, np.int32),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }
