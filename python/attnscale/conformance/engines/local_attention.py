# SPDX-License-Identifier: BSD-3-Clause
"""LocalAttention of local-attention, by windows of exact size."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._engine import Engine, refuse
from ._torch import run, to_torch


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    window: Any = None,
    key_lengths: Any = None,
    scale: Any = None,
    **rest: Any,
) -> Any:
    from local_attention import LocalAttention

    refuse(rest, query, key, value)
    left, right = window or (None, None)
    if query.shape != key.shape or key.shape != value.shape or np.ndim(scale):
        raise NotImplementedError("equal shapes, and one scale")
    causal = is_causal or right == 0
    if not left or (not causal and left != right):
        raise NotImplementedError("windows that are causal, or as long to both sides")
    lengths = query.shape[2] if key_lengths is None else key_lengths
    seen = np.arange(query.shape[2]) < np.broadcast_to(lengths, query.shape[:1])[:, None]
    attend = LocalAttention(
        left,
        causal=causal,
        look_forward=0 if causal else 1,
        exact_windowsize=True,
        autopad=True,
        scale=None if scale is None else float(scale),
        use_rotary_pos_emb=False,
    )
    options = {} if key_lengths is None else {"mask": to_torch(seen)}

    def call(*arrays: Any) -> Any:
        output = attend(*(x.flatten(0, 1) for x in arrays), **options)
        return output.unflatten(0, query.shape[:2])

    return run(call, query, key, value)


LOCAL = Engine(
    name="local-attention",
    call="local_attention.LocalAttention(exact_windowsize=True, autopad=True)",
    package="local-attention",
    run_with="1.11.2",
    attend=_attend,
    requirements=(
        "local-attention==1.11.2",
        "hyper-connections==0.4.11",
        "torch-einops-utils==0.2.0",
        "einops==0.8.2",
    ),
    notes="A window (w, w), or (w, 0) with causal=True, is window_size w. Lengths are a mask of keys.",
)
