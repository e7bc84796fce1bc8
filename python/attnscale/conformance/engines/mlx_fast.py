# SPDX-License-Identifier: BSD-3-Clause
"""scaled_dot_product_attention of MLX."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._calls import mask_of, one_number, sink_logits
from ._engine import Engine, refuse


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
    enable_gqa: bool = False,
    **rest: Any,
) -> Any:
    refuse(rest, query, key, value)
    arrays = (query, key, value)
    if not all(x.size for x in arrays):
        raise NotImplementedError("no arrays without numbers")
    if causal not in (None, "bottom_right") or (is_causal and query.shape[2] != key.shape[2]):
        raise NotImplementedError("no causal mask but that of the last key")
    if (is_causal or causal) and attn_mask is not None:
        raise NotImplementedError("one argument for a mask and for causality")
    sinks = sink_logits(normalizer, query.shape[1], query.dtype)
    factor = one_number(scale)
    import mlx.core as mx

    mask = "causal" if is_causal or causal else None
    if attn_mask is not None:
        mask = _array(mask_of(attn_mask, query.dtype))
    given = [_array(x) for x in arrays]
    width = query.shape[-1] ** -0.5 if factor is None else factor
    sinks = None if sinks is None else _array(sinks)

    def attend(*arrays: Any) -> Any:
        return mx.fast.scaled_dot_product_attention(*arrays, scale=width, mask=mask, sinks=sinks)

    def gradients(grad: Any) -> list[Any]:
        return [_numbers(x) for x in mx.vjp(attend, given, [_array(np.asarray(grad, query.dtype))])[1]]

    return {"output": _numbers(attend(*given)), "gradients": gradients}


def _array(array: Any) -> Any:
    """An array of MLX, which does not read NumPy's bfloat16."""
    import mlx.core as mx

    if array.dtype.name == "bfloat16":
        return mx.array(array.astype(np.float32)).astype(mx.bfloat16)
    return mx.array(array)


def _numbers(array: Any) -> Any:
    import mlx.core as mx

    return np.array(array.astype(mx.float32) if array.dtype == mx.bfloat16 else array)


MLX = Engine(
    name="mlx",
    call="mlx.core.fast.scaled_dot_product_attention",
    package="mlx",
    run_with="0.32.4",
    attend=_attend,
    requirements=("mlx==0.32.4", "mlx-cpu==0.32.4"),
    notes="On a CPU. The scale is 1 / sqrt(width) where none is given: the function has no default.",
)
