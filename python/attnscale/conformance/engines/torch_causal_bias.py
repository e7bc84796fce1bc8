# SPDX-License-Identifier: BSD-3-Clause
"""Causal biases of PyTorch, which scaled_dot_product_attention takes for a mask."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._engine import Engine, refuse
from ._torch import run


def _attend(
    query: Any,
    key: Any,
    value: Any,
    *,
    is_causal: bool = False,
    causal: Any = None,
    scale: Any = None,
    enable_gqa: bool = False,
    **rest: Any,
) -> Any:
    from torch.nn.attention.bias import causal_lower_right, causal_upper_left
    from torch.nn.functional import scaled_dot_product_attention

    refuse(rest, query, key, value)
    if causal not in (None, "bottom_right") or is_causal == (causal is not None) or np.ndim(scale):
        raise NotImplementedError("one causal bias, and one scale")
    bias = (causal_upper_left if is_causal else causal_lower_right)(query.shape[2], key.shape[2])
    options: dict[str, Any] = {"scale": None if scale is None else float(scale), "enable_gqa": enable_gqa}
    return run(lambda q, k, v: scaled_dot_product_attention(q, k, v, bias, **options), query, key, value)


CAUSAL_BIAS = Engine(
    name="torch-causal-bias",
    call="torch.nn.attention.bias.causal_lower_right, causal_upper_left",
    package="torch",
    run_with="2.13.0, 2.15.0",
    attend=_attend,
    notes="Only calls with a causal mask.",
)
