# SPDX-License-Identifier: BSD-3-Clause
"""The families that can be written as GGUF, as a table: a new one is a row of cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..._base.checks import InputError, shown
from . import extra, keys, names
from .config import Config


@dataclass(frozen=True)
class Family:
    """Rules by which checkpoints of some model types become files of an architecture of llama.cpp."""

    types: str  # model types, separated by spaces
    architecture: str  # its name in llama.cpp
    further_keys: tuple[keys.Keys, ...] = ()  # further metadata
    first_keys: keys.Keys = keys.common  # the metadata to begin with
    layer_names: Mapping[str, str] = field(default_factory=dict)  # names inside of a layer
    changes: Mapping[str, names.Change] = field(default_factory=dict)  # by the end of a name
    extra_tensors: tuple[extra.Extra, ...] = ()  # tensors from the config alone
    refuses: Callable[[Config], str | None] = lambda config: None  # reason why the config has no file
    skips: Callable[[Config, str], bool] = lambda config, name: False  # tensors that are not written
    usual: Mapping[str, Any] = field(default_factory=dict)  # defaults besides those of the audit


_LLAMA: dict[str, Any] = {"changes": names.PAIRS, "extra_tensors": (extra.llama3,)}
_LLAMA_KEYS = (keys.vocabulary_size, keys.rotated)
_EPS_5, _EPS_6 = {"rms_norm_eps": 1e-5}, {"rms_norm_eps": 1e-6}


def _only_yarn(config: Config) -> str | None:
    kind = config.rope["rope_type"]
    return None if kind == "yarn" else f"rope_type must be yarn, got {shown(kind)}"


def _no_llama3(config: Config) -> str | None:
    kind = config.rope["rope_type"]
    # The converter refuses Granite, and its file of SmolLM3 is not loaded.
    return None if kind != "llama3" else "llama.cpp has no frequencies of rope_type llama3 there"


def _head(config: Config, name: str) -> bool:
    return name == "lm_head.weight"


def _tied_head(config: Config, name: str) -> bool:
    return bool(config.get("tie_word_embeddings")) and name == "lm_head.weight"


_8 = {"num_key_value_heads": 8}
_32 = {"num_key_value_heads": 32}

FAMILIES: tuple[Family, ...] = (
    Family("llama", "llama", (*_LLAMA_KEYS, keys.every_head_dim), **_LLAMA, usual=_EPS_6),
    Family("mistral", "llama", (*_LLAMA_KEYS, keys.every_head_dim), **_LLAMA, usual={**_EPS_6, **_8}),
    Family(
        "mixtral",
        "llama",
        (*_LLAMA_KEYS, keys.expert_counts),
        layer_names=names.MIXTRAL,
        **_LLAMA,
        usual={**_EPS_5, **_8, "num_experts_per_tok": 2},
    ),
    Family(
        "ministral3",
        "mistral3",
        (*_LLAMA_KEYS, keys.ministral3),
        refuses=_only_yarn,
        **_LLAMA,
        usual={**_EPS_5, **_8},
    ),
    Family(
        "smollm3",
        "smollm3",
        _LLAMA_KEYS,
        refuses=_no_llama3,
        **_LLAMA,
        usual={**_EPS_6, "num_key_value_heads": 4},
    ),
    Family(
        "granite",
        "granite",
        (*_LLAMA_KEYS, keys.granite),
        refuses=_no_llama3,
        **_LLAMA,
        usual={**_EPS_6, **dict.fromkeys(keys.GRANITE.values(), 1.0)},
    ),
    Family("qwen2", "qwen2", usual={**_EPS_6, **_32}),
    Family("qwen3", "qwen3", usual={**_EPS_6, **_32}),
    Family(
        "qwen3_moe",
        "qwen3moe",
        (keys.expert_counts, keys.expert_width("moe_intermediate_size")),
        usual={**_EPS_6, "num_key_value_heads": 4, "num_experts_per_tok": 8},
    ),
    Family(
        "gemma2",
        "gemma2",
        first_keys=keys.gemma2,
        layer_names=names.SANDWICH,
        changes=names.PLUS_ONE,
        skips=_head,
        usual={**_EPS_6, "num_key_value_heads": 4, "final_logit_softcapping": 30.0},
    ),
    Family(
        "gemma3_text",
        "gemma3",
        (keys.gemma3,),
        layer_names=names.SANDWICH,
        changes=names.PLUS_ONE,
        usual={**_EPS_6, "num_key_value_heads": 4},
    ),
    Family("phi3", "phi3", first_keys=keys.phi3, extra_tensors=(extra.longrope,), usual=_EPS_5),
    Family(
        "gpt_oss",
        "gpt-oss",
        (keys.window, keys.expert_counts, keys.expert_width("intermediate_size")),
        layer_names=names.GPT_OSS,
        changes=names.GPT_OSS_EXPERTS,
        usual={**_EPS_5, **_8, "num_experts_per_tok": 4},
    ),
    Family(
        "glm4",
        "glm4",
        (keys.partly_rotated,),
        layer_names=names.GLM,
        usual={"rms_norm_eps": 1.5625e-7, "num_key_value_heads": 2, "partial_rotary_factor": 0.5},
    ),
    Family(
        "cohere2",
        "cohere2",
        (keys.vocabulary_size, keys.every_head_dim, keys.window, keys.cohere2),
        usual={"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "rotary_pct": 1.0},
    ),
    Family("olmo3", "olmo2", (keys.window_by_layer,), layer_names=names.POST_NORMS, usual=_EPS_5),
    Family(
        "exaone4",
        "exaone4",
        (keys.vocabulary_size, keys.window_by_layer),
        layer_names=names.POST_NORMS,
        extra_tensors=(extra.llama3,),
        usual={**_EPS_5, **_32},
    ),
    Family(
        "llama4_text",
        "llama4",
        (*_LLAMA_KEYS, keys.llama4),
        layer_names=names.LLAMA4,
        changes=names.LLAMA4_EXPERTS,
        extra_tensors=(extra.llama3,),
        usual={**_EPS_5, **_8, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1},
    ),
    Family(
        "deepseek_v3",
        "deepseek2",
        (keys.vocabulary_size, keys.deepseek),
        layer_names=names.DEEPSEEK,
        changes=names.LATENT,
        skips=_tied_head,
        usual={
            **_EPS_6,
            "v_head_dim": 128,
            "num_experts_per_tok": 8,
            "n_group": 8,
            "topk_group": 4,
            "n_shared_experts": 1,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
        },
    ),
)

_BY_TYPE = {kind: family for family in FAMILIES for kind in family.types.split()}


def family_of(kind: Any) -> Family:
    """The row of a model type; an unknown one is refused."""
    if kind not in _BY_TYPE:
        raise InputError(
            f"model_type must be one of {', '.join(sorted(_BY_TYPE))} for a GGUF file, got {shown(kind)}"
        )
    return _BY_TYPE[kind]
