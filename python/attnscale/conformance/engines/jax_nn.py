# SPDX-License-Identifier: BSD-3-Clause
"""dot_product_attention of JAX, with its lse and the gradients of both."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ._calls import one_number, swap_heads, two_sides, widths_agree
from ._engine import Engine, refuse


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    attn_mask: Any = None,
    scale: Any = None,
    window: Any = None,
    key_lengths: Any = None,
    enable_gqa: bool = False,
    layout: str = "bhsd",
    **rest: Any,
) -> Any:
    refuse(rest, query, key, value)
    widths_agree(key, value)
    import jax

    lengths = None if key_lengths is None else np.broadcast_to(key_lengths, len(query)).astype(np.int32)
    call = partial(
        jax.nn.dot_product_attention,
        **mask_and_bias(attn_mask),
        scale=one_number(scale),
        is_causal=is_causal,
        local_window_size=two_sides(window),
        key_value_seq_lengths=lengths,
        return_residual=True,
    )
    arrays = swap_heads((query, key, value), layout)
    output, lse = call(*arrays)
    return {
        "output": swap_heads([output], layout)[0],
        "lse": np.asarray(lse),
        "gradients": lambda grad: gradients(lambda *x: call(*x)[0], arrays, grad, layout),
        "lse_gradients": lambda grad: _lse_gradients(call, arrays, np.asarray(lse), grad, layout),
    }


def mask_and_bias(attn_mask: Any) -> dict[str, Any]:
    """The two arguments of JAX for a mask: numbers that are added are a bias."""
    if attn_mask is None:
        return {}
    return {"bias" if np.asarray(attn_mask).dtype.kind == "f" else "mask": attn_mask}


def gradients(attend: Any, arrays: list[Any], grad: Any, layout: str = "bhsd") -> list[Any]:
    """Gradients of the output in the layout of the call."""
    import jax

    back = jax.vjp(attend, *map(jax.numpy.asarray, arrays))[1]
    given = swap_heads([np.asarray(grad, arrays[0].dtype)], layout)[0]
    return swap_heads(back(jax.numpy.asarray(given)), layout)


def _lse_gradients(call: Any, arrays: list[Any], lse: Any, grad: Any, layout: str) -> list[Any]:
    """Gradients of the lse in the query and the key; its rows are (batch, n, heads)."""
    import jax

    query, key, value = map(jax.numpy.asarray, arrays)
    back = jax.vjp(lambda q, k: call(q, k, value)[1], query, key)[1]
    given = np.asarray(grad).astype(lse.dtype).swapaxes(1, 2)
    return swap_heads(back(jax.numpy.asarray(given)), layout)


JAX = Engine(
    name="jax",
    call="jax.nn.dot_product_attention",
    package="jax",
    run_with="0.10.2",
    attend=_attend,
    notes="Arrays are transposed to (batch, n, heads, dim). JAX makes float32 of float64 unless told not to.",
)
