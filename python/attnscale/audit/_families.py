# SPDX-License-Identifier: BSD-3-Clause
"""The families of models whose scale is not 1/sqrt(head_dim) on all channels of all layers, as a table.

Every row was read in the code of transformers (the version is in ``defaults.json``) and is compared
with it by the tests. A model type that has defaults but no row is a plain one: 1/sqrt(head_dim), and
what its rotary positions bring.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from . import _bases as base
from . import _heads as heads
from . import _kinds as kinds
from ._config import Keys
from ._family import Family, Layer
from ._rope import partial_rotary_factor

__all__ = ["FAMILIES", "UNKNOWN", "family_of", "has_row"]


def _share_of_channels(layer: Layer, head_dim: int) -> int:
    """partial_rotary_factor, for the families whose code reads it."""
    if not layer.keys.rotates_partly:
        return head_dim
    turned = int(head_dim * partial_rotary_factor(layer, family_of(layer.keys)))
    return min(head_dim, turned + turned % 2)  # pairs of channels


def _answers(layer: Layer) -> str | None:
    return None


def _learned(reason: str) -> Any:
    return lambda layer: reason


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
    softcap="",
    sink=heads.never,
    qk_norm=heads.norm_by_type,
    count=kinds.layer_count,
    kinds=kinds.uniform("full_attention"),
    rope_key=lambda layer: layer.kind,
    legacy_rope="every layer",
    refusal=_answers,
    notes=(),
)


def _family(*types: str, **cells: Any) -> Family:
    return replace(PLAIN, types=types, **cells)


_LATENT: dict[str, Any] = {
    "head_dim": heads.latent,
    "rotated": heads.latent_rotated,
    "rope_extra": (base.mla_yarn,),
}
_GEMMA: dict[str, Any] = {"base": base.query_pre_attn_scalar, "softcap": "attn_logit_softcapping"}
_HYBRID_4 = kinds.every(4, key="full_attention_interval", others="linear_attention")
_NOPE_LATENT = {**_LATENT, "rotates": heads.never, "rope_extra": ()}

FAMILIES: tuple[Family, ...] = (
    # A number of the config in place of head_dim.
    _family("gemma2", "vaultgemma", "t5_gemma_module", **_GEMMA, kinds=kinds.every(2)),
    _family(
        *("gemma3_text", "t5gemma2_text", "t5gemma2_decoder"),
        **_GEMMA,
        kinds=kinds.every(6, key="sliding_window_pattern"),
        legacy_rope="full attention",
    ),
    _family("step3p5", base=base.query_pre_attn_scalar, legacy_rope="full attention"),
    # The scale itself is a number of the config.
    _family(
        *("granite", "granite4_vision_text", "granite_docling_text", "granitemoe", "granitemoeshared"),
        "hyperclovax",
        base=base.attention_multiplier,
    ),
    _family(
        "granitemoehybrid",
        base=base.attention_multiplier,
        kinds=kinds.uniform("linear_attention"),
        rotates=heads.if_set("position_embedding_type", "rope"),
    ),
    _family(
        *("granite_swa", "granitemoe_swa"),
        base=base.attention_multiplier,
        kinds=kinds.full_at(lambda i, count: i % 4 == 0),
        rotates=heads.by_theta_list,
        sink=heads.always,
    ),
    _family("mpt", base=base.softmax_scale, rotates=heads.never),
    _family("falcon_h1", base=base.multiplied("key_multiplier"), kinds=kinds.uniform("hybrid")),
    _family(
        *("muse_glimmer_text", "muse_spark_text"),
        base=base.multiplied("qk_scale_factor"),
        kinds=kinds.full_at(lambda i, count: (count - 1 - i) % 4 == 0),
        rotates=heads.by_theta_list_or_fourth,
    ),
    # No scale.
    _family(
        *("t5", "mt5", "umt5", "longt5", "switch_transformers", "pop2piano", "udop", "pix2struct_text_model"),
        head_dim=heads.d_kv,
        rotates=heads.never,
        base=base.unscaled,
        notes=("a relative position bias is added to the score",),
    ),
    _family("gpt_neo", rotates=heads.never, base=base.unscaled),
    _family("dia_encoder", "dia_decoder", base=base.unscaled),
    _family(
        "gemma3n_text",
        base=base.unscaled,
        kinds=kinds.full_at(lambda i, count: (i + 1) % 5 == 0),
        legacy_rope="full attention",
    ),
    _family(
        *("gemma4_text", "gemma4_unified_text", "diffusion_gemma_text", "embedding_gemma2_text"),
        head_dim=heads.global_head_dim,
        base=base.unscaled,
        kinds=kinds.ending_full(kinds.every(6)),
        legacy_rope="not read",
    ),
    # By layer, by flag, by head.
    _family(
        *("gpt2", "gpt-sw3", "decision_transformer", "imagegpt"),
        rotates=heads.never,
        base=base.unless_unscaled,
        extra=(base.layer_index,),
    ),
    _family("gpt_bigcode", rotates=heads.never, base=base.unless_unscaled),
    _family(
        "zamba",
        head_dim=heads.half,
        base=base.half_head_dim,
        rotates=heads.never,
        kinds=kinds.zamba,
    ),
    _family(
        "zamba2",
        head_dim=heads.half,
        base=base.half_head_dim,
        rotates=heads.if_flag("use_mem_rope"),
        kinds=kinds.default_list,
    ),
    _family(
        *("deberta", "deberta-v2", "sew-d"),
        rotates=heads.never,
        extra=(base.disentangled,),
        notes=("the relative score terms are added to the score",),
    ),
    # Temperatures that depend on the position.
    _family(
        "llama4_text",
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
        legacy_rope="not read",
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
    _family(
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
    _family(
        *("deepseek_v2", "deepseek_v3", "deepseek_v32", "axk1", "axk2", "glm4_moe_lite", "glm_moe_dsa"),
        *("minicpm3", "youtu"),
        **_LATENT,
    ),
    _family("hy_v4", **_LATENT, sink=heads.always),
    _family(
        "bailing_hybrid",
        **_LATENT,
        kinds=kinds.every(1, key="layer_group_size", others="linear_attention"),
    ),
    _family(
        "longcat_flash",
        **_LATENT,
        extra=(base.latent_query, base.latent_key),
        count=kinds.two_each,
        notes=("two layers of attention in each of num_layers; they are numbered through",),
    ),
    _family(
        "dots3_note_text",
        head_dim=heads.sliding_latent,
        rotated=heads.sliding_latent_rotated,
        extra=(base.latent_query, base.latent_key),
        kinds=kinds.full_at(lambda i, count: i < 2 or i % 4 == 1),
    ),
    _family("kimi_linear", **_NOPE_LATENT, kinds=kinds.kimi),
    _family(
        "glm5_next_text",
        **_NOPE_LATENT,
        kinds=kinds.full_at(lambda i, count: i % 4 == 3, "linear_attention"),
    ),
    # Plain scales, but not on all channels of all layers.
    _family(
        *("afmoe",),
        rotates=heads.sliding_only,
        kinds=kinds.every(4, key="global_attn_every_n_layers"),
    ),
    _family(
        "cohere2",
        head_dim=heads.quotient,
        rotates=heads.sliding_only,
        kinds=kinds.every(4, key="sliding_window_pattern"),
    ),
    _family("cohere2_moe", rotates=heads.sliding_or_forced, kinds=kinds.dense_then_every),
    _family("cohere_compass_text", head_dim=heads.quotient),
    _family("exaone4", "exaone_moe", rotates=heads.sliding_or_no_window, kinds=kinds.exaone),
    _family("kolibri1", rotates=heads.sliding_or_no_window, kinds=kinds.every(5)),
    _family(
        "flint",
        rotates=heads.sliding_only,
        kinds=kinds.full_at(lambda i, count: i < 2 or i % 4 == 1 or i == count - 1),
        sink=heads.always,
    ),
    _family("smollm3", rotates=heads.by_layer_list),
    _family("olmo_hybrid", rotates=heads.rope_parameters_given, kinds=kinds.linear_but_fourth),
    _family("olmo3", kinds=kinds.every(4), legacy_rope="full attention"),
    _family("modernbert", "modernbert-decoder", kinds=kinds.modernbert, legacy_rope="every kind"),
    _family("ministral", kinds=kinds.window_or_full),
    _family(
        "mimo_v2_flash",
        kinds=kinds.full_at(lambda i, count: i == 0 or (i + 1) % 6 == 0),
        sink=heads.sliding_only,
        legacy_rope="not read",
    ),
    _family("laguna", "mellum", legacy_rope="not read"),
    _family("neomme", kinds=kinds.full_at(lambda i, count: (i + 1) % 6 == 0 or i == count - 1)),
    _family("gpt_oss", kinds=kinds.every(2), sink=heads.always),
    _family("openai_privacy_filter", sink=heads.always),
    _family(
        "deepseek_v4",
        rope_key=lambda layer: "main" if layer.kind == "sliding_attention" else "compress",
        kinds=kinds.compressed,
        sink=heads.always,
    ),
    _family(
        "zaya",
        kinds=kinds.uniform("hybrid"),
        legacy_rope="not read",
        notes=("k carries a learned gain for each head: part of raw k",),
    ),
    _family("phimoe", own_rope=base.phimoe_mscale),
    _family("gptj", "codegen", rotated=heads.rotary_dim, rotates=heads.always),
    _family("falcon", rotates=heads.unless_alibi),
    _family("esm", rotates=heads.if_set("position_embedding_type", "rotary")),
    _family("roformer", rotates=heads.always),
    # Layers without attention.
    _family("jamba", rotates=heads.never, kinds=kinds.period_and_offset),
    _family("bamba", kinds=kinds.listed_indices("attn_layer_indices", "linear_attention")),
    _family("nemotron_h", rotates=heads.never, kinds=kinds.hybrid_pattern),
    _family("lfm2", "lfm2_moe", kinds=kinds.listed_indices("full_attn_idxs", "conv")),
    _family("lfm3", kinds=kinds.lfm3),
    _family("recurrent_gemma", head_dim=heads.quotient, kinds=kinds.block_cycle),
    _family("minimax", kinds=kinds.full_at(lambda i, count: (i + 1) % 2 != 0, "linear_attention")),
    _family(
        *("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"),
        kinds=_HYBRID_4,
    ),
    _family("qwen4_exp_text", kinds=_HYBRID_4),
    _family(
        *("mamba", "mamba2", "falcon_mamba", "rwkv", "xlstm"),
        head_dim=lambda layer: 1,
        rotates=heads.never,
        kinds=kinds.uniform("linear_attention"),
    ),
    _family("fnet", head_dim=lambda layer: 1, rotates=heads.never, kinds=kinds.uniform("fourier")),
    # The scale is a weight of the checkpoint.
    _family(
        "mistral_large4_text",
        **_LATENT,
        rotates=heads.by_layer_list,
        refusal=_learned(
            "the query is multiplied by scale * ln(position + 1) + bias; scale and bias are weights of the "
            "checkpoint, one of each a head"
        ),
    ),
    _family(
        *("swinv2", "swin2sr"),
        head_dim=lambda layer: 1,
        rotates=heads.never,
        count=kinds.swin_layers,
        refusal=_learned("the scale exp(min(logit_scale, ln 100)) is a weight of the checkpoint, one a head"),
    ),
    _family(
        *("timesfm", "timesfm2_5"),
        rotates=heads.never,
        refusal=_learned("each channel of the query has a scale of its own, a weight of the checkpoint"),
    ),
    # Not in transformers.
    _family(
        "qwen",
        rotates=heads.always,
        extra=(base.logn_attention,),
        notes=("the rule of its modeling_qwen.py at inference; its table of logarithms ends at 32767",),
    ),
    _family(
        "grok-1",
        "grok",
        "grok-2",
        rotates=heads.always,
        extra=(base.grok_temperature,),
        softcap="attn_logit_softcapping",
    ),
)

#: A model type that is not known: what its keys say.
UNKNOWN = _family(
    "",
    head_dim=heads.whatever_is_given,
    rotated=heads.whatever_is_rotated,
    rotates=heads.whatever_rotates,
    base=base.whatever_is_given,
    extra=(base.layer_index, base.logn_attention, base.grok_temperature),
    nope_extra=(base.llama4_temperature,),
    rope_extra=(base.mla_yarn_if_latent, base.ministral_temperature),
    softcap="attn_logit_softcapping",
    refusal=base.learned_if_named,
)


@cache
def _by_type() -> dict[str, Family]:
    table: dict[str, Family] = {}
    for family in FAMILIES:
        for kind in family.types:
            assert kind not in table, kind
            table[kind] = family
    return table


def family_of(keys: Keys) -> Family:
    """The row of a model type; the plain one if it has none but is known, else :data:`UNKNOWN`."""
    found = _by_type().get(keys.kind)
    return found or (PLAIN if keys.known else UNKNOWN)


def has_row(kind: str) -> bool:
    """Whether the table has a row for the model type."""
    return kind in _by_type()
