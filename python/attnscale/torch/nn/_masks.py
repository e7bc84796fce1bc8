# SPDX-License-Identifier: BSD-3-Clause
"""The masks of PyTorch's modules, which say what is hidden, as one that says what is seen."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["join_masks"]


def join_masks(attn_mask: Tensor | None, padding: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """One mask that broadcasts to (batch, heads, n_queries, n_keys): bool, True is seen; or float, added.

    Parameters
    ----------
    attn_mask : Tensor, shape (n_queries, n_keys) or (batch * heads, n_queries, n_keys), or None
        bool: True hides. float: added to the scores.
    padding : Tensor, shape (batch, n_keys) or (n_keys,), or None
        Likewise.
    query, key : Tensor, shape (batch, heads, n, head_dim) or (heads, n, head_dim)
        For their extents.
    """
    if attn_mask is not None and attn_mask.dim() == 3:
        attn_mask = attn_mask.reshape(*query.shape[:-1], key.shape[-2])
    if padding is not None:
        padding = padding[..., None, None, :]
        padding = padding if query.dim() == 4 else padding[..., 0, :, :][None]
    masks = [mask for mask in (attn_mask, padding) if mask is not None]
    if not masks:
        return None
    if all(mask.dtype == torch.bool for mask in masks):
        seen = [~mask for mask in masks]
        return seen[0] if len(seen) == 1 else seen[0] & seen[1]
    added = [_added(mask, query.dtype) for mask in masks]
    return added[0] if len(added) == 1 else added[0] + added[1]


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, float("-inf"))
