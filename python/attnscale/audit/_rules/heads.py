# SPDX-License-Identifier: BSD-3-Clause
"""Cells of the family tables: channels of q and k, rotated channels, and layers with rotary positions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from .._keys import ConfigError, check_size
from .family import Layer, QKNorm
from .kinds import check_list, entry, first_dense, rotates_at

# ---- channels of q and k -------------------------------------------------------------------------


def quotient(layer: Layer) -> int:
    """hidden_size // num_attention_heads, also if head_dim is given."""
    keys = layer.keys
    sizes = []
    for name in ("hidden_size", "num_attention_heads"):
        if not (keys.has(name) or keys.part or keys.of_half_alone(name)):
            other = ", or head_dim" if keys.code.reads_head_dim else ""
            raise ConfigError(
                f"{keys.stored(name)} is missing: the head size is hidden_size / num_attention_heads{other}"
            )
        sizes.append(keys.size(name))
    return _share(layer, "hidden_size", sizes[0], "num_attention_heads", sizes[1])


def _share(layer: Layer, width: str, wide: int, heads: str, many: int) -> int:
    """`wide` // `many`; a remainder is refused or doubted, as in the code of the model type."""
    keys = layer.keys
    if wide < many:
        raise ConfigError(f"{width} must be at least {heads}, got {wide} and {many}")
    if wide % many:
        if keys.code.heads_divide:
            raise ConfigError(
                f"{width} must be a multiple of {heads} in the code of {keys.kind}, got {wide} and {many}"
            )
        keys.doubt(
            f"{width} = {wide} is not a multiple of {heads} = {many}: the head size is rounded down to "
            f"{wide // many}"
        )
    return wide // many


def key_or_quotient(layer: Layer) -> int:
    """The key head_dim, or width over heads if it is null or has no default."""
    keys = layer.keys
    stated = keys.code.reads_head_dim and keys.get("head_dim") is not None
    return keys.size("head_dim") if stated else quotient(layer)


def d_kv(layer: Layer) -> int:
    """T5: d_kv, since the heads need not add up to the width of the model."""
    keys = layer.keys
    return keys.size("head_dim" if "head_dim" in keys.given and "d_kv" not in keys.given else "d_kv")


def stated(name: str, usual: int | None = None) -> Callable[[Layer], int]:
    """The size by a key of the config, not by the width: kv_channels of JetMoE, d_head of Funnel."""
    return lambda layer: layer.keys.size(name, default=usual)


def divided(**usual: int | None) -> Callable[[Layer], int]:
    """The rule that divides a width of the config by a number of heads, with these names and defaults."""
    (width, wide), (heads, many) = usual.items()

    def head_dim(layer: Layer) -> int:
        keys = layer.keys
        sizes = keys.size(width, default=wide), keys.size(heads, default=many)
        return _share(layer, width, sizes[0], heads, sizes[1])

    return head_dim


def stated_or_quotient(name: str) -> Callable[[Layer], int]:
    """The size by a key of the config, or else the quotient of its parts under any of their names."""

    def head_dim(layer: Layer) -> int:
        return layer.keys.size(name) if layer.keys.get(name) is not None else whatever_is_given(layer)

    return head_dim


def bottleneck(layer: Layer) -> int:
    """MobileBERT: width of the bottleneck over heads, as layers are narrower than the model."""
    keys = layer.keys
    width = "intra_bottleneck_size" if keys.flag("use_bottleneck", default=True) else "hidden_size"
    heads = "num_attention_heads"
    return _share(layer, width, keys.size(width), heads, keys.size(heads))


def beside_convolution(layer: Layer) -> int:
    """ConvBERT: half of each head is a convolution; head_ratio makes heads fewer and wider."""
    keys = layer.keys
    heads = max(1, keys.size("num_attention_heads") // keys.size("head_ratio", default=2))
    return _share(layer, "hidden_size", keys.size("hidden_size"), "the number of heads", heads) // 2


def of_stage(layer: Layer) -> int:
    """CvT: a width and a number of heads for each stage."""
    heads = check_size("num_heads", layer.keys.get("num_heads", [1, 3, 6])[stage_of(layer)])
    return _share(layer, "embed_dim", stage_width(layer), "num_heads", heads)


def stage_width(layer: Layer) -> int:
    return check_size("embed_dim", layer.keys.get("embed_dim", [64, 192, 384])[stage_of(layer)])


def stage_of(layer: Layer) -> int:
    """The stage of a layer, by the number of layers of each."""
    ends = accumulate(check_size("depth", depth) for depth in layer.keys.get("depth", [1, 2, 10]))
    return next(stage for stage, end in enumerate(ends) if layer.number < end)


def half(layer: Layer) -> int:
    """Zamba: twice the width over heads, as the input is two vectors side by side."""
    keys = layer.keys
    for name in ("attention_head_dim", "head_dim"):
        if keys.given.get(name) is not None:
            return keys.size(name)
    heads = "num_attention_heads"
    return _share(layer, "2 * hidden_size", 2 * keys.size("hidden_size"), heads, keys.size(heads))


def latent(layer: Layer) -> int:
    """Multi-head latent attention: channels with and without positions side by side."""
    return layer.keys.size("qk_nope_head_dim") + layer.keys.size("qk_rope_head_dim", least=0)


def global_head_dim(layer: Layer) -> int:
    """Gemma 4: layers of full attention have wider heads."""
    if layer.kind == "full_attention" and not layer.keys.has("per_layer_config"):
        return layer.keys.size("global_head_dim", default=512)
    return key_or_quotient(layer)


def swa_head_dim(layer: Layer) -> int:
    """Inkling: sliding layers have their own key."""
    return layer.keys.size("swa_head_dim" if layer.kind == "hybrid_sliding" else "head_dim")


def sliding_latent(layer: Layer) -> int:
    """Dots 3: sliding layers have other latent heads."""
    return sliding_key(layer, "qk_nope_head_dim", 192) + sliding_latent_rotated(layer, 0)


def sliding_latent_rotated(layer: Layer, head_dim: int) -> int:
    """Dots 3: the rotated channels of the latent heads of sliding layers."""
    if layer.kind != "sliding_attention" or layer.keys.has("per_layer_config"):
        return layer.keys.size("qk_rope_head_dim")
    nope = sliding_key(layer, "qk_nope_head_dim", 192)
    return sliding_key(layer, "qk_rope_head_dim", sliding_key(layer, "head_dim", 256) - nope)


def sliding_key(layer: Layer, name: str, default: int) -> int:
    """A size that sliding layers of Dots 3 have under their own name."""
    keys = layer.keys
    if layer.kind != "sliding_attention" or keys.has("per_layer_config"):
        return keys.size(name)
    return keys.size(f"swa_{name}", default=default)


# ---- rotated channels ------------------------------------------------------------------------------


def latent_rotated(layer: Layer, head_dim: int) -> int:
    """The rotated channels of multi-head latent attention, qk_rope_head_dim."""
    return layer.keys.size("qk_rope_head_dim", least=0)


def rotary_dim(layer: Layer, head_dim: int) -> int:
    """GPT-J and CodeGen: the number of rotated channels is in the config; null is all channels."""
    value = layer.keys.get("rotary_dim", 64)
    return head_dim if value is None else min(head_dim, check_size("rotary_dim", value))


# ---- layers with rotary positions ------------------------------------------------------------------


def has_rope(layer: Layer) -> bool:
    """Every layer, if the model type has rotary positions."""
    keys = layer.keys
    if keys.known:
        return "rope_parameters" in keys.defaults
    return any(keys.get(name) is not None for name in _ROTARY_KEYS)


_ROTARY_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "rotary_dim", "rotary_pct")


def always(layer: Layer) -> bool:
    return True


def never(layer: Layer) -> bool:
    return False


def sliding_only(layer: Layer) -> bool:
    """Rotary positions in layers with a sliding window; full attention has none (NoPE)."""
    return layer.kind == "sliding_attention"


def sliding_or_no_window(layer: Layer) -> bool:
    """Exaone 4: rotary positions in layers with a sliding window; in all if the model has no window."""
    return layer.keys.get("sliding_window") is None or sliding_only(layer)


def by_layer_list(layer: Layer) -> bool:
    """Rotary positions by the list no_rope_layers, or by its rule without a list."""
    return rotates_at(layer.keys, layer.number, layer.total)


def by_theta_list(layer: Layer) -> bool:
    """Rotary positions by layer_rope_theta, where 0 means none; in all layers without a list."""
    given = layer.keys.get("layer_rope_theta")
    return bool(entry("layer_rope_theta", given, layer.number, layer.total)) if given is not None else True


def by_theta_list_or_fourth(layer: Layer) -> bool:
    """Muse: like by_theta_list; without a list, every fourth layer counted from the last has none."""
    if layer.keys.get("layer_rope_theta") is not None:
        return by_theta_list(layer)
    return (layer.total - 1 - layer.number) % 4 != 0


def scaled_if_listed(name: str) -> Callable[[Layer], str]:
    """The entry "scaled" in the layers of a list (without one, in all), else "unscaled"."""

    def entry(layer: Layer) -> str:
        listed = layer.keys.get(name)
        return "scaled" if listed is None or layer.number in check_list(name, listed) else "unscaled"

    return entry


def if_flag(name: str) -> Callable[[Layer], bool]:
    """The rule that holds where a key of the config is true."""
    return lambda layer: layer.keys.flag(name)


def unless_flag(name: str) -> Callable[[Layer], bool]:
    """The rule that holds where a key of the config is not true."""
    return lambda layer: not layer.keys.flag(name)


def if_set(name: str, value: str, usual: str | None = None) -> Callable[[Layer], bool]:
    """The rule that holds where a key of the config, or else the usual value, is this value."""
    return lambda layer: bool(layer.keys.get(name, usual) == value)


def sliding_or_forced(layer: Layer) -> bool:
    """Cohere 2 with experts: the first dense layers rotate whatever their window."""
    keys = layer.keys
    forced = layer.number < first_dense(keys) and keys.get("prefix_dense_sliding_window_pattern", 1) == 1
    return sliding_only(layer) or forced


def rope_parameters_given(layer: Layer) -> bool:
    """OLMo hybrid: rope_parameters null switches rotary positions off."""
    keys = layer.keys
    if keys.has("rope_scaling") or keys.has("rope_theta"):
        return True
    return bool(keys.get("rope_parameters"))


# ---- norms of q and k ----------------------------------------------------------------------------


def norm_by_type(layer: Layer) -> QKNorm:
    """The norm of q and k in the code of the model type; some types switch it by a key."""
    code = layer.keys.code
    if code.norms_after_rotation:
        return "after rotation"
    switches = [name for name in ("use_qk_norm", "qk_layernorm") if _switches(layer, name)]
    if switches:
        return "before rotation" if layer.keys.flag(switches[0]) else "none"
    return "before rotation" if code.norms_before_rotation else "none"


def _switches(layer: Layer, name: str) -> bool:
    return name in layer.keys.accepted or (not layer.keys.known and layer.keys.has(name))


def norm_if_named(usual: str | bool | None) -> Callable[[Layer], QKNorm]:
    """The norm before rotation in transformers of diffusers, by the key qk_norm: a name, or true."""
    return lambda layer: "before rotation" if layer.keys.get("qk_norm", usual) else "none"


def norm_always(layer: Layer) -> QKNorm:
    return "before rotation"


def norm_after_if_rotated(layer: Layer) -> QKNorm:
    """Llama 4: q and k are normed after rotation in layers with rotary positions."""
    return "after rotation" if layer.keys.flag("use_qk_norm") and by_layer_list(layer) else "none"


# ---- unknown model types --------------------------------------------------------------------------


def is_latent(layer: Layer) -> bool:
    return all(layer.keys.get(name) is not None for name in ("qk_nope_head_dim", "qk_rope_head_dim"))


def whatever_is_given(layer: Layer) -> int:
    """The head size by the keys that there are."""
    keys = layer.keys
    if is_latent(layer):
        return latent(layer)
    for name in ("head_dim", "d_kv", "attention_head_dim"):
        if keys.get(name) is not None:
            return keys.size(name)
    found = []
    for names in _SIZE_SPELLINGS:
        given = [name for name in names if keys.get(name) is not None]
        if not given:
            raise ConfigError(
                f"{names[0]} is missing: the head size is head_dim, or hidden_size / num_attention_heads "
                f"(also looked for: {', '.join(names[1:])})"
            )
        found.append((given[0], keys.size(given[0])))
    (width, wide), (heads, many) = found
    return _share(layer, width, wide, heads, many)


_SIZE_SPELLINGS = (
    ("hidden_size", "n_embd", "d_model", "dim", "embed_dim", "model_dim"),
    ("num_attention_heads", "n_head", "n_heads", "num_heads"),
)


def whatever_is_rotated(layer: Layer, head_dim: int) -> int:
    """The number of rotated channels by the keys that there are."""
    keys = layer.keys
    if is_latent(layer):
        return latent_rotated(layer, head_dim)
    if keys.get("rotary_dim") is not None:
        return rotary_dim(layer, head_dim)
    for name in ("partial_rotary_factor", "rotary_pct"):
        if keys.get(name) is not None:
            return int(head_dim * keys.number(name))
    parameters = keys.table("rope_parameters") or keys.table("rope_scaling")
    share = parameters.get("partial_rotary_factor", 1.0)
    return int(head_dim * share) if isinstance(share, (int, float)) else head_dim


def whatever_rotates(layer: Layer) -> bool:
    """Whether any key is about rotary positions, and no list excludes the layer."""
    keys = layer.keys
    if keys.get("no_rope_layers"):
        return by_layer_list(layer)
    return has_rope(layer) or is_latent(layer)
