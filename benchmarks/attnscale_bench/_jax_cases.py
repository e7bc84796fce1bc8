# SPDX-License-Identifier: BSD-3-Clause
"""Cases against JAX, where it is installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from attnscale import attention

from ._rows import Row, Target, Unit, skipped
from ._session import OURS, Session, random_heads
from ._timing import Action

__all__ = ["forward", "jax_attention"]


def jax_attention(query: Any, key: Any, value: Any) -> Action | None:
    """Compiled ``jax.nn.dot_product_attention`` of arrays (heads, n, dim); None where JAX is not installed.

    JAX takes its own number of threads, which no call changes: all CPUs that the process may use.
    """
    try:
        jax: Any = import_module("jax")
    except ImportError:
        return None
    arrays = [jax.numpy.asarray(array.swapaxes(0, 1)[None]) for array in (query, key, value)]
    compiled = jax.jit(jax.nn.dot_product_attention)
    return lambda: compiled(*arrays).block_until_ready()


def forward(session: Session, name: str, *, n: int, target: Target) -> list[Row]:
    """JAX's time of attention over ours."""
    arrays = random_heads(8, n, 64)
    what = f"forward, 8 x {n} x 64, faster than JAX"
    theirs = jax_attention(*arrays)
    if theirs is None:
        return [skipped(name, what, Unit.RATIO, "JAX is not installed", target)]
    measured = session.measure({OURS: lambda: attention(*arrays), "jax": theirs})
    flops = 4.0 * 8 * n**2 * 64
    return [measured.row(name, what, Unit.RATIO, lambda m: m.speedup("jax"), target, flops=flops)]
