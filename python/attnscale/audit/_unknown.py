# SPDX-License-Identifier: BSD-3-Clause
"""Keys that could change the scale and that the audit does not understand."""

from __future__ import annotations

import re

from ._config import Keys

__all__ = ["SUSPICIOUS", "not_understood"]

#: Names that could belong to the scale of attention.
SUSPICIOUS = re.compile(
    r"scal|multiplier|soft_?cap|temper|logn|log_n|mscale|qk_|query_pre|sink|logit_cap"
    r"|attn_factor|attention_factor|norm_factor|(^|_)(tau|kappa)(_|$)"
)

#: Names that look like it and are not: they act on embeddings, residuals, logits of the vocabulary,
#: experts, images, quantised weights or sampling.
_ELSEWHERE = frozenset(
    (
        *("embedding_multiplier", "residual_multiplier", "logits_scaling", "final_logit_softcapping"),
        *("logit_scale", "logit_scale_init_value", "lm_head_multiplier", "scale_embedding", "scale_emb"),
        *("scale_depth", "scale_decoder_outputs", "temperature", "rescale_every", "layer_scale_init_value"),
        *("routed_scaling_factor", "router_scaling_factor", "moe_router_scaling_factor", "route_scale"),
        *("embedding_multiplier_scale", "output_multiplier_scale", "router_logit_softcapping"),
        *("output_multiplier", "mlp_multipliers", "ssm_multipliers", "ssm_in_multiplier", "scale_fmt"),
        *("ssm_out_multiplier", "attention_in_multiplier", "attention_out_multiplier", "residual_scale"),
        *("moe_routed_scaling_factor", "mup_width_scale", "mup_embeddings_scale", "mup_output_alpha"),
        *("initializer_scale", "embed_scale", "scale_attention_softmax_in_fp32", "use_layer_scale"),
        *("apply_query_key_layer_scaling", "attention_value_scale", "attn_sub_norm"),
    )
)


def not_understood(keys: Keys) -> list[str]:
    """Names of the given keys that no rule has read and that could belong to the scale of attention.

    A null, false or empty value changes nothing and is left out.
    """
    return [
        name
        for name, value in keys.given.items()
        if SUSPICIOUS.search(name)
        and name not in keys.used
        and name not in _ELSEWHERE
        and name not in keys.accepted
        and value not in (None, False, "", [], {})
        and not isinstance(value, dict)
    ]
