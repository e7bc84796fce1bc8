# SPDX-License-Identifier: BSD-3-Clause
"""Rotary positions: their parameters in old and new spellings, and the factors that they bring.

transformers standardises the same spellings in modeling_rope_utils.py (``RotaryEmbeddingConfigMixin``),
and computes the factors there (``_compute_yarn_parameters``, ``_compute_longrope_parameters``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._checks import shown
from ..laws import Law, LongRoPE, YaRN
from ._config import ConfigError, Keys, check_number, check_table
from ._family import Family, Layer, Rope
from ._layer import Term

__all__ = ["SCALED", "partial_rotary_factor", "rope_of", "rope_terms"]

_RULES = "transformers modeling_rope_utils.py"

#: Kinds of rotary positions that leave the length of q and k as it is. The last ones are spellings of
#: older files and of families with several position axes.
_UNSCALED = ("default", "linear", "dynamic", "llama3", "proportional", "axial", "mrope", "xdrope", "original")
_LONGROPE = ("longrope", "su")

#: Kinds that do not.
SCALED = ("yarn", *_LONGROPE)


def rope_of(layer: Layer, family: Family) -> Rope | None:
    """The rotary positions of a layer; None if its entry in the config is null."""
    keys = layer.keys
    name, given = _source(keys, family)
    entry = family.rope_key(layer)
    nested = {key: value for key, value in given.items() if key in _LAYER_LABELS}
    if nested or (given and all(value is None for value in given.values())):
        if entry in given and given[entry] is None:
            return None
        given = check_table(f"{name}.{entry}", given.get(entry))
        name = f"{name}.{entry}"
    elif name == "rope_scaling" and family.legacy_rope != "every layer":
        given = _over_defaults(layer, family, given)
    return _rope(keys, family, given, name)


def _over_defaults(layer: Layer, family: Family, given: dict[str, Any]) -> dict[str, Any]:
    """Families with parameters by kind of layer lay a legacy rope_scaling over a rope_type of "default".

    So it only counts where it is spelled rope_type, and not type; and for most of them in the layers of
    full attention alone.
    """
    if family.legacy_rope == "full attention" and layer.kind != "full_attention":
        return {}
    return {"rope_type": "default", **given}


#: Keys of rope parameters that are nested by kind of layer.
_LAYER_LABELS = frozenset(
    (
        *("full_attention", "sliding_attention", "chunked_attention", "indexed_attention"),
        *("hybrid", "hybrid_sliding", "main", "compress", "linear_attention"),
    )
)


def _source(keys: Keys, family: Family) -> tuple[str, dict[str, Any]]:
    """Which key holds the parameters, and they: a legacy rope_scaling goes first, as in transformers."""
    legacy = keys.table("rope_scaling")
    if legacy and family.legacy_rope != "not read":
        return "rope_scaling", legacy
    return "rope_parameters", keys.table("rope_parameters")


def _rope(keys: Keys, family: Family, given: Mapping[str, Any], name: str) -> Rope:
    kind = given.get("rope_type") or given.get("type") or "default"
    if not isinstance(kind, str) or kind not in (*_UNSCALED, *SCALED):
        known = ", ".join((*_UNSCALED[:6], "longrope", "yarn"))
        raise ConfigError(f"{name}.rope_type must be one of {known}, got {shown(kind)}")
    if kind == "su" or (kind == "yarn" and "phi3" in family.types):
        kind = "longrope"  # as Phi-3's own configuration reads its older files
    rope = Rope(kind, {**given, **_original_length(keys, given)}, name)
    if kind in ("linear", "dynamic", "llama3"):
        rope.number("factor")  # of no consequence here, but a wrong one is an error of the config
    return rope


def _original_length(keys: Keys, given: Mapping[str, Any]) -> dict[str, Any]:
    """A key beside the parameters goes before one among them; without both it is the maximal length."""
    key = "original_max_position_embeddings"
    if keys.get(key) is not None:
        return {key: keys.get(key)}
    if given.get(key) is not None:
        return {}
    return {key: keys.get("max_position_embeddings")}


def partial_rotary_factor(layer: Layer, family: Family) -> float:
    """The share of the channels that is rotated."""
    keys = layer.keys
    rope = rope_of(layer, family)
    inside = None if rope is None else rope.parameters.get("partial_rotary_factor")
    for name, value in [
        ("partial_rotary_factor", inside),
        *((name, keys.given.get(name)) for name in ("partial_rotary_factor", "rotary_pct")),
        ("partial_rotary_factor", keys.defaults.get("partial_rotary_factor")),
        ("partial_rotary_factor", _default_share(layer, family)),
    ]:
        if value is not None:
            share = check_number(name, value)
            if not 0 <= share <= 1:
                raise ConfigError(f"{name} must be between 0 and 1, got {shown(value)}")
            return share
    return 1.0


def _default_share(layer: Layer, family: Family) -> Any:
    """The share in the rope parameters that the model type has by default, whatever the config's say."""
    parameters = layer.keys.defaults.get("rope_parameters") or {}
    nested = parameters.get(family.rope_key(layer))
    return (nested if isinstance(nested, Mapping) else parameters).get("partial_rotary_factor")


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
    """mscale and mscale_all_dim may be 0, which switches the pair off."""
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
    """Maximal length over original length: what a missing factor stands for."""
    original = rope.parameters["original_max_position_embeddings"]
    name = f"{rope.name}.original_max_position_embeddings"
    return keys.number("max_position_embeddings", above=0) / check_number(name, original, above=0)
