# SPDX-License-Identifier: BSD-3-Clause
"""Configs that show what frameworks are on record to compute otherwise: sizes and keys as published."""

from __future__ import annotations

from typing import Any


def _model(kind: str, hidden: int, heads: int, layers: int, **keys: Any) -> dict[str, Any]:
    sizes = {"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": layers}
    return {"model_type": kind, **sizes, **keys}


def _gpt2(**keys: Any) -> dict[str, Any]:
    return {"model_type": "gpt2", "n_embd": 768, "n_head": 12, "n_layer": 12, **keys}


def _latent(kind: str, mscale: float, all_dim: float, **keys: Any) -> dict[str, Any]:
    sizes = {"q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    rope = {
        "type": "yarn",
        "factor": 40,
        "mscale": mscale,
        "mscale_all_dim": all_dim,
        "original_max_position_embeddings": 4096,
    }
    return {**_model(kind, 7168, 128, 61, **sizes), "rope_scaling": rope, **keys}


def _yarn(factor: float, length: int, **keys: Any) -> dict[str, Any]:
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length, **keys}


#: The configs by a name for what each shows.
CONFIGS: dict[str, dict[str, Any]] = {
    "attention_factor": _model("qwen2", 3584, 28, 28, rope_scaling=_yarn(64.0, 4096, attention_factor=1.0)),
    "mscale": _model(
        "ministral3",
        4096,
        32,
        34,
        head_dim=128,
        rope_parameters=_yarn(16.0, 16384, mscale=1, mscale_all_dim=1),
    ),
    "ministral temperature": _model(
        *("ministral3", 4096, 32, 34),
        head_dim=128,
        rope_parameters={
            "rope_type": "default",
            "llama_4_scaling_beta": 0.1,
            "original_max_position_embeddings": 16384,
        },
    ),
    "logn": _model("qwen", 4096, 32, 32, use_logn_attn=True, seq_length=8192),
    "unscaled weights": {
        "model_type": "gpt_bigcode",
        "n_embd": 6144,
        "n_head": 48,
        "n_layer": 40,
        "scale_attn_weights": False,
    },
    "inverse layer": _gpt2(scale_attn_by_inverse_layer_idx=True),
    "sinks": _model("gpt_oss", 2880, 64, 24, head_dim=64),
    "gpt-oss": _model("gpt_oss", 2880, 64, 24, head_dim=64, rope_scaling=_yarn(32.0, 4096)),
    "gemma2 2b": _model("gemma2", 2304, 8, 26, head_dim=256, query_pre_attn_scalar=256),
    "gemma2 9b": _model("gemma2", 3584, 16, 42, head_dim=256, query_pre_attn_scalar=256),
    "gemma2 27b": _model("gemma2", 4608, 32, 46, head_dim=128, query_pre_attn_scalar=144),
    "gemma3 27b": _model("gemma3_text", 5376, 32, 62, head_dim=128, query_pre_attn_scalar=168),
    "deepseek_v2": _latent("deepseek_v2", 0.707, 0.707),
    "deepseek_v3": _latent("deepseek_v3", 1.0, 1.0),
    "two mscales": _latent("deepseek_v3", 0.5, 1.0),
    "laguna": _model(
        *("laguna", 2048, 16, 4),
        head_dim=128,
        layer_types=["full_attention", "sliding_attention"] * 2,
        rope_parameters={
            "full_attention": _yarn(64.0, 4096, attention_factor=1.4158883083359672),
            "sliding_attention": {"rope_type": "default"},
        },
    ),
    "longrope": {
        **_model("phi3", 3072, 24, 32, partial_rotary_factor=0.75, max_position_embeddings=131072),
        "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
    },
    "longrope, new spelling": {
        **_model("phi3", 3072, 24, 32, partial_rotary_factor=0.75, max_position_embeddings=131072),
        "original_max_position_embeddings": 4096,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 4096,
            "short_factor": [1.0] * 48,
            "long_factor": [2.0] * 48,
        },
    },
    "glm": _model(
        *("glm4_moe_lite", 2048, 20, 47),
        q_lora_rank=768,
        kv_lora_rank=512,
        qk_nope_head_dim=192,
        qk_rope_head_dim=64,
        v_head_dim=256,
    ),
    "grok": _model("grok-2", 8192, 64, 64, head_dim=128, attn_temperature_len=1024),
    "opt": _model("opt", 768, 12, 12),
    "bert": _model("bert", 768, 12, 12),
    "plamo2": _model("plamo2", 2048, 16, 16, hidden_size_per_head=128),
}
