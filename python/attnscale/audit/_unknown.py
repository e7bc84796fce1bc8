# SPDX-License-Identifier: BSD-3-Clause
"""Keys that could change the scale and that no rule reads."""

from __future__ import annotations

import re
from typing import Any

from ._keys import Keys

#: Names that could belong to the scale of attention.
SUSPICIOUS = re.compile(
    r"scal|multiplier|soft_?cap|temper|logn|log_n|mscale|qk_|query_pre|sink|logit_cap"
    r"|attn_factor|attention_factor|norm_factor|(^|_)(tau|kappa)(_|$)"
)

#: Names that look like a scale of attention but act on embeddings, residuals, logits of the vocabulary,
#: experts, images, quantised weights or sampling.
_ELSEWHERE = re.compile(
    r"embedding_multiplier|residual_multiplier|logits_scaling|final_logit_softcapping|logit_scale|"
    r"logit_scale_init_value|lm_head_multiplier|scale_embedding|scale_emb|scale_depth|"
    r"scale_decoder_outputs|temperature|rescale_every|layer_scale_init_value|routed_scaling_factor|"
    r"router_scaling_factor|moe_router_scaling_factor|route_scale|embedding_multiplier_scale|"
    r"output_multiplier_scale|router_logit_softcapping|output_multiplier|mlp_multipliers|"
    r"ssm_multipliers|ssm_in_multiplier|scale_fmt|ssm_out_multiplier|attention_in_multiplier|"
    r"attention_out_multiplier|residual_scale|moe_routed_scaling_factor|mup_width_scale|"
    r"mup_embeddings_scale|mup_output_alpha|initializer_scale|embed_scale|"
    r"scale_attention_softmax_in_fp32|use_layer_scale|mup_width_multiplier|mup_embedding_multiplier|"
    r"apply_query_key_layer_scaling|attention_value_scale|attn_sub_norm|"
    r"downscale_freq_shift"
)

#: Keys that parameters of rotary positions may have; the factors among them have rules.
_ROPE_KEYS = re.compile(
    r"factor|attention_factor|mscale|mscale_all_dim|short_mscale|long_mscale|scaling_type|"
    r"llama_4_scaling_beta|low_freq_factor|high_freq_factor|beta_fast|beta_slow"
)

_TABLES = re.compile("rope_|attn|attention")


def not_understood(keys: Keys) -> dict[str, Any]:
    """The given keys and values that no rule has read and that could belong to the scale of attention.

    Keys in tables about attention or rotary positions are included, with the table's name in front. Null,
    false and empty values change nothing and are left out.
    """
    found = {
        name: value
        for name, value in keys.given.items()
        if SUSPICIOUS.search(name)
        and name not in keys.seen.used
        and not _ELSEWHERE.fullmatch(name)
        and name not in keys.accepted
        and not isinstance(value, dict)
    }
    for name, value in keys.given.items():
        if isinstance(value, dict) and _TABLES.search(name):
            found |= _inside(keys, name, value)
    return {name: value for name, value in found.items() if not _changes_nothing(value)}


def _inside(keys: Keys, name: str, table: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for inner, value in table.items():
        full = f"{name}.{inner}"
        if isinstance(value, dict):
            found |= _inside(keys, full, value)
        elif SUSPICIOUS.search(inner) and not _ROPE_KEYS.fullmatch(inner) and full not in keys.seen.used:
            found[full] = value
    return found


def _changes_nothing(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, (str, list, tuple)) and not value)
