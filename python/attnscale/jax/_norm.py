# SPDX-License-Identifier: BSD-3-Clause
"""qk_norm= in operations of JAX."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def with_length(rows: Any, qk_norm: str, dtype: Any) -> Any:
    """Rows of length 1 ("l2") or sqrt(head_dim) ("rms") in this type; rows of zeros stay zero."""
    directions, _ = _split(rows.astype(dtype))
    return _length(rows, qk_norm) * directions


def _length(rows: Any, qk_norm: str) -> float:
    return 1.0 if qk_norm == "l2" else math.sqrt(rows.shape[-1])


def _split(rows: Any) -> tuple[Any, Any]:
    """Rows of length 1, and the lengths that they had."""
    # Squares of entries below 1 neither overflow nor, for the largest ones, vanish.
    largest = jnp.abs(rows).max(axis=-1, keepdims=True, initial=0)
    rows = rows / jnp.where(largest == 0, 1, largest)
    norm = jnp.sqrt((rows * rows).sum(-1, keepdims=True))
    return rows / jnp.where(norm == 0, 1, norm), norm * largest


def _save(rows: Any, qk_norm: str, dtype: Any) -> tuple[Any, Any]:
    return with_length(rows, qk_norm, dtype), rows


def _pull_back(qk_norm: str, dtype: Any, rows: Any, gradient: Any) -> tuple[Any]:
    """0 for rows of zeros, and where the gradient is 0: rows that nothing sees may hold a NaN."""
    directions, lengths = _split(rows.astype(dtype))
    along = (directions * gradient).sum(-1, keepdims=True)
    factor = jnp.where(lengths == 0, 0, _length(rows, qk_norm) / jnp.where(lengths == 0, 1, lengths))
    seen = (gradient != 0).any(-1, keepdims=True)
    return (jnp.where(seen, (gradient - directions * along) * factor, 0).astype(rows.dtype),)


with_length.defvjp(_save, _pull_back)
