# SPDX-License-Identifier: BSD-3-Clause
"""Multipliers of raw q . k in transformers' own code, seen from outside.

A small model with random weights runs once. Hooks take q and k behind their last projection or norm
(raw), an attention function takes them as they enter the softmax, with the scale and the soft-cap.
A rotation leaves lengths as they are, so

    multiplier = scale * |q| |k| as they enter / (|q| |k| raw)

for the rotated and for the other channels: lengths, which a rotation keeps and which do not cancel.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch

SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 32,
    "moe_intermediate_size": 16,
    "vocab_size": 64,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "max_position_embeddings": 4096,
    "sliding_window": 8,
    "attention_chunk_size": 16,
    "local_attention": 16,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LENGTH = 40

_QUERY = r"q_norm|q_layernorm|query_layernorm|q_proj|q_b_proj|query|qk_norm|q|q_b_norm|q_l2_clip"
_KEY = r"k_norm|k_layernorm|key_layernorm|k_proj|key|qk_norm|k|kv_norm|k_l2_clip"


class Seen(NamedTuple):
    """A layer: multipliers at positions 0 ... LENGTH - 1, NaN where there are no such channels."""

    rotated: np.ndarray
    unrotated: np.ndarray
    softcap: float | None
    sink: bool
    keys: int  # the most that a query sees


class Calls:
    """Attention calls of a model, with the raw q and k of each."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.raw: dict[int, dict[str, list[Any]]] = {}

    def attend(self, module, query, key, value, attention_mask, scaling=None, softcap=None, **kwargs):
        """An attention function of transformers that keeps its arguments."""
        sinks = kwargs.get("s_aux", kwargs.get("sinks", getattr(module, "sinks", None)))
        scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
        if "Residual" not in type(module).__name__:  # some weigh the outputs of earlier layers, not tokens
            self.calls.append(self._call(module, query, key, value, attention_mask, scaling, softcap, sinks))
        groups = query.shape[1] // key.shape[1]
        k, v = (x.repeat_interleave(groups, 1) for x in (key, value))
        weights = (query @ k.mT * scaling).softmax(-1)
        return (weights @ v).transpose(1, 2).contiguous(), weights

    def _call(self, module, query, key, value, mask, scaling, softcap, sinks):
        """Record of a call."""
        return {
            "module": module,
            "query": query,
            "key": key,
            "value": value,
            "mask": mask,
            "scale": scaling,
            "softcap": softcap,
            "sink": sinks is not None,
            "raw": self.raw.pop(id(module), {}),
        }

    def watch(self, model) -> None:
        """Hooks on everything that could be the last step of raw q or k."""
        for module in model.modules():
            if not re.search(r"Attention|MLA", type(module).__name__):
                continue
            for part, child in module.named_children():
                # A projection that norms and then multiplies by a law of the position: raw is what it norms.
                norm = getattr(child, "norm", child)
                getattr(norm, "l2_clip", norm).register_forward_hook(self._hook(module, part))

    def _hook(self, module, part):
        def hook(_, inputs, output):
            if isinstance(output, torch.Tensor):
                self.raw.setdefault(id(module), {}).setdefault(part, []).append(output)

        return hook


def raw_pair(call: dict[str, Any]) -> tuple[Any, Any]:
    """Raw q and k of a call, as (heads, n, head_dim)."""
    module, raw, head_dim = call["module"], call["raw"], call["query"].shape[-1]
    if "kv_a_proj_with_mqa" in raw:
        return latent_pair(module, raw, head_dim)
    pair = []
    for which, pattern in enumerate((_QUERY, _KEY)):
        found = None
        for part, outputs in raw.items():  # in the order of their first call
            if re.fullmatch(pattern, part):
                found = outputs[which if part == "qk_norm" else 0]
            elif part in _FUSED:
                found = fused_part(part, outputs[0], head_dim, which, call["query"].shape[1])
        pair.append(as_heads(found, head_dim))
    return pair[0], pair[1]


_FUSED = ("c_attn", "qkv_proj", "query_key_value", "Wqkv")


def fused_part(part: str, output: Any, head_dim: int, which: int, heads: int) -> Any:
    """q or k out of one projection for both and v."""
    if part == "query_key_value":  # a head's q, k, v beside each other
        return output.view(1, LENGTH, -1, 3, head_dim)[:, :, :, which]
    rest = (output.shape[-1] - heads * head_dim) // 2
    return output.split([heads * head_dim, rest, rest], -1)[which]


def latent_pair(module: Any, raw: dict[str, list[Any]], head_dim: int) -> tuple[Any, Any]:
    """Multi-head latent attention: through the learned steps again, without the factors between them."""
    if "q_a_layernorm" in raw and hasattr(module, "q_b_proj"):
        q = module.q_b_proj(raw["q_a_layernorm"][0])
    else:
        q = raw["q_proj"][0]
    q = as_heads(q, head_dim)
    nope, rope = module.qk_nope_head_dim, module.qk_rope_head_dim
    k = module.kv_b_proj(raw["kv_a_layernorm"][0]).view(LENGTH, q.shape[0], -1)[..., :nope].transpose(0, 1)
    turned = raw["kv_a_proj_with_mqa"][0][0, :, -rope:]
    if "k_rope_only_layernorm" in raw:
        turned = raw["k_rope_only_layernorm"][0].view(LENGTH, rope)
    return q, torch.cat([k, turned.expand(q.shape[0], -1, -1)], -1)


def as_heads(x: Any, head_dim: int) -> Any:
    """(1, n, heads * head_dim), (1, n, heads, head_dim) or (1, heads, n, head_dim) as the last one."""
    if x.ndim == 3:
        x = x.view(1, x.shape[1], -1, head_dim)
    if x.shape[1] == LENGTH and x.shape[2] != LENGTH:
        x = x.transpose(1, 2)
    return x[0]


def build(kind: str, **keys: Any) -> tuple[Any, dict[str, Any]]:
    """A small model of this type with random weights, and the keys of its config.json."""
    cls = config_class(kind)
    small = small_keys(kind, keys)
    torch.manual_seed(0)
    config = cls(**copy.deepcopy({**small, **keys}))
    config._attn_implementation = "eager"
    model = model_class(cls)(config).eval()
    for parameter in filter(lambda each: each.requires_grad, model.parameters()):  # the others are tables
        parameter.data = torch.randn_like(parameter) * 0.3 + (0.5 if parameter.ndim == 1 else 0)
    return model, {"model_type": kind, **small, **keys}


def small_keys(kind: str, keys: Any = ()) -> dict[str, Any]:
    """The sizes that the class of a model type has and that are not given otherwise."""
    cls = config_class(kind)
    names = getattr(cls, "attribute_map", {})
    accepted = inspect.signature(cls.__init__).parameters
    stored = {name: names.get(name, name) for name in SIZES}
    return {
        name: size for name, size in SIZES.items() if stored[name] in accepted and stored[name] not in keys
    }


def config_class(kind: str) -> Any:
    """The configuration of a model type, those of parts of composite models included."""
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[kind] if kind in CONFIG_MAPPING else parts()[kind]


@functools.cache
def parts() -> dict[str, Any]:
    """The configurations of the parts of composite models, by type: reading all of them takes a second."""
    from transformers import CONFIG_MAPPING

    found: dict[str, Any] = {}
    waiting, done = [CONFIG_MAPPING[name] for name in CONFIG_MAPPING], set()
    while waiting:
        for part in getattr(waiting.pop(), "sub_configs", {}).values():
            found.setdefault(getattr(part, "model_type", ""), part)
            if part not in done:
                done.add(part)
                waiting.append(part)
    return found


def model_class(config: Any) -> Any:
    """The model of a config that takes tokens, without a head if there is one."""
    from transformers import MODEL_MAPPING

    if config in MODEL_MAPPING:
        found = MODEL_MAPPING[config]
        return found[0] if isinstance(found, tuple) else found
    module = import_module(config.__module__.replace("configuration_", "modeling_"))
    fitting = [
        each
        for name, each in vars(module).items()
        if inspect.isclass(each)
        and getattr(each, "config_class", None) is config
        and "input_ids" in inspect.signature(each.forward).parameters
    ]
    return min(fitting, key=lambda each: ("ForC" in each.__name__, len(each.__name__)))


def run(model: Any, positions: Any = None, **inputs: Any) -> Calls:
    """Run a forward pass."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    calls = Calls()
    ALL_ATTENTION_FUNCTIONS.register("audit_oracle", calls.attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register("audit_oracle", eager_mask)
    model.set_attn_implementation("audit_oracle")
    calls.watch(model)
    ids = torch.arange(3, 3 + LENGTH)[None] % 60 + 3
    if positions is not None:
        inputs["position_ids"] = torch.as_tensor(positions)[None]
    if "use_cache" in inspect.signature(model.forward).parameters:
        inputs.setdefault("use_cache", False)
    with torch.no_grad():
        model(input_ids=ids, **inputs)
    return calls


def rotated_last(call: dict[str, Any]) -> bool:
    """Whether the last channels of a head are the rotated ones: so they are behind a latent."""
    return "kv_a_proj_with_mqa" in call["raw"] or "kv_norm" in call["raw"]


def channels(head_dim: int, rotated: int, last: bool) -> dict[str, slice]:
    """Places of the rotated channels and of the others."""
    split = head_dim - rotated if last else rotated
    first, second = slice(0, split), slice(split, head_dim)
    return {"rotated": second, "unrotated": first} if last else {"rotated": first, "unrotated": second}


@torch.no_grad()
def multipliers(call: dict[str, Any], rotated: int) -> Seen:
    """Multipliers of a call, for a head with this many rotated channels."""
    q, k = call["query"][0], call["key"][0, :, :LENGTH]  # behind them may be compressed keys
    head_dim = q.shape[-1]
    raw_q, raw_k = raw_pair(call)
    groups = q.shape[0] // k.shape[0]
    k, raw_k = k.repeat_interleave(groups, 0), raw_k.repeat_interleave(raw_q.shape[0] // raw_k.shape[0], 0)
    found = {name: np.full((1, LENGTH), np.nan) for name in ("rotated", "unrotated")}
    for name, part in channels(head_dim, rotated, rotated_last(call)).items():
        if part.start < part.stop:
            lengths = [x[..., part].double().norm(dim=-1) for x in (q, k, raw_q, raw_k)]
            found[name] = np.asarray(call["scale"] * lengths[0] * lengths[1] / (lengths[2] * lengths[3]))
            spread = np.ptp(found[name], axis=0).max() / found[name].max()
            assert spread < 3e-6, f"differs by head: {spread}"
    return Seen(
        found["rotated"][0], found["unrotated"][0], call["softcap"], call["sink"], visible(call["mask"])
    )


def visible(mask: Any) -> int:
    """Largest number of keys that a query sees, without compressed keys behind them."""
    if mask is None:
        return LENGTH
    shown = mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2
    return int(shown[0, 0, :, :LENGTH].sum(-1).max())
