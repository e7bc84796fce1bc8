# SPDX-License-Identifier: BSD-3-Clause
"""Attentions of ring-attention-pytorch on one machine: the plain one, and that of the ring."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ._engine import Engine, mask_of_axes, refuse
from ._torch import run, to_torch


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    causal: Any = None,
    attn_mask: Any = None,
    key_lengths: Any = None,
    softcap: float | None = None,
    enable_gqa: bool = False,
    layout: str | None = None,
    ring: bool,
    **rest: Any,
) -> Any:
    import ring_attention_pytorch

    refuse(rest, query, key, value)
    if layout not in (None, "bshd") or causal not in (None, "bottom_right"):
        raise NotImplementedError("a causal mask of the last keys")
    heads, places = (2, 1) if layout == "bshd" else (1, 2)
    n_queries, n_keys = query.shape[places], key.shape[places]
    if causal is not None and key_lengths is not None:
        raise NotImplementedError("queries begin at one place in all texts")
    if is_causal and n_queries == n_keys:
        is_causal, causal = False, "bottom_right"
    if is_causal or (query.shape[heads] != key.shape[heads] and not enable_gqa):
        raise NotImplementedError("a causal mask of the last keys; fewer heads of keys only when shared")
    if ring and (key.shape != value.shape or query.shape[3] != key.shape[3] or not n_keys):
        raise NotImplementedError("values as wide as keys, and at least one key")
    options: dict[str, Any] = {"causal": causal is not None}
    if attn_mask is not None:
        if key_lengths is not None:
            raise NotImplementedError("a mask or lengths")
        mask = mask_of_axes(attn_mask, 4)
        if mask.shape[1:3] != (1, 1) or mask.dtype.kind == "f":
            raise NotImplementedError("a mask of keys")
        options["mask"] = to_torch(np.broadcast_to(mask[:, 0, 0], (query.shape[0], n_keys)))
    if key_lengths is not None:
        lengths = np.broadcast_to(key_lengths, query.shape[:1])
        options["mask"] = to_torch(np.arange(n_keys) < lengths[:, None])
    if softcap is not None:
        options |= {"softclamp_qk_sim": True, "softclamp_value": float(softcap)}
    function = ring_attention_pytorch.ring_flash_attn if ring else ring_attention_pytorch.default_attention

    def call(*arrays: Any) -> Any:
        if layout is None:
            arrays = tuple(x.transpose(1, 2) for x in arrays)
        output = function(*arrays, **options)
        return output.transpose(1, 2) if layout is None else output

    return run(call, query, key, value)


def _engine(name: str, function: str) -> Engine:
    return Engine(
        name=name,
        call=f"ring_attention_pytorch.{function}",
        package="ring-attention-pytorch",
        run_with="0.5.20",
        attend=partial(_attend, ring=function == "ring_flash_attn"),
        requirements=(
            "ring-attention-pytorch==0.5.20",
            "einops==0.8.2",
            "beartype==0.23.1",
            "jaxtyping==0.3.11",
            "wadler-lindig==0.1.8",
        ),
        notes="Lengths are a mask of keys. Its causal mask ends at the last key.",
    )


DEFAULT = _engine("ring-attention", "default_attention")
RING = _engine("ring-attention-flash", "ring_flash_attn")
