# SPDX-License-Identifier: BSD-3-Clause
"""Sinks whose logits are arrays of JAX."""

from __future__ import annotations

from dataclasses import dataclass

import jax


@dataclass(frozen=True)
class Sink:
    """A softmax beside a sink with logits to learn: see :class:`attnscale.normalizers.Sink`.

    A pytree, so that it may be a part of a model's parameters.

    Parameters
    ----------
    logits : jax.Array, shape () or (heads,)
        The score of the sink, for all heads or one a head. May be traced and differentiated.

    Examples
    --------
    >>> import attnscale as at, jax, jax.numpy as jnp
    >>> q, k = jnp.zeros((2, 1, 3, 4))  # (heads, n, head_dim)
    >>> def total(sink):
    ...     return at.jax.attention_statistics(q, k, statistics="lse", normalizer=sink).lse.sum()
    >>> jax.grad(total)(at.jax.Sink(jnp.zeros(1))).logits  # 3 rows, each gives a fourth to the sink
    Array([0.75], dtype=float32)
    """

    logits: jax.Array


jax.tree_util.register_dataclass(Sink, ["logits"], [])
