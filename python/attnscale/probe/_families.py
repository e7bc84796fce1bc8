# SPDX-License-Identifier: BSD-3-Clause
"""Families of decoders whose checkpoints can be written, as a table.

Tensors have the names of the family's own checkpoints. A new family is a row, and a function if a part of it
is unlike all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

Config = Mapping[str, Any]


def _one(config: Config) -> float:
    return 1.0


def _key(name: str, default: float = 1.0) -> Callable[[Config], float]:
    return lambda config: float(default if config.get(name) is None else config[name])


def _root(config: Config) -> float:
    return math.sqrt(config["hidden_size"])


def _never(config: Config) -> str:
    return ""


@dataclass(frozen=True)
class Family:
    """Parts of a decoder that its checkpoint must have, as cells of a table."""

    types: tuple[str, ...]  # model types
    architecture: str  # class of the config
    before: str = "input_layernorm"  # norm before attention, or empty
    after: str = ""  # norm of the output of attention, or empty
    others: tuple[str, ...] = ("post_attention_layernorm",)  # further norms of a layer
    plus_one: bool = False  # norms multiply by 1 + weight
    centred: bool = False  # norms subtract the mean
    qk_norm: Literal["", "head", "all", "no weights"] = ""
    biased: str = ""  # projections with a bias, of q, k, v, o
    optional_bias: str = "qkvo"  # projections with a bias if attention_bias is set
    bias_is_set: bool = False  # attention_bias where the config has none
    fused: bool = False  # qkv_proj and gate_up_proj
    fused_mlp: bool = False  # gate_up_proj
    feed_forward: Literal["dense", "mixtral", "experts", "gpt_oss", "llama4", "deepseek"] = "dense"
    adjacent: bool = False  # pairs of channels lie side by side
    latent: bool = False
    sinks: bool = False
    tied: bool = False  # whether words share one matrix by default
    embedding: Callable[[Config], float] = _one  # factor of embeddings
    residual: Callable[[Config], float] = _one  # factor of the output of attention
    logits: Callable[[Config], float] = _one  # factor of logits
    final_cap: float | None = None  # soft-cap of logits where the config has no key
    lost: Callable[[Config], str] = _never  # reason why a config of the family cannot be asked, or empty


_LLAMA = Family((), "")


def _family(types: str, architecture: str, **cells: Any) -> Family:
    return replace(_LLAMA, types=tuple(types.split()), architecture=architecture, **cells)


_SANDWICH: dict[str, Any] = {
    "after": "post_attention_layernorm",
    "others": ("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    "plus_one": True,
    "tied": True,
    "embedding": _root,
}
_POST_NORM: dict[str, Any] = {
    "before": "",
    "after": "post_attention_layernorm",
    "others": ("post_feedforward_layernorm",),
}

FAMILIES = (
    _family("llama", "LlamaForCausalLM"),
    _family("mistral", "MistralForCausalLM", optional_bias=""),
    _family("ministral3", "Ministral3ForCausalLM", optional_bias=""),
    _family("mixtral", "MixtralForCausalLM", optional_bias="", feed_forward="mixtral"),
    _family("qwen2", "Qwen2ForCausalLM", biased="qkv", optional_bias=""),
    _family("qwen3", "Qwen3ForCausalLM", qk_norm="head"),
    _family("qwen3_moe", "Qwen3MoeForCausalLM", qk_norm="head", feed_forward="experts"),
    _family("gemma2", "Gemma2ForCausalLM", **_SANDWICH, final_cap=30.0),
    _family("gemma3_text", "Gemma3ForCausalLM", **_SANDWICH, qk_norm="head"),
    _family("phi3", "Phi3ForCausalLM", fused=True, optional_bias=""),
    _family("gpt_oss", "GptOssForCausalLM", biased="qkvo", sinks=True, feed_forward="gpt_oss"),
    _family(
        "glm4",
        "Glm4ForCausalLM",
        after="post_self_attn_layernorm",
        others=("post_attention_layernorm", "post_mlp_layernorm"),
        optional_bias="qkv",
        bias_is_set=True,
        fused_mlp=True,
        adjacent=True,
    ),
    _family(
        "cohere2",
        "Cohere2ForCausalLM",
        others=(),
        centred=True,
        adjacent=True,
        tied=True,
        logits=_key("logit_scale", 0.0625),
    ),
    _family("olmo3", "Olmo3ForCausalLM", **_POST_NORM, qk_norm="all"),
    _family("smollm3", "SmolLM3ForCausalLM", tied=True),
    _family("llama4_text", "Llama4ForCausalLM", qk_norm="no weights", adjacent=True, feed_forward="llama4"),
    _family(
        "granite",
        "GraniteForCausalLM",
        embedding=_key("embedding_multiplier"),
        residual=_key("residual_multiplier"),
        logits=lambda config: 1.0 / _key("logits_scaling")(config),
    ),
    _family(
        "deepseek_v3",
        "DeepseekV3ForCausalLM",
        latent=True,
        adjacent=True,
        optional_bias="",
        feed_forward="deepseek",
    ),
    _family("exaone4", "Exaone4ForCausalLM", **_POST_NORM, qk_norm="head", optional_bias=""),
)

#: Families by model type.
FAMILY = {kind: each for each in FAMILIES for kind in each.types}
