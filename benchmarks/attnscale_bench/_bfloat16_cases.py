# SPDX-License-Identifier: BSD-3-Clause
"""Cases that time bfloat16 arrays: products at levels that support them, and decoding at any level."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from attnscale import attention, attention_gradients, attention_statistics, simd_level
from numpy.typing import NDArray

from ._attention_cases import _against, _extra, _torch_fused
from ._machine import MemoryRead
from ._rows import Row, Target, Unit, at_least, at_most, skipped
from ._session import OURS, Session, random_heads

__all__ = ["backward", "decode", "forward", "on_top"]

Array = NDArray[Any]

_LEVELS = ("avx512_bf16", "amx_bf16")


def _missing() -> str:
    """Reason why products of bfloat16 cannot be measured here; empty if they can."""
    try:
        import_module("ml_dtypes")
    except ImportError:
        return "ml_dtypes is not installed"
    return "" if simd_level() in _LEVELS else "not on this CPU"


def _stored(array: Array) -> Array:
    """The array rounded to bfloat16."""
    return array.astype(import_module("ml_dtypes").bfloat16)


def forward(
    session: Session,
    name: str,
    *,
    n: int,
    head_dim: int,
    target: Target,
    is_causal: bool = False,
    against_torch: Target | None = None,
) -> list[Row]:
    """Time of our float32 over that of bfloat16 of the same shape, and of PyTorch's bfloat16."""
    what = f"bfloat16 {'causal' if is_causal else 'forward'} faster than float32, 8 x {n} x {head_dim}"
    against = "  bfloat16 faster than torch's"
    if missing := _missing():
        rows = [skipped(name, what, Unit.RATIO, missing, target)]
        if against_torch is not None:
            rows.append(skipped(f"{name}_torch", against, Unit.RATIO, missing, against_torch))
        return rows
    wide = random_heads(8, n, head_dim)
    q, k, v = _stored(wide)
    measured = session.measure(
        {
            OURS: lambda: attention(q, k, v, is_causal=is_causal),
            "float32": lambda: attention(*wide, is_causal=is_causal),
            **_torch_fused(session, q, k, v, is_causal=is_causal),
        }
    )
    flops = 4.0 * 8 * n * (n + 1 if is_causal else 2 * n) / 2 * head_dim
    rows = [measured.row(name, what, Unit.RATIO, lambda m: m.speedup("float32"), target, flops=flops)]
    if against_torch is not None:
        rows.append(_against(measured, f"{name}_torch", against, flops, against_torch))
    return rows


def on_top(session: Session, name: str) -> list[Row]:
    """Cost of lse and entropy on top of the output of bfloat16 arrays."""
    what, target = "lse and entropy on top of bfloat16, 8 x 3072 x 64", at_most(0.04)
    if missing := _missing():
        return [skipped(name, what, Unit.EXTRA, missing, target)]
    q, k, v = _stored(random_heads(8, 3072, 64))
    measured = session.measure(
        {OURS: lambda: attention(q, k, v), "statistics": lambda: attention_statistics(q, k, v)},
        rounds=None if session.quick else 3 * session.rounds,
    )
    flops, find = 4.0 * 8 * 3072**2 * 64, partial(_extra, "statistics")
    return [measured.row(name, what, Unit.EXTRA, find, target, flops=flops, of="statistics")]


def backward(session: Session, name: str) -> list[Row]:
    """Time of our float32 backward pass over that of bfloat16, each after its forward pass."""
    what, target = "bfloat16 backward faster than float32, 8 x 3072 x 64", at_least(1.6)
    if missing := _missing():
        return [skipped(name, what, Unit.RATIO, missing, target)]
    wide = random_heads(8, 3072, 64)
    grad = np.random.default_rng(1).standard_normal(wide[0].shape, np.float32)
    q, k, v = _stored(wide)
    narrow_grad = _stored(grad)
    wide_rows, rows = attention_statistics(*wide), attention_statistics(q, k, v)
    wide_q, wide_k, wide_v = wide
    measured = session.measure(
        {
            OURS: lambda: attention_gradients(q, k, v, narrow_grad, forward=rows),
            "float32": lambda: attention_gradients(wide_q, wide_k, wide_v, grad, forward=wide_rows),
        }
    )
    flops = 10.0 * 8 * 3072**2 * 64
    return [measured.row(name, what, Unit.RATIO, lambda m: m.speedup("float32"), target, flops=flops)]


def decode(session: Session, name: str) -> list[Row]:
    """One query and 16-bit keys and values: their bytes per second, over those of only reading them."""
    keys = 65536
    rng = np.random.default_rng(0)
    q = rng.standard_normal((8, 1, 64), np.float32)
    key_value = rng.standard_normal((2, 8, keys, 64), np.float32)
    rows = []
    for stored in ("float16", "bfloat16"):
        what, target = f"decode, 8 x (1, {keys}) x 64 {stored}, of read bandwidth", at_least(0.85)
        row = f"{name}_{stored}"
        if stored == "bfloat16" and _missing().startswith("ml_dtypes"):
            rows.append(skipped(row, what, Unit.SHARE, _missing(), target))
            continue
        narrow = key_value.astype(np.float16) if stored == "float16" else _stored(key_value)
        query = q.astype(narrow.dtype)
        read = MemoryRead(narrow.view(np.uint16), session.threads)
        call = partial(attention, query, *narrow)
        measured = session.measure({OURS: call, "read": read})
        flops = 4.0 * 8 * keys * 64
        note = f"{narrow.nbytes / measured.samples.seconds(OURS) / 1e9:.1f} GB/s"
        rows.append(
            measured.row(row, what, Unit.SHARE, lambda m: m.speedup("read"), target, flops=flops, note=note)
        )
    return rows
