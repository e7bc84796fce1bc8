# SPDX-License-Identifier: BSD-3-Clause
"""Cases that time the backward pass of attention in this process, alone and after the forward pass."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from attnscale import AttentionStatistics, attention_gradients, attention_statistics
from numpy.typing import NDArray

from ._attention_cases import _against, _extra
from ._rows import Row, Target, Unit, at_least, at_most, skipped
from ._session import OURS, Session, random_heads
from ._timing import Action

__all__ = ["backward", "causal", "on_top", "sparse_step", "step"]

Array = NDArray[Any]


def _pass(heads: int, n: int, head_dim: int) -> tuple[Array, Array, Array, Array, AttentionStatistics]:
    """Query, key, value, grad_output, and the statistics of the forward pass for the backward pass."""
    q, k, v = random_heads(heads, n, head_dim)
    grad = np.random.default_rng(1).standard_normal(v.shape, np.float32)
    return q, k, v, grad, attention_statistics(q, k, v)


def backward(
    session: Session,
    name: str,
    *,
    n: int,
    head_dim: int,
    heads: int = 8,
    share: Target | None = None,
    against_torch: Target | None = None,
) -> list[Row]:
    """Gradients from output and lse of a forward pass: share of the peak, and PyTorch's time over ours."""
    q, k, v, grad, rows = _pass(heads, n, head_dim)
    candidates: dict[str, Action] = {OURS: lambda: attention_gradients(q, k, v, grad, forward=rows)}
    if session.torch is not None and against_torch is not None:
        candidates["torch"] = session.torch.attention_backward(q, k, v, grad)
    measured = session.measure(candidates)
    flops = 10.0 * heads * n * n * head_dim
    what = f"backward, {heads} x {n} x {head_dim}"
    found = [measured.row(name, what, Unit.SHARE, lambda m: m.share_of_peak(flops), share, flops=flops)]
    if against_torch is not None:
        found.append(_against(measured, f"{name}_torch", "  faster than torch", flops, against_torch))
    return found


def causal(session: Session, name: str, *, n: int, target: Target) -> list[Row]:
    """Time of the full backward pass over the causal one: full has 2n/(n + 1) times the work."""
    q, k, v, grad, rows = _pass(8, n, 64)
    of_causal = attention_statistics(q, k, v, is_causal=True)
    measured = session.measure(
        {
            OURS: lambda: attention_gradients(q, k, v, grad, forward=of_causal, is_causal=True),
            "full": lambda: attention_gradients(q, k, v, grad, forward=rows),
        }
    )
    flops = 10.0 * 8 * n * (n + 1) / 2 * 64
    what = f"causal backward faster than full, 8 x {n} x 64"
    return [measured.row(name, what, Unit.RATIO, lambda m: m.speedup("full"), target, flops=flops)]


def on_top(session: Session, name: str) -> list[Row]:
    """Cost of the gradients of lse and entropy on top of the output's."""
    q, k, v, grad, rows = _pass(8, 3072, 64)
    ones = np.ones_like(rows.lse)
    measured = session.measure(
        {
            OURS: lambda: attention_gradients(q, k, v, grad, forward=rows),
            "entropy": lambda: attention_gradients(
                q, k, v, grad, grad_lse=ones, grad_entropy=ones, forward=rows
            ),
        },
        rounds=None if session.quick else 3 * session.rounds,
    )
    flops = 10.0 * 8 * 3072**2 * 64
    what = "gradients of lse and entropy on top, 8 x 3072 x 64"
    return [
        measured.row(
            name, what, Unit.EXTRA, lambda m: _extra("entropy", m), at_most(0.03), flops=flops, of="entropy"
        )
    ]


def step(session: Session, name: str, *, n: int, target: Target) -> list[Row]:
    """A training step of attention, forward and backward, against PyTorch's."""
    q, k, v, grad, _ = _pass(8, n, 64)

    def both() -> object:
        rows = attention_statistics(q, k, v, statistics="lse")
        return attention_gradients(q, k, v, grad, forward=rows)

    candidates: dict[str, Action] = {OURS: both}
    if session.torch is not None:
        candidates["torch"] = session.torch.attention_step(q, k, v, grad)
    measured = session.measure(candidates)
    flops = 14.0 * 8 * n * n * 64
    what = f"forward and backward faster than torch, 8 x {n} x 64"
    return [_against(measured, name, what, flops, target)]


def sparse_step(session: Session, name: str, *, n: int) -> list[Row]:
    """Forward and backward of sparse rows against PyTorch with the package entmax and a matrix in memory."""
    rows = []
    for normalizer in ("sparsemax", "entmax15"):
        what = f"{normalizer}, forward and backward faster than torch with entmax, 8 x {n} x 64"
        try:
            solve: Any = getattr(import_module("entmax"), normalizer)
        except ImportError:
            solve = None
        if session.torch is None or solve is None:
            missing = "entmax or PyTorch is not installed"
            rows.append(skipped(f"{name}_{normalizer}", what, Unit.RATIO, missing, at_least(15)))
            continue
        rows.append(_sparse_step(session, f"{name}_{normalizer}", what, n, normalizer, solve))
    return rows


def _sparse_step(session: Session, name: str, what: str, n: int, normalizer: str, solve: Any) -> Row:
    q, k, v = random_heads(8, n, 64)
    grad = np.random.default_rng(1).standard_normal(v.shape, np.float32)

    def both() -> object:
        rows = attention_statistics(q, k, v, statistics=(), normalizer=normalizer)
        return attention_gradients(q, k, v, grad, forward=rows, normalizer=normalizer)

    assert session.torch is not None
    measured = session.measure(
        {OURS: both, "entmax": session.torch.sparse_step(solve, q, k, v, grad)},
        rounds=min(session.rounds, 3),
    )
    flops = 14.0 * 8 * n * n * 64
    return measured.row(name, what, Unit.RATIO, lambda m: m.speedup("entmax"), at_least(15), flops=flops)
