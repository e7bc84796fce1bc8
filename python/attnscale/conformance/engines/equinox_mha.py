# SPDX-License-Identifier: BSD-3-Clause
"""MultiheadAttention of equinox, with projections that change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._calls import full_mask, heads_agree, swap_heads
from ._engine import Engine, refuse


def _attend(query: Any, key: Any, value: Any, *, attn_mask: Any = None, **rest: Any) -> Any:
    refuse(rest, query, key, value)
    heads_agree((query, key, value))
    import equinox
    import jax

    _, heads, _, width = query.shape
    if key.shape[-1] != width:
        raise NotImplementedError("queries and keys of one width")
    layer = equinox.nn.MultiheadAttention(
        num_heads=heads,
        query_size=heads * width,
        value_size=heads * value.shape[-1],
        output_size=heads * value.shape[-1],
        qk_size=width,
        vo_size=value.shape[-1],
        dtype=jax.numpy.asarray(query).dtype,
        key=jax.random.key(0),
    )
    layer = jax.tree.map(lambda x: jax.numpy.eye(len(x), dtype=x.dtype) if equinox.is_array(x) else x, layer)
    texts = [x.reshape(*x.shape[:2], -1) for x in swap_heads((query, key, value))]
    if attn_mask is not None:
        texts.append(full_mask(attn_mask, query, key))
    output = np.asarray(jax.vmap(layer)(*map(jax.numpy.asarray, texts)))
    return output.reshape(*query.shape[:1], query.shape[2], heads, -1).swapaxes(1, 2)


EQUINOX = Engine(
    name="equinox",
    call="equinox.nn.MultiheadAttention",
    package="equinox",
    run_with="0.13.8",
    attend=_attend,
    requirements=("equinox==0.13.8", "jaxtyping==0.3.11", "wadler-lindig==0.1.8"),
    notes="Weights are identities; texts and masks are made full, and jax.vmap runs over the batch.",
)
