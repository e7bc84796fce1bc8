# SPDX-License-Identifier: BSD-3-Clause
"""scaled_dot_product_attention of PyTorch, by whichever kernel it chooses, and the operator below it."""

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
    **rest: Any,
) -> Any:
    from torch.nn.functional import scaled_dot_product_attention

    refuse(rest, query, key, value)
    if np.ndim(scale) or (attn_mask is not None and np.ndim(attn_mask) < 2):
        raise NotImplementedError("one scale, and masks of two axes and more")
    mask = mask_to_torch(attn_mask, query)
    factor = None if scale is None else float(scale)
    options: dict[str, Any] = {"is_causal": is_causal, "scale": factor, "enable_gqa": enable_gqa}
    return run(lambda q, k, v: scaled_dot_product_attention(q, k, v, mask, **options), query, key, value)


def _attend_fused(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    attn_mask: Any = None,
    scale: Any = None,
    **rest: Any,
) -> Any:
    import torch

    refuse(rest, query, key, value)
    if query.shape[:2] != key.shape[:2] or key.shape != value.shape or query.shape[3] != key.shape[3]:
        raise NotImplementedError("arrays of one batch, one number of heads and one width only")
    if 0 in query.shape or 0 in key.shape or np.ndim(scale) or np.ndim(attn_mask) not in (0, 2, 4):
        raise NotImplementedError("no empty arrays, one scale, and masks of two or four axes")
    mask = mask_to_torch(attn_mask, query)
    factor = None if scale is None else float(scale)
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

    def call(*tensors: Any) -> Any:
        output, lse = flash(*tensors, 0.0, is_causal, attn_mask=mask, scale=factor)
        return {"output": output, "lse": lse}

    return run(call, query, key, value, differentiated=["output"])  # its lse is a residue


TORCH = Engine(
    name="torch",
    call="torch.nn.functional.scaled_dot_product_attention",
    package="torch",
    run_with="2.13.0, 2.15.0",
    attend=_attend,
    refusals=("Explicit attn_mask should not be set when is_causal=True",),
)

FUSED = Engine(
    name="torch-fused",
    call="torch.ops.aten._scaled_dot_product_flash_attention_for_cpu",
    package="torch",
    run_with="2.13.0, 2.15.0",
    attend=_attend_fused,
    notes="The private operator below scaled_dot_product_attention; the only one that returns its lse.",
)
