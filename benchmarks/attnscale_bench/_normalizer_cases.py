# SPDX-License-Identifier: BSD-3-Clause
"""Cases that time other normalizers against the softmax of the same arrays."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
from attnscale import attention
from attnscale.normalizers import Entmax, TopK

from ._rows import Row, Target, Unit, at_least, at_most, skipped
from ._session import OURS, Measured, Session, random_heads
from ._timing import Action, Estimate

__all__ = ["MANY_CANDIDATES", "NORMALIZERS", "against_entmax", "decode_over_softmax", "over_softmax"]

# Settings of the cases that are not named after a normalizer.
_SETTINGS: dict[str, dict[str, Any]] = {
    "entmax12": {"normalizer": Entmax(1.2)},
    "sparsemax_equal": {"normalizer": "sparsemax", "scale": 0.0},
    "entmax15_flat": {"normalizer": "entmax15", "scale": 0.03},
    "top600": {"normalizer": TopK(600)},
}


def over_softmax(session: Session, name: str, *, n: int, targets: dict[str, Target]) -> list[Row]:
    """Time of each normalizer over that of softmax, round by round."""
    return _over_softmax(session, name, random_heads(8, n, 64), f"8 x {n} x 64", targets)


def decode_over_softmax(session: Session, name: str, *, n: int, targets: dict[str, Target]) -> list[Row]:
    """Time of each normalizer over that of softmax, for one query and keys in memory."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((8, 1, 64), np.float32)
    k, v = rng.standard_normal((2, 8, n, 64), np.float32)
    return _over_softmax(session, name, (q, k, v), f"8 x (1, {n}) x 64", targets)


def _over_softmax(
    session: Session, name: str, arrays: Iterable[Any], shape: str, targets: dict[str, Target]
) -> list[Row]:
    q, k, v = arrays
    candidates: dict[str, Action] = {OURS: lambda: attention(q, k, v)}
    candidates |= {other: partial(attention, q, k, v, **_setting(other)) for other in targets}
    measured = session.measure(candidates)
    flops = 4.0 * q.size * k.shape[-2]
    rows = []
    for other, target in targets.items():
        find = partial(_over_ours, other)
        what = f"{other} over softmax, {shape}"
        rows.append(measured.row(f"{name}_{other}", what, Unit.RATIO, find, target, flops=flops, of=other))
    return rows


def _setting(name: str) -> dict[str, Any]:
    return _SETTINGS.get(name, {"normalizer": name})


def _over_ours(candidate: str, measured: Measured) -> Estimate:
    return measured.samples.ratio(candidate, OURS)


def against_entmax(session: Session, name: str, *, n: int) -> list[Row]:
    """Time of PyTorch with the package entmax, whose matrix of scores is in memory, over ours."""
    rows = []
    for ours, theirs in (("sparsemax", "sparsemax"), ("entmax15", "entmax15")):
        what = f"{ours} faster than torch with entmax, 8 x {n} x 64"
        try:
            torch: Any = import_module("torch")
            solve: Any = getattr(import_module("entmax"), theirs)
        except ImportError:
            rows.append(skipped(f"{name}_{ours}", what, Unit.RATIO, "entmax is not installed", at_least(20)))
            continue
        rows.append(_against(session, f"{name}_{ours}", what, n, ours, torch, solve))
    return rows


def _against(session: Session, name: str, what: str, n: int, normalizer: str, torch: Any, solve: Any) -> Row:
    arrays = random_heads(8, n, 64)
    q, k, v = (torch.from_numpy(array) for array in arrays)

    def theirs() -> object:
        with torch.no_grad():
            return solve(q @ k.mT / 8, dim=-1) @ v

    measured = session.measure(
        {OURS: lambda: attention(*arrays, normalizer=normalizer), "entmax": theirs},
        rounds=min(session.rounds, 3),
    )
    flops = 4.0 * 8 * n**2 * 64
    return measured.row(name, what, Unit.RATIO, lambda m: m.speedup("entmax"), at_least(20), flops=flops)


NORMALIZERS: dict[str, Target] = {
    "softmax_1": at_most(1.05),
    "sigmoid": at_most(1.05),
    "relu": at_most(1.05),
    "squared_relu": at_most(1.05),
    "softpick": at_most(1.05),
    "sparsemax": at_most(1.1),
    "entmax15": at_most(1.3),
}

# Cases mentioned in the documentation: equal scores, an alpha near 1, scores of small variance, a large k.
MANY_CANDIDATES: dict[str, Target] = {
    name: at_most(3) for name in ("sparsemax_equal", "entmax12", "entmax15_flat", "top600")
}
