# SPDX-License-Identifier: BSD-3-Clause
"""Rotary positions: their parameters in old and new spellings, and the factors that they bring.

transformers standardises the same spellings in modeling_rope_utils.py (``RotaryEmbeddingConfigMixin``),
and computes the factors there (``_compute_yarn_parameters``, ``_compute_longrope_parameters``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._checks import shown
from ...laws import Law, LongRoPE, YaRN
from .._config.config import Keys, check_number
from .._config.source import ConfigError
from .._plan.layer import Term
from .family import Family, Layer, Rope
from .rope_spelling import Spelled, check_share, share_beside, spelled

_RULES = "transformers modeling_rope_utils.py"

#: Kinds of rotary positions that leave the length of q and k as it is. The last ones are spellings of
#: older files and of families with several position axes.
_UNSCALED = ("default", "linear", "dynamic", "llama3", "proportional", "axial", "mrope", "xdrope", "original")
_LONGROPE = ("longrope", "su")

#: Parameters that only have a meaning beside a type of rotary positions that is not the plain one.
_FACTORS = (
    *("factor", "attention_factor", "mscale", "mscale_all_dim"),
    *("short_factor", "long_factor", "short_mscale", "long_mscale"),
)

#: Kinds of rotary positions that change the length of q and k.
SCALED = ("yarn", *_LONGROPE)


def rope_of(layer: Layer, family: Family) -> Rope | None:
    """The rotary positions of a layer; None if its entry in the config is null."""
    keys = layer.keys
    found = spelling_of(keys, family)
    name, given = found.of(family.rope_key(layer))
    if given is None:
        return None
    rope = _rope(keys, given, name)
    if rope.kind == "default" and keys.has(name.partition(".")[0]) and not found.unread:
        _doubt_factors(keys, given, name)
    return rope


def spelling_of(keys: Keys, family: Family) -> Spelled:
    """The parameters of rotary positions in one form, which is made once for a config."""
    if "spelled" not in keys.memo:
        keys.memo["spelled"] = spelled(keys, family)
    found: Spelled = keys.memo["spelled"]
    return found


def _rope(keys: Keys, given: Mapping[str, Any], name: str) -> Rope:
    kind = given.get("rope_type") or given.get("type") or "default"
    if not isinstance(kind, str) or kind not in (*_UNSCALED, *SCALED):
        known = ", ".join((*_UNSCALED[:6], "longrope", "yarn"))
        raise ConfigError(f"{name}.rope_type must be one of {known}, got {shown(kind)}")
    if kind == "su" or (kind == "yarn" and keys.kind in ("phi3", "phi4_multimodal")):
        kind = "longrope"  # as Phi-3's own configuration reads its older files
    rope = Rope(kind, {**given, **_original_length(keys, given)}, name)
    if kind in ("linear", "dynamic", "llama3"):
        rope.number("factor")  # of no consequence here, but a wrong one is an error of the config
    return rope


def _doubt_factors(keys: Keys, given: Mapping[str, Any], name: str) -> None:
    """Remark on factors among the parameters of plain rotary positions, which have none."""
    typed = given.get("rope_type") or given.get("type")
    why = f"{name} is of type default" if typed else f"{name} has no rope_type, which is read as default"
    for key in _FACTORS:
        if given.get(key) is not None:
            keys.doubt(f"{name}.{key} = {shown(given[key])} has no effect: {why}")


def _original_length(keys: Keys, given: Mapping[str, Any]) -> dict[str, Any]:
    """The original length: a key beside the parameters beats one among them; else the maximal length."""
    key = "original_max_position_embeddings"
    if keys.get(key) is not None:
        return {key: keys.get(key)}
    if given.get(key) is not None:
        return {}
    return {key: keys.get("max_position_embeddings")}


def partial_rotary_factor(layer: Layer, family: Family, head_dim: int) -> float:
    """The share of the channels that is rotated: among the parameters, beside them, or of the model type."""
    rope = rope_of(layer, family)
    inside = None if rope is None else rope.parameters.get("partial_rotary_factor")
    if rope is not None and inside is not None:
        return check_share(f"{rope.name}.partial_rotary_factor", inside)
    beside = share_beside(layer.keys, head_dim)
    return 1.0 if beside is None else min(1.0, beside)


def rope_terms(layer: Layer, rope: Rope) -> tuple[Term, ...]:
    """The factor that the rotary positions put on the score of the rotated channels."""
    if rope.kind == "yarn":
        law: Law = _yarn(layer.keys, rope)
        origin = rope.origin("factor", "attention_factor", "mscale", "mscale_all_dim")
        return (Term(law, "rotated", origin, f"{_RULES}, _compute_yarn_parameters"),)
    if rope.kind == "longrope":
        law = _longrope(layer.keys, rope)
        origin = rope.origin("factor", "attention_factor", "original_max_position_embeddings")
        return (Term(law, "rotated", origin, f"{_RULES}, _compute_longrope_parameters"),)
    return ()


def _yarn(keys: Keys, rope: Rope) -> YaRN:
    if "factor" not in rope.parameters:
        raise ConfigError(f"{rope.name}.factor is missing: rope_type yarn needs it")
    factor = rope.number("factor") or _length_ratio(keys, rope)
    return YaRN(
        factor=factor,
        attention_factor=rope.number("attention_factor"),
        mscale=_weight(rope, "mscale"),
        mscale_all_dim=_weight(rope, "mscale_all_dim"),
    )


def _weight(rope: Rope, key: str) -> float | None:
    """The weight mscale or mscale_all_dim, which may be 0 to switch the pair off."""
    value = rope.parameters.get(key)
    if value is None:
        return None
    weight = check_number(f"{rope.name}.{key}", value)
    if weight < 0:
        raise ConfigError(f"{rope.name}.{key} must be at least 0, got {shown(value)}")
    return weight


def _longrope(keys: Keys, rope: Rope) -> LongRoPE:
    name = f"{rope.name}.original_max_position_embeddings"
    length = check_number(name, rope.parameters["original_max_position_embeddings"], above=1)
    factor = rope.number("factor") or _length_ratio(keys, rope)
    return LongRoPE(length, factor, attention_factor=rope.number("attention_factor"))


def _length_ratio(keys: Keys, rope: Rope) -> float:
    """Maximal length over original length, which stands for a missing factor."""
    original = rope.parameters["original_max_position_embeddings"]
    name = f"{rope.name}.original_max_position_embeddings"
    return keys.number("max_position_embeddings", above=0) / check_number(name, original, above=0)
