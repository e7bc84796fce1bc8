# SPDX-License-Identifier: BSD-3-Clause
"""The scale by the metadata of a GGUF file, as llama.cpp computes it, by the names of its architectures.

Every row was read in the source of llama.cpp, in the version that llama-cpp-python 0.3.36 carries: the keys
in llama-arch.cpp and llama-model.cpp (load_hparams), the factor of rotary positions in llama-context.cpp, the
score in llama-graph.cpp, and special rules of an architecture in its file of src/models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..._base.checks import shown
from ..._base.text import counted
from ...laws import (
    Constant,
    Llama4Temperature,
    MinistralTemperature,
    MLAYaRN,
    MuP,
    Standard,
    Unscaled,
)
from .._keys import ConfigError, Keys, check_size
from .._layer import Term
from .._unknown import SUSPICIOUS
from .family import ALL_KEYS, Family, Layer, Rope, Window
from .heads import norm_by_type
from .kinds import check_length
from .llama_cpp_rope import (
    WINDOWS,
    YARN_KEYS,
    RopeFactor,
    factors_of,
    is_yarn,
    rope_factor,
    rope_parameters,
    row_of,
    said,
    term,
)
from .llama_cpp_table import OTHER_KEYS, SCORE_KEYS, WITHOUT_EFFECT, Architecture, Sliding


def family_of(keys: Keys) -> Family:
    """The rules of a file's architecture, or of a plain one if it is not on record."""
    return Family(
        types=(),
        head_dim=head_dim,
        rotated=_rotated,
        rotates=_rotates,
        base=_base,
        extra=(_latent_scale, _latent_own, _positions_temperature),
        nope_extra=(_llama4_temperature,),
        rope_extra=(),
        own_rope=rope_factor,
        softcap=("attn_logit_softcapping",) if row_of(keys).softcap is not None else (),
        window=_window,
        sink=lambda layer: row_of(layer.keys).sink == "all" or _slides(layer, row_of(layer.keys).sink),
        qk_norm=_norm,
        count=_count,
        kinds=_kinds,
        listed=lambda kinds: kinds,
        rope_key=_rope_key,
        spelling="of GGUF",
        refusal=lambda layer: None,
        notes=_notes(keys),
    )


def _slides(layer: Layer, what: str) -> bool:
    return what == "sliding" and layer.kind in WINDOWS


# ---- layers and heads ----------------------------------------------------------------------------


def _count(keys: Keys) -> int:
    """Number of layers without those that predict further tokens; repeated layers count each time."""
    if keys.architecture == "t5" and keys.get("decoder_block_count") is not None:
        return keys.size("decoder_block_count")
    count = keys.size("block_count")
    if keys.get("nextn_predict_layers"):
        count -= keys.size("nextn_predict_layers")
    loops = keys.size("num_loops") if keys.architecture == "nanbeige" and keys.get("num_loops") else 1
    return count * loops


def _by_layer(keys: Keys, name: str, number: int, total: int) -> Any:
    """The entry of a layer if a key has one per layer, else the value."""
    given = keys.get(name)
    if not isinstance(given, list):
        return given
    if len(given) < total and not (len(given) and total % len(given) == 0):
        check_length(name, given, total)
    return given[number % len(given)]


def _kinds(keys: Keys, count: int) -> list[str]:
    row = row_of(keys)
    if row.recurrent == "all":
        return ["linear_attention"] * count
    sliding = _sliding_layers(keys, count)
    chunked = row.sliding is not None and row.sliding.shape == "chunks"
    window = "chunked_attention" if chunked else "sliding_attention"
    kinds = []
    for number in range(count):
        heads = [
            _by_layer(keys, f"attention.{name}", number, count) for name in ("head_count", "head_count_kv")
        ]
        if 0 in heads or _is_recurrent(keys, number, count):
            kinds.append("conv" if keys.architecture.startswith("lfm2") else "linear_attention")
        else:
            kinds.append(window if sliding[number] else "full_attention")
    return kinds


def _is_recurrent(keys: Keys, number: int, count: int) -> bool:
    """Whether a layer has linear attention, by a list or by an interval of the layers that have none."""
    interval = row_of(keys).recurrent
    if not isinstance(interval, int) or not interval:
        return False
    if keys.get("attention.recurrent_layers") is not None:
        return bool(_by_layer(keys, "attention.recurrent_layers", number, count))
    return (number + 1) % keys.size("full_attention_interval", default=interval) != 0


def _sliding_layers(keys: Keys, count: int) -> list[bool]:
    """Whether each layer has a window: by a list, or by a period with one layer without."""
    rule = row_of(keys).sliding
    if rule is None or _window_size(keys, rule, count) is None:
        return [False] * count
    if rule.period == 0:
        return [True] * count
    name = "attention.sliding_window_pattern"
    given = keys.get(name)
    if isinstance(given, list):
        check_length(name, given, count, may_be_longer=True)
        return [bool(each) for each in given[:count]]
    if given is None and rule.period is None:
        raise ConfigError(f"{name} is missing: it must have one entry for each layer")
    period = rule.period if given is None else check_size(name, given, least=0)
    full = 0 if rule.full_first else (period or 1) - 1
    return [not period or number % period != full for number in range(count)]


def _window_size(keys: Keys, rule: Sliding, count: int) -> int | None:
    """sliding_window as llama.cpp reads it; None if no layer has a window."""
    if rule.only_with_layers is not None and rule.only_with_layers != count:
        return None
    given = keys.get("attention.sliding_window")
    if given is None:
        return rule.usual
    size = check_size("attention.sliding_window", given, least=0)
    return (rule.fixed or size) if size else None


def _window(layer: Layer) -> Window:
    rule = row_of(layer.keys).sliding
    if rule is None or layer.kind not in WINDOWS:
        return ALL_KEYS
    size = _window_size(layer.keys, rule, layer.total)
    if size is None:
        return ALL_KEYS
    given = layer.keys.get("attention.sliding_window")
    origin = f"attention.sliding_window = {given}" if given is not None else "no key"
    if given != size:
        origin += f": {size} in the code of {layer.keys.architecture}"
    if rule.shape == "both sides":
        return Window(2 * (size // 2) + 1, f"{origin}, half of it on each side")
    shapes = {"chunks": ", chunks of the text", "compressed": ", and behind them keys that stand for several"}
    return Window(size, origin + shapes.get(rule.shape, ""))


def head_dim(layer: Layer) -> int:
    """Channels of a head: key_length, key_length_swa in sliding layers, key_length_mla in latent heads."""
    keys, row, ending = layer.keys, row_of(layer.keys), "_swa" if layer.kind in WINDOWS else ""
    if keys.architecture == "gpt-oss" or keys.architecture == "bailingmoe":
        return _rotated(layer, _key_length(layer, ""))  # 1 / sqrt of the rotated channels, which are all
    if row.latent:
        name = f"attention.key_length_mla{ending if keys.architecture == 'dots3note' else ''}"
        if keys.get(name):
            return keys.size(name)
    if keys.architecture == "plamo2":
        keys.get("attention.key_length")
        return keys.size("attention.value_length", default=_key_length(layer, ""))
    return _key_length(layer, ending)


def _key_length(layer: Layer, ending: str) -> int:
    keys = layer.keys
    for name in dict.fromkeys((f"attention.key_length{ending}", "attention.key_length")):
        if keys.get(name) is not None:
            return keys.size(name)
    heads = keys.get("attention.head_count")
    first = heads[0] if isinstance(heads, list) and heads else heads
    if first == 0:
        raise ConfigError(
            "attention.key_length is missing: the first layer, whose head_count gives the size, has no heads"
        )
    width, many = keys.size("embedding_length"), check_size("attention.head_count", first)
    keys.seen.sizes["attention.head_count"] = many
    if width < many:
        raise ConfigError(f"embedding_length must be at least attention.head_count, got {width} and {many}")
    return width // many


def _norm(layer: Layer) -> Any:
    if layer.keys.architecture == "llama4":
        normed = _rotates(layer) and layer.keys.get("expert_count") != 128
        return "after rotation" if normed else "none"
    return norm_by_type(layer)


# ---- rotary positions ----------------------------------------------------------------------------


def _rotated(layer: Layer, size: int) -> int:
    keys = layer.keys
    if layer.kind in WINDOWS and keys.get("rope.dimension_count_swa") is not None:
        return min(size, keys.size("rope.dimension_count_swa", least=0))
    if keys.get("rope.dimension_count") is None:
        return size
    count = keys.size("rope.dimension_count", least=0)
    halved = keys.architecture == "step35" and layer.kind not in WINDOWS
    return min(size, count // 2 if halved else count)


def _rope_key(layer: Layer) -> str:
    if layer.keys.architecture == "deepseek4":
        ratio = _by_layer(layer.keys, "attention.compress_ratios", layer.number, layer.total)
        return "compressed" if ratio else "sliding"
    return "sliding" if layer.kind in WINDOWS else "full"


def _rotates(layer: Layer) -> bool:
    keys, number, total = layer.keys, layer.number, layer.total
    rule = row_of(keys).rotates
    if isinstance(rule, int):  # every so many layers has none; without a window llama4 counts all layers
        windows = any(_sliding_layers(keys, total))
        step = rule if windows or keys.architecture != "llama4" else total
        return (number + 1) % step != 0
    rules: dict[str, Callable[[], bool]] = {
        "all": lambda: True,
        "none": lambda: False,
        "sliding": lambda: layer.kind in WINDOWS,
        "sliding or no window": lambda: layer.kind in WINDOWS or not any(_sliding_layers(keys, total)),
        "sliding or dense": lambda: (
            layer.kind in WINDOWS or number < keys.size("leading_dense_block_count", default=0, least=0)
        ),
        "unless finetuned is false": lambda: keys.flag("rope.scaling.finetuned", default=True),
        "by pattern": lambda: bool(
            _by_layer(keys, "attention.rope_pattern", number, total) in (None, 1, True)
        ),
        "but the first of four": lambda: not any(_sliding_layers(keys, total)) or number % 4 != 0,
        "unless 40 layers": lambda: total != 40,
    }
    return rules[rule]()


# ---- the scale -----------------------------------------------------------------------------------


def _base(layer: Layer, size: int) -> Term:
    rule = row_of(layer.keys).base
    return _BASES[rule](layer, size)


def _standard(layer: Layer, size: int) -> Term:
    return term(layer, Standard(), layer.head_size)


def _unscaled(layer: Layer, size: int) -> Term:
    return term(layer, Unscaled(), f"{layer.keys.architecture} has no scale")


def _stated(layer: Layer, size: int) -> Term:
    """Granite: attention.scale; 0 or no key means 1/sqrt(head_dim)."""
    scale = layer.keys.number("attention.scale", default=0.0)
    if not scale:
        return _standard(layer, size)
    return term(layer, Constant(scale), said(layer.keys, "attention.scale"))


def _grok(layer: Layer, size: int) -> Term:
    scale = layer.keys.number("attention.output_scale", default=128**-0.5)
    origin = said(layer.keys, "attention.output_scale") or "no key: 1/sqrt(128) in the code of grok"
    return term(layer, Constant(scale), origin)


def _gemma(layers_of_27b: int) -> Callable[[Layer, int], Term]:
    """Gemma 2 and 3: the largest size, known by its number of layers, has its own scale."""

    def base(layer: Layer, size: int) -> Term:
        keys = layer.keys
        if layer.total != layers_of_27b:
            return _standard(layer, size)
        heads = _by_layer(keys, "attention.head_count", 0, layer.total)
        width, many = keys.size("embedding_length"), check_size("attention.head_count", heads)
        origin = (
            f"embedding_length / attention.head_count = {width} / {many}, as the code does with "
            f"block_count = {layer.total}"
        )
        return term(layer, Constant((width // many) ** -0.5), origin)

    return base


#: Number of layers of the largest Gemma 2 and 3.
_DEPTHS = {"gemma2": 46, "gemma3": 62}

_BASES: Mapping[str, Callable[[Layer, int], Term]] = {
    "standard": _standard,
    "unscaled": _unscaled,
    "stated": _stated,
    "over head_dim": lambda layer, size: term(layer, MuP(), layer.head_size),
    "grok": _grok,
    **{name: _gemma(layers) for name, layers in _DEPTHS.items()},
}


def _latent_scale(layer: Layer, size: int) -> Term | None:
    """The squared weight of YaRN's logarithm on all channels of latent heads."""
    if not row_of(layer.keys).scales_latent:
        return None
    rope = _rope(layer)
    found = factors_of(layer, rope)
    if not found.growth or not found.weight or rope is None:
        return None
    factor = rope.number("factor") or 1.0
    return term(layer, MLAYaRN(factor, found.weight), said(layer.keys, *YARN_KEYS))


def _latent_own(layer: Layer, size: int) -> Term | None:
    """The factor of cos and sin that latent heads also have on all channels."""
    if not row_of(layer.keys).scales_latent:
        return None
    rope = _rope(layer)
    found = factors_of(layer, rope)
    yarn = rope is not None and is_yarn(layer.keys, rope)
    factor = found.own * found.stated * (1.0 if yarn else 0.1 * found.growth + 1)
    return None if factor == 1 else term(layer, RopeFactor(factor), said(layer.keys, *YARN_KEYS))


def _rope(layer: Layer) -> Rope | None:
    found = rope_parameters(layer.keys)[layer.family.rope_key(layer)]
    return Rope(found["rope_type"], found, "rope.scaling")


def _positions_temperature(layer: Layer, size: int) -> Term | None:
    """Mistral 3 and 4, and DeepSeek 2: a temperature by the position on every layer."""
    keys, row = layer.keys, row_of(layer.keys)
    beta = keys.number("attention.temperature_scale", default=0.0) if row.temperature else 0.0
    if not beta:
        return None
    name = row.temperature
    if name.startswith("rope.") and keys.get(name) is None:
        name = "context_length"
    law = MinistralTemperature(beta, keys.number(name, above=0))
    return term(layer, law, said(keys, "attention.temperature_scale", name))


def _llama4_temperature(layer: Layer, size: int) -> Term | None:
    windows = any(_sliding_layers(layer.keys, layer.total))
    if layer.keys.architecture != "llama4" or not windows:
        return None
    return term(layer, Llama4Temperature(0.1, 8192), "no key: constants of the code of llama4")


# ---- further facts --------------------------------------------------------------------------------


def softcap_of(keys: Keys) -> tuple[float | None, str]:
    """The soft-cap of an architecture that has one, and its key; without a key the code's own."""
    usual = row_of(keys).softcap
    if usual is None:
        return None, ""
    name = "attn_logit_softcapping"
    if keys.get(name) is None:
        return usual, f"no key: {usual} in the code of {keys.architecture}"
    return keys.number(name, above=0), keys.origin(name)


def _notes(keys: Keys) -> tuple[str, ...]:
    """Remarks on the mask and on terms added to the score."""
    row, notes = row_of(keys), []
    causal = keys.flag("attention.causal", default=row.causal)
    if not causal:
        origin = (
            "attention.causal = False"
            if "attention.causal" in keys.given
            else f"{keys.architecture} is not causal"
        )
        notes.append(f"{origin}: a query sees the keys behind it, too")
    if row.alibi == "by key":
        slope = keys.number("attention.max_alibi_bias", default=0.0)
    else:
        slope = (
            8.0 if row.alibi == "8" or (row.alibi == "40 layers" and keys.get("block_count") == 40) else 0.0
        )
    if slope > 0:
        origin = said(keys, "attention.max_alibi_bias") if row.alibi == "by key" else "no key: 8 in the code"
        notes.append(
            f"a bias that grows with the distance is added to the score (ALiBi; max_alibi_bias: {origin})"
        )
    return (*notes, *row.notes, *_not_in_files(keys, row))


def _not_in_files(keys: Keys, row: Architecture) -> Iterator[str]:
    """Remarks on keys of a config that a file of the architecture cannot hold."""
    if row.base in _DEPTHS:
        depth = _DEPTHS[row.base]
        yield (
            "query_pre_attn_scalar is not in the file: llama.cpp takes embedding_length / "
            f"attention.head_count at {depth} layers and attention.key_length at any other number"
        )
    if row.rotates != "none" and rope_parameters(keys)["full"]["rope_type"] == "yarn":
        lost = "attention_factor" if row.weighs else "attention_factor, mscale or mscale_all_dim"
        yield f"YaRN: {lost} of the config is not in the file: llama.cpp computes the factor"


def warnings_of(keys: Keys) -> list[str]:
    """Keys of the file that seem to act on the score but do not, and unknown keys."""
    found = []
    for name, given in unread_of(keys).items():
        value = shown(given)
        if name not in SCORE_KEYS:
            found.append(f"{name} = {value} is not understood: it could change the scale of attention")
            continue
        why = f"llama.cpp does not use it for {keys.architecture}"
        if not keys.known:
            why = f"what architecture {keys.architecture!r} makes of it is not on record"
        why = WITHOUT_EFFECT.get((keys.architecture, name), why)
        found.append(f"{name} = {value} has no effect on the plan: {why}")
    return found


def remarks_of(keys: Keys) -> list[str]:
    """Other unused keys: those of the architecture by name, the rest counted."""
    unused = [name for name in keys.given if name not in keys.seen.used]
    elsewhere = [name for name in unused if _is_elsewhere(name)]
    doubtful = unread_of(keys)
    own = [name for name in unused if name not in elsewhere and name not in doubtful]
    parts = [", ".join(own)] if own else []
    if elsewhere:
        blocks = dict.fromkeys(name.partition(".")[0] for name in elsewhere)
        parts.append(f"{counted(len(elsewhere), 'key')} of {' and '.join(blocks)}")
    return [f"keys not used: {'; '.join(parts)}"] if parts else []


def unread_of(keys: Keys) -> dict[str, Any]:
    """Unused keys that could act on the score, with their values."""
    found = {}
    for name, value in keys.given.items():
        acts = name in SCORE_KEYS or (name not in OTHER_KEYS and SUSPICIOUS.search(name))
        unused = name not in keys.seen.used and not _is_elsewhere(name)
        if acts and unused and not _says_nothing(keys, name, value):
            found[name] = value
    return found


def _is_elsewhere(name: str) -> bool:
    return name.partition(".")[0] in ("general", "tokenizer", "quantize", "split", "adapter")


def _says_nothing(keys: Keys, name: str, value: Any) -> bool:
    if name == "attention.scale" and row_of(keys).base == "unscaled":
        return bool(value == 1)
    return value is None or value is False or value == [] or value == SCORE_KEYS.get(name)
