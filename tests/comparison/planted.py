# SPDX-License-Identifier: BSD-3-Clause
"""Small random models of transformers, and mistakes planted in one layer of them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

TOKENS = 64
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass
class Model:
    """A random model, its family, and the number of layers."""

    model: Any
    family: str

    @property
    def layers(self) -> Any:
        return self.model.layers

    def attention(self, layer: int) -> Any:
        return self.layers[layer].self_attn

    def kinds(self) -> list[str]:
        """Type of each layer."""
        given = getattr(self.model.config, "layer_types", None)
        usual = _SLIDING if getattr(self.model.config, "sliding_window", None) else _FULL
        return list(given or [usual] * len(self.layers))


def _sizes(rng: np.random.Generator, family: str) -> dict[str, Any]:
    """Fields of a config that a family needs, at random sizes."""
    heads = int(rng.choice([4, 6, 8]))
    key_heads = int(rng.choice([each for each in (1, 2, heads // 2, heads) if heads % each == 0]))
    layers, head_dim = int(rng.integers(3, 6)), int(rng.choice([16, 32]))
    found: dict[str, Any] = {
        "vocab_size": 199,
        "hidden_size": 16 * heads,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": head_dim,
        "initializer_range": float(rng.choice([0.05, 0.15])),
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if family in ("gemma2", "gemma3_text", "gpt_oss", "cohere2"):
        types = [_SLIDING if index % 2 == 0 else _FULL for index in range(layers)]
        found |= {"layer_types": types, "sliding_window": int(rng.integers(6, 20))}
    if family == "mistral":
        found |= {"sliding_window": int(rng.integers(6, 20))}
    if family == "gemma2":
        found |= {"attn_logit_softcapping": 30.0, "query_pre_attn_scalar": head_dim}
    if family == "gpt_oss":
        found |= {"num_local_experts": 4, "num_experts_per_tok": 2}
    if family == "ministral3":
        original = int(rng.choice([8, 16]))
        scaling = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "llama_4_scaling_beta": 0.1}
        scaling |= {"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
        found |= {"rope_parameters": {**scaling, "original_max_position_embeddings": original}}
    if family == "deepseek_v3":
        del found["head_dim"]
        found |= {"num_key_value_heads": heads, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16}
        found |= {"v_head_dim": 16, "q_lora_rank": 32, "kv_lora_rank": 24, "first_k_dense_replace": 9}
    return found


FAMILIES = (
    "llama",
    "qwen3",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "ministral3",
    "cohere2",
    "deepseek_v3",
    "mistral",
)
_EAGER_ALONE = ("gemma2", "gpt_oss")


def random_model(rng: np.random.Generator, family: str) -> Model:
    """A random model of a family, in float32."""
    torch.manual_seed(int(rng.integers(2**31)))
    config = AutoConfig.for_model(family, **_sizes(rng, family))
    model = AutoModel.from_config(config, attn_implementation="eager").eval()
    for name, x in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(x, 0.0, 1.0)
        elif "norm" in name and x.ndim == 1:  # so that a norm is more than a length
            x.data += torch.randn_like(x) * 0.1
    return Model(model, family)


def another(rng: np.random.Generator, first: Model) -> Model:
    """A copy of a model, with any of its implementations of attention."""
    found = Model(copy.deepcopy(first.model), first.family)
    if first.family not in _EAGER_ALONE:
        found.model.set_attn_implementation(str(rng.choice(["eager", "sdpa"])))
    return found


# ---- the ways to plant a mistake ----------------------------------------------------------------------

#: Function of (module, query, key, value, mask, options) that returns changed ones.
_Change = Callable[..., tuple[Any, Any, Any, Any, dict[str, Any]]]


def _at_the_call(made: Model, layer: int, change: _Change, attend: Any = None) -> None:
    """Change the arguments of one layer's call of attention."""
    module = made.attention(layer)
    base = module.config._attn_implementation
    eager = sys.modules[type(module).__module__].eager_attention_forward

    def planted(this: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        query, key, value, mask, options = change(this, query, key, value, mask, dict(options))
        inner = attend or ALL_ATTENTION_FUNCTIONS.get_interface(base, eager)
        return inner(this, query, key, value, mask, **options)

    name = f"planted_{id(module)}"
    ALL_ATTENTION_FUNCTIONS.register(name, planted)
    module.config = copy.deepcopy(module.config)
    module.config._attn_implementation_internal = name


def _plain(module: Any, query: Any, key: Any, value: Any, mask: Any, *, scaling: float, **rest: Any) -> Any:
    """Written-out attention without sink and soft-cap."""
    groups = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(groups, 1).transpose(2, 3) * scaling
    weights = torch.softmax(scores + mask, -1)
    return (weights @ value.repeat_interleave(groups, 1)).transpose(1, 2).contiguous(), weights


def scale(rng: np.random.Generator, made: Model, layer: int) -> float:
    factor = float(rng.choice([rng.uniform(1.15, 2.0), rng.uniform(0.4, 0.85)]))
    way = rng.choice(["scale", "query", "key"])
    if way == "scale":
        made.attention(layer).scaling *= factor
    else:

        def change(module: Any, query: Any, key: Any, value: Any, mask: Any, options: Any) -> Any:
            query, key = (query * factor, key) if way == "query" else (query, key * factor)
            return query, key, value, mask, options

        _at_the_call(made, layer, change)
    return factor


def temperature(rng: np.random.Generator, made: Model, layer: int) -> None:
    if made.family == "ministral3":
        module = made.attention(layer)
        module.config = copy.deepcopy(module.config)
        module.config.rope_parameters["llama_4_scaling_beta"] = float(rng.choice([0.0, 0.3]))
        return
    begin, beta = int(rng.integers(4, 33)), float(rng.uniform(0.1, 0.5))

    def change(module: Any, query: Any, key: Any, value: Any, mask: Any, options: Any) -> Any:
        places = torch.arange(query.shape[2])
        factor = 1 + beta * torch.log1p(torch.floor(places / begin))
        return query * factor[:, None].to(query.dtype), key, value, mask, options

    _at_the_call(made, layer, change)


def mask(rng: np.random.Generator, made: Model, layer: int) -> None:
    is_sliding = made.kinds()[layer] == _SLIDING
    way = str(rng.choice(["shorter", "longer"] if is_sliding else ["all", "shorter"]))
    window = made.model.config.sliding_window if is_sliding else int(rng.integers(8, 30)) + 1
    width = {"shorter": (window or 0) - 1, "longer": (window or 0) + 1, "all": None}[way]

    def change(module: Any, query: Any, key: Any, value: Any, mask: Any, options: Any) -> Any:
        places = torch.arange(query.shape[2])
        off = places[:, None] - places
        seen = torch.ones_like(off, dtype=torch.bool) if width is None else (off >= 0) & (off < width)
        seen = seen[None, None]
        low = torch.finfo(query.dtype).min
        is_eager = mask is not None and mask.dtype != torch.bool
        added = torch.zeros(seen.shape, dtype=query.dtype).masked_fill(~seen, low)
        return query, key, value, added if is_eager else seen, options | {"is_causal": False}

    _at_the_call(made, layer, change)


def sink(rng: np.random.Generator, made: Model, layer: int) -> None:
    if rng.random() < 0.5:
        _at_the_call(made, layer, lambda module, q, k, v, mask, options: (q, k, v, mask, options), _plain)
    else:
        made.attention(layer).sinks.data += float(rng.choice([-0.7, 0.5, 1.0]))


def softcap(rng: np.random.Generator, made: Model, layer: int) -> None:
    made.attention(layer).attn_logit_softcapping = rng.choice([None, 50.0, 15.0])


def values(rng: np.random.Generator, made: Model, layer: int) -> None:
    way, factor = str(rng.choice(["times", "roll", "output"])), float(rng.uniform(1.2, 2.0))

    def change(module: Any, query: Any, key: Any, value: Any, mask: Any, options: Any) -> Any:
        return query, key, value * factor if way == "times" else value.roll(1, -1), mask, options

    if way == "output":
        made.attention(layer).o_proj.weight.data *= factor
    else:
        _at_the_call(made, layer, change)


def projection(rng: np.random.Generator, made: Model, layer: int) -> None:
    _, weight = _projected(rng, made, layer)
    if rng.random() < 0.5:
        weight.data = torch.randn_like(weight) * weight.std()
    else:
        weight.data += torch.randn_like(weight) * weight.std() * 0.7


def _projected(rng: np.random.Generator, made: Model, layer: int) -> tuple[str, Any]:
    module = made.attention(layer)
    if made.family == "deepseek_v3":
        return "query", module.q_b_proj.weight
    side = str(rng.choice(["query", "key"]))
    return side, (module.q_proj if side == "query" else module.k_proj).weight


def one_head(rng: np.random.Generator, made: Model, layer: int) -> int:
    module = made.attention(layer)
    weight = (module.q_b_proj if made.family == "deepseek_v3" else module.q_proj).weight
    heads = made.model.config.num_attention_heads
    head, part = int(rng.integers(heads)), weight.shape[0] // heads
    rows = weight.data[head * part : (head + 1) * part]
    if made.family not in ("qwen3", "gemma3_text") and rng.random() < 0.5:  # where no norm undoes a factor
        rows *= 1.5
    else:
        rows.copy_(torch.randn_like(rows) * rows.std())
    return head


def head_order(rng: np.random.Generator, made: Model, layer: int) -> None:
    heads, key_heads = made.model.config.num_attention_heads, made.model.config.num_key_value_heads
    by_remainder = 1 < key_heads < heads and rng.random() < 0.5
    order = torch.from_numpy(np.roll(np.arange(heads), int(rng.integers(1, heads))))

    def change(module: Any, query: Any, key: Any, value: Any, mask: Any, options: Any) -> Any:
        if by_remainder:
            groups = query.shape[1] // key_heads
            return query, key.repeat(1, groups, 1, 1), value.repeat(1, groups, 1, 1), mask, options
        if key.shape[1] == heads:
            key, value = key[:, order], value[:, order]
        return query[:, order], key, value, mask, options

    _at_the_call(made, layer, change)
    if by_remainder:
        made.attention(layer).num_key_value_groups = 1


# ---- rotary positions ---------------------------------------------------------------------------------


def rotation(rng: np.random.Generator, made: Model, layer: int) -> str:
    ways = ["base", "stretched", "query", "partial"] + ["pairs"] * (made.family not in ("deepseek_v3",))
    way = str(rng.choice(ways))
    module = made.attention(layer)
    if way == "pairs":
        _rotate_other_pairs(made, module)
    elif way == "partial":
        _rotate_half_of_the_channels(made, module)
    elif way == "query":
        _rotate_query_apart(module, int(rng.integers(1, 4)))
    else:
        module.register_forward_pre_hook(partial(_with_other_angles, made, way), with_kwargs=True)
    return way


def _angles(family: str, x: Any, channels: int, base: float, stretch: float) -> tuple[Any, Any]:
    """Cosines and sines for the rows of x, as the function of the family takes them."""
    speeds = base ** (-torch.arange(0, channels, 2) / channels)
    angles = torch.outer(torch.arange(x.shape[1]) / stretch, speeds)
    if family != "gpt_oss":  # which takes one for each pair
        angles = angles.repeat_interleave(2, -1) if family == "cohere2" else torch.cat([angles, angles], -1)
    return angles.cos()[None].to(x.dtype), angles.sin()[None].to(x.dtype)


def _with_other_angles(made: Model, way: str, module: Any, args: Any, kwargs: Any) -> Any:
    """Replace the angles of a layer: those of another base, or of positions at half the distance."""
    x = kwargs.get("hidden_states", args[0] if args else None)
    cos, sin = kwargs["position_embeddings"]
    size = torch.sqrt(cos[:, :1] ** 2 + sin[:, :1] ** 2)
    base, stretch = (300.0, 1.0) if way == "base" else (10000.0, 2.0)
    channels = cos.shape[-1] * (2 if made.family == "gpt_oss" else 1)
    other = _angles(made.family, x, channels, base, stretch)
    return args, {**kwargs, "position_embeddings": tuple(each * size for each in other)}


def _in_place_of_rope(module: Any, rope: Any) -> None:
    """Let one layer use another function of rotary positions."""
    home = sys.modules[type(module).__module__]
    names = ("apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave")
    own = {name: getattr(home, name) for name in names if hasattr(home, name)}

    def begin(this: Any, args: Any) -> None:
        for name in own:
            setattr(home, name, partial(rope, own[name]))

    def end(this: Any, args: Any, out: Any) -> None:
        for name, function in own.items():
            setattr(home, name, function)

    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end)


def _rotate_query_apart(module: Any, off: int) -> None:
    """Queries at other positions than keys."""

    def rope(own: Any, query: Any, key: Any, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
        rolled = [each.roll(-off, -2) for each in (cos, sin)]
        return own(query, key, *rolled, *args, **kwargs)[0], own(query, key, cos, sin, *args, **kwargs)[1]

    _in_place_of_rope(module, rope)


def _rotate_half_of_the_channels(made: Model, module: Any) -> None:
    """The first half of the channels rotates, with as many speeds as it has pairs."""

    def rope(own: Any, query: Any, key: Any, cos: Any, sin: Any, *args: Any, **kwargs: Any) -> Any:
        half = query.shape[-1] // 2
        angles = _angles(made.family, cos, half, 10000.0, 1.0)
        found = own(query[..., :half], key[..., :half], *angles, *args, **kwargs)
        rests = (query[..., half:], key[..., half:])
        return tuple(torch.cat([x, rest], -1) for x, rest in zip(found, rests, strict=True))

    _in_place_of_rope(module, rope)


def _rotate_other_pairs(made: Model, module: Any) -> None:
    """Neighbours in place of halves, or the reverse."""
    is_neighbours = made.family == "cohere2"

    def order(x: Any, back: bool) -> Any:
        half = x.shape[-1] // 2
        if is_neighbours != back:
            return torch.cat([x[..., 0::2], x[..., 1::2]], -1)
        return torch.stack([x[..., :half], x[..., half:]], -1).flatten(-2)

    def rope(own: Any, query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        found = own(order(query, True), order(key, True), *args, **kwargs)
        return tuple(order(x, False) for x in found)

    _in_place_of_rope(module, rope)


PLANTS: dict[str, Any] = {
    "scale": scale,
    "temperature": temperature,
    "rotation": rotation,
    "mask": mask,
    "sink": sink,
    "softcap": softcap,
    "head order": head_order,
    "one head": one_head,
    "values": values,
    "projection": projection,
}


def families_of(kind: str) -> tuple[str, ...]:
    """Families in which a mistake can be planted."""
    alone = {"sink": ("gpt_oss",), "softcap": ("gemma2",)}
    return alone.get(kind, FAMILIES)


def layers_of(kind: str, made: Model) -> list[int]:
    """Layers in which a mistake of a kind shows."""
    kinds = made.kinds()
    if kind == "rotation" and made.family == "cohere2":  # full layers have no positions
        return [index for index, each in enumerate(kinds) if each == _SLIDING]
    return list(range(len(kinds)))


def quantised(model: Any, bits: int) -> Any:
    """A copy of a model with the weights of its linear layers rounded to a number of bits, by row."""
    found = copy.deepcopy(model)
    for module in found.modules():
        if isinstance(module, torch.nn.Linear):
            most = 2 ** (bits - 1) - 1
            step = module.weight.data.abs().amax(1, keepdim=True) / most
            module.weight.data = (module.weight.data / step).round() * step
    return found
