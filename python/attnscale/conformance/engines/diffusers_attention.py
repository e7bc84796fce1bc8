# SPDX-License-Identifier: BSD-3-Clause
"""Attention of Diffusers: its dispatch to PyTorch, and the weights of its older layer."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._engine import Engine, refuse
from ._torch import mask_to_torch, run


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    attn_mask: Any = None,
    scale: Any = None,
    enable_gqa: bool = False,
    layout: str | None = None,
    **rest: Any,
) -> Any:
    from diffusers.models.attention_dispatch import dispatch_attention_fn

    refuse(rest, query, key, value)
    if layout not in (None, "bshd") or np.ndim(scale) or (attn_mask is not None and np.ndim(attn_mask) < 2):
        raise NotImplementedError("one scale, and masks of two axes and more")
    options: dict[str, Any] = {"is_causal": is_causal, "enable_gqa": enable_gqa}
    options |= {
        "attn_mask": mask_to_torch(attn_mask, query),
        "scale": None if scale is None else float(scale),
    }

    def call(*arrays: Any) -> Any:
        if layout is None:
            arrays = tuple(x.transpose(1, 2) for x in arrays)
        output = dispatch_attention_fn(*arrays, **options)
        return output.transpose(1, 2) if layout is None else output

    return run(call, query, key, value)


def _attend_layer(
    query: Any, key: Any, value: Any, *, attn_mask: Any = None, scale: Any = None, **rest: Any
) -> Any:
    from diffusers.models.attention_processor import Attention

    refuse(rest, query, key, value)
    batch, heads, n_queries, width = query.shape
    if np.ndim(scale) or len({x.shape[:2] for x in (query, key, value)}) > 1 or not query.size:
        raise NotImplementedError("one scale, one batch and one number of heads, and no empty arrays")
    mask = mask_to_torch(attn_mask, query)
    if mask is not None:
        mask = mask.expand(batch, heads, n_queries, key.shape[2]).flatten(0, 1)
    layer = Attention(heads * width, heads=heads, dim_head=width, bias=False)
    if scale is not None:
        layer.scale = float(scale)

    def call(*arrays: Any) -> Any:
        q, k, v = (x.flatten(0, 1) for x in arrays)
        weights = layer.get_attention_scores(q, k, mask)
        both = {"output": weights @ v, "weights": weights}
        return {name: x.unflatten(0, (batch, heads)) for name, x in both.items()}

    return run(call, query, key, value)


_REQUIREMENTS = ("diffusers==0.42.1",)

DISPATCH = Engine(
    name="diffusers",
    call="diffusers.models.attention_dispatch.dispatch_attention_fn",
    package="diffusers",
    run_with="0.42.1",
    attend=_attend,
    requirements=_REQUIREMENTS,
    notes="The backend is the native one.",
)

LAYER = Engine(
    name="diffusers-layer",
    call="diffusers.models.attention_processor.Attention.get_attention_scores",
    package="diffusers",
    run_with="0.42.1",
    attend=_attend_layer,
    requirements=_REQUIREMENTS,
    notes="Masks are broadcast to (batch x heads, queries, keys).",
)
