# SPDX-License-Identifier: BSD-3-Clause
"""Attend of x-transformers, plain and flash."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ._calls import sink_logits
from ._engine import Engine, mask_of_axes, refuse
from ._torch import mask_to_torch, run, to_torch


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    causal: Any = None,
    attn_mask: Any = None,
    scale: Any = None,
    softcap: float | None = None,
    key_lengths: Any = None,
    normalizer: Any = None,
    enable_gqa: bool = False,
    flash: bool,
    **rest: Any,
) -> Any:
    import torch
    from x_transformers.attend import Attend

    refuse(rest, query, key, value)
    heads, n_queries, n_keys = query.shape[1], query.shape[2], key.shape[2]
    if causal is not None and key_lengths is not None:
        raise NotImplementedError("queries begin at one place in all texts")
    if is_causal and n_queries == n_keys:
        is_causal, causal = False, "bottom_right"
    if is_causal or causal not in (None, "bottom_right") or np.ndim(scale):
        raise NotImplementedError("a causal mask of the last keys, and one scale")
    if flash and (softcap is not None or normalizer is not None):
        raise NotImplementedError("no soft-cap and no sink with flash=True")
    options = _masks(attn_mask, key_lengths, query, n_keys)
    if key.shape[1] != heads and not enable_gqa:
        raise NotImplementedError("fewer heads of keys only when they are shared")
    sinks = sink_logits(normalizer, heads)
    choices: dict[str, Any] = {"scale": None if scale is None else float(scale), "flash": flash}
    choices |= {"causal": causal is not None, "heads": heads, "head_learned_sink": sinks is not None}
    if softcap is not None:
        choices |= {"softclamp_logits": True, "logit_softclamp_value": float(softcap)}
    attend = Attend(**choices)
    if sinks is not None:
        attend.head_attn_sink.data = torch.tensor(sinks, dtype=to_torch(query[:0]).dtype)

    def call(*arrays: Any) -> Any:
        output, between = attend(*arrays, **options)
        if between.post_softmax_attn is None:
            return {"output": output}
        weights = between.post_softmax_attn[..., int(sinks is not None) :]
        return {"output": output, "weights": weights, "scores": between.qk_similarities}

    return run(call, query, key, value)


def _masks(attn_mask: Any, key_lengths: Any, query: Any, n_keys: int) -> dict[str, Any]:
    """The argument for a mask or for lengths."""
    if key_lengths is not None:
        if attn_mask is not None:
            raise NotImplementedError("a mask or lengths")
        lengths = np.broadcast_to(key_lengths, query.shape[:1])
        return {"mask": to_torch(np.arange(n_keys) < lengths[:, None])}
    if attn_mask is None:
        return {}
    mask = mask_to_torch(mask_of_axes(attn_mask, 4), query)
    return {"attn_bias" if mask.is_floating_point() else "mask": mask}


def _engine(name: str, flash: bool) -> Engine:
    return Engine(
        name=name,
        call=f"x_transformers.attend.Attend(flash={flash})",
        package="x-transformers",
        run_with="2.31.10",
        attend=partial(_attend, flash=flash),
        requirements=(
            "x-transformers==2.31.10",
            "torch-einops-utils==0.2.0",
            "einops==0.8.2",
            "einx==0.4.3",
            "frozendict==2.5.1",
            "loguru==0.7.3",
        ),
        notes="Its causal mask ends at the last key; lengths are a mask of keys; float masks are attn_bias. "
        "Scores are those before mask, bias and soft-cap.",
    )


PLAIN = _engine("x-transformers", flash=False)
FLASH = _engine("x-transformers-flash", flash=True)
