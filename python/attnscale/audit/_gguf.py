# SPDX-License-Identifier: BSD-3-Clause
"""The metadata of a GGUF file as the keys of a config.json; tensors are not read.

The format: magic, version, numbers of tensors and of keys, then each key with the type of its value and the
value (https://github.com/ggml-org/ggml, docs/gguf.md). Names of keys are those of llama.cpp's converter.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._checks import shown
from .._io import InputError

#: Types of values by their numbers, as struct has them; a string and an array have rules of their own.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MOST_KEYS, _KEPT = 100_000, 4096  # keys of a file, and entries of an array that are kept

#: Architectures whose metadata hold all that the scale comes from, and the model type with the same rule.
_SAME = (
    "llama",
    "qwen2",
    "qwen3",
    "gemma",
    "phi3",
    "granite",
    "granitemoe",
    "starcoder2",
    "olmo2",
    "cohere2",
)
_TYPES = {
    **dict(zip(_SAME, _SAME, strict=True)),
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gpt-oss": "gpt_oss",
    "command-r": "cohere",
    "deepseek2": "deepseek_v3",
    "mistral3": "ministral3",
}

#: Keys of an architecture, and what a config.json calls them.
_NAMES = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "context_length": "max_position_embeddings",
    "attention.head_count": "num_attention_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


def read_gguf(path: Path) -> dict[str, Any]:
    """The config of the model in a file.

    An architecture whose scale is not in the metadata (that of Gemma 2 depends on its size in llama.cpp) is
    no model type that is known: the audit then reads the keys, and warns.
    """
    metadata = _metadata(path)
    kind = metadata.get("general.architecture")
    if not isinstance(kind, str):
        raise InputError(f"{path}: general.architecture must be a name, got {shown(kind)}")
    own = {
        key.removeprefix(f"{kind}."): value for key, value in metadata.items() if key.startswith(f"{kind}.")
    }
    found = {name: own[key] for key, name in _NAMES.items() if key in own}
    heads = found.get("num_attention_heads")
    if isinstance(heads, list):
        found["num_attention_heads"] = max(heads, default=0)
        if len(set(heads)) > 1 and "head_dim" not in found:
            raise InputError(f"{path}: attention.head_count differs by layer, and there is no key_length")
    scale = own.get("attention.scale")
    if kind.startswith("granite"):
        found["attention_multiplier"] = scale or None
    elif scale is not None:
        found["attention_scale"] = scale
    if kind == "deepseek2":
        found |= _latent(own)
    elif all(isinstance(found.get(name), int) for name in ("hidden_size", "num_attention_heads")):
        found.setdefault("head_dim", found["hidden_size"] // max(found["num_attention_heads"], 1))
    rotated = own.get("rope.dimension_count")
    if kind == "phi3" and isinstance(rotated, int) and found.get("head_dim"):
        found["partial_rotary_factor"] = rotated / found["head_dim"]
    rope = _rope(kind, own)
    # What a file does not say is off in llama.cpp, where a model type of transformers may have it by default.
    positions = {"rope_parameters": {"rope_type": "default", **rope}, "rope_scaling": None}
    return {"model_type": _TYPES.get(kind, f"{kind} of GGUF"), **found, **positions}


def _latent(own: Mapping[str, Any]) -> dict[str, Any]:
    """The channels of a latent head; older files have their number in the place of the latent's."""
    rotated = own.get("rope.dimension_count", 0)
    whole = own.get("attention.key_length_mla", own.get("attention.key_length", 0))
    return {"qk_rope_head_dim": rotated, "qk_nope_head_dim": whole - rotated}


def _rope(kind: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of rotary positions, with what YaRN puts on the score."""
    names = {
        "type": "rope_type",
        "factor": "factor",
        "original_context_length": "original_max_position_embeddings",
    }
    found = {name: own[f"rope.scaling.{key}"] for key, name in names.items() if f"rope.scaling.{key}" in own}
    if found.get("rope_type") == "none":
        del found["rope_type"]
    for key in ("attn_factor", "yarn_attn_factor"):
        factor = own.get(f"rope.scaling.{key}", 1.0)
        if factor != 1:  # of YaRN it was written with the rule's own factor in it, and without
            found["attention_factor" if found.get("rope_type") == "longrope" else key] = factor
    weight = own.get("rope.scaling.yarn_log_multiplier")
    if weight:  # 0.1 mscale_all_dim for latent attention
        found |= dict.fromkeys(
            ("mscale", "mscale_all_dim"), round(10 * weight, 6) if kind == "deepseek2" else weight
        )
    if own.get("attention.temperature_scale"):
        found["llama_4_scaling_beta"] = own["attention.temperature_scale"]
        if "attention.temperature_length" in own:
            found["original_max_position_embeddings"] = own["attention.temperature_length"]
    return found


def _metadata(path: Path) -> dict[str, Any]:
    """Keys and values; of an array no more than its first entries."""
    try:
        with path.open("rb") as stream:
            if stream.read(4) != b"GGUF":
                raise InputError(f"{path} is not a GGUF file: it does not begin with GGUF")
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _Reader(path, content).metadata()
    except FileNotFoundError:
        raise InputError(f"{path}: there is no such file") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


class _Reader:
    """A place in a file, which moves on with what is read and never beyond the end."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path, self.content, self.place = path, content, 4

    def metadata(self) -> dict[str, Any]:
        version = self.number("I")
        if version not in (2, 3):
            raise InputError(f"{self.path}: the version of GGUF must be 2 or 3, little endian, got {version}")
        _, count = self.number("Q"), self.number("Q")
        if count > _MOST_KEYS:
            raise InputError(f"{self.path}: the header must have at most {_MOST_KEYS} keys, got {count}")
        return {self.string(): self.value(self.number("I")) for _ in range(count)}

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(_SCALARS.get(kind) or self.unknown(kind))
        inner, count = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            size = struct.calcsize(_SCALARS[inner])
            start = self.skip(count * size)
            kept = min(count, _KEPT)
            return list(struct.unpack(f"<{kept}{_SCALARS[inner]}", self.content[start : start + kept * size]))
        if inner == _STRING:
            self.check(8 * count)
            self.skip_strings(count)
            return []
        if inner != _ARRAY or depth > 3:
            self.unknown(inner)
        self.check(12 * count)
        return [self.value(inner, depth + 1) for _ in range(count)][:_KEPT]

    def skip_strings(self, count: int) -> None:
        """Move on over strings, as the tokens that nobody asks for: there are some 100 000."""
        unpack, content, place = struct.Struct("<Q").unpack_from, self.content, self.place
        for _ in range(count):
            if place + 8 > len(content):
                self.check(place + 8 - self.place)
            place += 8 + unpack(content, place)[0]
        self.skip(place - self.place)

    def unknown(self, kind: int) -> Any:
        raise InputError(f"{self.path}: the header has a value of type {kind}, which GGUF does not have")

    def number(self, code: str) -> Any:
        size = struct.calcsize(code)
        (found,) = struct.unpack_from(f"<{code}", self.content, self.skip(size))
        return found

    def string(self) -> str:
        length = self.number("Q")
        start = self.skip(length)
        return self.content[start : start + length].decode("utf-8", errors="replace")

    def skip(self, size: int) -> int:
        """Move on; the place before."""
        self.check(size)
        self.place += size
        return self.place - size

    def check(self, size: int) -> None:
        """Refuse what would lie beyond the end of the file."""
        left = len(self.content) - self.place
        if size > left:
            raise InputError(
                f"{self.path}: the header is cut: {size} bytes at {self.place} must follow, {left} do"
            )
