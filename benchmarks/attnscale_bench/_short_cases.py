# SPDX-License-Identifier: BSD-3-Clause
"""Cases of calls on 16 tokens with a mask, a law, a soft-cap, or entropy in the loss."""

from __future__ import annotations

from functools import partial
from typing import Any

import attnscale as at
import numpy as np
from numpy.typing import NDArray

from ._rows import Row, Target, Unit, skipped
from ._session import OURS, Measured, Session, random_heads
from ._tensor_cases import output_and_entropy_step
from ._timing import Action, Estimate

__all__ = ["gradients", "mask_on_tensors", "options"]

_HEADS, _N, _HEAD_DIM = 4, 16, 16
_SIZE = f"{_HEADS} x {_N} x {_HEAD_DIM}"


def _mask() -> NDArray[Any]:
    """Two of three keys, and that of the row itself."""
    return np.asarray((np.random.default_rng(2).random((_N, _N)) < 2 / 3) | np.eye(_N, dtype=bool))


def options(session: Session, name: str, *, targets: dict[str, Target]) -> list[Row]:
    """Time of a call of NumPy arrays with options over that of the plain call."""
    arrays, mask = random_heads(_HEADS, _N, _HEAD_DIM), _mask()
    given: dict[str, tuple[str, dict[str, Any]]] = {
        "mask": ("call with a mask", {"attn_mask": mask}),
        "mask_law": ("  with a mask and a law", {"attn_mask": mask, "scale": "log_n"}),
        "softcap": ("  with a soft-cap", {"softcap": 20.0}),
    }
    calls: dict[str, Action] = {
        who: partial(at.attention, *arrays, **chosen) for who, (_, chosen) in given.items()
    }
    measured = session.measure({OURS: partial(at.attention, *arrays), **calls})
    return [
        measured.row(
            f"{name}_{who}",
            f"{what} over the plain call, {_SIZE}",
            Unit.RATIO,
            partial(_over_plain, who),
            targets[who],
            of=who,
        )
        for who, (what, _) in given.items()
    ]


def _over_plain(who: str, measured: Measured) -> Estimate:
    return measured.samples.ratio(who, OURS)


def mask_on_tensors(session: Session, name: str, *, target: Target) -> list[Row]:
    """Time of a call of tensors with a boolean mask over that of PyTorch's attention."""
    what = f"tensors with a mask over torch, {_SIZE}"
    if session.torch is None:
        return [skipped(name, what, Unit.RATIO, "torch is not installed", target)]
    tensors = session.torch.tensors(*random_heads(_HEADS, _N, _HEAD_DIM))
    mask = session.torch.module.from_numpy(_mask())
    attends = {OURS: at.torch.attention, "torch": session.torch.fused}
    calls = {who: partial(attend, *tensors, attn_mask=mask) for who, attend in attends.items()}
    return [session.measure(calls).row(name, what, Unit.RATIO, _over_torch, target)]


def gradients(session: Session, name: str, *, targets: dict[str, Target]) -> list[Row]:
    """Time of forward and backward pass on tensors over PyTorch's, of entropy in the loss over by hand."""
    titles = {
        "plain": "forward and backward on tensors over torch",
        "mask": "  with a mask",
        "entropy": "  output and entropy in a loss, over torch by hand",
    }
    rows = []
    for which, title in titles.items():
        row, what = f"{name}_{which}", f"{title}, {_SIZE}"
        if session.torch is None:
            rows.append(skipped(row, what, Unit.RATIO, "torch is not installed", targets[which]))
            continue
        measured = session.measure(_gradients(session, which))
        rows.append(measured.row(row, what, Unit.RATIO, _over_torch, targets[which]))
    return rows


def _gradients(session: Session, which: str) -> dict[str, Action]:
    assert session.torch is not None
    torch, arrays = session.torch, random_heads(_HEADS, _N, _HEAD_DIM)
    if which == "entropy":
        ours, theirs = output_and_entropy_step(torch, arrays), torch.output_and_entropy_step(*arrays)
        return {OURS: ours, "torch": theirs}
    masked = {"attn_mask": torch.module.from_numpy(_mask())} if which == "mask" else {}
    attends = {OURS: at.torch.attention, "torch": torch.fused}
    tensors = torch.tensors(*arrays)
    return {who: torch.step(partial(attend, **masked), tensors) for who, attend in attends.items()}


def _over_torch(measured: Measured) -> Estimate:
    return measured.samples.ratio(OURS, "torch")
