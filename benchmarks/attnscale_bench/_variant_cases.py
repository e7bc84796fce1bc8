# SPDX-License-Identifier: BSD-3-Clause
"""Cases of the variants: against PyTorch code of their articles, the peak, and exact attention."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from attnscale import attention
from attnscale.variants import (
    efficient_attention,
    kattention_heads,
    linear_attention,
    local_global_attention,
)
from attnscale.variants import gradients as family_gradients
from numpy.typing import NDArray

from ._rows import Row, Unit, at_least, at_most, skipped
from ._session import OURS, Measured, Session, random_heads
from ._timing import Action, Estimate

__all__ = ["efficient", "gradients", "kattention", "linear_causal", "local_global", "one_head"]

Array = NDArray[Any]

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

    PyTorch's form keeps all n matrices S_i, 1 GB per head at this length, so one head is measured.
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


def one_head(session: Session, name: str) -> list[Row]:
    """Time of one thread over that of all threads, for a single head, whose sequence is divided."""
    q, k, v = (array[0] for array in random_heads(1, _N, _DIM))
    rows = []
    for family, call in (("linear", linear_attention), ("efficient", efficient_attention)):
        for causal in (False, True):
            kind = f"{family}_causal" if causal else family
            what = f"{kind.replace('_', ' ')}, 1 x {_N} x {_DIM}, {session.threads} threads over one"
            if session.threads < 2:
                rows.append(skipped(f"{name}_{kind}", what, Unit.RATIO, "there is one thread"))
                continue
            candidates: dict[str, Action] = {
                OURS: partial(call, q, k, v, is_causal=causal, num_threads=session.threads),
                "one": partial(call, q, k, v, is_causal=causal, num_threads=1),
            }
            measured = session.measure(candidates)
            rows.append(measured.row(f"{name}_{kind}", what, Unit.RATIO, lambda m: m.speedup("one")))
    return rows


def gradients(session: Session, name: str) -> list[Row]:
    """A training step of a family, output and gradients, against the usual PyTorch code."""
    n, target = 4096, at_least(1.5)
    q, k, v = random_heads(_HEADS, n, _DIM)
    arrays = (q, k, v, v[..., ::-1].copy())
    rows = []
    for family, call, causal in (
        ("efficient", efficient_attention, False),
        ("linear", linear_attention, False),
        ("causal_linear", linear_attention, True),
    ):
        what = f"{family.replace('_', ' ')} step faster than torch, {_HEADS} x {n} x {_DIM}"
        if session.torch is None:
            rows.append(skipped(f"{name}_{family}", what, Unit.RATIO, "torch is not installed", target))
            continue
        options = {"is_causal": causal, "num_threads": session.threads}
        candidates: dict[str, Action] = {
            OURS: partial(_step, call, arrays, options),
            "torch": getattr(session.torch, f"{family}_step")(*arrays),
        }
        measured = session.measure(candidates)
        rows.append(measured.row(f"{name}_{family}", what, Unit.RATIO, lambda m: m.speedup("torch"), target))
    return rows


def _step(call: Callable[..., object], arrays: tuple[Array, ...], options: dict[str, Any]) -> object:
    return call(*arrays[:3], **options), family_gradients(call, *arrays, **options)


def kattention(session: Session, name: str) -> list[Row]:
    """Time of kattention over that of exact attention, with the same channels and with one more."""
    n = 3072
    q, k, v = random_heads(_HEADS, n, _DIM)
    wide_q, wide_k = (np.concatenate([x, x[..., :1]], -1) for x in (q, k))
    measured = session.measure(
        {
            OURS: lambda: attention(q, k, v, num_threads=session.threads),
            "wider": lambda: attention(wide_q, wide_k, v, num_threads=session.threads),
            "kattention": lambda: kattention_heads(q, k, v, num_threads=session.threads),
        }
    )
    of, shape = "kattention", f"{_HEADS} x {n} x {_DIM}"
    flops = 4.0 * _HEADS * n**2 * _DIM

    def over(other: str, measured: Measured) -> Estimate:
        return measured.samples.ratio(of, other)

    return [
        measured.row(name, f"kattention over attention, {shape}", Unit.RATIO, partial(over, OURS), of=of),
        measured.row(
            *(f"{name}_wider", "  over attention with one more channel", Unit.RATIO, partial(over, "wider")),
            flops=flops,
            of=of,
        ),
    ]


def local_global(session: Session, name: str) -> list[Row]:
    """Time of local and global attention over that of attention without a mask on as many keys per query."""
    n, radius, first = 4096, 64, 16
    q, k, v = random_heads(_HEADS, n, _DIM)
    seen = first + 2 * radius + 1
    few, values = (np.ascontiguousarray(array[:, :seen]) for array in (k, v))
    measured = session.measure(
        {
            OURS: lambda: local_global_attention(q, k, v, radius=radius, global_tokens=first),
            "same": lambda: attention(q, few, values),
        }
    )
    what = f"local and global attention over the same work, {_HEADS} x {n} x {_DIM}"
    flops = 4.0 * _HEADS * n * seen * _DIM
    return [
        measured.row(
            name, what, Unit.RATIO, lambda m: m.samples.ratio(OURS, "same"), at_most(1.5), flops=flops
        )
    ]
