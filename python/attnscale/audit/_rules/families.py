# SPDX-License-Identifier: BSD-3-Clause
"""The families of models whose scale is not 1/sqrt(head_dim) on all channels of all layers, as a table.

Every row was read in the code of transformers (the version is in ``defaults.json``) and is compared
with it by the tests. A model type with defaults but no row is plain: 1/sqrt(head_dim), and the factor of
its rotary positions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from .._keys import Keys
from . import bases as base
from . import heads as heads
from . import kinds as kinds
from . import windows as windows
from .family import Family, Layer
from .rope import partial_rotary_factor


def _share_of_channels(layer: Layer, head_dim: int) -> int:
    """The number of rotated channels by partial_rotary_factor, for the families whose code reads it."""
    if not layer.keys.code.rotates_partly:
        return head_dim
    turned = int(head_dim * partial_rotary_factor(layer, head_dim))
    return min(head_dim, turned + turned % 2)  # pairs of channels


def _refused(reason: str) -> Callable[[Layer], str]:
    return lambda layer: reason


def _in_weights(reason: str) -> Callable[[Layer], str]:
    """The rule that no layer has an answer, because it is in the weights of the checkpoint."""
    return _refused(f"{reason} (the safetensors have it: attnscale audit CHECKPOINT)")


PLAIN = Family(
    types=(),
    head_dim=heads.key_or_quotient,
    rotated=_share_of_channels,
    rotates=heads.has_rope,
    base=base.standard,
    extra=(),
    nope_extra=(),
    rope_extra=(),
    own_rope=None,
    softcap=(),
    window=windows.by_kind,
    sink=heads.never,
    qk_norm=heads.norm_by_type,
    count=kinds.layer_count,
    kinds=kinds.uniform("full_attention"),
    listed=lambda kinds: kinds,
    rope_key=lambda layer: layer.kind,
    spelling="flat",
    refusal=lambda layer: None,
    notes=(),
)


def _family(types: str, **cells: Any) -> Family:
    """A row of the table for these model types: the plain family with these cells replaced."""
    return replace(PLAIN, types=tuple(types.split()), **cells)


_LATENT: dict[str, Any] = {
    "head_dim": heads.latent,
    "rotated": heads.latent_rotated,
    "rope_extra": (base.mla_yarn,),
}
_GEMMA: dict[str, Any] = {"base": base.query_pre_attn_scalar, "softcap": ("attn_logit_softcapping",)}
_ATTENTION_MULTIPLIER = base.stated("attention_multiplier", above=0)
_LATENT_FACTORS = (base.latent("q_lora_rank", "all"), base.latent("kv_lora_rank", "unrotated"))
_HYBRID_4 = kinds.every(4, key="full_attention_interval", others="linear_attention")
_NO_HEADS: dict[str, Any] = {"head_dim": lambda layer: 1, "rotates": heads.never}  # no heads that matter
_NOPE_LATENT = {**_LATENT, "rotates": heads.never, "rope_extra": ()}
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
    _family("gemma2 vaultgemma t5_gemma_module", **_GEMMA, kinds=kinds.every(2)),
    _family(
        "gemma3_text t5gemma2_text t5gemma2_decoder",
        window=windows.embedding_gemma,
        base=base.query_pre_attn_scalar,  # the code has a soft-cap, and does not hand it on
        kinds=kinds.every(6, key="sliding_window_pattern"),
        spelling="over full attention",
    ),
    _family("step3p5", base=base.query_pre_attn_scalar, spelling="over full attention"),
    # The scale itself is a number of the config.
    _family(
        "granite granite4_vision_text granite_docling_text granitemoe granitemoeshared hyperclovax",
        base=_ATTENTION_MULTIPLIER,
    ),
    _family(
        "granitemoehybrid",
        base=_ATTENTION_MULTIPLIER,
        kinds=kinds.uniform("linear_attention"),
        rotates=heads.if_set("position_embedding_type", "rope"),
    ),
    _family(
        "granite_swa granitemoe_swa",
        base=_ATTENTION_MULTIPLIER,
        kinds=kinds.full_at(lambda i, count: i % 4 == 0),
        rotates=heads.by_theta_list,
        sink=heads.always,
    ),
    _family("mpt", base=base.softmax_scale, rotates=heads.never),
    _family("falcon_h1", base=base.multiplied("key_multiplier"), kinds=kinds.uniform("hybrid")),
    _family(
        "muse_glimmer_text muse_spark_text",
        base=base.multiplied("qk_scale_factor"),
        kinds=kinds.full_at(lambda i, count: (count - 1 - i) % 4 == 0),
        rotates=heads.by_theta_list_or_fourth,
    ),
    # Families whose scores have no scale.
    _family(
        "t5 mt5 umt5 longt5 switch_transformers pop2piano udop pix2struct_text_model",
        head_dim=heads.d_kv,
        rotates=heads.never,
        base=base.unscaled,
        notes=("a relative position bias is added to the score",),
    ),
    _family("gpt_neo", rotates=heads.never, base=base.unscaled, kinds=kinds.gpt_neo, window=windows.local),
    _family("dia_encoder dia_decoder", base=base.unscaled),
    _family(
        "gemma3n_text",
        base=base.unscaled,
        kinds=kinds.full_at(lambda i, count: (i + 1) % 5 == 0),
        spelling="over full attention",
    ),
    _family(
        "gemma4_text gemma4_unified_text diffusion_gemma_text embedding_gemma2_text",
        head_dim=heads.global_head_dim,
        base=base.unscaled,
        kinds=kinds.ending_full(kinds.every(6)),
        listed=kinds.full_at_last,
        spelling="by kind",
    ),
    # Scales by layer, by flag, by head.
    _family(
        "gpt2 gpt-sw3 decision_transformer imagegpt",
        rotates=heads.never,
        base=base.unless_unscaled,
        extra=(base.layer_index,),
    ),
    _family("gpt_bigcode", rotates=heads.never, base=base.unless_unscaled),
    _family("zamba", head_dim=heads.half, base=base.half_head_dim, rotates=heads.never, kinds=kinds.zamba),
    _family(
        "zamba2",
        head_dim=heads.half,
        base=base.half_head_dim,
        rotates=heads.if_flag("use_mem_rope"),
        kinds=kinds.default_list,
    ),
    _family(
        "deberta deberta-v2 sew-d",
        rotates=heads.never,
        extra=(base.disentangled,),
        notes=("the relative score terms are added to the score",),
    ),
    # Temperatures that depend on the position.
    _family(
        "llama4_text",
        kinds=kinds.llama4,
        rotates=heads.by_layer_list,
        nope_extra=(base.llama4_temperature,),
        qk_norm=heads.norm_after_if_rotated,
    ),
    _family("ministral3", rope_extra=(base.ministral_temperature,)),
    _family("mistral4", **{**_LATENT, "rope_extra": (base.mla_yarn, base.ministral_temperature)}),
    _family(
        "beam",
        nope_extra=(base.beam_temperature,),
        kinds=kinds.ending_full(kinds.every(6)),
        spelling="by kind",
    ),
    _family(
        "inkling_text",
        head_dim=heads.swa_head_dim,
        rotates=heads.never,
        base=base.over_head_dim,
        extra=(base.inkling_temperature,),
        kinds=kinds.local_ids,
        notes=("a relative position bias is added to the score, with the same temperature",),
    ),
    _family("inkling2_text", **_INKLING_2),
    _family(
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
    _family(
        "deepseek_v2 deepseek_v3 deepseek_v32 axk1 axk2 glm4_moe_lite glm_moe_dsa minicpm3 youtu sarvam_mla",
        **_LATENT,
    ),
    _family("hy_v4 hy_v4_vl_text", **_LATENT, sink=heads.always),
    _family(
        "bailing_hybrid", **_LATENT, kinds=kinds.every(1, key="layer_group_size", others="linear_attention")
    ),
    _family(
        "longcat_flash",
        **_LATENT,
        extra=_LATENT_FACTORS,
        count=kinds.two_each,
        notes=("two layers of attention in each of num_layers; they are numbered through",),
    ),
    _family(
        "dots3_note_text",
        head_dim=heads.sliding_latent,
        rotated=heads.sliding_latent_rotated,
        extra=_LATENT_FACTORS,
        kinds=kinds.full_at(lambda i, count: i < 2 or i % 4 == 1),
        spelling="either",
    ),
    _family("kimi_linear", **_NOPE_LATENT, kinds=kinds.kimi),
    _family(
        "glm5_next_text", **_NOPE_LATENT, kinds=kinds.full_at(lambda i, count: i % 4 == 3, "linear_attention")
    ),
    # Plain scales, but not on all channels of all layers.
    _family("afmoe", rotates=heads.sliding_only, kinds=kinds.every(4, key="global_attn_every_n_layers")),
    _family("cohere2", rotates=heads.sliding_only, kinds=kinds.every(4, key="sliding_window_pattern")),
    _family(
        "cohere2_moe",
        rotates=heads.sliding_or_forced,
        kinds=kinds.dense_then_every,
        spelling="parameters alone",
    ),
    _family("cohere_compass_text", spelling="by kind"),
    _family("exaone4 exaone_moe", rotates=heads.sliding_or_no_window, kinds=kinds.exaone),
    _family("lara_mini", rotates=heads.sliding_only, kinds=kinds.lara_mini),
    _family("kolibri1", rotates=heads.sliding_or_no_window, kinds=kinds.every(5)),
    _family(
        "flint",
        rotates=heads.sliding_only,
        kinds=kinds.full_at(lambda i, count: i < 2 or i % 4 == 1 or i == count - 1),
        sink=heads.always,
    ),
    _family("smollm3", kinds=kinds.smollm3, rotates=heads.by_layer_list),
    _family("olmo_hybrid", rotates=heads.rope_parameters_given, kinds=kinds.linear_but_fourth),
    _family("olmo3", kinds=kinds.every(4), spelling="over full attention"),
    _family(
        "modernbert modernbert-decoder",
        kinds=kinds.modernbert,
        spelling="over every kind",
        window=windows.modernbert,
    ),
    _family("ministral", kinds=kinds.window_or_full),
    _family(
        "mimo_v2_flash",
        kinds=kinds.full_at(lambda i, count: i == 0 or (i + 1) % 6 == 0),
        sink=heads.sliding_only,
        spelling="by kind",
    ),
    _family("laguna mellum", spelling="by kind"),
    _family(
        "neomme",
        kinds=kinds.full_at(lambda i, count: (i + 1) % 6 == 0 or i == count - 1),
        spelling="by kind with shares",
        window=windows.neomme,
    ),
    _family("molmo2_text", rope_key=heads.scaled_if_listed("rope_scaling_layers"), spelling="listed layers"),
    _family("ultrabert", kinds=kinds.ultrabert, spelling="by kind"),
    _family("gpt_oss", kinds=kinds.every(2), sink=heads.always),
    _family("openai_privacy_filter", sink=heads.always, window=windows.both_sides),
    _family(
        "deepseek_v4",
        rope_key=lambda layer: "main" if layer.kind == "sliding_attention" else "compress",
        kinds=kinds.compressed,
        sink=heads.always,
        spelling="compressed",
    ),
    _family(
        "zaya",
        kinds=kinds.uniform("hybrid"),
        spelling="by kind",
        notes=("k carries a learned gain for each head: part of raw k",),
    ),
    _family("hrm_text", count=kinds.cycles),
    _family("phimoe", own_rope=base.phimoe_mscale),
    _family("gptj codegen", rotated=heads.rotary_dim, rotates=heads.always),
    _family("falcon", rotates=heads.unless_flag("alibi")),
    _family(
        "qwen2 qwen2_vl_text qwen2_5_vl_text qwen2_5_omni_text qwen2_5_omni_talker qwen3 "
        "qwen3_omni_moe_talker_code_predictor deepseek_ocr2_encoder dots1",
        kinds=kinds.beyond_max_window,
    ),
    _family("qwen2_moe", kinds=kinds.below_max_window),
    _family("cwm", kinds=kinds.full_at(lambda i, count: i % 4 == 0)),
    _family("longformer", window=windows.longformer),
    _family("sam3_lite_text_text_model", kinds=kinds.convolutions_outside),
    _family("esm", rotates=heads.if_set("position_embedding_type", "rotary")),
    _family("roformer", rotates=heads.always),
    # Heads of another width than hidden_size / num_attention_heads.
    _family("jetmoe", head_dim=heads.stated("kv_channels")),
    _family("cpmant", head_dim=heads.stated("dim_head")),
    _family("convbert", head_dim=heads.beside_convolution),
    _family("mobilebert", head_dim=heads.bottleneck),
    _family(
        "funnel",
        head_dim=heads.stated("d_head"),
        count=kinds.funnel_layers,
        notes=("terms of relative positions and of segments are added to the score",),
    ),
    _family("prophetnet", count=kinds.added(num_hidden_layers=12)),
    _family("lxmert", count=kinds.added(l_layers=9, x_layers=5, r_layers=5)),
    _family(
        "cvt",
        head_dim=heads.of_stage,
        rotates=heads.never,
        base=base.whole_width,
        count=kinds.stages("depth", (1, 2, 10)),
    ),
    _family(
        "qwen2_vl_vision", head_dim=heads.divided(embed_dim=1280, num_heads=16), count=kinds.added(depth=32)
    ),
    # Plain scales, with a soft-cap or other facts about the weights.
    _family("videoprism_text_model videoprism_vision_model", softcap=("attn_logit_softcapping",)),
    _family("diffllama", notes=("the weights are the difference of two softmaxes, each with this scale",)),
    _family(
        "reformer",
        head_dim=heads.stated("attention_head_size"),
        notes=("raw k is raw q, in layers of kind lsh divided by its root mean square",),
    ),
    # Layers without attention.
    _family("jamba", rotates=heads.never, kinds=kinds.period_and_offset),
    _family("bamba", kinds=kinds.listed_indices("attn_layer_indices", "linear_attention")),
    _family("nemotron_h", rotates=heads.never, count=kinds.pattern_length, kinds=kinds.hybrid_pattern),
    _family("lfm2 lfm2_moe", kinds=kinds.listed_indices("full_attn_idxs", "conv")),
    _family("lfm3", kinds=kinds.lfm3, spelling="by kind"),
    _family("recurrent_gemma", kinds=kinds.block_cycle),
    _family("minimax", kinds=kinds.full_at(lambda i, count: (i + 1) % 2 != 0, "linear_attention")),
    _family("qwen3_next qwen3_5_text qwen3_5_moe_text qwen4_exp_text", kinds=_HYBRID_4),
    _family("mamba mamba2 falcon_mamba rwkv xlstm", **_NO_HEADS, kinds=kinds.uniform("linear_attention")),
    _family("fnet", **_NO_HEADS, kinds=kinds.uniform("fourier")),
    # Weights that are not a softmax of scores.
    _family(
        "yoso", refusal=_refused("the weights are chances that hashes of q and k collide, not a softmax")
    ),
    _family(
        "autoformer",
        **_NO_HEADS,
        count=kinds.added(decoder_layers=2),
        refusal=_refused("the weights are a softmax over lags of time, of correlations of q and k"),
    ),
    # The scale is a weight of the checkpoint.
    _family(
        "mistral_large4_text",
        **_LATENT,
        rotates=heads.by_layer_list,
        refusal=_in_weights(
            "the query is multiplied by scale * ln(position + 1) + bias; scale and bias are weights of the "
            "checkpoint, one of each a head"
        ),
    ),
    _family(
        "swinv2 swin2sr",
        **_NO_HEADS,
        count=kinds.stages("depths", (2, 2, 6, 2)),
        refusal=_in_weights(
            "the scale exp(min(logit_scale, ln 100)) is a weight of the checkpoint, one a head"
        ),
    ),
    _family(
        "dory",
        kinds=kinds.every(4),
        listed=kinds.without_mlp,
        spelling="by kind",
        refusal=_in_weights(
            "q and k are unit vectors, and each channel of the query has a scale of its own, "
            "(sqk * sqrt(head_dim) / initializer_range)^2 / sqrt(head_dim); sqk is a weight of the checkpoint"
        ),
    ),
    _family(
        "timesfm timesfm2_5 gemma3n_audio gemma4_audio",
        **_NO_HEADS,
        refusal=_in_weights("each channel of the query has a scale of its own, a weight of the checkpoint"),
    ),
)


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
        _family(
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
        _family(
            "internlm internlm2 baichuan deepseek",
            head_dim=heads.whatever_is_given,
            count=kinds.whatever_is_counted,
        ),
    ),
    Remote(
        "MiniCPM 1, 2 and 4",
        "1/sqrt(head_dim), and the factor of LongRoPE; scale_emb and scale_depth are no scale of attention",
        _family("minicpm", head_dim=heads.whatever_is_given),
    ),
    Remote(
        "ChatGLM 1 to 3, GLM 4 with remote code",
        "1/sqrt(kv_channels); apply_query_key_layer_scaling divides by the layer and multiplies again",
        _family("chatglm", head_dim=heads.stated_or_quotient("kv_channels"), count=kinds.whatever_is_counted),
    ),
    Remote(
        "Phi-3-small",
        "mup_attn_multiplier / head_dim; 1/sqrt(head_dim) without mup_use_scaling",
        _family("phi3small", base=base.phi3_small, own_rope=base.phimoe_mscale),
    ),
    Remote(
        "BTLM, Jais",
        "1/head_dim with mup_scale_qk_dot_by_d, else 1/sqrt(head_dim); 1 without scale_attn_weights",
        _family(
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
        _family(
            "grok-1 grok grok-2",
            rotates=heads.always,
            base=base.stated("attn_output_multiplier"),  # the scale, in spite of the name
            extra=(base.grok_temperature,),
            softcap=("attn_logit_softcapping", "max_attn_value"),
        ),
    ),
    Remote(
        "Kimi K2",
        "as DeepSeek V3: 1/sqrt(qk_nope_head_dim + qk_rope_head_dim), times YaRN's factor of mscale_all_dim",
        _family("kimi_k2", **_LATENT),
    ),
)


def _diffuser(models: str, rule: str, types: str, **cells: Any) -> Remote:
    """A row for transformers of diffusers, named by ``_class_name`` in their config."""
    return Remote(models, rule, _family(types, **{"rotates": heads.always, **cells}))


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

#: Row of an unknown model type, by its keys.
UNKNOWN = _family(
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
    rows = (*FAMILIES, *(each.family for each in (*REMOTE, *DIFFUSERS)))
    return {kind: row for row in rows for kind in row.types}


def family_of(keys: Keys) -> Family:
    """The row of a model type; the plain row for a known type without one, else :data:`UNKNOWN`."""
    found = _by_type().get(keys.kind)
    return found or (PLAIN if keys.known else UNKNOWN)


def has_row(kind: str) -> bool:
    return kind in _by_type()
