# SPDX-License-Identifier: BSD-3-Clause
"""scaled_dot_product_attention of tinygrad, on its device that is written in Python."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._calls import mask_of
from ._engine import Engine, refuse

#: Largest number of products of queries and keys, number by number: the device is slow.
_LARGEST = 20_000


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
    if query.size * key.shape[2] > _LARGEST:
        raise NotImplementedError("no large calls in Python")
    from tinygrad import Context

    mask = [] if attn_mask is None else [mask_of(attn_mask, query.dtype)]
    with Context(DEV="PYTHON"):
        q, k, v, *masks = map(_tensor, (query, key, value, *mask))
        attend = q.scaled_dot_product_attention
        return _numbers(attend(k, v, *masks, is_causal=is_causal, enable_gqa=enable_gqa))


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
