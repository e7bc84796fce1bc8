# SPDX-License-Identifier: BSD-3-Clause
"""Feed-forward layers of zeros, under the names of each family."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ._families import Family

Tensors = dict[str, NDArray[Any]]


def feed_forward(small: dict[str, Any], family: Family, layer: int) -> Tensors:
    """The tensors of a layer without attention and norms."""
    return _KINDS[family.feed_forward](small, family, layer)


def _dense(small: dict[str, Any], family: Family, layer: int) -> Tensors:
    if family.fused or family.fused_mlp:
        hidden, inner = small["hidden_size"], small["intermediate_size"]
        return {
            "mlp.gate_up_proj.weight": _zeros(2 * inner, hidden),
            "mlp.down_proj.weight": _zeros(hidden, inner),
        }
    biased = bool(small.get("mlp_bias"))
    return _gated("mlp.", small["hidden_size"], small["intermediate_size"], biased=biased)


def _gated(
    start: str,
    hidden: int,
    inner: int,
    names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj"),
    biased: bool = False,
) -> Tensors:
    out: Tensors = {}
    for name in names:
        rows, columns = (hidden, inner) if name == names[2] else (inner, hidden)
        out[f"{start}{name}.weight"] = _zeros(rows, columns)
        if biased:
            out[f"{start}{name}.bias"] = _zeros(rows)
    return out


def _mixtral(small: dict[str, Any], family: Family, layer: int) -> Tensors:
    hidden, inner, count = small["hidden_size"], small["intermediate_size"], small["num_local_experts"]
    out: Tensors = {"block_sparse_moe.gate.weight": _zeros(count, hidden)}
    for expert in range(count):
        out |= _gated(f"block_sparse_moe.experts.{expert}.", hidden, inner, ("w1", "w3", "w2"))
    return out


def _experts(small: dict[str, Any], family: Family, layer: int) -> Tensors:
    hidden, count = small["hidden_size"], small["num_experts"]
    step = small.get("decoder_sparse_step") or 1
    if layer in (small.get("mlp_only_layers") or ()) or (layer + 1) % step:
        return _dense(small, family, layer)
    out: Tensors = {"mlp.gate.weight": _zeros(count, hidden)}
    for expert in range(count):
        out |= _gated(f"mlp.experts.{expert}.", hidden, small["moe_intermediate_size"])
    return out


def _gpt_oss(small: dict[str, Any], family: Family, layer: int) -> Tensors:
    hidden, inner, count = small["hidden_size"], small["intermediate_size"], small["num_local_experts"]
    return {
        "mlp.router.weight": _zeros(count, hidden),
        "mlp.router.bias": _zeros(count),
        "mlp.experts.gate_up_proj": _zeros(count, hidden, 2 * inner),
        "mlp.experts.gate_up_proj_bias": _zeros(count, 2 * inner),
        "mlp.experts.down_proj": _zeros(count, inner, hidden),
        "mlp.experts.down_proj_bias": _zeros(count, hidden),
    }


def _llama4(small: dict[str, Any], family: Family, layer: int) -> Tensors:
    hidden, inner, count = small["hidden_size"], small["intermediate_size"], small["num_local_experts"]
    step = small.get("interleave_moe_layer_step") or 1
    sparse = small.get("moe_layers")
    if layer not in sparse if sparse is not None else (layer + 1) % step:
        return _gated("feed_forward.", hidden, small["intermediate_size_mlp"])
    return {
        "feed_forward.router.weight": _zeros(count, hidden),
        "feed_forward.experts.gate_up_proj": _zeros(count, hidden, 2 * inner),
        "feed_forward.experts.down_proj": _zeros(count, inner, hidden),
        **_gated("feed_forward.shared_expert.", hidden, inner),
    }


def _deepseek(small: dict[str, Any], family: Family, layer: int) -> Tensors:
    dense = small.get("first_k_dense_replace")
    if layer < (3 if dense is None else dense):
        return _dense(small, family, layer)
    hidden, inner, count = small["hidden_size"], small["moe_intermediate_size"], small["n_routed_experts"]
    out: Tensors = {
        "mlp.gate.weight": _zeros(count, hidden),
        "mlp.gate.e_score_correction_bias": np.zeros(count, np.float32),
        **_gated("mlp.shared_experts.", hidden, inner),
    }
    for expert in range(count):
        out |= _gated(f"mlp.experts.{expert}.", hidden, inner)
    return out


def _zeros(*shape: int) -> NDArray[np.float16]:
    return np.zeros(shape, np.float16)


_KINDS = {
    "dense": _dense,
    "mixtral": _mixtral,
    "experts": _experts,
    "gpt_oss": _gpt_oss,
    "llama4": _llama4,
    "deepseek": _deepseek,
}
