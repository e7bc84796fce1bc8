# SPDX-License-Identifier: BSD-3-Clause
"""A model's configuration: the user's input, the language model inside it, and each key with its default."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from .._base.checks import refusal, shown
from .._files.gguf import ARCHITECTURE, read_gguf
from .._files.heads import InputError
from .._files.json import RepeatedKeyError, each_key_once
from ._rules.llama_cpp_table import ARCHITECTURES

#: Limits far above any real config, so that no file keeps `resolve` busy for long.
_DEEPEST, _MOST_VALUES, _MOST_BYTES = 32, 500_000, 2**24

#: Keys of each half of an encoder-decoder in their common config: the common name, and the half's own.
_DECODER_KEYS = (
    ("num_attention_heads", "decoder_attention_heads"),
    ("num_attention_heads", "decoder_num_attention_heads"),
    ("num_attention_heads", "num_decoder_attention_heads"),
    ("num_hidden_layers", "decoder_layers"),
    ("num_hidden_layers", "num_decoder_layers"),
)
_ENCODER_KEYS = (
    ("num_attention_heads", "encoder_attention_heads"),
    ("num_hidden_layers", "num_encoder_layers"),
)

#: Keys under which composite models of unknown type keep their language model.
_PARTS = ("text_config", "llm_config", "language_config", "language_model", "decoder")

#: Model types of older files that transformers reads as another one.
_OLDER_TYPES = {"exaone4_5_text": "exaone4"}

#: Keys of the ``model_config`` in a checkpoint of Nori, which names no type.
_NORI = {"layer_arch", "embed_dim", "nhead", "nlayers"}

#: Largest depth of a language model inside its config: Omni models have a thinker with a text model.
_MOST_PARTS = 4

#: Largest number that a rule computes with.
_LARGEST = float(np.finfo(np.float64).max)

#: Keys that may give the share of rotated channels.
_SHARES = ("partial_rotary_factor", "rotary_pct", "rotary_percent")


class ConfigError(InputError):
    """A configuration without an answer; the message names the key and its value."""


def read_config(config: Any) -> dict[str, Any]:
    """The keys of a config, as :func:`attnscale.audit.resolve` takes it, copied into new dicts and lists."""
    if isinstance(config, (str, os.PathLike)):
        config = _read_file(Path(config))
    elif hasattr(config, "to_dict") and not isinstance(config, Mapping):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        kind = type(config).__name__
        raise TypeError(
            f"config must be a mapping, a path or a transformers config, got {kind}: {shown(config)}"
        )
    copied: dict[str, Any] = _copied(config, "", _Budget())
    return copied


class _Budget:
    """Number of values that may still be copied."""

    left = _MOST_VALUES

    def spend(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise ConfigError(f"config must have at most {_MOST_VALUES} values")


def _copied(value: Any, name: str, budget: _Budget, depth: int = 0) -> Any:
    if not isinstance(value, (Mapping, list, tuple)):
        return value
    if depth > _DEEPEST:
        raise ConfigError(f"{name[:60]} must be nested at most {_DEEPEST} deep")
    budget.spend(len(value))
    if isinstance(value, Mapping):
        return {
            str(key): _copied(each, f"{name}.{key}" if name else str(key), budget, depth + 1)
            for key, each in value.items()
        }
    return [_copied(each, name, budget, depth + 1) for each in value]


def _read_file(path: Path) -> Mapping[str, Any]:
    file = path / "config.json" if path.is_dir() else path
    if file.suffix == ".gguf":
        try:
            return read_gguf(file)
        except InputError as error:
            raise ConfigError(str(error)) from None
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{file} must have at most {_MOST_BYTES} bytes")
        content = json.loads(file.read_text(encoding="utf-8"), object_pairs_hook=each_key_once)
    except FileNotFoundError:
        raise ConfigError(f"{file}: there is no such file") from None
    except ConfigError:
        raise
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        read = "a config.json, its folder and a .gguf are read here, queries and keys by `attnscale entropy`"
        raise ConfigError(f"{file} is not JSON, and not text: {read}") from None
    except RepeatedKeyError as error:
        raise ConfigError(f"{file} {error}: programs differ in the value that they take") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file} is not JSON: {' '.join(str(error).split())}") from None
    if not isinstance(content, Mapping):
        raise ConfigError(f"{file} must hold one JSON object, got {type(content).__name__}")
    return content


@cache
def _defaults() -> dict[str, Any]:
    """Defaults of transformers for missing keys, from tools/evidence/extract_config_defaults.py."""
    text = Path(__file__).with_name("defaults.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


#: Version of transformers whose defaults and code the tables were made from.
TRANSFORMERS: str = _defaults()["transformers"]


def known_types() -> frozenset[str]:
    return frozenset(_defaults()["models"])


@dataclass(frozen=True)
class Facts:
    """Findings of tools/evidence/extract_config_defaults.py in the code and config class of a model type."""

    reads_head_dim: bool = False  # heads have config.head_dim channels
    rotates_partly: bool = False  # the share of rotated channels is read
    reads_rope_types: bool = False  # the types of rotary positions are read
    norms_before_rotation: bool = False  # a norm of q and k before their rotation
    norms_after_rotation: bool = False
    slides_everywhere: bool = False  # every layer has the window sliding_window
    looks_both_ways: bool = False  # windows lie on both sides of a query
    heads_divide: bool = False  # hidden_size must be a multiple of the heads
    layer_types: bool = False  # the config class has this list of the kinds of layers
    layers_block_type: bool = False  # the config class has this list instead


#: Names in GGUF of keys that rules of every model read.
_GGUF_NAMES = {"num_hidden_layers": "block_count", "max_position_embeddings": "context_length"}

#: Facts of an unknown model type: it reads what most types read.
_UNKNOWN = Facts(
    reads_head_dim=True, rotates_partly=True, reads_rope_types=True, layer_types=True, layers_block_type=True
)


@dataclass
class Seen:
    """Keys of a config read so far, and remarks of the rules."""

    used: set[str] = field(default_factory=set)
    last: str = ""  # the key read last, for messages
    sizes: dict[str, int] = field(default_factory=dict)  # sizes read since it was emptied
    doubts: dict[str, None] = field(default_factory=dict)  # remarks on possible errors of the plan, each once


class Keys:
    """The keys of one language model, given or by default of its type `kind`; ``seen`` notes those read.

    `given` is the config, or the part of it under the key `part`. ``architecture`` is that of llama.cpp for
    keys of a GGUF file, else empty.
    """

    def __init__(self, given: Mapping[str, Any], kind: str, part: str = "") -> None:
        entry = _defaults()["models"].get(kind, {})
        self.architecture = ""
        self.given = given
        self.kind = kind
        self.part = part
        self.known = bool(entry)
        self.defaults: dict[str, Any] = entry.get("defaults", {})
        self.accepted = frozenset(entry.get("keys", ()))
        self.code = Facts(**dict.fromkeys(entry["facts"], True)) if self.known else _UNKNOWN
        lists = ("layer_types", "layers_block_type")
        self.kind_lists = tuple(name for name in lists if getattr(self.code, name))
        shares = entry.get("share", ((), None)) if self.known else (_SHARES, None)
        self.share_keys: tuple[str, ...] = tuple(shares[0])
        self.share: float | None = shares[1]
        self.seen = Seen()
        self._renamed: dict[str, str] = entry.get("renamed", {})
        self._common = {own: name for name, own in self._renamed.items()}
        self._own: frozenset[str] = frozenset()  # names for which this half of the model has its own key

    @classmethod
    def of_gguf(cls, metadata: Mapping[str, Any]) -> Keys:
        """The keys of a GGUF file; those of its architecture lose the prefix of its name."""
        name = metadata[ARCHITECTURE]
        if not isinstance(name, str):
            raise ConfigError(f"{ARCHITECTURE} must be a name, got {shown(name)}")
        row = ARCHITECTURES.get(name)
        keys = cls({key.removeprefix(f"{name}."): value for key, value in metadata.items()}, "")
        keys.architecture, keys.known = name, row is not None
        keys.kind = (row and row.type) or name
        facts = _defaults()["models"].get(keys.kind, {}).get("facts", ())
        norms = ("norms_before_rotation", "norms_after_rotation")
        keys.code = Facts(reads_rope_types=True, **{norm: norm in facts for norm in norms})
        keys.kind_lists = ()
        keys._renamed = dict(_GGUF_NAMES)
        keys.seen.used.add(ARCHITECTURE)
        return keys

    def has_two_halves(self) -> bool:
        """Whether the config has keys of an encoder and of a decoder side by side (BART, T5)."""
        return any(own in self.given or own in self.defaults for _, own in _DECODER_KEYS)

    def of_half(self, half: str) -> Keys:
        """The keys of "encoder" or "decoder" in a config that has both side by side."""
        keys = copy(self)
        for name, own in _DECODER_KEYS if half == "decoder" else _ENCODER_KEYS:
            if keys._renamed.get(name) == own:
                continue  # the common name is another name of this half's key
            if self.given.get(own, self.defaults.get(own)) is not None:
                keys._renamed = {**keys._renamed, name: own}
                keys._own |= {name}
        return keys

    def of_layer(self, number: int) -> Keys:
        """The keys of one layer, with its entries of per_layer_config in place of the common ones."""
        overrides = self._overrides.get(number)
        if not overrides:
            return self
        keys = copy(self)
        keys.given = {**self.given, **overrides}
        return keys

    @cached_property
    def _overrides(self) -> dict[int, dict[str, Any]]:
        """per_layer_config by number, written as "2" or "02" in files."""
        found = {}
        for label, block in self.table("per_layer_config").items():
            if not label.isdecimal() or len(label) > 9:
                raise ConfigError(
                    f"per_layer_config must have numbers of layers for keys, got {shown(label)}"
                )
            found[int(label)] = check_table(f"per_layer_config.{label}", block)
        return found

    def doubt(self, text: str) -> None:
        """Keep a remark on a possible error of the plan, for its warnings."""
        self.seen.doubts[text] = None

    def stored(self, name: str) -> str:
        """The name of the key in the config: hidden_size is n_embd for GPT-2."""
        alias = self._renamed.get(name, name)
        if name in self._own:
            return alias
        for common in (self._common.get(name, name), name):  # a class uses the common name last
            if common in self.given:
                return common
        return alias

    def has(self, name: str) -> bool:
        """Whether the config itself has the key, also with null."""
        return self.stored(name) in self.given

    def of_half_alone(self, name: str) -> bool:
        """Whether the model type has a default of the key for this half of the model."""
        return name in self._own and self.stored(name) in self.defaults

    def get(self, name: str, default: Any = None) -> Any:
        """The given value, else the default of the model type, else ``default``."""
        stored = self.seen.last = self.stored(name)
        self.seen.used.update((name, stored))
        if stored in self.given:
            return self.given[stored]
        return self.defaults.get(stored, self.defaults.get(name, default))

    def origin(self, name: str, value: Any = None) -> str:
        """The key and its value as text, for the column "from" of a plan."""
        seen = self.get(name) if value is None else value
        if self.has(name):
            prefix = f"{self.part}." if self.part else ""
            return f"{prefix}{self.stored(name)} = {seen}"
        return f"{name} = {seen} (default of {self.kind})"

    def number(self, name: str, *, default: Any = None, above: float | None = None) -> float:
        """The value of a key as a finite number; greater than ``above`` if that is given."""
        return check_number(self.stored(name), self.get(name, default), above=above)

    def size(self, name: str, *, default: Any = None, least: int = 1, most: int = 2**31 - 1) -> int:
        value = self.get(name, default)
        if value is None and not self.kind:
            raise ConfigError(f"{self.stored(name)} is missing, and there is no model_type with a default")
        self.seen.sizes[name] = size = check_size(self.stored(name), value, least, most)
        return size

    def head_size_origin(self, value: int) -> str:
        """The keys that gave this head size, among the sizes read for it."""
        sizes = self.seen.sizes
        wide, *others = sizes or ("",)
        if len(others) == 1 and value == sizes[wide] // max(sizes[others[0]], 1):
            names = [self.stored(name) for name in (wide, *others)]
            usual = "" if any(map(self.has, (wide, *others))) else f" (defaults of {self.kind})"
            return f"{' / '.join(names)} = {sizes[wide]} / {sizes[others[0]]}{usual}"
        if not others and sizes.get(wide) == value:
            return self.origin(wide)
        if sizes and sum(sizes.values()) == value:
            return f"{' + '.join(map(self.stored, sizes))} = {' + '.join(map(str, sizes.values()))}"
        read = ", ".join(self.origin(name) for name in sizes)
        return f"heads of {value} channels{', by ' if read else ''}{read}"

    def flag(self, name: str, *, default: bool = False) -> bool:
        """The value of a key as True or False; null is False."""
        value = self.get(name, default)
        if value is None:
            return False
        if not isinstance(value, (bool, np.bool_)):
            raise ConfigError(f"{self.stored(name)} must be true or false, got {shown(value)}")
        return bool(value)

    def table(self, name: str) -> dict[str, Any]:
        """The value of a key as a mapping; empty for null and a missing key."""
        return check_table(self.stored(name), self.get(name))


def check_number(name: str, value: Any, *, above: float | None = None) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ConfigError(f"{name} must be a number, got {shown(value)}")
    number: Any = value  # numpy's numbers compare, too
    if abs(number) > _LARGEST or number != number or (above is not None and number <= above):
        rule = "finite" if above is None else f"a finite number greater than {above:g}"
        raise ConfigError(f"{name} must be {rule}, got {shown(value)}")
    return float(value)


def check_size(name: str, value: Any, least: int = 1, most: int = 2**31 - 1) -> int:
    if value is None:
        raise ConfigError(f"{name} is missing: the config does not say it, and its model type has no default")
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise ConfigError(f"{name} must be an integer, got {shown(value)}")
    if value < least:
        raise ConfigError(f"{name} must be at least {least}, got {shown(value)}")
    if value > most:
        raise ConfigError(f"{name} must be at most {most}, got {shown(value)}")
    return int(value)


def check_table(name: str, value: Any) -> dict[str, Any]:
    """`value` as a dict; empty for None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} must be a mapping, got {shown(value)}")
    return dict(value)


def read_keys(given: Mapping[str, Any], part: str | None = None) -> tuple[Keys, tuple[str, ...]]:
    """The keys of a config's language model, or of a part such as "encoder", and remarks on the reading."""
    if ARCHITECTURE in given and part is None:
        return Keys.of_gguf(given), ()
    kind = _model_type(given, "")
    if part in ("encoder", "decoder") and part not in given and Keys(given, kind).has_two_halves():
        return Keys(given, kind).of_half(part), ()
    if part is not None:
        return _chosen_part(given, kind, part)
    remarks: tuple[str, ...] = ()
    name = ""
    for _ in range(_MOST_PARTS):
        if (inner := _inner(given, kind)) is None:
            break
        key, kind, given, found = inner
        name = f"{name}.{key}" if name else key
        remarks += found
    keys = Keys(given, kind, name)
    return keys.of_half("decoder") if keys.has_two_halves() else keys, remarks


def _inner(given: Mapping[str, Any], kind: str) -> tuple[str, str, Mapping[str, Any], tuple[str, ...]] | None:
    """The key, model type, config and remarks of the part of a composite config, or None."""
    known = _defaults()["inside"].get(kind)
    if known is not None:
        key, inner_kind = known
        if key not in given:  # older files keep the language model's keys at the top
            return key, inner_kind, {**given, "model_type": inner_kind}, ()
        inner = check_table(key, given[key])
        return key, _model_type(inner, inner_kind), inner, ()
    if kind in _defaults()["models"]:
        return None
    for key in _PARTS:
        part = given.get(key)
        if isinstance(part, Mapping) and part:
            remark = f"model_type {kind!r} is not known; its language model is taken to be {key}"
            return key, _model_type(part, kind), part, (remark,)
    return None


def _chosen_part(given: Mapping[str, Any], kind: str, part: str) -> tuple[Keys, tuple[str, ...]]:
    inner = given.get(part)
    if not isinstance(inner, Mapping):
        found = ", ".join(key for key, value in given.items() if isinstance(value, Mapping)) or "none"
        raise refusal(ConfigError, "part", f"must be a part of the config ({found}), got {shown(part)}")
    usual = _defaults()["parts"].get(kind, {}).get(part)
    said = _model_type(inner, "")
    if said == kind:  # older files name the whole model in each part
        said = ""
    return Keys(inner, said or usual or f"{kind}_{part}", part), ()


def _model_type(given: Mapping[str, Any], default: str) -> str:
    kind = given.get("model_type") or given.get("_class_name") or default  # the second in diffusers
    if not kind and given.keys() >= _NORI:
        kind = "synthefy_nori"
    if not isinstance(kind, str):
        raise ConfigError(f"model_type must be a string, got {shown(kind)}")
    return _OLDER_TYPES.get(kind, kind)
