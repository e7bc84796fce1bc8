# SPDX-License-Identifier: BSD-3-Clause
"""The families of models whose scale is not 1/sqrt(head_dim) on all channels of all layers, as a table.

Every row was read in the code of transformers (the version is in ``defaults.json``) and is compared
with it by the tests. A model type that has defaults but no row is a plain one: 1/sqrt(head_dim), and
what its rotary positions bring.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from .._config.config import Keys
from . import bases as base
from . import heads as heads
from . import kinds as kinds
from . import windows as windows
from .family import Family
from .plain import PLAIN, family, refused
from .remote import REMOTE

_LATENT: dict[str, Any] = {
    "head_dim": heads.latent,
    "rotated": heads.latent_rotated,
    "rope_extra": (base.mla_yarn,),
}
_GEMMA: dict[str, Any] = {"base": base.query_pre_attn_scalar, "softcap": ("attn_logit_softcapping",)}
_HYBRID_4 = kinds.every(4, key="full_attention_interval", others="linear_attention")
_NO_HEADS: dict[str, Any] = {"head_dim": lambda layer: 1, "rotates": heads.never}  # no heads that matter
_NOPE_LATENT = {**_LATENT, "rotates": heads.never, "rope_extra": ()}

FAMILIES: tuple[Family, ...] = (
    # A number of the config in place of head_dim.
    family("gemma2", "vaultgemma", "t5_gemma_module", **_GEMMA, kinds=kinds.every(2)),
    family(
        *("gemma3_text", "t5gemma2_text", "t5gemma2_decoder"),
        window=windows.embedding_gemma,
        base=base.query_pre_attn_scalar,  # the code has a soft-cap, and does not hand it on
        kinds=kinds.every(6, key="sliding_window_pattern"),
        spelling="over full attention",
    ),
    family("step3p5", base=base.query_pre_attn_scalar, spelling="over full attention"),
    # The scale itself is a number of the config.
    family(
        *("granite", "granite4_vision_text", "granite_docling_text", "granitemoe", "granitemoeshared"),
        "hyperclovax",
        base=base.attention_multiplier,
    ),
    family(
        "granitemoehybrid",
        base=base.attention_multiplier,
        kinds=kinds.uniform("linear_attention"),
        rotates=heads.if_set("position_embedding_type", "rope"),
    ),
    family(
        *("granite_swa", "granitemoe_swa"),
        base=base.attention_multiplier,
        kinds=kinds.full_at(lambda i, count: i % 4 == 0),
        rotates=heads.by_theta_list,
        sink=heads.always,
    ),
    family("mpt", base=base.softmax_scale, rotates=heads.never),
    family("falcon_h1", base=base.multiplied("key_multiplier"), kinds=kinds.uniform("hybrid")),
    family(
        *("muse_glimmer_text", "muse_spark_text"),
        base=base.multiplied("qk_scale_factor"),
        kinds=kinds.full_at(lambda i, count: (count - 1 - i) % 4 == 0),
        rotates=heads.by_theta_list_or_fourth,
    ),
    # Families whose scores have no scale.
    family(
        *("t5", "mt5", "umt5", "longt5", "switch_transformers", "pop2piano", "udop", "pix2struct_text_model"),
        head_dim=heads.d_kv,
        rotates=heads.never,
        base=base.unscaled,
        notes=("a relative position bias is added to the score",),
    ),
    family("gpt_neo", rotates=heads.never, base=base.unscaled, kinds=kinds.gpt_neo, window=windows.local),
    family("dia_encoder", "dia_decoder", base=base.unscaled),
    family(
        "gemma3n_text",
        base=base.unscaled,
        kinds=kinds.full_at(lambda i, count: (i + 1) % 5 == 0),
        spelling="over full attention",
    ),
    family(
        *("gemma4_text", "gemma4_unified_text", "diffusion_gemma_text", "embedding_gemma2_text"),
        head_dim=heads.global_head_dim,
        base=base.unscaled,
        kinds=kinds.ending_full(kinds.every(6)),
        listed=kinds.full_at_last,
        spelling="by kind",
    ),
    # Scales by layer, by flag, by head.
    family(
        *("gpt2", "gpt-sw3", "decision_transformer", "imagegpt"),
        rotates=heads.never,
        base=base.unless_unscaled,
        extra=(base.layer_index,),
    ),
    family("gpt_bigcode", rotates=heads.never, base=base.unless_unscaled),
    family(
        "zamba",
        head_dim=heads.half,
        base=base.half_head_dim,
        rotates=heads.never,
        kinds=kinds.zamba,
    ),
    family(
        "zamba2",
        head_dim=heads.half,
        base=base.half_head_dim,
        rotates=heads.if_flag("use_mem_rope"),
        kinds=kinds.default_list,
    ),
    family(
        *("deberta", "deberta-v2", "sew-d"),
        rotates=heads.never,
        extra=(base.disentangled,),
        notes=("the relative score terms are added to the score",),
    ),
    # Temperatures that depend on the position.
    family(
        "llama4_text",
        kinds=kinds.llama4,
        rotates=heads.by_layer_list,
        nope_extra=(base.llama4_temperature,),
        qk_norm=heads.norm_after_if_rotated,
    ),
    family("ministral3", rope_extra=(base.ministral_temperature,)),
    family("mistral4", **{**_LATENT, "rope_extra": (base.mla_yarn, base.ministral_temperature)}),
    family(
        "beam",
        nope_extra=(base.beam_temperature,),
        kinds=kinds.ending_full(kinds.every(6)),
        spelling="by kind",
    ),
    family(
        "inkling_text",
        head_dim=heads.swa_head_dim,
        rotates=heads.never,
        base=base.over_head_dim,
        extra=(base.inkling_temperature,),
        kinds=kinds.local_ids,
        notes=("a relative position bias is added to the score, with the same temperature",),
    ),
    family(
        "inkling2_text",
        head_dim=heads.swa_head_dim,
        rotates=heads.never,
        extra=(base.inkling_temperature,),
        kinds=kinds.every(6, last="hybrid", others="hybrid_sliding"),
        sink=heads.always,
        notes=(
            "q and k are clipped to a length of qk_l2_clip_threshold: part of raw q and k",
            "a relative position bias is added to the score",
        ),
    ),
    # Multi-head latent attention.
    family(
        *("deepseek_v2", "deepseek_v3", "deepseek_v32", "axk1", "axk2", "glm4_moe_lite", "glm_moe_dsa"),
        *("minicpm3", "youtu"),
        **_LATENT,
    ),
    family("hy_v4", **_LATENT, sink=heads.always),
    family(
        "bailing_hybrid",
        **_LATENT,
        kinds=kinds.every(1, key="layer_group_size", others="linear_attention"),
    ),
    family(
        "longcat_flash",
        **_LATENT,
        extra=(base.latent_query, base.latent_key),
        count=kinds.two_each,
        notes=("two layers of attention in each of num_layers; they are numbered through",),
    ),
    family(
        "dots3_note_text",
        head_dim=heads.sliding_latent,
        rotated=heads.sliding_latent_rotated,
        extra=(base.latent_query, base.latent_key),
        kinds=kinds.full_at(lambda i, count: i < 2 or i % 4 == 1),
        spelling="each kind",
    ),
    family("kimi_linear", **_NOPE_LATENT, kinds=kinds.kimi),
    family(
        "glm5_next_text",
        **_NOPE_LATENT,
        kinds=kinds.full_at(lambda i, count: i % 4 == 3, "linear_attention"),
    ),
    # Plain scales, but not on all channels of all layers.
    family("afmoe", rotates=heads.sliding_only, kinds=kinds.every(4, key="global_attn_every_n_layers")),
    family(
        "cohere2",
        rotates=heads.sliding_only,
        kinds=kinds.every(4, key="sliding_window_pattern"),
    ),
    family(
        "cohere2_moe",
        rotates=heads.sliding_or_forced,
        kinds=kinds.dense_then_every,
        spelling="parameters alone",
    ),
    family("cohere_compass_text", spelling="by kind"),
    family("exaone4", "exaone_moe", rotates=heads.sliding_or_no_window, kinds=kinds.exaone),
    family("kolibri1", rotates=heads.sliding_or_no_window, kinds=kinds.every(5)),
    family(
        "flint",
        rotates=heads.sliding_only,
        kinds=kinds.full_at(lambda i, count: i < 2 or i % 4 == 1 or i == count - 1),
        sink=heads.always,
    ),
    family("smollm3", kinds=kinds.smollm3, rotates=heads.by_layer_list),
    family("olmo_hybrid", rotates=heads.rope_parameters_given, kinds=kinds.linear_but_fourth),
    family("olmo3", kinds=kinds.every(4), spelling="over full attention"),
    family(
        *("modernbert", "modernbert-decoder"),
        kinds=kinds.modernbert,
        spelling="over every kind",
        window=windows.modernbert,
    ),
    family("ministral", kinds=kinds.window_or_full),
    family(
        "mimo_v2_flash",
        kinds=kinds.full_at(lambda i, count: i == 0 or (i + 1) % 6 == 0),
        sink=heads.sliding_only,
        spelling="by kind",
    ),
    family("laguna", "mellum", spelling="by kind"),
    family(
        "neomme",
        kinds=kinds.full_at(lambda i, count: (i + 1) % 6 == 0 or i == count - 1),
        spelling="by kind with shares",
        window=windows.neomme,
    ),
    family(
        "molmo2_text",
        rope_key=heads.scaled_if_listed("rope_scaling_layers"),
        spelling="listed layers",
    ),
    family("ultrabert", kinds=kinds.ultrabert, spelling="by kind"),
    family("gpt_oss", kinds=kinds.every(2), sink=heads.always),
    family("openai_privacy_filter", sink=heads.always, window=windows.both_sides),
    family(
        "deepseek_v4",
        rope_key=lambda layer: "main" if layer.kind == "sliding_attention" else "compress",
        kinds=kinds.compressed,
        sink=heads.always,
        spelling="compressed",
    ),
    family(
        "zaya",
        kinds=kinds.uniform("hybrid"),
        spelling="by kind",
        notes=("k carries a learned gain for each head: part of raw k",),
    ),
    family("hrm_text", count=kinds.cycles),
    family("phimoe", own_rope=base.phimoe_mscale),
    family("gptj", "codegen", rotated=heads.rotary_dim, rotates=heads.always),
    family("falcon", rotates=heads.unless_alibi),
    family(
        *("qwen2", "qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "qwen2_5_omni_talker", "qwen3"),
        *("qwen3_omni_moe_talker_code_predictor", "deepseek_ocr2_encoder", "dots1"),
        kinds=kinds.beyond_max_window,
    ),
    family("qwen2_moe", kinds=kinds.below_max_window),
    family("cwm", kinds=kinds.full_at(lambda i, count: i % 4 == 0)),
    family("longformer", window=windows.longformer),
    family("sam3_lite_text_text_model", kinds=kinds.convolutions_outside),
    family("esm", rotates=heads.if_set("position_embedding_type", "rotary")),
    family("roformer", rotates=heads.always),
    # Heads of another width than hidden_size / num_attention_heads.
    family("jetmoe", head_dim=heads.stated("kv_channels")),
    family("cpmant", head_dim=heads.stated("dim_head")),
    family("convbert", head_dim=heads.beside_convolution),
    family("mobilebert", head_dim=heads.bottleneck),
    family(
        "funnel",
        head_dim=heads.stated("d_head"),
        count=kinds.funnel_layers,
        notes=("terms of relative positions and of segments are added to the score",),
    ),
    family("prophetnet", count=kinds.added(num_hidden_layers=12)),
    family("lxmert", count=kinds.added(l_layers=9, x_layers=5, r_layers=5)),
    family(
        "cvt",
        head_dim=heads.of_stage,
        rotates=heads.never,
        base=base.whole_width,
        count=kinds.stages("depth", (1, 2, 10)),
    ),
    family(
        "qwen2_vl_vision", head_dim=heads.divided(embed_dim=1280, num_heads=16), count=kinds.added(depth=32)
    ),
    # More about the weights than a scale.
    family("videoprism_text_model", "videoprism_vision_model", softcap=("attn_logit_softcapping",)),
    family("diffllama", notes=("the weights are the difference of two softmaxes, each with this scale",)),
    family(
        "reformer",
        head_dim=heads.stated("attention_head_size"),
        notes=("raw k is raw q, in layers of kind lsh divided by its root mean square",),
    ),
    # Layers without attention.
    family("jamba", rotates=heads.never, kinds=kinds.period_and_offset),
    family("bamba", kinds=kinds.listed_indices("attn_layer_indices", "linear_attention")),
    family(
        "nemotron_h",
        rotates=heads.never,
        count=kinds.pattern_length,
        kinds=kinds.hybrid_pattern,
    ),
    family("lfm2", "lfm2_moe", kinds=kinds.listed_indices("full_attn_idxs", "conv")),
    family("lfm3", kinds=kinds.lfm3, spelling="by kind"),
    family("recurrent_gemma", kinds=kinds.block_cycle),
    family("minimax", kinds=kinds.full_at(lambda i, count: (i + 1) % 2 != 0, "linear_attention")),
    family("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen4_exp_text", kinds=_HYBRID_4),
    family(
        *("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"),
        **_NO_HEADS,
        kinds=kinds.uniform("linear_attention"),
    ),
    family("fnet", **_NO_HEADS, kinds=kinds.uniform("fourier")),
    # Other weights than a softmax of scores.
    family("yoso", refusal=refused("the weights are chances that hashes of q and k collide, not a softmax")),
    family(
        "autoformer",
        **_NO_HEADS,
        count=kinds.added(decoder_layers=2),
        refusal=refused("the weights are a softmax over lags of time, of correlations of q and k"),
    ),
    # The scale is a weight of the checkpoint.
    family(
        "mistral_large4_text",
        **_LATENT,
        rotates=heads.by_layer_list,
        refusal=refused(
            "the query is multiplied by scale * ln(position + 1) + bias; scale and bias are weights of the "
            "checkpoint, one of each a head"
        ),
    ),
    family(
        *("swinv2", "swin2sr"),
        **_NO_HEADS,
        count=kinds.stages("depths", (2, 2, 6, 2)),
        refusal=refused("the scale exp(min(logit_scale, ln 100)) is a weight of the checkpoint, one a head"),
    ),
    family(
        *("timesfm", "timesfm2_5", "gemma3n_audio", "gemma4_audio"),
        **_NO_HEADS,
        refusal=refused("each channel of the query has a scale of its own, a weight of the checkpoint"),
    ),
)

#: A model type that is not known: what its keys say.
UNKNOWN = family(
    "",
    head_dim=heads.whatever_is_given,
    rotated=heads.whatever_is_rotated,
    rotates=heads.whatever_rotates,
    base=base.whatever_is_given,
    extra=(base.layer_index, base.logn_attention, base.grok_temperature),
    nope_extra=(base.llama4_temperature,),
    rope_extra=(base.mla_yarn_if_latent, base.ministral_temperature),
    softcap=("attn_logit_softcapping", "max_attn_value"),
    refusal=base.learned_if_named,
    spelling="either",
    count=kinds.whatever_is_counted,
)


@cache
def _by_type() -> dict[str, Family]:
    table: dict[str, Family] = {}
    for row in (*FAMILIES, *(each.family for each in REMOTE)):
        for kind in row.types:
            assert kind not in table, kind
            table[kind] = row
    return table


def family_of(keys: Keys) -> Family:
    """The row of a model type; the plain row for a known type without one, else :data:`UNKNOWN`."""
    found = _by_type().get(keys.kind)
    return found or (PLAIN if keys.known else UNKNOWN)


def has_row(kind: str) -> bool:
    """Whether the table has a row for the model type."""
    return kind in _by_type()
