# SPDX-License-Identifier: BSD-3-Clause
"""Extract from transformers the defaults of configs.

A config.json may leave keys out, and the defaults differ between families. This script writes
``python/attnscale/audit/defaults.json``: for every model type with a language model its default of
each key that the audit reads, the names under which it stores them (GPT-2 calls hidden_size n_embd),
and the type of the language model inside a composite model. These are facts about transformers, of
the version that is written into the file.

Run it in an environment with the ``torch`` extra installed::

    python tools/evidence/extract_config_defaults.py            # write the file
    python tools/evidence/extract_config_defaults.py --check    # exit 1 if the file would differ
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from attnscale.audit._unknown import SUSPICIOUS

os.environ.setdefault("HF_HUB_OFFLINE", "1")

OUTPUT = Path(__file__).resolve().parents[2] / "python/attnscale/audit/defaults.json"

#: Keys that the audit reads, by their common name.
KEYS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "max_position_embeddings"),
    *("d_kv", "kv_channels", "attention_head_dim", "global_head_dim", "swa_head_dim", "dim_head", "d_head"),
    *("attention_head_size", "intra_bottleneck_size", "use_bottleneck", "block_sizes"),
    *("qk_nope_head_dim", "qk_rope_head_dim", "q_lora_rank", "kv_lora_rank"),
    *("rope_parameters", "partial_rotary_factor", "rotary_dim", "original_max_position_embeddings"),
    *("query_pre_attn_scalar", "attn_logit_softcapping", "attention_multiplier", "qk_scale_factor"),
    *("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "key_multiplier", "num_layers"),
    *("attn_scale", "floor_scale", "attn_temperature_tuning", "log_scaling_alpha", "log_scaling_n_floor"),
    *("use_qk_norm", "qk_layernorm", "qk_norm", "qk_norm_type", "pos_att_type", "relative_attention"),
    *("no_rope_layer_interval", "sliding_window", "sliding_window_pattern", "global_attn_every_n_layers"),
    *("prefix_dense_sliding_window_pattern", "first_k_dense_replace", "position_embedding_type"),
    *("use_mem_rope", "use_sliding_window", "alibi", "layer_group_size", "force_rope", "rotary_value"),
    *("attn_layer_period", "attn_layer_offset", "attn_layer_indices", "block_types"),
    *("decoder_attention_heads", "decoder_layers", "decoder_num_attention_heads"),
    *("num_decoder_attention_heads",),
    *("hybrid_override_pattern", "full_attention_interval", "layers_block_type"),
    *("max_window_layers", "attention_chunk_size", "local_attention", "window_size", "attention_window"),
    "num_decoder_layers",
)


def main() -> int:
    """Write or check the file, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare instead of writing")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    text = render(collect())
    if not options.check:
        options.output.write_text(text, encoding="utf-8")
        return 0
    if options.output.read_text(encoding="utf-8") == text:
        return 0
    print(f"{options.output} is not what this transformers gives", file=sys.stderr)
    return 1


def collect() -> dict[str, Any]:
    """The content of the file."""
    import transformers

    with silence():
        configs = dict(instances())
        models = {kind: facts(config) for kind, config in configs.items() if is_language_model(config)}
        inner = {kind: part for kind, config in configs.items() if (part := language_part(config))}
        parts = {kind: found for kind, config in configs.items() if (found := all_parts(config))}
    return {"transformers": transformers.__version__, "inside": inner, "parts": parts, "models": models}


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Silence the warnings of configs about their own defaults."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def instances() -> Iterator[tuple[str, Any]]:
    """(model type, default config), including the parts of composite models."""
    from transformers import CONFIG_MAPPING

    classes = {kind: CONFIG_MAPPING[kind] for kind in CONFIG_MAPPING}
    waiting = list(classes.values())
    while waiting:
        for part in getattr(waiting.pop(), "sub_configs", {}).values():
            kind = getattr(part, "model_type", "")
            if kind and kind not in classes:
                classes[kind] = part
                waiting.append(part)
    for kind, cls in sorted(classes.items()):
        with contextlib.suppress(Exception):  # composite models may need their parts
            yield kind, cls()


def is_language_model(config: Any) -> bool:
    """Whether the config itself describes layers over tokens."""
    stored = config.to_dict()
    names = getattr(type(config), "attribute_map", {})
    sizes = ("num_attention_heads", "vocab_size")
    has_sizes = all(names.get(name, name) in stored for name in sizes)
    return has_sizes and not language_part(config)


def language_part(config: Any) -> list[str] | None:
    """[key, model type] of the language model inside a composite config."""
    for key in ("text_config", "decoder", "decoder_config", "thinker_config", "llm_config", "generator"):
        part = getattr(config, key, None)
        if hasattr(part, "to_dict") and getattr(part, "model_type", "") not in ("", config.model_type):
            return [key, part.model_type]
    return None


def all_parts(config: Any) -> dict[str, str]:
    """Model type of each part of a composite config, if it differs from the composite's own."""
    found = {key: getattr(getattr(config, key, None), "model_type", "") for key in type(config).sub_configs}
    return {key: kind for key, kind in sorted(found.items()) if kind not in ("", config.model_type)}


def facts(config: Any) -> dict[str, Any]:
    """Defaults of one model type, without those that are None."""
    stored = config.to_dict()
    names = {name: getattr(type(config), "attribute_map", {}).get(name, name) for name in KEYS}
    known: dict[str, Any] = {}
    for name, alias in names.items():
        value = stored.get(alias)
        if isinstance(value, int):  # Dory's file has two blocks for each layer
            value = vars(config).get(alias, value)
        if isinstance(value, dict):  # transformers collects some of them from a set, in random order
            value = dict(sorted(value.items()))
        if value is not None:
            known[name] = value
    # A value computed from other keys is not a default: it would hide the config's own value.
    for name in computed(type(config), names):
        known.pop(name, None)
    shares = share_facts(type(config))
    if shares and isinstance(known.get("rope_parameters"), dict):
        known["rope_parameters"] = without_share(type(config), known["rope_parameters"])
    renamed = {name: alias for name, alias in names.items() if alias != name}
    accepted = sorted(set(stored) | set(inspect.signature(type(config).__init__).parameters) - {"self"})
    return {
        "defaults": known,
        **({"renamed": renamed} if renamed else {}),
        **({"share": shares} if shares else {}),
        "facts": source_facts(config),
        "keys": [key for key in accepted if SUSPICIOUS.search(key)],
    }


#: Keys outside the rotary parameters that may set the share of rotated channels.
SHARES = ("partial_rotary_factor", "rotary_pct", "rotary_dim")
_SHARE = 0.375


def share_facts(cls: type) -> list[Any]:
    """[keys of the share of rotated channels, the share without them] of a class; or an empty list."""
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    usual, read = None, []
    with contextlib.suppress(Exception):  # some classes cannot be made without arguments
        usual = share_in(cls, rope_parameters=dict(plain))
    for name in SHARES:
        value = 24 if name == "rotary_dim" else _SHARE
        size = {"head_dim": 64} if name == "rotary_dim" else {}
        with contextlib.suppress(Exception):
            if share_in(cls, rope_parameters=dict(plain), **{name: value}, **size) == _SHARE:
                read.append(name)
    return [read, usual] if read or usual is not None else []


def share_in(cls: type, **keys: Any) -> Any:
    """The share that the class writes into its parameters."""
    found = getattr(cls(**keys), "rope_parameters", None)
    return found.get("partial_rotary_factor") if isinstance(found, dict) else None


def without_share(cls: type, block: dict[str, Any]) -> dict[str, Any]:
    """The default parameters without a share that other keys would replace."""
    for name in SHARES[:2]:
        with contextlib.suppress(Exception):
            if share_in(cls, **{name: _SHARE}) == _SHARE:
                return {key: value for key, value in block.items() if key != "partial_rotary_factor"}
    return block


def computed(cls: type, names: dict[str, str]) -> set[str]:
    """Keys whose default follows from the number or the size of the heads."""
    usual, found = cls().to_dict(), set()
    for changed, value in (("num_attention_heads", 2), ("head_dim", 8), ("num_hidden_layers", 3)):
        if names[changed] not in usual:
            continue
        with contextlib.suppress(Exception):  # a size that the class refuses
            other = cls(**{names[changed]: value}).to_dict()
            follows = {name for name, alias in names.items() if other.get(alias) != usual.get(alias)}
            found |= {name for name in follows if names[name] != names[changed]}
    # The kind of positions does not follow, shares of channels have rules, lists of layers depend on the
    # count.
    return found - {"rope_parameters", "layers_block_type"}


def source_facts(config: Any) -> list[str]:
    """The ``Facts`` of attnscale/audit/_keys.py that hold for a model and its config class."""
    code = modeling_code(type(config))
    classes = re.findall(r"^class (\w*Attention\w*)\((.*?)(?=^class |^def |^@|\Z)", code, re.M | re.S)
    other = "|".join(word for word in ("Vision", "Audio", "Linear") if word not in type(config).__name__)
    attention = "".join(body for name, body in classes if not re.search(other, name))
    before = rf"{_NORM}(?:(?!{_ROTATION}).)*{_ROTATION}" if re.search(_ROTATION, attention) else _NORM
    facts = {
        "reads_head_dim": keeps_head_dim(type(config))
        and re.search(r"config\.head_dim|getattr\((?:self\.)?config, \"head_dim\"", attention),
        "rotates_partly": re.search(r"partial_rotary_factor|rotary_ndims|rotary_dim|rope_dim\b", code),
        "reads_rope_types": re.search(r"ROPE_INIT_FUNCTIONS", code),
        "layer_types": takes(type(config), "layer_types"),
        "layers_block_type": takes(type(config), "layers_block_type"),
        "norms_before_rotation": re.search(before, attention, re.S),
        "norms_after_rotation": re.search(rf"{_ROTATION}(?:(?!return ).)*{_NORM}", attention, re.S),
        "slides_everywhere": re.search(
            r"\.sliding_window is None else create_sliding_window_causal_mask", code
        ),
        "looks_both_ways": "create_bidirectional_sliding_window_mask" in code
        and "create_sliding_window_causal_mask" not in code,
        "heads_divide": refuses_remainder(type(config), attention),
    }
    return [name for name, found in facts.items() if found]


def refuses_remainder(cls: type, attention: str) -> bool:
    """Whether a config class or its attention refuses a width that is not a multiple of the heads."""
    if re.search(r"raise ValueError\(.{0,200}?(?:multiple of|divisible by).{0,60}?heads", attention, re.S):
        return True
    usual = cls().to_dict()
    names = [
        getattr(cls, "attribute_map", {}).get(name, name) for name in ("hidden_size", "num_attention_heads")
    ]
    if not all(isinstance(usual.get(name), int) for name in names):
        return False
    heads = usual[names[1]]
    with contextlib.suppress(Exception):  # a class that refuses another width for another reason
        cls(**{names[0]: usual[names[0]] + 2 * heads})
        try:
            cls(**{names[0]: usual[names[0]] + 1})
        except Exception:
            return True
    return False


def keeps_head_dim(cls: type) -> bool:
    """Whether a config class keeps a given head size; some replace it by their own."""
    with contextlib.suppress(Exception):  # a size that the class refuses
        return bool(getattr(cls(head_dim=24), "head_dim", None) == 24)
    return True


def takes(cls: type, name: str) -> bool:
    """Whether a config class has a key of this name, or another name for it."""
    return name in inspect.signature(cls.__init__).parameters or name in getattr(cls, "attribute_map", {})


def modeling_code(cls: type) -> str:
    """The modeling file for a config class: beside it, or that of another family."""
    from transformers import MODEL_MAPPING

    module = cls.__module__.replace("configuration_", "modeling_")
    with contextlib.suppress(ImportError, OSError):
        return inspect.getsource(import_module(module))
    if cls not in MODEL_MAPPING:
        return ""
    found = MODEL_MAPPING[cls]
    return inspect.getsource(import_module((found[0] if isinstance(found, tuple) else found).__module__))


_NORM = r"= self\.(?:q_norm|q_layernorm|query_layernorm|qk_norm|q_b_norm)\("
_ROTATION = r"apply_rotary\w*\("


def render(content: dict[str, Any]) -> str:
    """JSON with one line per model, so that a changed model is a changed line."""
    lines = ["{", f'"transformers": {json.dumps(content["transformers"])},']
    for title in ("inside", "parts", "models"):
        entries = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in sorted(content[title].items())]
        lines += [f'"{title}": {{', ",\n".join(entries), "}" + ("," if title != "models" else "")]
    return "\n".join([*lines, "}"]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
