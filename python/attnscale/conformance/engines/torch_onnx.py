# SPDX-License-Identifier: BSD-3-Clause
"""The operator Attention of ONNX, opset 23, as PyTorch computes it before it is exported."""

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
    softcap: float | None = None,
    enable_gqa: bool = False,
    **rest: Any,
) -> Any:
    from torch.onnx.ops import attention

    refuse(rest, query, key, value)
    if np.ndim(scale) or (query.shape[1] != key.shape[1] and not enable_gqa):
        raise NotImplementedError("one scale, and fewer heads of keys only when they are shared")
    mask = mask_to_torch(attn_mask, query)
    options = {"is_causal": is_causal, "scale": None if scale is None else float(scale)}
    options["softcap"] = 0.0 if softcap is None else float(softcap)

    def call(q: Any, k: Any, v: Any) -> Any:
        output, _, _, scores = attention(q, k, v, mask, **options)
        return {"output": output, "scores": scores}

    return run(call, query, key, value, differentiated=())  # it has no backward


ONNX = Engine(
    name="torch-onnx",
    call="torch.onnx.ops.attention",
    package="torch",
    run_with="2.13.0, 2.15.0",
    attend=_attend,
    uses="torch.onnx.ops.attention",
    notes="Scores are the first mode of the output qk_matmul_output.",
)
