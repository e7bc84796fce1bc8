# SPDX-License-Identifier: BSD-3-Clause
"""MultiHeadAttention of haiku, with projections that change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._calls import heads_agree, swap_heads
from ._engine import Engine, refuse


def _attend(query: Any, key: Any, value: Any, *, attn_mask: Any = None, **rest: Any) -> Any:
    refuse(rest, query, key, value)
    heads_agree((query, key, value))
    import haiku
    import jax

    _, heads, n_queries, width = query.shape

    def layer(*texts: Any) -> Any:
        width_of_value = value.shape[-1]
        sizes = {"key_size": width, "value_size": width_of_value, "model_size": heads * width_of_value}
        return haiku.MultiHeadAttention(
            heads, w_init=haiku.initializers.Identity(), with_bias=False, **sizes
        )(*texts)

    texts = [x.reshape(*x.shape[:2], -1) for x in swap_heads((query, key, value))]
    if attn_mask is not None:
        mask = np.asarray(attn_mask)
        texts.append(mask.reshape((1,) * (4 - mask.ndim) + mask.shape))
    run = haiku.without_apply_rng(haiku.transform(layer))
    given = [jax.numpy.asarray(x) for x in texts]
    output = np.asarray(run.apply(run.init(jax.random.key(0), *given), *given))
    return output.reshape(len(query), n_queries, heads, -1).swapaxes(1, 2)


HAIKU = Engine(
    name="haiku",
    call="haiku.MultiHeadAttention",
    package="dm-haiku",
    run_with="0.0.17",
    attend=_attend,
    requirements=("dm-haiku==0.0.17", "absl-py==2.5.1", "jmp==0.0.4", "tabulate==0.10.0"),
    notes="Weights are identities, and masks are given four axes.",
)
