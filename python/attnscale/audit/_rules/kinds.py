# SPDX-License-Identifier: BSD-3-Clause
"""Cells of the family tables: the kind of each layer, if a config does not list them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..._base.checks import shown
from .._keys import ConfigError, Keys, check_size
from .family import Family

#: Kinds of layers that have no softmax over keys.
NO_SOFTMAX = frozenset({"linear_attention", "conv", "recurrent", "mamba", "moe", "mlp", "short_conv", "rwkv"})

#: Names of kinds in older files, with today's names.
_OLDER = {
    "attention": "full_attention",
    "mamba": "linear_attention",
    "deepseek_sparse_attention": "indexed_attention",
    "qwen_sparse_attention": "indexed_attention",
    "recurrent": "linear_attention",
}

Rule = Callable[[Keys, int], list[str]]


def check_list(name: str, value: object) -> list[Any]:
    if not isinstance(value, (list, tuple)) or any(isinstance(each, (dict, list)) for each in value):
        raise ConfigError(f"{name} must be a list of numbers or names, got {shown(value)}")
    return list(value)


def filled_list(keys: Keys, name: str, usual: tuple[Any, ...]) -> list[Any]:
    """A list of the config with at least one entry; `usual` if the config has none."""
    given = keys.get(name)
    found = check_list(name, usual if given is None else given)
    if not found:
        raise ConfigError(f"{name} must have at least one entry, got []")
    return found


def first_dense(keys: Keys) -> int:
    """The number of first dense layers, first_k_dense_replace; null is 0."""
    value = keys.get("first_k_dense_replace")
    return 0 if value is None else check_size("first_k_dense_replace", value, least=0)


def layer_count(keys: Keys) -> int:
    for name in keys.kind_lists:
        given = keys.get(name)
        if not keys.has("num_hidden_layers") and isinstance(given, (list, tuple)) and given:
            return len(given)
    return keys.size("num_hidden_layers")


def pattern_length(keys: Keys) -> int:
    """Nemotron H: the number of layers, one per character of the pattern."""
    pattern = keys.get("hybrid_override_pattern")
    return len(pattern) if isinstance(pattern, str) and pattern else layer_count(keys)


def layer_kinds(keys: Keys, count: int, family: Family) -> list[str]:
    """The kinds that the config lists, else those of the family's rule."""
    for name in keys.kind_lists:
        given = keys.given.get(name)
        if given is None:
            continue
        if not isinstance(given, (list, tuple)) or not all(isinstance(kind, str) for kind in given):
            raise ConfigError(f"{name} must be a list of names, got {shown(given)}")
        given = _without_predicted(keys, name, given, count)
        check_length(name, given, count)
        return family.listed([_OLDER.get(str(kind), str(kind)) for kind in given])
    return family.kinds(keys, count)


def _without_predicted(keys: Keys, name: str, given: Sequence[str], count: int) -> Sequence[str]:
    """The list without the layers that predict further tokens, which files of EXAONE 4.5 list, too."""
    more = keys.get("num_nextn_predict_layers")
    if not isinstance(more, int) or more < 1 or len(given) != count + more:
        return given
    keys.doubt(
        f"{name} has {len(given)} entries for {count} layers: the last {more} are those of "
        f"num_nextn_predict_layers, and transformers refuses such a list"
    )
    return given[:count]


def check_length(name: str, given: Sequence[object], count: int, *, may_be_longer: bool = False) -> None:
    """Refuse a list of the config without one entry per layer."""
    if len(given) < count or (len(given) > count and not may_be_longer):
        raise ConfigError(f"{name} must have one entry for each of {count} layers, got {len(given)}")


def whatever_is_counted(keys: Keys) -> int:
    """The number of layers by the key that there is."""
    for name in ("num_layers", "n_layer", "n_layers", "depth"):
        if keys.get("num_hidden_layers") is None and isinstance(keys.get(name), int):
            return keys.size(name)
    return pattern_length(keys)


def cycles(keys: Keys) -> int:
    """HRM: two stacks of layers, run in turn repeatedly; saved configs count the runs."""
    if keys.get("num_layers_per_stack") is not None:
        return keys.size("num_hidden_layers")
    slow, fast = keys.size("H_cycles", default=2), keys.size("L_cycles", default=3)
    return keys.size("num_hidden_layers") * slow * (fast + 1)


def two_each(keys: Keys) -> int:
    """LongCat Flash: two layers of attention in each of num_layers."""
    return 2 * keys.size("num_layers")


def default_list(keys: Keys, count: int) -> list[str]:
    """The default list of the model type, if it fits the number of layers."""
    given: list[str] = keys.defaults.get("layers_block_type", [])
    if len(given) != count:
        raise ConfigError(f"layers_block_type is missing: {keys.kind} has no rule for {count} layers")
    return given


def zamba(keys: Keys, count: int) -> list[str]:
    """Zamba: three layers, then attention every attn_layer_period layers of the rest."""
    period = keys.size("attn_layer_period", default=6)
    offset = keys.size("attn_layer_offset", default=4, least=0)
    rest = ["hybrid" if i % period == offset else "linear_attention" for i in range(count - 3)]
    return ["linear_attention", "linear_attention", "hybrid", *rest][:count]


def uniform(kind: str) -> Rule:
    return lambda keys, count: [kind] * count


def every(
    period: int, *, key: str = "", last: str = "full_attention", others: str = "sliding_attention"
) -> Rule:
    """`last` in every `period`-th layer, `others` elsewhere; `key` may give the period."""

    def rule(keys: Keys, count: int) -> list[str]:
        value = keys.get(key) if key else None
        step = period if value is None else check_size(key, value)
        return [last if (i + 1) % step == 0 else others for i in range(count)]

    return rule


def full_at_last(kinds: list[str]) -> list[str]:
    return [*kinds[:-1], "full_attention"]


def ending_full(rule: Rule) -> Rule:
    return lambda keys, count: full_at_last(rule(keys, count))


def full_at(where: Callable[[int, int], bool], others: str = "sliding_attention") -> Rule:
    """The rule of full attention where the condition on (layer, number of layers) holds."""
    return lambda keys, count: ["full_attention" if where(i, count) else others for i in range(count)]


def period_and_offset(keys: Keys, count: int) -> list[str]:
    """Jamba: attention where layer % attn_layer_period == attn_layer_offset."""
    period, offset = keys.size("attn_layer_period"), keys.size("attn_layer_offset", least=0)
    return ["full_attention" if i % period == offset else "linear_attention" for i in range(count)]


def listed_indices(key: str, other: str) -> Rule:
    """The rule of attention in the layers of a list; without one, in none (Bamba) or in all (LFM 2)."""

    def rule(keys: Keys, count: int) -> list[str]:
        given = keys.get(key)
        if given is None:
            return ["full_attention" if other == "conv" else other] * count
        chosen = check_list(key, given)
        return ["full_attention" if i in chosen else other for i in range(count)]

    return rule


def hybrid_pattern(keys: Keys, count: int) -> list[str]:
    """Nemotron H: one character per layer."""
    pattern = keys.get("hybrid_override_pattern")
    if pattern is None:
        return default_list(keys, count)
    names = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
    if not isinstance(pattern, str) or set(pattern) - set(names):
        raise ConfigError(f"hybrid_override_pattern must consist of {', '.join(names)}, got {shown(pattern)}")
    return [names[character] for character in pattern]


def block_cycle(keys: Keys, count: int) -> list[str]:
    """Recurrent Gemma: block_types repeated."""
    cycle = filled_list(keys, "block_types", ("recurrent", "recurrent", "attention"))
    kinds = {"recurrent": "linear_attention", "attention": "sliding_attention"}
    return [kinds.get(cycle[i % len(cycle)], cycle[i % len(cycle)]) for i in range(count)]


def dense_then_every(keys: Keys, count: int) -> list[str]:
    """Cohere 2 with experts: the first dense layers have their own pattern."""
    dense = min(count, first_dense(keys))
    start = every(1, key="prefix_dense_sliding_window_pattern")(keys, dense)
    return start + every(4, key="sliding_window_pattern")(keys, count - dense)


def window_or_full(keys: Keys, count: int) -> list[str]:
    """Ministral: sliding in all layers if there is a window."""
    return ["sliding_attention" if keys.get("sliding_window") is not None else "full_attention"] * count


def exaone(keys: Keys, count: int) -> list[str]:
    """Exaone 4: a pattern, and full attention in all layers without a window."""
    if keys.get("sliding_window") is None:
        return ["full_attention"] * count
    return every(4, key="sliding_window_pattern")(keys, count)


def local_ids(keys: Keys, count: int) -> list[str]:
    """Inkling: a list of sliding layers; without one every sixth layer is full."""
    given = keys.get("local_layer_ids")
    if given is None:
        return every(6, last="hybrid", others="hybrid_sliding")(keys, count)
    sliding = check_list("local_layer_ids", given)
    return ["hybrid_sliding" if i in sliding else "hybrid" for i in range(count)]


def compressed(keys: Keys, count: int) -> list[str]:
    """DeepSeek V4: by compress_ratios, else two heavily compressed layers and then alternating ones."""
    ratios = keys.get("compress_ratios")
    names = {0: "sliding_attention", 4: "compressed_sparse_attention", 128: "heavily_compressed_attention"}
    if ratios is None:
        return [names[4] if i > 1 and i % 2 else names[128] for i in range(count)]
    chosen = check_list("compress_ratios", ratios)[:count]
    for ratio in chosen:
        if not isinstance(ratio, int) or ratio not in names:
            known = ", ".join(map(str, names))
            raise ConfigError(f"compress_ratios must consist of {known}, got {shown(ratio)}")
    return [names[ratio] for ratio in chosen]


def kimi(keys: Keys, count: int) -> list[str]:
    """Kimi Linear: layers listed in linear_attn_config, counted from 1."""
    lists = keys.table("linear_attn_config")
    full: Any = range(4, count, 4)
    if "full_attn_layers" in lists:
        listed = check_list("linear_attn_config.full_attn_layers", lists["full_attn_layers"])
        full = {number - 1 for number in listed}
    return ["full_attention" if i in full else "linear_attention" for i in range(count)]


def linear_but_fourth(keys: Keys, count: int) -> list[str]:
    """OLMo hybrid: full attention in every fourth layer, or in the last if there are fewer."""
    kinds = every(4, others="linear_attention")(keys, count)
    return kinds if "full_attention" in kinds else full_at_last(kinds)


def modernbert(keys: Keys, count: int) -> list[str]:
    """ModernBERT: full attention in the layers 0, 3, 6, ..."""
    step = check_size("global_attn_every_n_layers", keys.get("global_attn_every_n_layers", 3) or 3)
    return ["sliding_attention" if i % step else "full_attention" for i in range(count)]


def lara_mini(keys: Keys, count: int) -> list[str]:
    """Lara Mini: linear, sliding and full attention in a pattern of five layers."""
    pattern = ("linear", "sliding", "linear", "full", "sliding")
    return [f"{pattern[i % 5]}_attention" for i in range(count)]


def without_mlp(kinds: list[str]) -> list[str]:
    """Dory: files list each layer as two blocks, attention and "mlp"."""
    return kinds[::2] if "mlp" in kinds else kinds


def lfm3(keys: Keys, count: int) -> list[str]:
    """LFM 3: convolutions, and sliding and full attention in turn."""
    kinds = {0: "sliding_attention", 2: "full_attention"}
    return ["conv" if i == 0 else kinds.get(i % 4, "conv") for i in range(count)]


def beyond_max_window(keys: Keys, count: int) -> list[str]:
    """Qwen 2 and 3: a window from layer max_window_layers on, if windows are switched on."""
    slides = keys.flag("use_sliding_window", default=True) and keys.get("sliding_window") is not None
    first = keys.size("max_window_layers", least=0) if slides else count
    return ["sliding_attention" if i >= first else "full_attention" for i in range(count)]


def below_max_window(keys: Keys, count: int) -> list[str]:
    """Qwen 2 with experts: a window in every other layer below max_window_layers."""
    first_full = keys.size("max_window_layers", least=0) if keys.flag("use_sliding_window") else 0
    return ["full_attention" if i % 2 or i >= first_full else "sliding_attention" for i in range(count)]


def smollm3(keys: Keys, count: int) -> list[str]:
    """SmolLM 3: a window in layers without rotary positions, if windows are switched on."""
    slides = keys.flag("use_sliding_window") and keys.get("sliding_window") is not None
    rotated = (rotates_at(keys, i, count) for i in range(count))
    return ["full_attention" if rotates or not slides else "sliding_attention" for rotates in rotated]


def llama4(keys: Keys, count: int) -> list[str]:
    """Llama 4: chunks in layers with rotary positions."""
    rotated = [rotates_at(keys, i, count) for i in range(count)]
    return ["chunked_attention" if rotates else "full_attention" for rotates in rotated]


def rotates_at(keys: Keys, number: int, count: int) -> bool:
    """Whether a layer has rotary positions, by no_rope_layers: 1 means yes, in spite of the name."""
    given = keys.get("no_rope_layers")
    if given:
        return bool(entry("no_rope_layers", given, number, count))
    return bool((number + 1) % keys.size("no_rope_layer_interval", default=4))


def entry(name: str, given: Any, number: int, count: int) -> Any:
    """The entry of one layer in a list of the config."""
    if not isinstance(given, (list, tuple)):
        raise ConfigError(f"{name} must be a list, got {shown(given)}")
    check_length(name, given, count, may_be_longer=True)
    return given[number]


def ultrabert(keys: Keys, count: int) -> list[str]:
    """UltraBERT: every third layer is full; older files list the windows, 0 for none."""
    listed = keys.get("attention_windows")
    if listed is None:
        return every(3)(keys, count)
    windows = check_list("attention_windows", listed)
    check_length("attention_windows", windows, count)
    return ["sliding_attention" if window else "full_attention" for window in windows]


def gpt_neo(keys: Keys, count: int) -> list[str]:
    """GPT-Neo: attention_types lists [kinds, repeats] in turn."""
    names = {"global": "full_attention", "local": "sliding_attention"}
    given = keys.get("attention_types")
    blocks: Any = [[["global", "local"], count // 2]] if given is None else given
    kinds: list[str] = []
    for listed, times in blocks:
        kinds += [names[kind] for kind in listed] * check_size("attention_types", times, most=count)
    if len(kinds) != count:
        raise ConfigError(f"attention_types must describe {count} layers, got {len(kinds)}")
    return kinds


def convolutions_outside(keys: Keys, count: int) -> list[str]:
    """The text encoder of MobileCLIP: convolutions in the first and the last layer."""
    kinds = ["full_attention"] * count
    if keys.flag("use_repmixer_blocks", default=True):
        kinds[0] = kinds[-1] = "conv"
    return kinds


def stages(name: str, usual: tuple[int, ...]) -> Callable[[Keys], int]:
    """The number of layers by a list with the layers of each stage (Swin, CvT)."""
    return lambda keys: sum(check_size(name, depth) for depth in filled_list(keys, name, usual))


def added(**usual: int) -> Callable[[Keys], int]:
    """The number of layers as a sum of several keys, with their defaults (LXMERT)."""
    return lambda keys: sum(keys.size(name, default=number) for name, number in usual.items())


def flux(keys: Keys) -> int:
    """Flux and Flux 2: layers with two streams, and layers with one; defaults are the class's."""
    two, one = (8, 48) if keys.kind.startswith("Flux2") else (19, 38)
    return added(num_layers=two, num_single_layers=one)(keys)


def funnel_layers(keys: Keys) -> int:
    """Funnel: repeated blocks of layers, then a decoder."""
    sizes = filled_list(keys, "block_sizes", (4, 4, 4))
    repeats = filled_list(keys, "block_repeats", (1,) * len(sizes))
    if len(sizes) != len(repeats):
        raise ConfigError(
            f"block_repeats must have one entry for each of {len(sizes)} block_sizes, got {len(repeats)}"
        )
    pairs = zip(sizes, repeats, strict=True)
    blocks = sum(check_size("block_sizes", a) * check_size("block_repeats", b) for a, b in pairs)
    return blocks + keys.size("num_decoder_layers", default=2, least=0)
