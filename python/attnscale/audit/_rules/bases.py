# SPDX-License-Identifier: BSD-3-Clause
"""Cells of the family tables: the base scale, and factors other than those of rotary positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from ...laws import (
    BeamTemperature,
    Constant,
    DisentangledScale,
    GrokTemperature,
    InklingTemperature,
    LatentScale,
    Law,
    LayerIndex,
    Llama4Temperature,
    LogN,
    LogPower,
    LongRoPE,
    MinistralTemperature,
    MLAYaRN,
    MuP,
    QwenLogN,
    Standard,
    Unscaled,
)
from .._keys import ConfigError, check_number
from .._layer import Term
from .family import Layer, Rope
from .heads import is_latent, sliding_key, stage_width

if TYPE_CHECKING:
    from numpy.typing import NDArray

Base: TypeAlias = Callable[[Layer, int], Term]


def _term(layer: Layer, law: Law, key: str, channels: Any = "all") -> Term:
    """A term by a rule in the code of the model type; the law's source names a special rule."""
    return Term(law, channels, key, f"{layer.keys.kind or 'no model type'}; {law.source}")


# ---- base scales ---------------------------------------------------------------------------------


def standard(layer: Layer, head_dim: int) -> Term:
    return _term(layer, Standard(), layer.head_size)


def unscaled(layer: Layer, head_dim: int) -> Term:
    """The base scale 1, of T5 and of Gemmas with normed q and k."""
    return _term(layer, Unscaled(), f"{layer.keys.kind} has no scale")


def over_head_dim(layer: Layer, head_dim: int) -> Term:
    """The base scale 1 / head_dim."""
    return _term(layer, MuP(), layer.head_size)


def half_head_dim(layer: Layer, head_dim: int) -> Term:
    """Zamba: (head_dim / 2)^-1/2, since half of the channels come from the first layer's input."""
    return _term(layer, Constant((head_dim / 2) ** -0.5), f"attention_head_dim = {head_dim}")


def whole_width(layer: Layer, head_dim: int) -> Term:
    """CvT: 1 / sqrt(width), of all heads together."""
    width = stage_width(layer)
    return _term(layer, Constant(width**-0.5), f"embed_dim = {width}")


def query_pre_attn_scalar(layer: Layer, head_dim: int) -> Term:
    """The base scale query_pre_attn_scalar^-1/2; null is head_dim where the family allows it."""
    name = "query_pre_attn_scalar"
    if layer.keys.get(name) is None:
        if name in layer.keys.defaults:
            raise ConfigError(f"{name} must be a number, got null")
        return standard(layer, head_dim)
    scalar = layer.keys.number(name, above=0)
    return _term(layer, Constant(scalar**-0.5), layer.keys.origin(name))


def stated(name: str, above: float | None = None) -> Base:
    """The base scale by a key of the config; null is 1 / sqrt(head_dim)."""

    def base(layer: Layer, head_dim: int) -> Term:
        if layer.keys.get(name) is None:
            return standard(layer, head_dim)
        return _term(layer, Constant(layer.keys.number(name, above=above)), layer.keys.origin(name))

    return base


def unless_unscaled(layer: Layer, head_dim: int) -> Term:
    """GPT-2: scale_attn_weights false leaves the scale out."""
    name = "scale_attn_weights"
    if layer.keys.flag(name, default=True):
        return standard(layer, head_dim)
    return _term(layer, Unscaled(), layer.keys.origin(name))


def over_head_dim_if_set(layer: Layer, head_dim: int) -> Term:
    """BTLM and Jais: 1 / sqrt(head_dim) or no scale, as for GPT-2; 1 / head_dim with muP."""
    for name in ("mup_scale_qk_dot_by_d", "scale_qk_dot_by_d"):
        if layer.keys.flag(name) and layer.keys.flag("scale_attn_weights", default=True):
            return _term(layer, MuP(), layer.keys.origin(name))
    return unless_unscaled(layer, head_dim)


def phi3_small(layer: Layer, head_dim: int) -> Term:
    """Phi-3-small: mup_attn_multiplier / head_dim with muP, its default."""
    keys = layer.keys
    if not keys.flag("mup_use_scaling", default=True):
        return standard(layer, head_dim)
    factor = keys.number("mup_attn_multiplier", default=1.0)
    return _term(layer, Constant(factor / head_dim), keys.origin("mup_attn_multiplier", factor))


def multiplied(name: str) -> Base:
    """The base scale 1 / sqrt(head_dim) times a key of the config."""

    def base(layer: Layer, head_dim: int) -> Term:
        factor = layer.keys.number(name, default=1.0)
        return _term(layer, Constant(factor / math.sqrt(head_dim)), layer.keys.origin(name))

    return base


def softmax_scale(layer: Layer, head_dim: int) -> Term:
    """MPT: attn_config.softmax_scale, or 1 / sqrt(head_dim)."""
    layer.keys.seen.used.add("attn_config.softmax_scale")
    value = layer.keys.table("attn_config").get("softmax_scale")
    if value is None:
        return standard(layer, head_dim)
    scale = check_number("attn_config.softmax_scale", value, above=0)
    return _term(layer, Constant(scale), f"attn_config.softmax_scale = {value}")


# ---- further factors -----------------------------------------------------------------------------


def layer_index(layer: Layer, head_dim: int) -> Term | None:
    """The factor 1 / (layer + 1)."""
    name = "scale_attn_by_inverse_layer_idx"
    if not layer.keys.flag(name):
        return None
    return _term(layer, LayerIndex(layer.number), layer.keys.origin(name))


def disentangled(layer: Layer, head_dim: int) -> Term | None:
    """The factor 1 / sqrt(terms) of a score with the term content to content and those in pos_att_type."""
    keys = layer.keys
    kinds = keys.get("pos_att_type") or []
    names = kinds.split("|") if isinstance(kinds, str) else list(kinds)
    counted = names if keys.kind == "deberta" else [name for name in ("c2p", "p2c") if name in names]
    if not counted:
        return None
    return _term(layer, DisentangledScale(1 + len(counted)), keys.origin("pos_att_type", kinds))


def latent(name: str, channels: Any) -> Base:
    """The factor sqrt(hidden / rank) of a latent, on its channels."""

    def factor(layer: Layer, head_dim: int) -> Term:
        hidden, rank = layer.keys.size("hidden_size"), sliding_key(layer, name, 1024)
        return _term(layer, LatentScale(hidden, rank), f"hidden_size = {hidden}, {name} = {rank}", channels)

    return factor


def llama4_temperature(layer: Layer, head_dim: int) -> Term | None:
    """Llama 4: a temperature on layers without rotary positions."""
    keys = layer.keys
    if not keys.flag("attn_temperature_tuning"):
        return None
    law = Llama4Temperature(
        keys.number("attn_scale", default=0.1), keys.number("floor_scale", default=8192, above=0)
    )
    return _term(layer, law, ", ".join(keys.origin(name) for name in ("attn_scale", "floor_scale")))


def beam_temperature(layer: Layer, head_dim: int) -> Term:
    """The beam temperature on layers without rotary positions; its numbers are constants of the code."""
    return _term(layer, BeamTemperature(), "no key: constants of the code")


def inkling_temperature(layer: Layer, head_dim: int) -> Term | None:
    """Inkling: a temperature on layers of full attention."""
    keys = layer.keys
    if layer.kind == "hybrid_sliding" or keys.get("log_scaling_n_floor") is None:
        return None
    law = InklingTemperature(
        alpha=keys.number("log_scaling_alpha"), floor=keys.number("log_scaling_n_floor", above=0)
    )
    return _term(layer, law, ", ".join(map(keys.origin, ("log_scaling_alpha", "log_scaling_n_floor"))))


def logn_attention(layer: Layer, head_dim: int) -> Term | None:
    """Qwen 1: the logarithm of the position beyond the training length, if use_logn_attn is true."""
    keys = layer.keys
    if not keys.flag("use_logn_attn"):
        return None
    length = keys.number("seq_length", above=1)
    return _term(layer, QwenLogN(length), keys.origin("use_logn_attn") + ", " + keys.origin("seq_length"))


_LOGN = ("logn_attention_scale", "logn_attention_clip1", "max_position_embeddings")


def logn_of_text(layer: Layer, head_dim: int) -> Term | None:
    """GTE: the logarithm of the tokens of a text over that of the maximal length, if switched on."""
    keys, (switch, clip, longest) = layer.keys, _LOGN
    clips = keys.flag(clip)
    if not keys.flag(switch):
        return None
    length = keys.number(longest, default=2048, above=1)
    said = ", ".join(keys.origin(name) for name in (switch, clip, longest) if name != clip or clips)
    return _term(layer, LogN(length, floor=length if clips else 1.0), said)


def unread_logn(layer: Layer, head_dim: int) -> None:
    """GTE in transformers: no factor, and a warning where the models' own code has one."""
    keys, (switch, clip, longest) = layer.keys, _LOGN
    keys.get(clip)
    if keys.flag(switch):
        keys.doubt(
            f"{switch} = True has no effect in transformers: its code of gte does not read it; the models' "
            f"own code multiplies the score by ln n / ln {keys.number(longest):g}, n the tokens of the text"
        )


def grok_temperature(layer: Layer, head_dim: int) -> Term | None:
    """Grok in SGLang: a temperature after the soft-cap; a length of 0 or less switches it off."""
    for name in ("attn_temperature_len", "xai_temperature_len"):
        length = layer.keys.get(name)
        if length is not None and check_number(name, length) > 0:
            law = GrokTemperature(layer.keys.number(name, above=1))
            return replace(_term(layer, law, layer.keys.origin(name)), behind_cap=True)
    return None


# ---- factors among the rope parameters ------------------------------------------------------------


def mla_yarn(layer: Layer, rope: Rope) -> Term | None:
    """The factor of all channels by mscale_all_dim of latent attention, for scaled positions of any type."""
    value = rope.parameters.get("mscale_all_dim")
    if rope.kind == "default" or not value:
        return None
    weight = check_number(f"{rope.name}.mscale_all_dim", value, above=0)
    factor = rope.number("factor")
    if factor is None:
        raise ConfigError(f"{rope.name}.factor is missing: mscale_all_dim needs it")
    return _term(layer, MLAYaRN(factor, weight), rope.origin("factor", "mscale_all_dim"))


def ministral_temperature(layer: Layer, rope: Rope) -> Term | None:
    """The temperature by llama_4_scaling_beta on every layer, by the position i."""
    name = "llama_4_scaling_beta"
    value = rope.parameters.get(name)
    if value is None:
        return None
    length_key = "original_max_position_embeddings"
    length = check_number(f"{rope.name}.{length_key}", rope.parameters[length_key], above=0)
    law = MinistralTemperature(check_number(f"{rope.name}.{name}", value), length)
    return _term(layer, law, rope.origin(name, length_key))


@dataclass(frozen=True)
class LengthSwitch(Law):
    """Phi-MoE: one factor of cos and sin up to the original length, another for longer texts.

    Parameters
    ----------
    short, long : float
        The factors; the score has their squares.
    length : float
        Original length, in tokens.
    """

    short: float
    long: float
    length: float
    name: ClassVar[str] = "phimoe_mscale"
    n_means: ClassVar[Any] = "query position + 1"
    channels: ClassVar[Any] = "rotated"
    formula: ClassVar[str] = "(long if n > length else short)^2 / sqrt(head_dim)"
    source: ClassVar[str] = "transformers models/phimoe/modeling_phimoe.py"
    used_by: ClassVar[str] = "Phi-3.5 MoE"
    remark: ClassVar[str] = (
        "n is the length of the whole text: in a longer one all queries have the long factor"
    )

    def _beta(self, n: NDArray[np.float64], head_dim: int) -> Any:
        return np.where(n > self.length, self.long, self.short) ** 2


def phimoe_mscale(layer: Layer, rope: Rope) -> Term | None:
    """Phi-MoE: short_mscale and long_mscale, in place of the factor by the positions' own rule."""
    if rope.kind == "default":
        return None
    names = ("short_mscale", "long_mscale", "original_max_position_embeddings")
    numbers = []
    for name in names:
        if rope.parameters.get(name) is None:
            raise ConfigError(f"{rope.name}.{name} is missing: phimoe needs it")
        numbers.append(check_number(f"{rope.name}.{name}", rope.parameters[name], above=0))
    return _term(layer, LengthSwitch(*numbers), rope.origin(*names), "rotated")


# ---- transformers of diffusers -------------------------------------------------------------------


def proportional(layer: Layer, head_dim: int) -> Term:
    """Lumina-Next: proportional attention, switched on by default in its pipeline."""
    side = layer.keys.size("sample_size", default=128) * 8 // 16  # 8: pixels of a latent's side
    if side < 2:
        raise ConfigError(f"sample_size must be at least 4, got {layer.keys.get('sample_size')}")
    origin = layer.keys.origin("sample_size", layer.keys.get("sample_size", 128))
    return _term(layer, LogPower(power=0.5, base=side**2), origin)


def of_positions(name: str) -> Callable[[Layer, int], Term | None]:
    """No factor: the key is read, and acts only on positions."""

    def none(layer: Layer, head_dim: int) -> None:
        layer.keys.get(name)

    return none


def omnigen_longrope(layer: Layer, rope: Rope) -> Term | None:
    """OmniGen: LongRoPE's factor by the maximal and the original length, whatever rope_scaling says."""
    names = {"max_position_embeddings": 131072, "original_max_position_embeddings": 4096}
    longest, original = (layer.keys.number(name, default=usual, above=1) for name, usual in names.items())
    if longest <= original:
        return None
    said = ", ".join(f"{name} = {layer.keys.get(name, usual)}" for name, usual in names.items())
    return _term(layer, LongRoPE(original, longest / original), said, "rotated")


# ---- unknown model types --------------------------------------------------------------------------


def whatever_is_given(layer: Layer, head_dim: int) -> Term:
    """The base scale by the keys that there are."""
    keys = layer.keys
    for name, base in (
        ("query_pre_attn_scalar", query_pre_attn_scalar),
        ("attention_multiplier", stated("attention_multiplier", above=0)),
        ("scale_attn_weights", over_head_dim_if_set),
        ("mup_scale_qk_dot_by_d", over_head_dim_if_set),
        ("scale_qk_dot_by_d", over_head_dim_if_set),
        ("mup_attn_multiplier", phi3_small),
    ):
        if keys.get(name) is not None:
            return base(layer, head_dim)
    for name in ("softmax_scale", "attention_scale", "attn_scale"):
        if keys.get(name) is not None and not keys.flag("attn_temperature_tuning"):
            return stated(name, above=0)(layer, head_dim)
    for name in ("qk_scale_factor", "key_multiplier"):
        if keys.get(name) is not None:
            return multiplied(name)(layer, head_dim)
    return softmax_scale(layer, head_dim)


def mla_yarn_if_latent(layer: Layer, rope: Rope) -> Term | None:
    """The factor by mscale_all_dim, if the keys describe multi-head latent attention."""
    return mla_yarn(layer, rope) if is_latent(layer) else None


def learned_if_named(layer: Layer) -> str | None:
    """Reason for no answer, if a key says that the scale is a weight of the checkpoint."""
    for name in ("ssmax", "use_ssmax", "scalable_softmax", "use_scalable_softmax", "scaled_softmax"):
        value = layer.keys.get(name)
        if value not in (None, False, "", "none"):
            return f"{name} = {value}: the scale has weights of the checkpoint in it"
    return None
