# SPDX-License-Identifier: BSD-3-Clause
"""flash_attention and causal_flash_attention of flash-attention-jax."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._calls import heads_agree, widths_agree
from ._engine import Engine, refuse


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    attn_mask: Any = None,
    key_lengths: Any = None,
    **rest: Any,
) -> Any:
    refuse(rest, query, key, value)
    widths_agree(key, value)
    heads_agree((query, key, value))
    n_keys = key.shape[2]
    if is_causal and (attn_mask is not None or key_lengths is not None):
        raise NotImplementedError("no causal mask with another")
    import flash_attention_jax as package
    import jax

    arrays = [jax.numpy.asarray(x) for x in (query, key, value)]
    if is_causal:
        attend = package.causal_flash_attention
    else:
        visible = _mask_of_keys(len(query), n_keys, attn_mask, key_lengths)
        attend = lambda *given: package.flash_attention(*given, visible)  # noqa: E731

    def gradients(grad: Any) -> list[Any]:
        back = jax.vjp(attend, *arrays)[1]
        return [np.asarray(x) for x in back(jax.numpy.asarray(grad, arrays[0].dtype))]

    return {"output": np.asarray(attend(*arrays)), "gradients": gradients}


def _mask_of_keys(batch: int, n_keys: int, attn_mask: Any, key_lengths: Any) -> Any:
    """The mask (batch, keys) that the function always takes."""
    if attn_mask is not None and (np.ndim(attn_mask) > 1 or key_lengths is not None):
        raise NotImplementedError("no masks but those of keys")
    if attn_mask is not None:
        return np.broadcast_to(attn_mask, (batch, n_keys))
    lengths = n_keys if key_lengths is None else np.asarray(key_lengths)[..., None]
    return np.broadcast_to(np.arange(n_keys) < lengths, (batch, n_keys))


FLASH_ATTENTION_JAX = Engine(
    name="flash-attention-jax",
    call="flash_attention_jax.flash_attention, causal_flash_attention",
    package="flash-attention-jax",
    run_with="0.3.1",
    attend=_attend,
    requirements=("flash-attention-jax==0.3.1", "einops==0.8.2"),
    notes="Key lengths become the mask of keys that the function takes.",
)
