# SPDX-License-Identifier: BSD-3-Clause
"""Rotary positions: their parameters in one form, whatever their spelling, and their factors.

A config has the parameters in ``rope_parameters`` or in the older ``rope_scaling``, once or by kind of
layer, or null or not at all, and the config classes of transformers read each differently
(``RotaryEmbeddingConfigMixin`` in modeling_rope_utils.py and its replacements in the classes). What a class
drops is reported. The factors are computed there by ``_compute_yarn_parameters`` and
``_compute_longrope_parameters``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from ..._base.checks import shown
from ...laws import LongRoPE, YaRN
from .._keys import ConfigError, Keys, check_number, check_size, check_table
from .._layer import Term
from .family import Family, Layer, Rope
from .llama_cpp_rope import rope_parameters

_RULES = "transformers modeling_rope_utils.py"
_ORIGINAL = "original_max_position_embeddings"

#: Kinds of rotary positions that do not change the length of q and k. The last ones are spellings of
#: older files and of families with several position axes.
_UNSCALED = ("default", "linear", "dynamic", "llama3", "proportional", "axial", "mrope", "xdrope", "original")
_LONGROPE = ("longrope", "su")

#: Model types whose own code has a type "ntk", a changed base.
_NTK_TYPES = ("new",)

#: Parameters that only matter for rotary positions of a type other than the plain one.
_FACTORS = (
    "factor",
    "attention_factor",
    "mscale",
    "mscale_all_dim",
    "short_factor",
    "long_factor",
    "short_mscale",
    "long_mscale",
)

#: Kinds of rotary positions that change the length of q and k.
SCALED = ("yarn", *_LONGROPE)


def rope_of(layer: Layer) -> Rope | None:
    """The rotary positions of a layer; None if its entry in the config is null."""
    keys, family = layer.keys, layer.family
    found = spelling_of(keys, family)
    entry = family.rope_key(layer)
    name, given = found.of(entry)
    if given is None:
        return None
    by_kind = name != found.name or (keys.known and family.spelling == "either")
    block = keys.given.get(found.name)
    if name != found.name and not (isinstance(block, Mapping) and entry in block):
        name = found.name  # the file has no entries by kind of layer
    if name == found.name and block is None and not keys.architecture:
        name = f"{name} (default of {keys.kind})"
    rope = _rope(keys, given, name, by_kind=by_kind)
    if rope.kind == "default" and keys.has(found.name) and not found.unread:
        _doubt_factors(keys, given, name)
    return rope


def _rope(keys: Keys, given: Mapping[str, Any], name: str, *, by_kind: bool) -> Rope:
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind == "deepseek_yarn" and keys.kind == "sarvam_mla":
        kind = "yarn"  # the reading of older files by its own configuration
    known_here = (*_UNSCALED, *SCALED, *(("ntk",) if keys.kind in _NTK_TYPES else ()))
    if not isinstance(kind, str) or kind not in known_here:
        known = ", ".join((*_UNSCALED[:6], "longrope", "yarn"))
        raise ConfigError(f"{name}.rope_type must be one of {known}, got {shown(kind)}")
    if kind == "su" or (kind == "yarn" and keys.kind in ("phi3", "phi4_multimodal")):
        kind = "longrope"  # the reading of older files by Phi-3's own configuration
    rope = Rope(kind, {**given, **_original_length(keys, given, by_kind=by_kind)}, name)
    if kind in ("linear", "dynamic", "llama3", "ntk"):
        rope.number("factor")  # without effect here, but a wrong one is an error of the config
    return rope


def _doubt_factors(keys: Keys, given: Mapping[str, Any], name: str) -> None:
    """Remark on factors among the parameters of plain rotary positions, which ignore them."""
    typed = given.get("rope_type") or given.get("type")
    why = f"{name} is of type default" if typed else f"{name} has no rope_type, which is read as default"
    for key in _FACTORS:
        if given.get(key) is not None:
            keys.doubt(f"{name}.{key} = {shown(given[key])} has no effect: {why}")


def _original_length(keys: Keys, given: Mapping[str, Any], *, by_kind: bool) -> dict[str, Any]:
    """The original length: a key beside the parameters, else one among them, else the maximal length.

    With parameters by kind of layer no key beside them is read.
    """
    if not by_kind and keys.get(_ORIGINAL) is not None:
        return {_ORIGINAL: keys.get(_ORIGINAL)}
    if given.get(_ORIGINAL) is not None:
        return {}
    return {_ORIGINAL: keys.get("max_position_embeddings")}


def partial_rotary_factor(layer: Layer, head_dim: int) -> float:
    """The share of rotated channels: among the parameters, beside them, or of the model type."""
    rope = rope_of(layer)
    inside = None if rope is None else rope.parameters.get("partial_rotary_factor")
    if rope is not None and inside is not None:
        return check_share(f"{rope.name}.partial_rotary_factor", inside)
    beside = share_beside(layer.keys, head_dim)
    return 1.0 if beside is None else min(1.0, beside)


def rope_terms(layer: Layer, rope: Rope) -> tuple[Term, ...]:
    """The factors of the rotary positions on the score of the rotated channels."""
    if rope.kind not in _TERMS:
        return ()
    law, *names = _TERMS[rope.kind]
    rule = f"{_RULES}, _compute_{rope.kind}_parameters"
    return (Term(law(layer.keys, rope), "rotated", rope.origin("factor", "attention_factor", *names), rule),)


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
    """The weight mscale or mscale_all_dim; 0 switches the pair off."""
    value = rope.parameters.get(key)
    if value is None:
        return None
    weight = check_number(f"{rope.name}.{key}", value)
    if weight < 0:
        raise ConfigError(f"{rope.name}.{key} must be at least 0, got {shown(value)}")
    return weight


def _longrope(keys: Keys, rope: Rope) -> LongRoPE:
    name = f"{rope.name}.{_ORIGINAL}"
    length = check_number(name, rope.parameters[_ORIGINAL], above=1)
    factor = rope.number("factor") or _length_ratio(keys, rope)
    return LongRoPE(length, factor, attention_factor=rope.number("attention_factor"))


_TERMS: dict[str, tuple[Any, ...]] = {
    "yarn": (_yarn, "mscale", "mscale_all_dim"),
    "longrope": (_longrope, _ORIGINAL),
}


def _length_ratio(keys: Keys, rope: Rope) -> float:
    """Maximal length over original length, in place of a missing factor."""
    longest = keys.number("max_position_embeddings", above=0)
    return longest / check_number(f"{rope.name}.{_ORIGINAL}", rope.parameters[_ORIGINAL], above=0)


# ---- the parameters in one form ---------------------------------------------------------------

#: Names of entries with parameters by kind of layer.
_LAYER_LABELS = frozenset(
    {
        "full_attention",
        "sliding_attention",
        "chunked_attention",
        "indexed_attention",
        "linear_attention",
        "hybrid",
        "hybrid_sliding",
        "main",
        "compress",
        "scaled",
        "unscaled",
    }
)

_PLAIN = {"rope_type": "default"}

#: Keys that change only angles.
_ANGLES = frozenset({"rope_theta", "mrope_section", "mrope_interleaved"})


class Spelled(NamedTuple):
    """Parameters of the rotary positions of a model."""

    name: str  # the key of the config
    common: Mapping[str, Any]  # for every layer without its own entry
    entries: Mapping[str, Mapping[str, Any] | None]  # by kind of layer; None: no rotary positions
    unread: tuple[str, ...]  # parts of the config that the code does not read

    def of(self, entry: str) -> tuple[str, Mapping[str, Any] | None]:
        """The name and the parameters for an entry; None if it is null."""
        if entry in self.entries:
            return f"{self.name}.{entry}", self.entries[entry]
        return self.name, self.common


@lru_cache(maxsize=2)  # the layers of a model share its keys, except those with overrides
def spelling_of(keys: Keys, family: Family) -> Spelled:
    """The parameters of rotary positions of a model, as :class:`Spelled`."""
    legacy, given = keys.table("rope_scaling"), _given(keys)
    reader = _READERS[family.spelling] if keys.code.reads_rope_types else _not_at_all
    return reader(keys, legacy, given)


def _given(keys: Keys) -> dict[str, Any]:
    """The key rope_parameters; null counts as missing."""
    value = keys.get("rope_parameters")
    if value is None:
        value = keys.defaults.get("rope_parameters")
    return check_table("rope_parameters", value)


_Entries = dict[str, dict[str, Any] | None]


def _split(name: str, block: Mapping[str, Any]) -> tuple[dict[str, Any], _Entries]:
    """The common parameters of a block, and its entries by kind of layer."""
    entries = {
        key: None if value is None else check_table(f"{name}.{key}", value)
        for key, value in block.items()
        if key in _LAYER_LABELS
    }
    return {key: value for key, value in block.items() if key not in entries}, entries


def _says_nothing(block: Mapping[str, Any] | None) -> bool:
    """Whether the parameters change nothing, so that they can be left out."""
    if not block:
        return True
    kind = block.get("rope_type") or block.get("type") or "default"
    rest = set(block) - _ANGLES - {"rope_type", "type"}
    return kind == "default" and not rest


def _unread(keys: Keys, name: str, block: Mapping[str, Any] | None, why: str) -> tuple[str, ...]:
    if _says_nothing(block) or not keys.has(name.partition(".")[0]):
        return ()
    return (f"{name} = {shown(block)} is not read for {keys.kind or 'this model type'}: {why}",)


def _first_given(legacy: dict[str, Any], given: dict[str, Any]) -> tuple[str, dict[str, Any], _Entries]:
    """The key, common parameters and entries by kind of rope_scaling, else of rope_parameters."""
    name = "rope_scaling" if legacy else "rope_parameters"
    return (name, *_split(name, legacy or given))


def _flat(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    name, common, entries = _first_given(legacy, given)
    why = "its code has the same rotary positions in every layer"
    found = [each for key, block in entries.items() for each in _unread(keys, f"{name}.{key}", block, why)]
    if legacy and keys.has("rope_parameters"):
        beside = keys.table("rope_parameters")
        found += _unread(keys, "rope_parameters", beside, "rope_scaling goes before it")
    return Spelled(name, common, {}, tuple(found))


def _parameters_alone(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    """One set of parameters for all layers, in rope_parameters."""
    read, dropped = _flat(keys, {}, given), _unread(keys, "rope_scaling", legacy, "only rope_parameters is")
    return read._replace(unread=read.unread + dropped)


def _either(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    """The parameters as the config has them, for unknown model types and Dots 3."""
    return Spelled(*_first_given(legacy, given), ())


def _by_kind(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    """Parameters by kind of layer, only in rope_parameters."""
    common, entries = _split("rope_parameters", given)
    found = _unread(keys, "rope_scaling", legacy, "only rope_parameters is")
    if not entries:
        found += _unread(keys, "rope_parameters", common, "its entries by kind of layer are")
        entries = _split("rope_parameters", keys.defaults.get("rope_parameters") or {})[1]
    return Spelled("rope_parameters", {}, entries, found)


def _by_kind_with_shares(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    """NeoMME: parameters by kind of layer; an entry without a share gets that of its kind."""
    read = _by_kind(keys, legacy, given)
    usual = _split("rope_parameters", keys.defaults.get("rope_parameters") or {})[1]
    entries = {key: {**_share_of(block), **(read.entries.get(key) or {})} for key, block in usual.items()}
    return read._replace(entries=entries)


def _share_of(block: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (block or {}).items() if key == "partial_rotary_factor"}


def _over(kinds: tuple[str, ...]) -> Callable[[Keys, dict[str, Any], dict[str, Any]], Spelled]:
    """Parameters by kind of layer, with rope_scaling over those of `kinds`, where only rope_type counts."""

    def read(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
        common, entries = _split("rope_parameters", given)
        found = _unread(keys, "rope_parameters", common, "its entries by kind of layer are")
        if legacy.get("type") not in (None, "default") and "rope_type" not in legacy:
            found += (
                f"rope_scaling.type = {shown(legacy['type'])} has no effect for {keys.kind}: "
                "only the spelling rope_type has",
            )
        filled = {key: block or _PLAIN for key, block in entries.items()}
        if legacy:
            filled |= {kind: {**filled.get(kind, _PLAIN), **legacy} for kind in kinds}
        return Spelled("rope_scaling" if legacy else "rope_parameters", _PLAIN, filled, found)

    return read


def _compressed(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    """DeepSeek V4: parameters outside entries belong to the compressed layers, whose YaRN has no factor."""
    name, common, entries = _first_given(legacy, given)
    main, compress = entries.get("main"), entries.get("compress")
    share = {"partial_rotary_factor": _compressed_share(keys)}
    usual = keys.given.get("rope_parameters") is None  # then the parameters are those of the model type
    if isinstance(main, dict) and isinstance(compress, dict) and not usual:
        return Spelled(name, {}, {"main": {**share, **main}, "compress": {**share, **compress}}, ())
    kind = common.get("rope_type", common.get("type", "default"))
    compress = {**common, "rope_type": kind, **share}
    if kind == "yarn":
        compress.setdefault("attention_factor", 1.0)
    return Spelled(name, {}, {"main": {**_PLAIN, **share}, "compress": compress}, ())


def _compressed_share(keys: Keys) -> float:
    """DeepSeek V4: the share in the config; the default of its class only counts without one."""
    stated = keys.given.get("partial_rotary_factor")
    if stated is not None:
        return check_share("partial_rotary_factor", stated)
    if keys.given.get("qk_rope_head_dim") is not None:
        return min(1.0, keys.size("qk_rope_head_dim") / keys.size("head_dim"))
    return 0.125  # the default of the config class


def _listed_layers(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    """Molmo 2: scaled rotary positions in the layers of rope_scaling_layers, plain ones elsewhere."""
    read = _flat(keys, legacy, given)
    return read._replace(entries={"unscaled": _PLAIN})


def _of_gguf(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    """GGUF: parameters of layers with a window and of the others, by keys of llama.cpp."""
    return Spelled("rope.scaling", {}, rope_parameters(keys), ())


_Reader = Callable[[Keys, dict[str, Any], dict[str, Any]], Spelled]
_READERS: dict[str, _Reader] = {
    "flat": _flat,
    "parameters alone": _parameters_alone,
    "either": _either,
    "by kind": _by_kind,
    "by kind with shares": _by_kind_with_shares,
    "over full attention": _over(("full_attention",)),
    "over every kind": _over(("full_attention", "sliding_attention")),
    "compressed": _compressed,
    "listed layers": _listed_layers,
    "of its own": lambda keys, legacy, given: Spelled("rope_scaling", _PLAIN, {}, ()),
    "of GGUF": _of_gguf,
}


def _not_at_all(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    why = "its rotary positions are plain ones, whatever their type"
    found = _unread(keys, "rope_scaling", legacy, why) + _unread(keys, "rope_parameters", given, why)
    return Spelled("rope_parameters", {**_PLAIN, **_share_of(given)}, {}, found)


def share_beside(keys: Keys, head_dim: int) -> float | None:
    """The share of rotated channels given beside the parameters, else that of the model type."""
    for name in keys.share_keys:
        value = keys.get(name)
        if value is not None:
            return check_size(name, value) / head_dim if name == "rotary_dim" else check_share(name, value)
    return keys.share


def check_share(name: str, value: Any) -> float:
    share = check_number(name, value)
    if not 0 <= share <= 1:
        raise ConfigError(f"{name} must be between 0 and 1, got {shown(value)}")
    return share
