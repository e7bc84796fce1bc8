# SPDX-License-Identifier: BSD-3-Clause
"""Configs to probe: each family as its checkpoints on the hub spell it, with few layers, and each scaling.

A family has every kind of layer at least once. A scaling replaces the one that the family's checkpoints have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Keys = dict[str, Any]

#: Scalings, in the order of tables.
SCALINGS = (
    "plain",
    "yarn",
    "yarn_factor",
    "mscale",
    "mscale_equal",
    "linear",
    "llama3",
    "longrope",
    "temperature",
)

_COMMON: Keys = {
    "intermediate_size": 14336,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "vocab_size": 128256,
    "attention_bias": False,
    "mlp_bias": False,
}
_LOCAL = ["sliding_attention"] * 3 + ["full_attention"]
_HEADS: Keys = {"num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 3}
_WIDE: Keys = {"hidden_size": 4096, **_HEADS}

#: Families by model type, without any scaling.
FAMILIES: dict[str, Keys] = {
    "llama": {**_WIDE, "rope_theta": 500000.0, "max_position_embeddings": 8192},
    "mistral": {
        **_WIDE,
        "head_dim": 128,
        "rope_theta": 1e6,
        "max_position_embeddings": 32768,
        "sliding_window": None,
    },
    "ministral3": {**_WIDE, "head_dim": 128, "max_position_embeddings": 262144},
    "mixtral": {
        **_WIDE,
        "head_dim": 128,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "rope_theta": 1e6,
        "max_position_embeddings": 32768,
        "sliding_window": None,
    },
    "qwen2": {
        "hidden_size": 3584,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "num_hidden_layers": 3,
        "rope_theta": 1e6,
        "max_position_embeddings": 32768,
    },
    "qwen3": {
        **_WIDE,
        "head_dim": 128,
        "rope_theta": 1e6,
        "max_position_embeddings": 40960,
        "attention_bias": False,
    },
    "qwen3_moe": {
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_hidden_layers": 3,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
        "rope_theta": 1e6,
        "max_position_embeddings": 40960,
    },
    "gemma2": {
        "hidden_size": 2304,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "num_hidden_layers": 4,
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": 4096,
        "rope_theta": 10000.0,
        "max_position_embeddings": 8192,
    },
    "gemma3_text": {
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 128,
        "num_hidden_layers": 6,
        "query_pre_attn_scalar": 168,
        "sliding_window": 1024,
        "sliding_window_pattern": 6,
        "rope_theta": 1e6,
        "rope_local_base_freq": 10000.0,
        "max_position_embeddings": 131072,
    },
    "phi3": {
        "hidden_size": 3072,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "num_hidden_layers": 3,
        "rope_theta": 10000.0,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "sliding_window": 262144,
    },
    "gpt_oss": {
        "hidden_size": 2880,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_hidden_layers": 4,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "sliding_window": 128,
        "attention_bias": True,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_theta": 150000,
        "max_position_embeddings": 131072,
    },
    "glm4": {
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "num_hidden_layers": 3,
        "partial_rotary_factor": 0.5,
        "attention_bias": True,
        "rope_theta": 10000.0,
        "max_position_embeddings": 32768,
    },
    "cohere2": {
        **_WIDE,
        "head_dim": 128,
        "num_hidden_layers": 4,
        "sliding_window": 4096,
        "sliding_window_pattern": 4,
        "logit_scale": 0.25,
        "rope_theta": 50000,
        "max_position_embeddings": 8192,
    },
    "olmo3": {
        **_WIDE,
        "num_key_value_heads": 32,
        "num_hidden_layers": 4,
        "sliding_window": 4096,
        "layer_types": _LOCAL,
        "rope_theta": 500000,
        "max_position_embeddings": 65536,
    },
    "smollm3": {
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "num_hidden_layers": 4,
        "no_rope_layers": [1, 1, 1, 0],
        "layer_types": ["full_attention"] * 4,
        "use_sliding_window": False,
        "sliding_window": None,
        "rope_theta": 5e6,
        "max_position_embeddings": 65536,
    },
    "llama4_text": {
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 4,
        "num_local_experts": 16,
        "num_experts_per_tok": 1,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "interleave_moe_layer_step": 1,
        "attention_chunk_size": 8192,
        "use_qk_norm": True,
        "attn_temperature_tuning": False,
        "no_rope_layers": [1, 1, 1, 0],
        "rope_theta": 500000.0,
        "max_position_embeddings": 10485760,
    },
    "granite": {
        **_WIDE,
        "attention_multiplier": 0.0078125,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "logits_scaling": 16.0,
        "tie_word_embeddings": True,
        "rope_theta": 1e7,
        "max_position_embeddings": 131072,
    },
    "deepseek_v3": {
        "hidden_size": 7168,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "num_hidden_layers": 4,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "routed_scaling_factor": 2.5,
        "rope_theta": 10000,
        "max_position_embeddings": 163840,
    },
    "exaone4": {
        "hidden_size": 5120,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "num_hidden_layers": 4,
        "sliding_window": 4096,
        "sliding_window_pattern": "LLLG",
        "rope_scaling": None,
        "layer_types": _LOCAL,
        "rope_theta": 1e6,
        "max_position_embeddings": 131072,
    },
}

#: Families whose scalings are spelled "type", as older checkpoints do.
_OLD_SPELLING = ("mistral", "mixtral", "qwen2", "phi3", "deepseek_v3", "smollm3")

#: Keys of scalings that a family's own checkpoints have otherwise.
_OWN: dict[tuple[str, str], Keys] = {
    ("gpt_oss", "yarn"): {
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 4096,
    },
    ("olmo3", "yarn_factor"): {
        "factor": 8.0,
        "original_max_position_embeddings": 8192,
        "beta_fast": 32,
        "beta_slow": 1,
        "attention_factor": 1.2079441541679836,
    },
    ("deepseek_v3", "mscale"): {"mscale": 1.0, "mscale_all_dim": 0.5},
    ("gemma3_text", "linear"): {"factor": 8.0},
    ("llama4_text", "llama3"): {"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
    ("exaone4", "llama3"): {"factor": 16.0},
}

_KIND = {"yarn_factor": "yarn", "mscale": "yarn", "mscale_equal": "yarn", "temperature": "yarn"}


def scaled(family: str, scaling: str) -> Keys | None:
    """The config of a family with a scaling, or None if the family has no such scaling."""
    config: Keys = {"model_type": family, **_COMMON, **FAMILIES[family]}
    if scaling == "temperature":
        return _tempered(config)
    if scaling == "mscale_equal" and family not in ("deepseek_v3", "ministral3"):
        return None
    if family == "phi3" and scaling not in ("plain", "longrope"):  # transformers refuses others
        return None
    rope = _rope(config, scaling)
    if family == "ministral3":
        return _in_one(config, {"llama_4_scaling_beta": 0.0, **(rope or {"rope_type": "default"})})
    if rope is None:
        return config
    if scaling == "longrope" and "original_max_position_embeddings" not in config:
        rope["original_max_position_embeddings"] = 4096
        rope["factor"] = 8.0
    if family == "gemma3_text" and scaling != "linear":
        return _by_kind(config, rope)
    return {**config, "rope_scaling": rope}


def _rope(config: Keys, scaling: str) -> Keys | None:
    """The parameters of a scaling, in the family's spelling."""
    family = config["model_type"]
    kind = _KIND.get(scaling, scaling)
    if scaling == "plain":  # transformers has YaRN by default in gpt_oss
        return {"rope_type": "default"} if family == "gpt_oss" else None
    size = config["max_position_embeddings"]
    original = config.get("original_max_position_embeddings", min(size, 8192))
    found: Keys = {"type" if family in _OLD_SPELLING else "rope_type": kind}
    if kind == "yarn":
        found |= {"factor": 4.0, "original_max_position_embeddings": original}
    if scaling == "yarn_factor":
        found["attention_factor"] = 1.0
    if scaling in ("mscale", "mscale_equal"):
        found |= {"mscale": 1.0, "mscale_all_dim": 0.5 if scaling == "mscale" else 1.0}
    if kind == "linear":
        found["factor"] = 4.0
    if kind == "llama3":
        found |= {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": original,
        }
    if kind == "longrope":
        found |= _lists(rotated_channels(config) // 2)
    return found | _OWN.get((family, scaling), {})


def rotated_channels(config: Keys) -> int:
    """Channels of a head that turn."""
    width = (
        config.get("qk_rope_head_dim")
        or config.get("head_dim")
        or config["hidden_size"] // config["num_attention_heads"]
    )
    return int(width * config.get("partial_rotary_factor", 1.0))


def _lists(count: int) -> Keys:
    """Factors of LongRoPE that grow with the period of a pair."""
    return {
        "short_factor": [round(1.0 + 0.02 * n, 2) for n in range(count)],
        "long_factor": [round(1.0 + 30.0 * n / count, 3) for n in range(count)],
    }


def _tempered(config: Keys) -> Keys | None:
    """The family's own temperature."""
    if config["model_type"] == "ministral3":
        pair = {"mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "beta_slow": 1.0}
        yarn = {"type": "yarn", "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 2048}
        return _in_one(config, {**yarn, **pair, "llama_4_scaling_beta": 0.1})
    if config["model_type"] == "llama4_text":
        return {**config, "attn_temperature_tuning": True, "floor_scale": 2048, "attn_scale": 0.1}
    return None


def _in_one(config: Keys, rope: Keys) -> Keys:
    """The spelling of transformers 5: one group of keys, with the base."""
    return {
        **config,
        "rope_parameters": {"rope_theta": 1e6, "original_max_position_embeddings": 16384, **rope},
    }


def _by_kind(config: Keys, rope: Keys) -> Keys:
    """The spelling of transformers 5 for kinds of layers that differ."""
    left = {
        name: value for name, value in config.items() if name not in ("rope_theta", "rope_local_base_freq")
    }
    return {
        **left,
        "rope_parameters": {
            "full_attention": {"rope_theta": config["rope_theta"], **rope},
            "sliding_attention": {"rope_type": "default", "rope_theta": config["rope_local_base_freq"]},
        },
    }


def cases(families: Iterable[str] = FAMILIES) -> Iterator[tuple[str, str, Keys]]:
    """Every family with every scaling that it has."""
    for family in families:
        for scaling in SCALINGS:
            if (config := scaled(family, scaling)) is not None:
                yield family, scaling, config
