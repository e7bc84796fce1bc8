# SPDX-License-Identifier: BSD-3-Clause
"""custom_sdpa of ExecuTorch, an attention over caches of keys and values."""

from __future__ import annotations

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
    scale: Any = None,
    enable_gqa: bool = False,
    layout: str | None = None,
    **rest: Any,
) -> Any:
    import torch
    from executorch.extension.llm.custom_ops import custom_ops  # noqa: F401

    refuse(rest, query, key, value)
    heads, places = (2, 1) if layout == "bshd" else (1, 2)
    n_queries, n_keys = query.shape[places], key.shape[places]
    if layout not in (None, "bshd") or key.shape != value.shape or key.shape[0] != query.shape[0]:
        raise NotImplementedError("caches of one shape")
    if np.ndim(scale) or query.shape[3] != key.shape[3] or 0 in (*query.shape, *key.shape):
        raise NotImplementedError("one scale, and no empty arrays")
    if key.shape[heads] != query.shape[heads] and not (
        enable_gqa and query.shape[heads] % key.shape[heads] == 0
    ):
        raise NotImplementedError("fewer heads of keys only when they are shared")
    hides = is_causal or causal is not None
    given = 0 if is_causal or isinstance(causal, str) else causal
    start = n_keys - n_queries if not hides or causal == "bottom_right" else int(given)
    if start < 0 or start + n_queries > n_keys:
        raise NotImplementedError("queries that are among the keys of the cache")
    mask = None if attn_mask is None else mask_of_axes(attn_mask, 2)
    if mask is not None and (hides or query.dtype != np.float32 or mask.dtype != np.float32):
        raise NotImplementedError("a mask of float32, without a causal one")
    if mask is not None and mask.shape != (n_queries, n_keys):
        raise NotImplementedError("a mask of queries and keys")
    factor = None if scale is None else float(scale)
    options = (start, None if mask is None else to_torch(mask), 0.0, hides, factor)

    def call(*arrays: Any) -> Any:
        if layout is None:
            arrays = tuple(x.transpose(1, 2).contiguous() for x in arrays)
        output = torch.ops.llama.custom_sdpa(*arrays, *options)
        return output.transpose(1, 2) if layout is None else output

    return run(call, query, key, value, differentiated=())  # for inference alone


EXECUTORCH = Engine(
    name="executorch",
    call="torch.ops.llama.custom_sdpa",
    package="executorch",
    run_with="1.5.1",
    attend=_attend,
    requirements=("executorch==1.5.1", "torchao==0.18.0", "flatbuffers==25.12.19", "ruamel.yaml==0.19.1"),
    notes="start_pos is the first query's place among the keys; without a causal mask the last query is at "
    "the last key.",
)
