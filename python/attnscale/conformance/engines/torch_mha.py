# SPDX-License-Identifier: BSD-3-Clause
"""nn.MultiheadAttention of PyTorch with projections that change nothing."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ._engine import Engine, refuse
from ._torch import mask_to_torch, run, to_torch


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    attn_mask: Any = None,
    key_lengths: Any = None,
    weights: bool = True,
    **rest: Any,
) -> Any:
    import torch

    refuse(rest, query, key, value)
    batch, heads, n_queries, width = query.shape
    n_keys = key.shape[2]
    if key.shape != value.shape or query.shape[:2] != key.shape[:2]:
        raise NotImplementedError("values as wide as keys, one batch, one number of heads")
    if is_causal and (attn_mask is not None or n_queries != n_keys):
        raise NotImplementedError("is_causal is a hint beside a causal mask of as many queries as keys")
    mask = mask_to_torch(attn_mask, query)
    if is_causal:
        mask = torch.ones(n_queries, n_keys, dtype=torch.bool).tril()
    if mask is not None:
        mask = (~mask if mask.dtype == torch.bool else mask).expand(batch, heads, n_queries, n_keys)
        mask = mask.reshape(batch * heads, n_queries, n_keys)
    hidden = None
    if key_lengths is not None:
        hidden = to_torch(np.arange(n_keys) >= np.broadcast_to(key_lengths, (batch,))[:, None])
    options = {"key_padding_mask": hidden, "attn_mask": mask, "is_causal": is_causal}
    dtype = to_torch(query[:0]).dtype
    layer = torch.nn.MultiheadAttention(heads * width, heads, bias=False, batch_first=True, dtype=dtype)
    layer.in_proj_weight.data = torch.eye(heads * width, dtype=dtype).repeat(3, 1)
    layer.out_proj.weight.data = torch.eye(heads * width, dtype=dtype)

    def call(*arrays: Any) -> Any:
        rows = [x.transpose(1, 2).flatten(2) for x in arrays]
        output, found = layer.eval()(*rows, need_weights=weights, average_attn_weights=False, **options)
        output = output.unflatten(2, (heads, width)).transpose(1, 2)
        return {"output": output} if found is None else {"output": output, "weights": found}

    return run(call, query, key, value)


MHA = Engine(
    name="torch-mha",
    call="torch.nn.MultiheadAttention, need_weights=True",
    package="torch",
    run_with="2.13.0, 2.15.0",
    attend=_attend,
    notes="Projections are identities; boolean masks are inverted, since True hides here; "
    "a causal mask is given with is_causal.",
)

MHA_FUSED = Engine(
    name="torch-mha-fused",
    call="torch.nn.MultiheadAttention, need_weights=False",
    package="torch",
    run_with="2.13.0, 2.15.0",
    attend=partial(_attend, weights=False),
    notes=MHA.notes,
)
