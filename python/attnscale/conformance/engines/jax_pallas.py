# SPDX-License-Identifier: BSD-3-Clause
"""mha, the example kernel of JAX's Pallas for GPUs, in its interpreter."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ._calls import heads_agree, one_number, swap_heads, widths_agree
from ._engine import Engine, refuse
from .jax_nn import gradients


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    scale: Any = None,
    document_ids: Any = None,
    **rest: Any,
) -> Any:
    refuse(rest, query, key, value)
    heads_agree((query, key, value))
    widths_agree(key, value)
    if not all(x.size for x in (query, key, value)):
        raise NotImplementedError("no arrays without numbers")
    segments = None
    if document_ids is not None:
        if query.shape[2] != key.shape[2]:
            raise NotImplementedError("no documents where there are more keys than queries, or fewer")
        segments = np.broadcast_to(document_ids, (len(query), key.shape[2])).astype(np.int32)
    from jax.experimental.pallas.ops.gpu.attention import mha

    factor = one_number(scale)
    width = query.shape[3] ** -0.5 if factor is None else factor
    call = partial(mha, segment_ids=segments, sm_scale=width, causal=is_causal, interpret=True)
    arrays = swap_heads((query, key, value))
    output, lse = call(*arrays, return_residuals=True)
    return {
        "output": swap_heads([output])[0],
        "lse": np.asarray(lse),
        "gradients": lambda grad: gradients(call, arrays, grad),
    }


JAX_PALLAS = Engine(
    name="jax-pallas",
    call="jax.experimental.pallas.ops.gpu.attention.mha, interpreted",
    package="jax",
    run_with="0.10.2",
    attend=_attend,
    notes="Arrays are transposed to (batch, n, heads, dim); the scale is given, since the kernel's own is 1.",
)
