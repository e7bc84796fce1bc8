# SPDX-License-Identifier: BSD-3-Clause
"""Models whose code is on the Hub and not in transformers: what the audit makes of their configs.

None of that code is imported or run. The rules were read in the code and in the ports that several
frameworks carry, and are tested by numbers; they are not compared with the code as it runs.
"""

from __future__ import annotations

from typing import NamedTuple

from . import bases as base
from . import heads as heads
from . import kinds as kinds
from .family import Family
from .plain import family


class Remote(NamedTuple):
    """A row of the table of remote code.

    Attributes
    ----------
    models : str
        Names of the models.
    rule : str
        What the scale is.
    family : Family
        The rule, for the model types.
    """

    models: str
    rule: str
    family: Family


REMOTE: tuple[Remote, ...] = (
    Remote(
        "Qwen 1",
        "1/sqrt(kv_channels); with use_logn_attn times log of the position beyond seq_length",
        family(
            "qwen",
            head_dim=heads.stated_or_quotient("kv_channels"),
            rotates=heads.always,
            extra=(base.logn_attention,),
            notes=("the rule of its modeling_qwen.py at inference; its table of logarithms ends at 32767",),
        ),
    ),
    Remote(
        "InternLM 1 and 2, Baichuan 1 and 2, EXAONE 3, DeepSeek MoE",
        "1/sqrt(head_dim), and the factor of the rotary positions",
        family(
            *("internlm", "internlm2", "baichuan", "exaone", "deepseek"),
            head_dim=heads.whatever_is_given,
            count=kinds.whatever_is_counted,
        ),
    ),
    Remote(
        "MiniCPM 1, 2 and 4",
        "1/sqrt(head_dim), and the factor of LongRoPE; scale_emb and scale_depth are no scale of attention",
        family("minicpm", head_dim=heads.whatever_is_given),
    ),
    Remote(
        "ChatGLM 1 to 3, GLM 4 with remote code",
        "1/sqrt(kv_channels); apply_query_key_layer_scaling divides by the layer and multiplies again",
        family(
            "chatglm",
            head_dim=heads.stated_or_quotient("kv_channels"),
            count=kinds.whatever_is_counted,
        ),
    ),
    Remote(
        "Phi-3-small",
        "mup_attn_multiplier / head_dim; 1/sqrt(head_dim) without mup_use_scaling",
        family("phi3small", base=base.phi3_small, own_rope=base.phimoe_mscale),
    ),
    Remote(
        "BTLM, Jais",
        "1/head_dim with mup_scale_qk_dot_by_d, else 1/sqrt(head_dim); 1 without scale_attn_weights",
        family(
            *("btlm", "jais"),
            head_dim=heads.whatever_is_given,
            base=base.over_head_dim_if_set,
            extra=(base.layer_index,),
            count=kinds.whatever_is_counted,
        ),
    ),
    Remote(
        "Grok 1 and 2",
        "attn_output_multiplier, else 1/sqrt(head_dim); soft-cap max_attn_value or attn_logit_softcapping",
        family(
            *("grok-1", "grok", "grok-2"),
            rotates=heads.always,
            base=base.output_multiplier,
            extra=(base.grok_temperature,),
            softcap=("attn_logit_softcapping", "max_attn_value"),
        ),
    ),
    Remote(
        "Kimi K2",
        "as DeepSeek V3: 1/sqrt(qk_nope_head_dim + qk_rope_head_dim), times YaRN's factor of mscale_all_dim",
        family(
            "kimi_k2",
            head_dim=heads.latent,
            rotated=heads.latent_rotated,
            rope_extra=(base.mla_yarn,),
        ),
    ),
)
