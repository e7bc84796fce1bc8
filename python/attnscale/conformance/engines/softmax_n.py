# SPDX-License-Identifier: BSD-3-Clause
"""Attentions of flash-attention-softmax-n, whose softmax has n in its denominator."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ... import normalizers
from ._engine import Engine, mask_of_axes, refuse
from ._torch import mask_to_torch, run


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    causal: Any = None,
    attn_mask: Any = None,
    scale: Any = None,
    normalizer: Any = None,
    flash: bool,
    **rest: Any,
) -> Any:
    import sys
    import warnings

    modules: dict[str, Any] = sys.modules
    modules.setdefault("flash_attention_softmax_n.core.flash_attn_triton", None)  # it asks for a GPU at once
    import flash_attention_softmax_n

    refuse(rest, query, key, value)
    if is_causal and query.shape[2] == key.shape[2]:
        is_causal, causal = False, "bottom_right"
    if is_causal or causal not in (None, "bottom_right") or np.ndim(scale):
        raise NotImplementedError("a causal mask of the last keys, and one scale")
    softmax = normalizers.get("softmax" if normalizer is None else normalizer)
    if not isinstance(softmax, (normalizers.Softmax, normalizers.SoftmaxN)):
        raise NotImplementedError("no normalizer but softmax_n")
    n = getattr(softmax, "n", 0)
    if flash and n != int(n):
        raise NotImplementedError("an n that is a number of keys")
    if attn_mask is not None and (flash or np.asarray(attn_mask).dtype.kind == "f"):
        attn_mask = mask_of_axes(attn_mask, 4 if flash else 2)
    options: dict[str, Any] = {"softmax_n_param": int(n) if flash else float(n)}
    options |= {"is_causal": causal is not None, "scale": None if scale is None else float(scale)}

    def call(*arrays: Any) -> Any:
        mask = mask_to_torch(attn_mask, query)  # a copy for each call, since the engine writes into it
        name = "attn_bias" if flash and mask is not None and mask.is_floating_point() else "attn_mask"
        if flash:
            return flash_attention_softmax_n.flash_attention_n(*arrays, **options, **{name: mask})
        return flash_attention_softmax_n.slow_attention_n(*arrays, **options, attn_mask=mask)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of a context that PyTorch renamed
        return run(call, query, key, value)


def _engine(name: str, function: str) -> Engine:
    return Engine(
        name=name,
        call=f"flash_attention_softmax_n.{function}",
        package="flash-attention-softmax-n",
        run_with="0.3.2",
        attend=partial(_attend, flash="flash" in name),
        requirements=("flash-attention-softmax-n==0.3.2", "einops==0.8.2"),
        notes="The normalizer softmax_n(n=...) is its argument. Its causal mask ends at the last key.",
    )


SLOW = _engine("softmax-n", "slow_attention_n")
FLASH = _engine("softmax-n-flash", "flash_attention_n")
