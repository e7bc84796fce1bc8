# SPDX-License-Identifier: BSD-3-Clause
"""Families of models whose code is not in transformers: on the Hub, and in diffusers."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import bases as base
from . import heads as heads
from . import kinds as kinds
from . import remote_cells as cells
from .family import Family
from .plain import LATENT, refused, row


class Remote(NamedTuple):
    """A row of the table of models whose code is on the Hub instead of in transformers.

    That code is not imported or run. The rules were read in the code and in ports by several frameworks, and
    are tested by numbers; they are not compared with the code as it runs.
    """

    models: str  # names of the models
    rule: str  # description of the scale
    family: Family  # the rule, for the model types


REMOTE: tuple[Remote, ...] = (
    Remote(
        "Qwen 1",
        "1/sqrt(kv_channels); with use_logn_attn times log of the position beyond seq_length",
        row(
            "qwen",
            head_dim=heads.stated_or_quotient("kv_channels"),
            rotates=heads.always,
            extra=(base.logn_attention,),
            notes=("the rule of its modeling_qwen.py at inference; its table of logarithms ends at 32767",),
        ),
    ),
    Remote(
        "InternLM 1 and 2, Baichuan 1 and 2, DeepSeek MoE",
        "1/sqrt(head_dim), and the factor of the rotary positions",
        row(
            "internlm internlm2 baichuan deepseek",
            head_dim=heads.whatever_is_given,
            count=kinds.whatever_is_counted,
        ),
    ),
    Remote(
        "MiniCPM 1, 2 and 4",
        "1/sqrt(head_dim), and the factor of LongRoPE; scale_emb and scale_depth are no scale of attention",
        row("minicpm", head_dim=heads.whatever_is_given),
    ),
    Remote(
        "ChatGLM 1 to 3, GLM 4 with remote code",
        "1/sqrt(kv_channels); apply_query_key_layer_scaling divides by the layer and multiplies again",
        row("chatglm", head_dim=heads.stated_or_quotient("kv_channels"), count=kinds.whatever_is_counted),
    ),
    Remote(
        "Phi-3-small",
        "mup_attn_multiplier / head_dim; 1/sqrt(head_dim) without mup_use_scaling",
        row("phi3small", base=base.phi3_small, own_rope=base.phimoe_mscale),
    ),
    Remote(
        "BTLM, Jais",
        "1/head_dim with mup_scale_qk_dot_by_d, else 1/sqrt(head_dim); 1 without scale_attn_weights",
        row(
            "btlm jais",
            head_dim=heads.whatever_is_given,
            base=base.over_head_dim_if_set,
            extra=(base.layer_index,),
            count=kinds.whatever_is_counted,
        ),
    ),
    Remote(
        "Grok 1 and 2",
        "attn_output_multiplier, else 1/sqrt(head_dim); soft-cap max_attn_value or attn_logit_softcapping",
        row(
            "grok-1 grok grok-2",
            rotates=heads.always,
            base=base.stated("attn_output_multiplier"),  # the scale, in spite of the name
            extra=(base.grok_temperature,),
            softcap=("attn_logit_softcapping", "max_attn_value"),
        ),
    ),
    Remote(
        "GTE with remote code (new-impl)",
        "1/sqrt(head_dim); with logn_attention_scale times ln n / ln max_position_embeddings, "
        "with logn_attention_clip1 at least 1",
        row(
            "new",
            head_dim=heads.divided(hidden_size=768, num_attention_heads=12),
            rotates=heads.if_set("position_embedding_type", "rope", "rope"),
            extra=(base.logn_of_text,),
            count=kinds.added(num_hidden_layers=12),
            notes=("n of a logarithm is the number of tokens of the text, the same for all its queries",),
        ),
    ),
    Remote(
        "Nori (Synthefy), by the model_config of its checkpoints",
        "ln n / ln attn_n_ref with use_logn_attention; ln n with use_qassmax in the mode log_only; in other "
        "modes, and with use_learnable_attn_temperature, the scale is in the weights",
        row(
            "synthefy_nori",
            head_dim=heads.divided(embed_dim=None, nhead=None),
            rotates=heads.never,
            extra=(cells.nori_base, cells.nori_logarithm),
            count=lambda keys: keys.size("nlayers"),
            refusal=cells.nori_in_weights,
            notes=(
                "n is the number of context rows, the same for all queries",
                "attention over features has no QASSMax; n of its logarithm is the number of feature groups",
            ),
        ),
    ),
    Remote(
        "Forgetting Transformer (FoX; flash-linear-attention 0.6.0)",
        "1/sqrt(head_dim), no rotary positions; the log gates from key to query are added: a mask",
        row(
            "forgetting_transformer",
            head_dim=heads.divided(hidden_size=2048, num_heads=32),
            rotates=heads.never,
            qk_norm=heads.norm_if_named(False),
            notes=(
                "the log gates between key and query are added to the score",
                "window_size bounds the cache of decoding, and not the attention over a text",
            ),
        ),
    ),
    Remote(
        "Stick-breaking attention (flash-linear-attention 0.6.0)",
        "none: no softmax over keys",
        row(
            "stickbreaking_attn",
            head_dim=heads.divided(hidden_size=2048, num_heads=32),
            rotates=heads.never,
            qk_norm=heads.norm_if_named(False),
            refusal=refused(
                "no softmax over keys: stick-breaking, sigma(z) of a key times 1 - sigma(z) of each later "
                "one, z = q . k / sqrt(head_dim)"
            ),
        ),
    ),
    Remote(
        "Linear attention, with softmax layers by attn (flash-linear-attention 0.6.0)",
        "1/sqrt(hidden_size / attn.num_heads) in the layers of attn; no softmax over keys elsewhere",
        row(
            "abc comba delta_net gated_deltanet gated_deltaproduct gla gsa hgrn hgrn2 kda linear_attn "
            "mesa_net retnet rwkv6 rwkv7",
            head_dim=cells.heads_of_attn,
            rotates=heads.never,
            window=cells.window_of_attn,
            kinds=cells.listed_in_attn,
            notes=("layers of attn have rotary positions",),
        ),
    ),
    Remote(
        "Kimi K2",
        "as DeepSeek V3: 1/sqrt(qk_nope_head_dim + qk_rope_head_dim), times YaRN's factor of mscale_all_dim",
        row("kimi_k2", **LATENT),
    ),
)


def _diffuser(models: str, rule: str, types: str, **cells: Any) -> Remote:
    """A row for transformers of diffusers, named by ``_class_name`` in their config."""
    return Remote(models, rule, row(types, **{"rotates": heads.always, **cells}))


#: Transformers of diffusers, with rules read in its code, version 0.42.1, and tested by numbers.
DIFFUSERS: tuple[Remote, ...] = (
    _diffuser(
        "Lumina-Next",
        "sqrt(ln n / ln n0) / sqrt(head_dim), n0 = (8 sample_size / 16)^2, with proportional_attn",
        "LuminaNextDiT2DModel",
        head_dim=heads.divided(hidden_size=2304, num_attention_heads=32),
        extra=(base.proportional, base.of_positions("scaling_factor")),
        qk_norm=heads.norm_if_named(True),
        count=kinds.added(num_layers=32),
        notes=(
            "proportional attention is an argument of the pipeline, on by default; n: tokens of the image",
            "attention to the text has the base scale alone; scaling_factor acts on positions",
        ),
    ),
    _diffuser(
        "Lumina 2",
        "1/sqrt(head_dim): its attention could take proportional attention, and no pipeline asks for it",
        "Lumina2Transformer2DModel",
        head_dim=heads.divided(hidden_size=2304, num_attention_heads=24),
        extra=(base.of_positions("scaling_factor"),),
        qk_norm=heads.norm_always,
        count=kinds.added(num_layers=26),
        notes=("the num_refiner_layers before them have the same scale; scaling_factor acts on positions",),
    ),
    _diffuser(
        "OmniGen",
        "1/sqrt(head_dim), and LongRoPE's factor of the maximal and the original length",
        "OmniGenTransformer2DModel",
        head_dim=heads.divided(hidden_size=3072, num_attention_heads=32),
        own_rope=base.omnigen_longrope,
        spelling="of its own",
        count=kinds.added(num_layers=32),
    ),
    _diffuser(
        "Flux, Flux 2",
        "1/sqrt(attention_head_dim), q and k normed",
        "FluxTransformer2DModel Flux2Transformer2DModel",
        head_dim=heads.stated("attention_head_dim", 128),
        qk_norm=heads.norm_always,
        count=kinds.flux,
        notes=("the num_layers of two streams come first, then the num_single_layers",),
    ),
    _diffuser(
        "Stable Diffusion 3",
        "1/sqrt(attention_head_dim), q and k normed where qk_norm is set",
        "SD3Transformer2DModel",
        head_dim=heads.stated("attention_head_dim", 64),
        rotates=heads.never,
        qk_norm=heads.norm_if_named(None),
        count=kinds.added(num_layers=18),
    ),
    _diffuser(
        "Qwen-Image",
        "1/sqrt(attention_head_dim), q and k normed",
        "QwenImageTransformer2DModel",
        head_dim=heads.stated("attention_head_dim", 128),
        qk_norm=heads.norm_always,
        count=kinds.added(num_layers=60),
    ),
    _diffuser(
        "Wan",
        "1/sqrt(attention_head_dim), q and k normed",
        "WanTransformer3DModel",
        head_dim=heads.stated("attention_head_dim", 128),
        qk_norm=heads.norm_if_named("rms_norm_across_heads"),
        count=kinds.added(num_layers=40),
    ),
)
