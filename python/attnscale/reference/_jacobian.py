# SPDX-License-Identifier: BSD-3-Clause
"""The Jacobian of self-attention with every matrix written out."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def attention_jacobian_norms(
    x: Array, q_weight: Array, k_weight: Array, v_weight: Array, scale: float, seen: Array
) -> Array:
    """``|dy_i/dx_j|_F``, (n, n), from the derivative of each score by each input."""
    n, m = len(x), scale * q_weight.T @ k_weight
    s = np.where(seen, x @ m @ x.T, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    one = np.eye(n)
    # ds_il/dx_j = [l = j] M^T x_i + [i = j] M x_l, as (i, l, j, channel).
    ds = one[None, :, :, None] * (x @ m)[:, None, None, :] + one[:, None, :, None] * (x @ m.T)[None, :, None]
    dp = p[:, :, None, None] * (ds - np.einsum("il,iljc->ijc", p, ds)[:, None])
    jacobian = np.einsum("fe,le,iljc->ijfc", v_weight, x, dp) + p[:, :, None, None] * v_weight
    return np.asarray(np.linalg.norm(jacobian, axis=(-2, -1)))
