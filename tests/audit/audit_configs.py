# SPDX-License-Identifier: BSD-3-Clause
"""Configs that several tests of the audit read."""

from __future__ import annotations

import math
import warnings
from typing import Any

import attnscale as at


def yarn(factor: float, weight: float = 1.0) -> float:
    """g(s, a) = 0.1 a ln s + 1."""
    return 0.1 * weight * math.log(factor) + 1


def sizes(hidden: int = 4096, heads: int = 32, layers: int = 4, **keys: Any) -> dict[str, Any]:
    return {"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": layers, **keys}


STANDARD = 1 / math.sqrt(128)
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LLAMA = {"model_type": "llama", **sizes()}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    **sizes(7168, 128, 61, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64),
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
}
LLAMA4 = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        **sizes(5120, 40, 48, head_dim=128, attn_scale=0.1, floor_scale=8192, no_rope_layers=[]),
        "attn_temperature_tuning": True,
        "use_qk_norm": True,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 16.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
}
GPT_OSS = {
    "model_type": "gpt_oss",
    **sizes(2880, 64, 24, head_dim=64),
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
}
PHI4_MINI = {
    "model_type": "phi3",
    **sizes(3072, 24, 32, partial_rotary_factor=0.75, max_position_embeddings=131072),
    "original_max_position_embeddings": 4096,
    "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
}
GEMMA2 = {
    "model_type": "gemma2",
    **sizes(4608, 32, 46, head_dim=128, query_pre_attn_scalar=144, attn_logit_softcapping=50.0),
    "final_logit_softcapping": 30.0,
}
QWEN25 = {"model_type": "qwen2", **sizes(3584, 28, 28, max_position_embeddings=32768), "rope_scaling": YARN}
MINISTRAL = {"model_type": "ministral3", **sizes(4096, 32, 34, head_dim=128)}

DEEPSEEK_SCALE = yarn(40) ** 2 / math.sqrt(192)
QWEN = {"model_type": "qwen", **sizes(), "use_logn_attn": True, "seq_length": 8192, "rotary_pct": 1.0}


def resolve(config: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return at.audit.resolve(config, **options)
