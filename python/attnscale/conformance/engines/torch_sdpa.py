# SPDX-License-Identifier: BSD-3-Clause
"""scaled_dot_product_attention of PyTorch, by whichever kernel it chooses."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._engine import Engine, refuse


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
    q, k, v = map(to_torch, (query, key, value))
    mask = None if attn_mask is None else to_torch(attn_mask)
    if mask is not None and mask.is_floating_point():
        mask = mask.to(q.dtype)
    factor = None if scale is None else float(scale)
    output = scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, scale=factor, enable_gqa=enable_gqa)
    return from_torch(output)


def to_torch(array: Any) -> Any:
    """A tensor of an array; also of bfloat16, which PyTorch does not take from NumPy."""
    import torch

    array = np.array(array, order="C")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: Any) -> Any:
    """The array of a tensor, float32 for bfloat16."""
    import torch

    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()


TORCH = Engine(
    name="torch",
    call="torch.nn.functional.scaled_dot_product_attention",
    package="torch",
    run_with="2.13.0",
    attend=_attend,
)
