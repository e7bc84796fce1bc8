# SPDX-License-Identifier: BSD-3-Clause
"""The angles of a layer by the keys of its config, whatever their spelling."""

from __future__ import annotations

import math
from typing import Any

from .._angles import PAIRING, Rotation
from .family import Layer, Rope
from .llama_cpp_rope import WINDOWS
from .rope import partial_rotary_factor

#: Bases of layers with a window, and of the others, given beside the parameters.
_OF_WINDOWS = ("rope_local_base_freq", "local_rope_theta", "swa_rope_theta")
_OF_ALL = ("rope_theta", "rotary_emb_base", "rotary_base", "global_rope_theta")

#: Keys that a config class reads, by its spelling of the parameters: for full layers, and for sliding ones.
_BESIDE: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "over full attention": (("rope_theta",), ("rope_local_base_freq",)),
    "over every kind": (("global_rope_theta",), ("local_rope_theta",)),
    "by kind": ((), ()),
    "either": (("rope_theta",), ("swa_rope_theta",)),
}

#: Types whose class has parameters with their own base, beside which no other is read.
_OWN = frozenset(
    {
        "apertus",
        "apertus1p5_text",
        "cosmos3_edge_text",
        "cwm",
        "higgs_audio_v2",
        "ministral3",
        "mistral4",
        "mistral_large4_text",
        "moonshine_streaming",
        "muse_spark_text",
        "nemotron3_5_transcribe_word_timestamp",
    }
)

#: Parameters that change angles, and their names here, by the type of scaling.
_SCALING: dict[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "proportional": ("factor",),
    "dynamic": ("factor", "alpha"),
    "xdrope": ("factor", "alpha"),
    "ntk": ("factor", "mixed_b"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "beta_fast", "beta_slow", "truncate"),
    "longrope": ("short_factor", "long_factor"),
}
_ORIGINAL = "original_max_position_embeddings"


def rotation_of(layer: Layer, rope: Rope, rotated: int, head_dim: int) -> Rotation | None:
    """The rotation of a layer with these parameters; None if no channel rotates."""
    if not rotated:
        return None
    layer.keys.seen.used.update(rope.parameters.get("read", ()))
    base, origin = _base(layer, rope)
    given, said = _parameters(layer, rope)
    keys = [origin, *said]
    share = rope.parameters.get("partial_rotary_factor")
    if rope.kind == "proportional":
        given["share"] = share if _is_number(share) else 1.0
    if (turned := _odd(layer, rotated, head_dim)) is not None:
        given["exponents"] = turned
    unread = ""
    if layer.keys.architecture and layer.keys.get("tensors of frequencies"):
        unread = f"they are in {', '.join(layer.keys.get('tensors of frequencies'))}, a tensor of the file"
    if rotated < head_dim:
        keys.append(_share(layer, rope, f"{rotated} of {head_dim} channels turn"))
    ordered = tuple(sorted((name, _hashable(value)) for name, value in given.items()))
    return Rotation(rope.kind, base, rotated, head_dim, ordered, unread, tuple(keys))


def _odd(layer: Layer, rotated: int, head_dim: int) -> int | None:
    """An odd number of channels by partial_rotary_factor, one less than turn; None for an even one."""
    if not layer.keys.code.rotates_partly:
        return None
    turned = int(head_dim * partial_rotary_factor(layer, head_dim))
    return turned if turned % 2 and turned + 1 == rotated else None


def _share(layer: Layer, rope: Rope, turned: str) -> str:
    """The number of rotated channels, with its key if there is one."""
    keys, name = layer.keys, "partial_rotary_factor"
    if rope.parameters.get(name) is not None and not keys.architecture:
        return f"{rope.name}.{name} = {rope.parameters[name]} ({turned})"
    names = [*keys.share_keys, "rotary_dim", "qk_rope_head_dim"]
    if keys.architecture:
        ending = "_swa" if keys.has("rope.dimension_count_swa") and layer.kind in WINDOWS else ""
        names = [f"rope.dimension_count{ending}"]
    found = next((each for each in names if keys.get(each) is not None), None)
    return turned if found is None else f"{keys.origin(found)} ({turned})"


def _parameters(layer: Layer, rope: Rope) -> tuple[dict[str, Any], list[str]]:
    """The parameters that the type of scaling uses, and their text in the config."""
    names = [name for name in _SCALING.get(rope.kind, ()) if rope.parameters.get(name) is not None]
    given = {name: rope.parameters[name] for name in names}
    if rope.kind in ("llama3", "yarn", "longrope") and rope.parameters.get(_ORIGINAL) is not None:
        given["original"] = rope.parameters[_ORIGINAL]
        names.append(_ORIGINAL)
    longest = layer.keys.get("max_position_embeddings")
    if (
        rope.kind == "yarn"
        and "factor" not in given
        and _is_number(longest)
        and _is_number(given.get("original"))
    ):
        given["factor"] = longest / given["original"]
    if rope.kind in ("dynamic", "xdrope") and "alpha" not in given and _is_number(longest):
        given["longest"] = longest
    said = []
    if rope.kind not in ("default", "mrope"):
        listed = (f"{name} = {_short(rope.parameters[name])}" for name in names)
        said.append(f"{rope.name}: " + ", ".join([f"type {rope.kind}", *listed]))
    for name in PAIRING:
        value = rope.parameters.get(name)
        value = layer.keys.get(name) if value is None else value
        if value is not None:
            given[name] = value
            said.append(f"{name} = {_short(value)}")
    return given, said


def _base(layer: Layer, rope: Rope) -> tuple[float | None, str]:
    """Theta and its origin: the parameters of the config, a key beside them, or the model type."""
    keys = layer.keys
    if keys.architecture:
        name = rope.parameters.get("read", ("rope.freq_base",))[-1]
        name = "attention.compress_rope_freq_base" if name == "attention.compress_ratios" else name
        found = rope.parameters.get("rope_theta")
        return _number(found), f"{name} = {found}" if keys.has(name) else f"no {name}: {found}"
    listed = keys.get("layer_rope_theta")
    if isinstance(listed, (list, tuple)) and layer.number < len(listed):
        return _number(listed[layer.number]), f"layer_rope_theta = {listed[layer.number]}"
    inside = rope.parameters.get("rope_theta")
    blocks = [keys.given.get(name) for name in ("rope_scaling", "rope_parameters")]
    if inside is not None and (isinstance(blocks[1], dict) or _mentions_theta(blocks[0])):
        return _number(inside), f"{rope.name}.rope_theta = {inside}"
    for name in _names(layer):
        value = keys.get(name)
        if value is not None and keys.has(name):
            value = value[layer.number] if isinstance(value, list) and layer.number < len(value) else value
            return _number(value), f"{keys.stored(name)} = {value}"
    usual = inside if inside is not None else _usual(layer)
    return _number(usual), f"rope_theta = {usual} (default{f' of {keys.kind}' if keys.known else ''})"


def _mentions_theta(block: Any) -> bool:
    return isinstance(block, dict) and block.get("rope_theta") is not None


def _names(layer: Layer) -> tuple[str, ...]:
    """The keys beside the parameters that may hold the base of a layer."""
    slides = layer.kind in ("sliding_attention", "hybrid_sliding")
    if not layer.keys.known:
        return (*(_OF_WINDOWS if slides else ()), *_OF_ALL)
    if layer.family.rope_key(layer) == "compress":
        return ("compress_rope_theta",)
    if layer.keys.kind.startswith("gpt_neox"):
        return ("rotary_emb_base",)
    if layer.keys.kind in _OWN and not layer.keys.given.get("rope_scaling"):
        return ()
    entries = (layer.keys.defaults.get("rope_parameters") or {}).values()
    bases = {entry.get("rope_theta") for entry in entries if isinstance(entry, dict)}
    if slides and len(bases) == 1:
        return ()  # OLMo 3, where both kinds have one base
    return _BESIDE.get(layer.family.spelling, (("rope_theta",), ("rope_theta",)))[slides]


def _usual(layer: Layer) -> Any:
    """The base of the model type for layers of this kind."""
    usual = layer.keys.defaults.get("rope_parameters") or {}
    if layer.keys.kind in _OWN and layer.keys.given.get("rope_scaling"):
        usual = {}  # these replace the parameters of the class
    entry = usual.get(layer.family.rope_key(layer))
    if entry is None and layer.kind == "full_attention":  # under another name, as dots3's "indexed_attention"
        others = [each for name, each in usual.items() if name not in WINDOWS and isinstance(each, dict)]
        entry = others[0] if len(others) == 1 else None
    found = entry.get("rope_theta") if isinstance(entry, dict) else usual.get("rope_theta")
    return 10000.0 if found is None else found


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) and value > 0 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    return str(value) if isinstance(value, dict) else value


def _short(value: Any) -> str:
    """The value as text; of a long list only its ends."""
    if isinstance(value, (list, tuple)) and len(value) > 4:
        return f"[{value[0]}, {value[1]}, ..., {value[-1]}]"
    return str(value)
