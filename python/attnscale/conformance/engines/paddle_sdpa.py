# SPDX-License-Identifier: BSD-3-Clause
"""scaled_dot_product_attention of PaddlePaddle, on a CPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._calls import mask_of, one_number, swap_heads
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
    layout: str = "bhsd",
    **rest: Any,
) -> Any:
    refuse(rest, query, key, value)
    from paddle.nn.functional import scaled_dot_product_attention

    factor = one_number(scale)
    arrays = [_tensor(np.ascontiguousarray(x)) for x in swap_heads((query, key, value), layout)]
    mask = None if attn_mask is None else _tensor(mask_of(attn_mask, query.dtype))
    for x in arrays:
        x.stop_gradient = False
    output = scaled_dot_product_attention(*arrays, mask, 0.0, is_causal, scale=factor, enable_gqa=enable_gqa)

    def gradients(grad: Any) -> list[Any]:
        import paddle

        given = _tensor(np.ascontiguousarray(swap_heads([np.asarray(grad, query.dtype)], layout)[0]))
        found = paddle.grad([output], arrays, [given], retain_graph=True)
        return swap_heads([x.astype("float32").numpy() for x in found], layout)

    wide = output.astype("float32") if query.dtype.name == "bfloat16" else output
    return {"output": swap_heads([wide.numpy()], layout)[0], "gradients": gradients}


def _tensor(array: Any) -> Any:
    """A tensor on the CPU; also of bfloat16, which Paddle does not take from NumPy."""
    import paddle

    if array.dtype.name == "bfloat16":
        return paddle.to_tensor(array.astype(np.float32), place=paddle.CPUPlace()).astype("bfloat16")
    return paddle.to_tensor(array, place=paddle.CPUPlace())


PADDLE = Engine(
    name="paddle",
    call="paddle.nn.functional.scaled_dot_product_attention",
    package="paddlepaddle",
    run_with="3.3.1",
    attend=_attend,
    requirements=(
        *("paddlepaddle==3.3.1", "httpx==0.28.1", "idna==3.20", "pillow==13.0.0", "protobuf==7.36.2"),
        "safetensors==0.8.0",
    ),
    notes="Arrays are transposed to (batch, n, heads, dim).",
)
