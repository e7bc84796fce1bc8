# SPDX-License-Identifier: BSD-3-Clause
"""Chunked attention of memory-efficient-attention for PyTorch."""

from __future__ import annotations

from typing import Any

from ._engine import Engine, mask_of_axes, refuse
from ._torch import mask_to_torch, run

#: Chunks of the package's own sizes, which divide shorter lengths by being longer than they are.
_QUERIES, _KEYS = 1024, 4096


def _attend(
    query: Any, key: Any, value: Any, *, attn_mask: Any = None, layout: str | None = None, **rest: Any
) -> Any:
    from memory_efficient_attention import efficient_dot_product_attention_pt

    refuse(rest, query, key, value)
    at = 1 if layout == "bshd" else 2
    if layout not in (None, "bshd") or any(x.shape[3 - at] != query.shape[3 - at] for x in (key, value)):
        raise NotImplementedError("one number of heads")
    for length, chunk in ((query.shape[at], _QUERIES), (key.shape[at], _KEYS)):
        if length > chunk and length % chunk:
            raise NotImplementedError(f"lengths up to {chunk}, or multiples of it")
    options = {}
    if attn_mask is not None:
        mask = mask_to_torch(mask_of_axes(attn_mask, 4), query)
        options["bias" if mask.is_floating_point() else "mask"] = mask

    def call(*arrays: Any) -> Any:
        if layout is None:
            arrays = tuple(x.transpose(1, 2) for x in arrays)
        output = efficient_dot_product_attention_pt(*arrays, **options)
        return output.transpose(1, 2) if layout is None else output

    return run(call, query, key, value)


MEMORY_EFFICIENT = Engine(
    name="memory-efficient-attention",
    call="memory_efficient_attention.efficient_dot_product_attention_pt",
    package="memory-efficient-attention",
    run_with="0.1.3",
    attend=_attend,
    requirements=("memory-efficient-attention==0.1.3",),
    notes="Lengths that are no multiple of a chunk are refused: its last chunk would begin too early.",
)
