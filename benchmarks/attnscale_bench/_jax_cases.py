# SPDX-License-Identifier: BSD-3-Clause
"""Cases against JAX, if it is installed."""

from __future__ import annotations

from attnscale import attention

from ._engines import ENGINES
from ._rows import Row, Target, Unit, skipped
from ._session import OURS, Session, random_heads

__all__ = ["forward"]


def forward(session: Session, name: str, *, n: int, target: Target) -> list[Row]:
    """JAX's time of attention over ours."""
    arrays = random_heads(8, n, 64)
    what = f"forward, 8 x {n} x 64, faster than JAX"
    try:
        theirs = ENGINES["forward"].engines["jax"].prepare(*arrays, session.threads)
    except ImportError:
        return [skipped(name, what, Unit.RATIO, "JAX is not installed", target)]
    measured = session.measure({OURS: lambda: attention(*arrays), "jax": theirs.call})
    flops = 4.0 * 8 * n**2 * 64
    return [measured.row(name, what, Unit.RATIO, lambda m: m.speedup("jax"), target, flops=flops)]
