# SPDX-License-Identifier: BSD-3-Clause
"""dot_product_attention of flax, by both of its ways: JAX's function, and its own where there is dropout."""

from __future__ import annotations

from functools import partial
from typing import Any

from ._calls import swap_heads, widths_agree
from ._engine import Engine, refuse
from .jax_nn import gradients, mask_and_bias


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    dropout_rate: float = 0.0,
    is_causal: bool = False,
    attn_mask: Any = None,
    enable_gqa: bool = False,
    layout: str = "bhsd",
    **rest: Any,
) -> Any:
    refuse(rest, query, key, value)
    if not dropout_rate:
        widths_agree(key, value)
    from flax import nnx

    call = partial(
        nnx.dot_product_attention,
        **mask_and_bias(attn_mask),
        dropout_rate=dropout_rate,
        deterministic=True,
        is_causal=is_causal,
    )
    arrays = swap_heads((query, key, value), layout)
    return {
        "output": swap_heads([call(*arrays)], layout)[0],
        "gradients": lambda grad: gradients(call, arrays, grad, layout),
    }


_REQUIREMENTS = (
    *("flax==0.12.8", "absl-py==2.5.1", "msgpack==1.2.4", "optax==0.2.8", "pyyaml==6.0.4", "rich==15.0.0"),
    "treescope==0.1.10",
)

FLAX = Engine(
    name="flax",
    call="flax.nnx.dot_product_attention",
    package="flax",
    run_with="0.12.8",
    attend=_attend,
    requirements=_REQUIREMENTS,
    notes="Arrays are transposed to (batch, n, heads, dim).",
)

FLAX_DROPOUT = Engine(
    name="flax-dropout",
    call="flax.nnx.dot_product_attention with a dropout rate, deterministic",
    package="flax",
    run_with="0.12.8",
    attend=partial(_attend, dropout_rate=0.1),
    requirements=_REQUIREMENTS,
    notes="A dropout rate, though nothing is dropped, chooses other code than without one.",
)
