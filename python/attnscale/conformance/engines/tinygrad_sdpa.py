# SPDX-License-Identifier: BSD-3-Clause
"""scaled_dot_product_attention of tinygrad, on its device that is written in Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._calls import mask_of
from ._engine import Engine, refuse


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    attn_mask: Any = None,
    enable_gqa: bool = False,
    **rest: Any,
) -> Any:
    refuse(rest, query, key, value)
    from tinygrad import Context

    mask = [] if attn_mask is None else [mask_of(attn_mask, query.dtype)]
    given = {"is_causal": is_causal, "enable_gqa": enable_gqa}
    with Context(DEV="PYTHON"):
        q, k, v, *masks = map(_tensor, (query, key, value, *mask))
        output = _numbers(q.scaled_dot_product_attention(k, v, *masks, **given))

    def gradients(grad: Any) -> list[Any]:
        with Context(DEV="PYTHON"):
            result = q.scaled_dot_product_attention(k, v, *masks, **given)
            total = (result * _tensor(np.asarray(grad, query.dtype))).sum()
            return [_numbers(x) for x in total.gradient(q, k, v)]

    return {"output": output, "gradients": gradients}


def _tensor(array: Any) -> Any:
    """A tensor of an array; also of bfloat16, which tinygrad does not take from NumPy."""
    from tinygrad import Tensor, dtypes

    if array.dtype.name == "bfloat16":
        return Tensor(array.astype(np.float32)).cast(dtypes.bfloat16)
    return Tensor(array)


def _numbers(tensor: Any) -> Any:
    from tinygrad import dtypes

    return (tensor.cast(dtypes.float32) if tensor.dtype == dtypes.bfloat16 else tensor).numpy()


TINYGRAD = Engine(
    name="tinygrad",
    call="tinygrad.Tensor.scaled_dot_product_attention",
    package="tinygrad",
    run_with="0.14.0",
    attend=_attend,
    requirements=("tinygrad==0.14.0",),
    notes="On the device PYTHON, which needs no compiler and is slow.",
)
