# SPDX-License-Identifier: BSD-3-Clause
"""Cases of the linear-time families: against PyTorch written as their articles do, and the peak."""

from __future__ import annotations

from ..variants import efficient_attention, linear_attention
from ._rows import Row, Unit, at_least, skipped
from ._session import OURS, Session, random_heads
from ._timing import Action

__all__ = ["efficient", "linear_causal"]

_N, _HEADS, _DIM = 65536, 8, 64
_FLOPS = 4.0 * _HEADS * _N * _DIM**2
_SHAPE = f"{_HEADS} x {_N} x {_DIM}"


def efficient(session: Session, name: str) -> list[Row]:
    """Efficient attention against the article's four lines of PyTorch."""
    what, target = f"efficient attention faster than torch, {_SHAPE}", at_least(2)
    if session.torch is None:
        return [skipped(name, what, Unit.RATIO, "torch is not installed", target)]
    q, k, v = random_heads(_HEADS, _N, _DIM)
    candidates: dict[str, Action] = {
        OURS: lambda: efficient_attention(q, k, v, num_threads=session.threads),
        "torch": session.torch.article_attention(q, k, v, efficient=True),
    }
    measured = session.measure(candidates)
    return [measured.row(name, what, Unit.RATIO, lambda m: m.speedup("torch"), target, flops=_FLOPS)]


def linear_causal(session: Session, name: str) -> list[Row]:
    """Causal linear attention: share of the peak by 4 n d^2 operations, and against a cumulative sum.

    PyTorch's form keeps all n matrices S_i, 1 GB a head at this length: one head is enough.
    """
    q, k, v = random_heads(_HEADS, _N, _DIM)
    what = f"linear attention, causal, {_SHAPE}"
    measured = session.measure(
        {OURS: lambda: linear_attention(q, k, v, is_causal=True, num_threads=session.threads)}
    )
    rows = [measured.row(name, what, Unit.SHARE, lambda m: m.share_of_peak(_FLOPS), flops=_FLOPS)]
    against, target = "  faster than torch's cumulative sum, 1 head", at_least(5)
    if session.torch is None:
        return [*rows, skipped(f"{name}_torch", against, Unit.RATIO, "torch is not installed", target)]
    one = [array[:1] for array in (q, k, v)]
    candidates: dict[str, Action] = {
        OURS: lambda: linear_attention(*one, is_causal=True, num_threads=session.threads),
        "torch": session.torch.cumulative_linear(*one),
    }
    measured = session.measure(candidates, rounds=2)
    flops = _FLOPS / _HEADS
    row = measured.row(
        f"{name}_torch", against, Unit.RATIO, lambda m: m.speedup("torch"), target, flops=flops
    )
    return [*rows, row]
