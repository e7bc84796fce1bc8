# SPDX-License-Identifier: BSD-3-Clause
"""Cases that time attention and its statistics in this process."""

from __future__ import annotations

from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from attnscale import AttentionStatistics, attention, attention_entropy, attention_statistics
from numpy.typing import NDArray

from ._machine import MemoryRead
from ._peers import numpy_attention, numpy_output_and_entropy
from ._rows import Row, Target, Unit, at_least, at_most, skipped
from ._session import OURS, Measured, Session, random_heads
from ._timing import Action, Estimate, estimate

__all__ = [
    "by_hand",
    "call_overhead",
    "causal",
    "decode",
    "entropy_alone",
    "forward",
    "on_top",
    "sliding_window",
]

Array = NDArray[Any]

_ALL_STATISTICS = tuple(field.name for field in fields(AttentionStatistics) if field.name != "output")


def _torch_fused(session: Session, *arrays: Array, is_causal: bool = False) -> dict[str, Action]:
    return {} if session.torch is None else {"torch": session.torch.attention(*arrays, is_causal=is_causal)}


def forward(
    session: Session,
    name: str,
    *,
    n: int,
    head_dim: int,
    heads: int = 8,
    dtype: Any = np.float32,
    share: Target | None = None,
    against_torch: Target | None = None,
    against_numpy: bool = False,
) -> list[Row]:
    """Attention without statistics: share of the FMA peak, and PyTorch's time over ours."""
    q, k, v = random_heads(heads, n, head_dim, dtype)
    candidates: dict[str, Action] = {OURS: lambda: attention(q, k, v), **_torch_fused(session, q, k, v)}
    if against_numpy and not session.quick:
        candidates["numpy"] = lambda: numpy_attention(q, k, v)
    measured = session.measure(candidates, dtype=dtype)
    flops = 4.0 * heads * n * n * head_dim
    what = f"forward, {heads} x {n} x {head_dim}"
    what += " float64" if dtype == np.float64 else ""
    rows = [measured.row(name, what, Unit.SHARE, lambda m: m.share_of_peak(flops), share, flops=flops)]
    if against_torch is not None:
        against = "  faster than torch"
        rows.append(_against(measured, f"{name}_torch", against, flops, against_torch))
    return rows


def _against(
    measured: Measured, name: str, what: str, flops: float, target: Target | None, other: str = "torch"
) -> Row:
    """A row for the time of `other` over ours; without a value if `other` is not installed."""
    if other not in measured.samples.wall:
        return skipped(name, what, Unit.RATIO, f"{other} is not installed", target)
    return measured.row(name, what, Unit.RATIO, lambda m: m.speedup(other), target, flops=flops)


def causal(session: Session, name: str, *, n: int, target: Target) -> list[Row]:
    """Time of full attention over that of causal attention: full has 2n/(n + 1) times the work."""
    q, k, v = random_heads(8, n, 64)
    measured = session.measure(
        {
            OURS: lambda: attention(q, k, v, is_causal=True),
            "full": lambda: attention(q, k, v),
            **_torch_fused(session, q, k, v, is_causal=True),
        }
    )
    flops = 4.0 * 8 * n * (n + 1) / 2 * 64
    what = f"causal faster than full, 8 x {n} x 64"
    return [measured.row(name, what, Unit.RATIO, lambda m: m.speedup("full"), target, flops=flops)]


def on_top(session: Session, name: str) -> list[Row]:
    """Cost of statistics on top of the output."""
    q, k, v = random_heads(8, 3072, 64)
    measured = session.measure(
        {
            OURS: lambda: attention(q, k, v),
            "lse_entropy": lambda: attention_statistics(q, k, v),
            "all": lambda: attention_statistics(q, k, v, statistics=_ALL_STATISTICS),
        },
        rounds=None if session.quick else 3 * session.rounds,
    )
    flops = 4.0 * 8 * 3072**2 * 64
    targets = {"lse_entropy": ("lse and entropy", at_most(0.02)), "all": ("all statistics", at_most(0.08))}
    rows = []
    for candidate, (what, target) in targets.items():
        find = partial(_extra, candidate)
        text = f"{what} on top, 8 x 3072 x 64"
        row = f"{name}_{candidate}"
        rows.append(measured.row(row, text, Unit.EXTRA, find, target, flops=flops, of=candidate))
    return rows


def _extra(candidate: str, measured: Measured) -> Estimate:
    """Time of a candidate on top of ours, as a share of ours."""
    times = measured.samples.ratio(candidate, OURS)
    return times._replace(value=times.value - 1)


def entropy_alone(session: Session, name: str) -> list[Row]:
    """Time of attention without statistics over that of entropy without values, half of the products."""
    q, k, v = random_heads(8, 3072, 64)
    measured = session.measure({OURS: lambda: attention_entropy(q, k), "full": lambda: attention(q, k, v)})
    flops = 2.0 * 8 * 3072**2 * 64
    what = "entropy alone faster than output, 8 x 3072 x 64"
    return [measured.row(name, what, Unit.RATIO, lambda m: m.speedup("full"), at_least(1.7), flops=flops)]


def by_hand(session: Session, name: str) -> list[Row]:
    """Time of the formulas with the (heads, n, n) matrices in memory over ours, for output and entropy."""
    q, k, v = random_heads(8, 3072, 64)
    candidates: dict[str, Action] = {OURS: lambda: attention_statistics(q, k, v)}
    if session.torch is not None:
        candidates["torch"] = session.torch.output_and_entropy(q, k, v)
    candidates["numpy"] = lambda: numpy_output_and_entropy(q, k, v)
    measured = session.measure(candidates)
    flops = 4.0 * 8 * 3072**2 * 64
    what = "output, entropy faster than {} by hand, 8 x 3072 x 64"
    return [
        _against(measured, f"{name}_torch", what.format("torch"), flops, at_least(6)),
        _against(measured, f"{name}_numpy", what.format("NumPy"), flops, at_least(4), "numpy"),
    ]


def decode(session: Session, name: str) -> list[Row]:
    """Decoding with one query: bytes of K and V per second, over those of only reading the same memory.

    Then with four heads of queries for each head of keys.
    """
    keys = 65536
    rng = np.random.default_rng(0)
    key_value = rng.standard_normal((2, 8, keys, 64), np.float32)
    k, v = key_value
    read = MemoryRead(key_value, session.threads)
    rows = []
    for heads, shown, row, target in ((8, "8", name, 0.8), (32, "32 on 8", f"{name}_grouped", 0.5)):
        q = rng.standard_normal((heads, 1, 64), np.float32)
        ours = partial(attention, q, k, v, enable_gqa=True)
        fused = _torch_fused(session, q, k, v) if heads == 8 else {}
        measured = session.measure({OURS: ours, "read": read, **fused})
        note = f"{key_value.nbytes / measured.samples.seconds(OURS) / 1e9:.1f} GB/s"
        what = f"decode, {shown} x (1, {keys}) x 64, of read bandwidth"
        flops = 4.0 * heads * keys * 64
        speed = measured.row(
            row, what, Unit.SHARE, lambda m: m.speedup("read"), at_least(target), flops=flops, note=note
        )
        rows.append(speed)
    return rows


def sliding_window(session: Session, name: str) -> list[Row]:
    """Time for each visible (query, key), over that of attention without a mask at n = 3072."""
    n, window, dense_n = 16384, 256, 3072
    q, k, v = random_heads(8, n, 64)
    dense = random_heads(8, dense_n, 64)
    out, dense_out = np.empty_like(v), np.empty_like(dense[2])
    masks: dict[str, Any] = {"is_causal": True, "window": (window - 1, None)}
    measured = session.measure(
        {
            OURS: lambda: attention(q, k, v, out=out, **masks),
            "dense": lambda: attention(*dense, out=dense_out),
            "new": lambda: attention(q, k, v, **masks),
        }
    )
    # The first rows see fewer keys than the window.
    visible = n * window - window * (window - 1) // 2
    ideal = visible / dense_n**2

    def over_ideal(m: Measured, candidate: str = OURS) -> Estimate:
        return Estimate(*(part / ideal for part in m.samples.ratio(candidate, "dense")))

    flops = 4.0 * 8 * visible * 64
    what = f"window of {window}, 8 x {n} x 64, over ideal n * window"
    new = partial(over_ideal, candidate="new")
    return [
        measured.row(name, what, Unit.RATIO, over_ideal, at_most(1.5), flops=flops),
        measured.row(f"{name}_new", "  into new memory", Unit.RATIO, new, of="new", flops=flops),
    ]


def call_overhead(session: Session, name: str) -> list[Row]:
    """Time of the smallest calls, mostly checks and conversions."""
    q, k, v = random_heads(1, 8, 16)[:, None]
    ours: dict[str, tuple[Action, float]] = {
        OURS: (lambda: attention(q, k, v), 15e-6),
        "causal": (lambda: attention(q, k, v, is_causal=True, scale=0.25), 15e-6),
        "statistics": (lambda: attention_statistics(q, k, v), 15e-6),
        "entropy": (lambda: attention_entropy(q, k), 15e-6),
        "options": (
            lambda: attention(q, k, v, scale="log_n", window=(4, 0), key_lengths=6),
            6e-6,
        ),
    }
    candidates = {candidate: action for candidate, (action, _) in ours.items()}
    measured = session.measure({**candidates, **_torch_fused(session, q[0], k[0], v[0])})
    rows = []
    for candidate, (_, most) in ours.items():
        row, what = (
            (name, "smallest call, 1 x 8 x 16")
            if candidate == OURS
            else (f"{name}_{candidate}", f"  {candidate}")
        )
        find = partial(_seconds, candidate)
        rows.append(measured.row(row, what, Unit.MICROSECONDS, find, at_most(most), of=candidate))
    return rows


def _seconds(candidate: str, measured: Measured) -> Estimate:
    return estimate(measured.samples.wall[candidate])
