# SPDX-License-Identifier: BSD-3-Clause
"""scaled_dot_product_gqa of grouped-query-attention-pytorch."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._engine import Engine, mask_of_axes, refuse
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
    from grouped_query_attention_pytorch.attention import scaled_dot_product_gqa

    refuse(rest, query, key, value)
    at = 2 if layout == "bshd" else 1
    if layout not in (None, "bshd") or np.ndim(scale) or scale == 0:
        raise NotImplementedError("one scale, by whose inverse the queries are divided")
    if value.shape[3] != key.shape[3]:
        raise NotImplementedError("values as wide as keys")
    if query.shape[at] != key.shape[at] and not enable_gqa:
        raise NotImplementedError("fewer heads of keys only when they are shared")
    mask = None
    if attn_mask is not None:
        mask = mask_to_torch(mask_of_axes(attn_mask, 4), query)
        if mask.shape[1] != 1:
            raise NotImplementedError("masks for all heads")
        mask = mask[:, 0]
    options = {"is_causal": is_causal or None, "mask": mask, "need_weights": True}
    options["scale"] = None if scale is None else 1 / float(scale)

    def call(*arrays: Any) -> Any:
        if layout is None:
            arrays = tuple(x.transpose(1, 2) for x in arrays)
        output, weights = scaled_dot_product_gqa(*arrays, **options)
        output = output.transpose(1, 2) if layout is None else output
        return {"output": output, "weights": weights.permute(0, 3, 1, 2)}

    return run(call, query, key, value)


GQA = Engine(
    name="gqa-pytorch",
    call="grouped_query_attention_pytorch.attention.scaled_dot_product_gqa",
    package="grouped-query-attention-pytorch",
    run_with="0.3.0",
    attend=_attend,
    requirements=("grouped-query-attention-pytorch==0.3.0", "einops==0.8.2"),
    notes="Its scale divides: 1 / scale is handed over.",
)
