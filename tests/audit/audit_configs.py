# SPDX-License-Identifier: BSD-3-Clause
"""Configs and tables that several tests of the audit read."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import attnscale as at
from attnscale.audit._keys import known_types
from attnscale.audit._rules import families, remote

from tools.audit import quietly

ROOT = Path(__file__).resolve().parents[2]
KNOWN_TYPES = known_types()
FAMILIES, REMOTE, DIFFUSERS = families.FAMILIES, remote.REMOTE, remote.DIFFUSERS
#: Model types that have a row in the table of families.
IN_ROWS = [kind for row in FAMILIES for kind in row.types]


def yarn(factor: float, weight: float = 1.0) -> float:
    """g(s, a) = 0.1 a ln s + 1."""
    return 0.1 * weight * math.log(factor) + 1


def typed(kind: str, **keys: Any) -> dict[str, Any]:
    return {"model_type": kind, **keys}


def sizes(hidden: int = 4096, heads: int = 32, layers: int = 4, **keys: Any) -> dict[str, Any]:
    return {"hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": layers, **keys}


STANDARD = 1 / math.sqrt(128)
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
NO_YARN = {**YARN, "attention_factor": 1.0}
LLAMA = typed("llama", **sizes())
NOVEL = {**LLAMA, "model_type": "novel"}
BROKEN = {**LLAMA, "rope_scaling": {"type": "yarn", "factor": 0}}
MAMBA = typed("mamba", num_hidden_layers=2)
_DEEPSEEK_YARN = {**YARN, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}
DEEPSEEK = typed(
    "deepseek_v3",
    **sizes(7168, 128, 61, q_lora_rank=1536, kv_lora_rank=512, qk_nope_head_dim=128, qk_rope_head_dim=64),
    rope_scaling={**_DEEPSEEK_YARN, "original_max_position_embeddings": 4096},
)
_LLAMA3 = {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA4 = typed(
    "llama4",
    text_config=typed(
        "llama4_text",
        **sizes(5120, 40, 48, head_dim=128, attn_scale=0.1, floor_scale=8192, no_rope_layers=[]),
        attn_temperature_tuning=True,
        use_qk_norm=True,
        rope_scaling={**_LLAMA3, "original_max_position_embeddings": 8192},
    ),
)
GPT_OSS = typed(
    "gpt_oss",
    **sizes(2880, 64, 24, head_dim=64),
    rope_scaling={"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
)
PHI4_MINI = typed(
    "phi3",
    **sizes(3072, 24, 32, partial_rotary_factor=0.75, max_position_embeddings=131072),
    original_max_position_embeddings=4096,
    rope_scaling={"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
)
GEMMA2 = typed(
    "gemma2",
    **sizes(4608, 32, 46, head_dim=128, query_pre_attn_scalar=144, attn_logit_softcapping=50.0),
    final_logit_softcapping=30.0,
)
QWEN25 = typed("qwen2", **sizes(3584, 28, 28, max_position_embeddings=32768), rope_scaling=YARN)
MINISTRAL = typed("ministral3", **sizes(4096, 32, 34, head_dim=128))
QWEN = typed("qwen", **sizes(), use_logn_attn=True, seq_length=8192, rotary_pct=1.0)


def tempered(length: int, beta: float = 0.1) -> dict[str, Any]:
    """Config of Ministral without YaRN, with a temperature that grows from this position on."""
    rope = {"rope_type": "default", "llama_4_scaling_beta": beta, "original_max_position_embeddings": length}
    return {**MINISTRAL, "rope_parameters": rope}


def resolve(config: Any, **options: Any) -> Any:
    """Plan of a config that must not warn."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return at.audit.resolve(config, **options)


def said(config: Any, **options: Any) -> tuple[Any, str]:
    """Plan of a config, and its warnings in one text."""
    plan = quietly(config, **options)
    return plan, " | ".join(plan.warnings)


def multipliers(plan: Any, position: int = 5) -> list[float]:
    """Multiplier of each layer with an answer: of its rotated channels, or of all if none is rotated."""
    return [
        plan.multiplier(layer=layer.index, position=position, channels=layer.channel_kinds[0])
        for layer in plan.layers
        if layer.refusal is None
    ]
