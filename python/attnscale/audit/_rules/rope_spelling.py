# SPDX-License-Identifier: BSD-3-Clause
"""The parameters of rotary positions in one form, whatever their spelling.

A config says them in ``rope_parameters`` or in the older ``rope_scaling``, once or by kind of layer, or as
null or not at all, and the config classes of transformers differ in what they make of each
(``RotaryEmbeddingConfigMixin`` in configuration_utils.py and what the classes put in its place). This
module alone knows how. What a class drops is reported, not passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..._checks import shown
from .._config.config import Keys, check_number, check_size, check_table
from .._config.source import ConfigError
from .family import Family

#: Names of the entries where parameters are given by kind of layer.
LAYER_LABELS = frozenset(
    (
        *("full_attention", "sliding_attention", "chunked_attention", "indexed_attention"),
        *("hybrid", "hybrid_sliding", "main", "compress", "linear_attention", "scaled", "unscaled"),
    )
)

_PLAIN = {"rope_type": "default"}

#: Keys that change no more than angles.
_ANGLES = frozenset(("rope_theta", "mrope_section", "mrope_interleaved"))


class Spelled(NamedTuple):
    """Parameters of the rotary positions of a model.

    Attributes
    ----------
    name : str
        The key of the config that they come from.
    common : mapping
        Parameters of every layer without an entry of its own.
    entries : mapping
        Parameters by kind of layer; an entry that is null has no rotary positions.
    unread : tuple of str
        What the config says and the code does not read.
    """

    name: str
    common: Mapping[str, Any]
    entries: Mapping[str, Mapping[str, Any] | None]
    unread: tuple[str, ...]

    def of(self, entry: str) -> tuple[str, Mapping[str, Any] | None]:
        """The name and the parameters for an entry; None if it is null."""
        if entry in self.entries:
            return f"{self.name}.{entry}", self.entries[entry]
        return self.name, self.common


def spelled(keys: Keys, family: Family) -> Spelled:
    """The parameters of rotary positions of a model in the one form of :class:`Spelled`."""
    legacy, given = keys.table("rope_scaling"), _given(keys)
    reader = _READERS[family.spelling] if keys.reads_rope_types else _not_at_all
    return reader(keys, legacy, given)


def _given(keys: Keys) -> dict[str, Any]:
    """The key rope_parameters; null is as good as missing."""
    value = keys.get("rope_parameters")
    if value is None:
        value = keys.defaults.get("rope_parameters")
    return check_table("rope_parameters", value)


def _split(name: str, block: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, dict[str, Any] | None]]:
    """The common parameters of a block, and its entries by kind of layer."""
    entries = {
        key: None if value is None else check_table(f"{name}.{key}", value)
        for key, value in block.items()
        if key in LAYER_LABELS
    }
    return {key: value for key, value in block.items() if key not in entries}, entries


def _says_nothing(block: Mapping[str, Any] | None) -> bool:
    """Whether the parameters change nothing, so that they could be left out."""
    if not block:
        return True
    kind = block.get("rope_type") or block.get("type") or "default"
    rest = set(block) - _ANGLES - {"rope_type", "type"}
    return kind == "default" and not rest


def _unread(keys: Keys, name: str, block: Mapping[str, Any] | None, why: str) -> tuple[str, ...]:
    if _says_nothing(block) or not keys.has(name.partition(".")[0]):
        return ()
    return (f"{name} = {shown(block)} is not read for {keys.kind or 'this model type'}: {why}",)


def _flat(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    """One set of parameters for all layers; rope_scaling goes before rope_parameters."""
    name = "rope_scaling" if legacy else "rope_parameters"
    common, entries = _split(name, legacy or given)
    why = "its code has the same rotary positions in every layer"
    found = [each for key, block in entries.items() for each in _unread(keys, f"{name}.{key}", block, why)]
    if legacy and keys.has("rope_parameters"):
        found += _unread(
            keys, "rope_parameters", keys.table("rope_parameters"), "rope_scaling goes before it"
        )
    return Spelled(name, common, {}, tuple(found))


def _parameters_alone(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    """One set of parameters for all layers, in rope_parameters."""
    read = _flat(keys, {}, given)
    return read._replace(
        unread=read.unread + _unread(keys, "rope_scaling", legacy, "only rope_parameters is")
    )


def _either(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    """The parameters of a model type that is not known, as the config writes them."""
    name = "rope_scaling" if legacy else "rope_parameters"
    return Spelled(name, *_split(name, legacy or given), ())


def _by_kind(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    """Parameters by kind of layer in rope_parameters, and nothing else."""
    common, entries = _split("rope_parameters", given)
    found = _unread(keys, "rope_scaling", legacy, "only rope_parameters is")
    if not entries:
        found += _unread(keys, "rope_parameters", common, "its entries by kind of layer are")
        entries = _split("rope_parameters", keys.defaults.get("rope_parameters") or {})[1]
    return Spelled("rope_parameters", {}, entries, found)


def _by_kind_with_shares(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    """NeoMME: parameters by kind of layer; an entry that gives no share gets that of its kind."""
    read = _by_kind(keys, legacy, given)
    usual = _split("rope_parameters", keys.defaults.get("rope_parameters") or {})[1]
    entries = {key: {**_share_of(block), **(read.entries.get(key) or {})} for key, block in usual.items()}
    return read._replace(entries=entries)


def _share_of(block: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (block or {}).items() if key == "partial_rotary_factor"}


def _over(kinds: tuple[str, ...]) -> Callable[[Keys, dict[str, Any], dict[str, Any]], Spelled]:
    """Parameters by kind of layer in rope_parameters; rope_scaling is laid over the entries of some kinds.

    These have a rope_type, so that rope_scaling only counts where it is spelled rope_type, and not type.
    """

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


def _each_kind(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    """Dots 3: parameters by kind of layer, or one set for each; rope_scaling goes before rope_parameters."""
    name = "rope_scaling" if legacy else "rope_parameters"
    return Spelled(name, *_split(name, legacy or given), ())


def _compressed(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    """DeepSeek V4: what is not given by entry belongs to the compressed layers, whose YaRN has no factor."""
    name = "rope_scaling" if legacy else "rope_parameters"
    common, entries = _split(name, legacy or given)
    main, compress = entries.get("main"), entries.get("compress")
    share = {"partial_rotary_factor": _compressed_share(keys)}
    if isinstance(main, dict) and isinstance(compress, dict) and not _usual(keys):
        return Spelled(name, {}, {"main": {**share, **main}, "compress": {**share, **compress}}, ())
    kind = common.get("rope_type", common.get("type", "default"))
    compress = {**common, "rope_type": kind, **share}
    if kind == "yarn":
        compress.setdefault("attention_factor", 1.0)
    return Spelled(name, {}, {"main": {**_PLAIN, **share}, "compress": compress}, ())


def _usual(keys: Keys) -> bool:
    """Whether the parameters are those of the model type."""
    return keys.given.get("rope_parameters") is None


def _compressed_share(keys: Keys) -> float:
    """DeepSeek V4: the share that the config gives; the default of its class only counts without one."""
    stated = keys.given.get("partial_rotary_factor")
    if stated is not None:
        return check_share("partial_rotary_factor", stated)
    if keys.given.get("qk_rope_head_dim") is not None:
        return min(1.0, keys.size("qk_rope_head_dim") / keys.size("head_dim"))
    return 0.125  # the default of the config class


def _listed_layers(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    """Molmo 2: scaled rotary positions in the layers of rope_scaling_layers, and plain ones in the others."""
    read = _flat(keys, legacy, given)
    return read._replace(entries={"unscaled": _PLAIN})


_Reader = Callable[[Keys, dict[str, Any], dict[str, Any]], Spelled]
_READERS: dict[str, _Reader] = {
    "flat": _flat,
    "parameters alone": _parameters_alone,
    "either": _either,
    "by kind": _by_kind,
    "by kind with shares": _by_kind_with_shares,
    "over full attention": _over(("full_attention",)),
    "over every kind": _over(("full_attention", "sliding_attention")),
    "each kind": _each_kind,
    "compressed": _compressed,
    "listed layers": _listed_layers,
}


def _not_at_all(keys: Keys, legacy: dict[str, Any], given: dict[str, Any]) -> Spelled:
    why = "its rotary positions are plain ones, whatever their type"
    found = _unread(keys, "rope_scaling", legacy, why) + _unread(keys, "rope_parameters", given, why)
    return Spelled("rope_parameters", {**_PLAIN, **_share_of(given)}, {}, found)


def share_beside(keys: Keys, head_dim: int) -> float | None:
    """The share of rotated channels that is given beside the parameters, else that of the model type."""
    for name in keys.share_keys:
        value = keys.get(name)
        if value is not None:
            return check_size(name, value) / head_dim if name == "rotary_dim" else check_share(name, value)
    return keys.share


def check_share(name: str, value: Any) -> float:
    """`value` as a number from 0 to 1."""
    share = check_number(name, value)
    if not 0 <= share <= 1:
        raise ConfigError(f"{name} must be between 0 and 1, got {shown(value)}")
    return share
