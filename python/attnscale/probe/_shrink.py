# SPDX-License-Identifier: BSD-3-Clause
"""A small config with the attention of a large one.

Head sizes, depth, kinds of layers, and the quotient of width and heads stay: engines infer scales from them.
Words, heads, experts and feed-forward layers become few.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from .._base.checks import InputError, shown
from ..audit._keys import read_keys
from ._families import FAMILY, Config, Family
from ._layout import BOS, EOS, UNKNOWN, VOCABULARY

#: Channels of a feed-forward layer, of one expert, and of both latents.
INNER, LATENT = 32, 64
#: Experts, and experts chosen for a word.
EXPERTS, CHOSEN = 4, 2
#: Keys that name files which a probe does not have, or formats of weights that it does not use.
_DROPPED = (
    "auto_map",
    "quantization_config",
    "compression_config",
    "_name_or_path",
    "torch_dtype",
    "dtype",
    "text_config",
)


def text_config(config: Config) -> dict[str, Any]:
    """The config of the language model in a config, which may be a composite one."""
    keys, _ = read_keys(config)
    return {**keys.given, "model_type": keys.kind} if keys.part else dict(config)


def family_of(config: Config) -> Family:
    """The family of a text config.

    Raises
    ------
    InputError
        If the checkpoints of the family cannot be written.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILY:
        known = ", ".join(FAMILY)
        raise InputError(
            f"model_type must be one whose checkpoints can be written ({known}), got {shown(kind)}: a probe "
            "needs the names of its tensors, norms and feed-forward layer, a row of probe/_families.py"
        )
    return FAMILY[kind]


def small_config(config: Config, family: Family, dtype: str) -> dict[str, Any]:
    """The config of the checkpoint."""
    heads = _size(config, "num_attention_heads")
    ratio = Fraction(_size(config, "hidden_size"), heads)
    few = _heads(ratio, 2 * VOCABULARY if family.centred else VOCABULARY)
    shared = config.get("num_key_value_heads") in (None, heads)
    small = {name: value for name, value in config.items() if name not in _DROPPED}
    small |= {
        "architectures": [family.architecture],
        "hidden_size": int(few * ratio),
        "num_attention_heads": few,
        "num_key_value_heads": few if shared else 1,
        "vocab_size": VOCABULARY,
        "dtype": dtype,
        "torch_dtype": dtype,  # the spelling of older readers
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": UNKNOWN,
        "tie_word_embeddings": bool(config.get("tie_word_embeddings", family.tied)),
    }
    for name in ("intermediate_size", "intermediate_size_mlp", "moe_intermediate_size"):
        if config.get(name) is not None or name == "intermediate_size":
            small[name] = INNER
    small |= _feed_forward(config, family)
    if family.latent:
        small |= {
            "kv_lora_rank": LATENT,
            **({"q_lora_rank": LATENT} if config.get("q_lora_rank", 1536) else {}),
        }
    return small


def _feed_forward(config: Config, family: Family) -> dict[str, Any]:
    """The keys of experts."""
    few: dict[str, Any] = {
        name: EXPERTS for name in ("num_local_experts", "num_experts", "n_routed_experts") if name in config
    }
    if family.feed_forward == "dense":
        return {}
    if family.feed_forward == "deepseek":
        return few | {
            "n_routed_experts": EXPERTS,
            "num_experts_per_tok": CHOSEN,
            "n_shared_experts": 1,
            "moe_intermediate_size": INNER,
            "n_group": 1,
            "topk_group": 1,
            "num_nextn_predict_layers": 0,
        }
    if not few:
        few = {"num_experts" if family.feed_forward == "experts" else "num_local_experts": EXPERTS}
    chosen = min(CHOSEN, int(config.get("num_experts_per_tok") or CHOSEN))
    out = few | {"num_experts_per_tok": chosen}
    if "experts_per_token" in config:
        out["experts_per_token"] = chosen
    if family.feed_forward == "experts":
        out["moe_intermediate_size"] = INNER
    if family.feed_forward == "llama4":
        out["intermediate_size_mlp"] = INNER
    return out


def _heads(ratio: Fraction, least: int) -> int:
    """The fewest heads that make the model wide enough, in blocks of 32 or 8 if that costs little."""
    step = ratio.denominator
    first = math.ceil(Fraction(least) / ratio / step) * step
    for block in (32, 8):
        for number in range(first, 3 * first // 2 + 1, step):
            if int(number * ratio) % block == 0:
                return number
    return first


def _size(config: Config, name: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{name} must be a positive integer, got {shown(value)}")
    return value
