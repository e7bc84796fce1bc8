# SPDX-License-Identifier: BSD-3-Clause
"""qk_norm= in operations of JAX, which have their gradients."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["with_length"]


def with_length(rows: Any, qk_norm: str, dtype: Any) -> Any:
    """Rows of length 1 ("l2") or sqrt(head_dim) ("rms") in this type; rows of zeros stay zero."""
    rows = rows.astype(dtype)
    length = 1.0 if qk_norm == "l2" else math.sqrt(rows.shape[-1])
    # Squares of entries below 1 neither overflow nor, for the largest ones, vanish.
    largest = jax.lax.stop_gradient(jnp.abs(rows).max(axis=-1, keepdims=True, initial=0))
    rows = rows / jnp.where(largest == 0, 1, largest)
    squares = (rows * rows).sum(-1, keepdims=True)
    return rows * (length * jax.lax.rsqrt(jnp.where(squares == 0, 1, squares)))
