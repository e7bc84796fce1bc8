# SPDX-License-Identifier: BSD-3-Clause
"""The families of models whose scale is not 1/sqrt(head_dim) on all channels of all layers, as a table.

Every row was read in the code of transformers (the version is in ``defaults.json``) and is compared
with it by the tests. A model type with defaults but no row is plain: 1/sqrt(head_dim), and the factor of
its rotary positions.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from .._keys import Keys
from . import bases as base
from . import heads as heads
from . import kinds as kinds
from . import windows as windows
from .family import Family
from .plain import LATENT, PLAIN, in_weights, refused, row
from .remote import DIFFUSERS, REMOTE

_GEMMA: dict[str, Any] = {"base": base.query_pre_attn_scalar, "softcap": ("attn_logit_softcapping",)}
_ATTENTION_MULTIPLIER = base.stated("attention_multiplier", above=0)
_LATENT_FACTORS = (base.latent("q_lora_rank", "all"), base.latent("kv_lora_rank", "unrotated"))
_HYBRID_4 = kinds.every(4, key="full_attention_interval", others="linear_attention")
_NO_HEADS: dict[str, Any] = {"head_dim": lambda layer: 1, "rotates": heads.never}  # no heads that matter
_NOPE_LATENT = {**LATENT, "rotates": heads.never, "rope_extra": ()}
_INKLING_2: dict[str, Any] = {
    "head_dim": heads.swa_head_dim,
    "rotates": heads.never,
    "extra": (base.inkling_temperature,),
    "kinds": kinds.every(6, last="hybrid", others="hybrid_sliding"),
    "sink": heads.always,
    "notes": (
        "q and k are clipped to a length of qk_l2_clip_threshold: part of raw q and k",
        "a relative position bias is added to the score",
        "the logit of a sink is a linear map of the token (sink_proj): one for each query and head",
    ),
}

FAMILIES: tuple[Family, ...] = (
    # A number of the config in place of head_dim.
    row("gemma2 vaultgemma t5_gemma_module", **_GEMMA, kinds=kinds.every(2)),
    row(
        "gemma3_text t5gemma2_text t5gemma2_decoder",
        window=windows.embedding_gemma,
        base=base.query_pre_attn_scalar,  # the code has a soft-cap, and does not hand it on
        kinds=kinds.every(6, key="sliding_window_pattern"),
        spelling="over full attention",
    ),
    row("step3p5", base=base.query_pre_attn_scalar, spelling="over full attention"),
    # The scale itself is a number of the config.
    row(
        "granite granite4_vision_text granite_docling_text granitemoe granitemoeshared hyperclovax",
        base=_ATTENTION_MULTIPLIER,
    ),
    row(
        "granitemoehybrid",
        base=_ATTENTION_MULTIPLIER,
        kinds=kinds.uniform("linear_attention"),
        rotates=heads.if_set("position_embedding_type", "rope"),
    ),
    row(
        "granite_swa granitemoe_swa",
        base=_ATTENTION_MULTIPLIER,
        kinds=kinds.full_at(lambda i, count: i % 4 == 0),
        rotates=heads.by_theta_list,
        sink=heads.always,
    ),
    row("mpt", base=base.softmax_scale, rotates=heads.never),
    row("falcon_h1", base=base.multiplied("key_multiplier"), kinds=kinds.uniform("hybrid")),
    row(
        "muse_glimmer_text muse_spark_text",
        base=base.multiplied("qk_scale_factor"),
        kinds=kinds.full_at(lambda i, count: (count - 1 - i) % 4 == 0),
        rotates=heads.by_theta_list_or_fourth,
    ),
    # Families whose scores have no scale.
    row(
        "t5 mt5 umt5 longt5 switch_transformers pop2piano udop pix2struct_text_model",
        head_dim=heads.d_kv,
        rotates=heads.never,
        base=base.unscaled,
        notes=("a relative position bias is added to the score",),
    ),
    row("gpt_neo", rotates=heads.never, base=base.unscaled, kinds=kinds.gpt_neo, window=windows.local),
    row("dia_encoder dia_decoder", base=base.unscaled),
    row(
        "gemma3n_text",
        base=base.unscaled,
        kinds=kinds.full_at(lambda i, count: (i + 1) % 5 == 0),
        spelling="over full attention",
    ),
    row(
        "gemma4_text gemma4_unified_text diffusion_gemma_text embedding_gemma2_text",
        head_dim=heads.global_head_dim,
        base=base.unscaled,
        kinds=kinds.ending_full(kinds.every(6)),
        listed=kinds.full_at_last,
        spelling="by kind",
    ),
    # Scales by layer, by flag, by head.
    row(
        "gpt2 gpt-sw3 decision_transformer imagegpt",
        rotates=heads.never,
        base=base.unless_unscaled,
        extra=(base.layer_index,),
    ),
    row("gpt_bigcode", rotates=heads.never, base=base.unless_unscaled),
    row("zamba", head_dim=heads.half, base=base.half_head_dim, rotates=heads.never, kinds=kinds.zamba),
    row(
        "zamba2",
        head_dim=heads.half,
        base=base.half_head_dim,
        rotates=heads.if_flag("use_mem_rope"),
        kinds=kinds.default_list,
    ),
    row(
        "deberta deberta-v2 sew-d",
        rotates=heads.never,
        extra=(base.disentangled,),
        notes=("the relative score terms are added to the score",),
    ),
    # Temperatures that depend on the position.
    row(
        "llama4_text",
        kinds=kinds.llama4,
        rotates=heads.by_layer_list,
        nope_extra=(base.llama4_temperature,),
        qk_norm=heads.norm_after_if_rotated,
    ),
    row("ministral3", rope_extra=(base.ministral_temperature,)),
    row("mistral4", **{**LATENT, "rope_extra": (base.mla_yarn, base.ministral_temperature)}),
    row(
        "beam",
        nope_extra=(base.beam_temperature,),
        kinds=kinds.ending_full(kinds.every(6)),
        spelling="by kind",
    ),
    row(
        "inkling_text",
        head_dim=heads.swa_head_dim,
        rotates=heads.never,
        base=base.over_head_dim,
        extra=(base.inkling_temperature,),
        kinds=kinds.local_ids,
        notes=("a relative position bias is added to the score, with the same temperature",),
    ),
    row("inkling2_text", **_INKLING_2),
    row(
        "inkling2_loop_text",
        **{
            **_INKLING_2,
            "notes": (
                *_INKLING_2["notes"],
                "layers loop_layer_index_start to loop_layer_index_end - 1 run loop_num_passes times",
            ),
        },
    ),
    # Multi-head latent attention.
    row(
        "deepseek_v2 deepseek_v3 deepseek_v32 axk1 axk2 glm4_moe_lite glm_moe_dsa minicpm3 youtu sarvam_mla",
        **LATENT,
    ),
    row("hy_v4 hy_v4_vl_text", **LATENT, sink=heads.always),
    row("bailing_hybrid", **LATENT, kinds=kinds.every(1, key="layer_group_size", others="linear_attention")),
    row(
        "longcat_flash",
        **LATENT,
        extra=_LATENT_FACTORS,
        count=kinds.two_each,
        notes=("two layers of attention in each of num_layers; they are numbered through",),
    ),
    row(
        "dots3_note_text",
        head_dim=heads.sliding_latent,
        rotated=heads.sliding_latent_rotated,
        extra=_LATENT_FACTORS,
        kinds=kinds.full_at(lambda i, count: i < 2 or i % 4 == 1),
        spelling="either",
    ),
    row("kimi_linear", **_NOPE_LATENT, kinds=kinds.kimi),
    row(
        "glm5_next_text", **_NOPE_LATENT, kinds=kinds.full_at(lambda i, count: i % 4 == 3, "linear_attention")
    ),
    # Plain scales, but not on all channels of all layers.
    row("afmoe", rotates=heads.sliding_only, kinds=kinds.every(4, key="global_attn_every_n_layers")),
    row("cohere2", rotates=heads.sliding_only, kinds=kinds.every(4, key="sliding_window_pattern")),
    row(
        "cohere2_moe",
        rotates=heads.sliding_or_forced,
        kinds=kinds.dense_then_every,
        spelling="parameters alone",
    ),
    row("cohere_compass_text", spelling="by kind"),
    row("exaone4 exaone_moe", rotates=heads.sliding_or_no_window, kinds=kinds.exaone),
    row("lara_mini", rotates=heads.sliding_only, kinds=kinds.lara_mini),
    row("kolibri1", rotates=heads.sliding_or_no_window, kinds=kinds.every(5)),
    row(
        "flint",
        rotates=heads.sliding_only,
        kinds=kinds.full_at(lambda i, count: i < 2 or i % 4 == 1 or i == count - 1),
        sink=heads.always,
    ),
    row("smollm3", kinds=kinds.smollm3, rotates=heads.by_layer_list),
    row("olmo_hybrid", rotates=heads.rope_parameters_given, kinds=kinds.linear_but_fourth),
    row("olmo3", kinds=kinds.every(4), spelling="over full attention"),
    row(
        "modernbert modernbert-decoder",
        kinds=kinds.modernbert,
        spelling="over every kind",
        window=windows.modernbert,
    ),
    row("ministral", kinds=kinds.window_or_full),
    row(
        "mimo_v2_flash",
        kinds=kinds.full_at(lambda i, count: i == 0 or (i + 1) % 6 == 0),
        sink=heads.sliding_only,
        spelling="by kind",
    ),
    row("laguna mellum", spelling="by kind"),
    row(
        "neomme",
        kinds=kinds.full_at(lambda i, count: (i + 1) % 6 == 0 or i == count - 1),
        spelling="by kind with shares",
        window=windows.neomme,
    ),
    row("molmo2_text", rope_key=heads.scaled_if_listed("rope_scaling_layers"), spelling="listed layers"),
    row("ultrabert", kinds=kinds.ultrabert, spelling="by kind"),
    row("gpt_oss", kinds=kinds.every(2), sink=heads.always),
    row("openai_privacy_filter", sink=heads.always, window=windows.both_sides),
    row(
        "deepseek_v4",
        rope_key=lambda layer: "main" if layer.kind == "sliding_attention" else "compress",
        kinds=kinds.compressed,
        sink=heads.always,
        spelling="compressed",
    ),
    row(
        "zaya",
        kinds=kinds.uniform("hybrid"),
        spelling="by kind",
        notes=("k carries a learned gain for each head: part of raw k",),
    ),
    row("hrm_text", count=kinds.cycles),
    row("phimoe", own_rope=base.phimoe_mscale),
    row("gptj codegen", rotated=heads.rotary_dim, rotates=heads.always),
    row("falcon", rotates=heads.unless_flag("alibi")),
    row(
        "qwen2 qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text qwen2_5_omni_talker qwen3 "
        "qwen3_omni_moe_talker_code_predictor deepseek_ocr2_encoder dots1",
        kinds=kinds.beyond_max_window,
    ),
    row("qwen2_moe", kinds=kinds.below_max_window),
    row("cwm", kinds=kinds.full_at(lambda i, count: i % 4 == 0)),
    row("longformer", window=windows.longformer),
    row("sam3_lite_text_text_model", kinds=kinds.convolutions_outside),
    row("esm", rotates=heads.if_set("position_embedding_type", "rotary")),
    row("roformer", rotates=heads.always),
    # Heads of another width than hidden_size / num_attention_heads.
    row("jetmoe", head_dim=heads.stated("kv_channels")),
    row("cpmant", head_dim=heads.stated("dim_head")),
    row("convbert", head_dim=heads.beside_convolution),
    row("mobilebert", head_dim=heads.bottleneck),
    row(
        "funnel",
        head_dim=heads.stated("d_head"),
        count=kinds.funnel_layers,
        notes=("terms of relative positions and of segments are added to the score",),
    ),
    row("prophetnet", count=kinds.added(num_hidden_layers=12)),
    row("lxmert", count=kinds.added(l_layers=9, x_layers=5, r_layers=5)),
    row(
        "cvt",
        head_dim=heads.of_stage,
        rotates=heads.never,
        base=base.whole_width,
        count=kinds.stages("depth", (1, 2, 10)),
    ),
    row("qwen2_vl_vision", head_dim=heads.divided(embed_dim=1280, num_heads=16), count=kinds.added(depth=32)),
    row("gte", extra=(base.unread_logn,)),
    row(
        "exaone4_5_vision",
        head_dim=heads.divided(hidden_size=3584, num_heads=16),
        count=kinds.added(depth=32),
        notes=("layers outside fullatt_block_indexes see a window of the picture, of window_size pixels",),
    ),
    # Plain scales, with a soft-cap or other facts about the weights.
    row("videoprism_text_model videoprism_vision_model", softcap=("attn_logit_softcapping",)),
    row("diffllama", notes=("the weights are the difference of two softmaxes, each with this scale",)),
    row(
        "reformer",
        head_dim=heads.stated("attention_head_size"),
        notes=("raw k is raw q, in layers of kind lsh divided by its root mean square",),
    ),
    # Layers without attention.
    row("jamba", rotates=heads.never, kinds=kinds.period_and_offset),
    row("bamba", kinds=kinds.listed_indices("attn_layer_indices", "linear_attention")),
    row("nemotron_h", rotates=heads.never, count=kinds.pattern_length, kinds=kinds.hybrid_pattern),
    row("lfm2 lfm2_moe", kinds=kinds.listed_indices("full_attn_idxs", "conv")),
    row("lfm3", kinds=kinds.lfm3, spelling="by kind"),
    row("recurrent_gemma", kinds=kinds.block_cycle),
    row("minimax", kinds=kinds.full_at(lambda i, count: (i + 1) % 2 != 0, "linear_attention")),
    row("qwen3_next qwen3_5_text qwen3_5_moe_text qwen4_exp_text", kinds=_HYBRID_4),
    row("mamba mamba2 falcon_mamba rwkv xlstm", **_NO_HEADS, kinds=kinds.uniform("linear_attention")),
    row("fnet", **_NO_HEADS, kinds=kinds.uniform("fourier")),
    # Weights that are not a softmax of scores.
    row("yoso", refusal=refused("the weights are chances that hashes of q and k collide, not a softmax")),
    row(
        "autoformer",
        **_NO_HEADS,
        count=kinds.added(decoder_layers=2),
        refusal=refused("the weights are a softmax over lags of time, of correlations of q and k"),
    ),
    # The scale is a weight of the checkpoint.
    row(
        "mistral_large4_text",
        **LATENT,
        rotates=heads.by_layer_list,
        refusal=in_weights(
            "the query is multiplied by scale * ln(position + 1) + bias; scale and bias are weights of the "
            "checkpoint, one of each a head"
        ),
    ),
    row(
        "swinv2 swin2sr",
        **_NO_HEADS,
        count=kinds.stages("depths", (2, 2, 6, 2)),
        refusal=in_weights(
            "the scale exp(min(logit_scale, ln 100)) is a weight of the checkpoint, one a head"
        ),
    ),
    row(
        "dory",
        kinds=kinds.every(4),
        listed=kinds.without_mlp,
        spelling="by kind",
        refusal=in_weights(
            "q and k are unit vectors, and each channel of the query has a scale of its own, "
            "(sqk * sqrt(head_dim) / initializer_range)^2 / sqrt(head_dim); sqk is a weight of the checkpoint"
        ),
    ),
    row(
        "timesfm timesfm2_5 gemma3n_audio gemma4_audio",
        **_NO_HEADS,
        refusal=in_weights("each channel of the query has a scale of its own, a weight of the checkpoint"),
    ),
)


#: Row of an unknown model type, by its keys.
UNKNOWN = row(
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
    found = (*FAMILIES, *(each.family for each in (*REMOTE, *DIFFUSERS)))
    return {kind: each for each in found for kind in each.types}


def family_of(keys: Keys) -> Family:
    """The row of a model type; the plain row for a known type without one, else :data:`UNKNOWN`."""
    found = _by_type().get(keys.kind)
    return found or (PLAIN if keys.known else UNKNOWN)


def has_row(kind: str) -> bool:
    return kind in _by_type()
