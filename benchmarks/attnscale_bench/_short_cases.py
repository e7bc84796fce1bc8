# SPDX-License-Identifier: BSD-3-Clause
"""Cases of calls of 16 tokens with options, whose reading may exceed the kernels' time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attnscale as at
import numpy as np

from ._rows import Row, Target, Unit, at_most, skipped
from ._session import OURS, Measured, Session, random_heads
from ._timing import Action, Estimate

__all__ = ["arrays_with_options", "gradients_with_options", "tensors_with_options"]

_SHAPE = "4 x 16 x 16"


def arrays_with_options(session: Session, name: str) -> list[Row]:
    """Time of calls on arrays with a mask, a law or a soft-cap over that of the plain call."""
    q, k, v = random_heads(4, 16, 16)
    mask, law = _mask(), at.laws.LogN(base=16)
    calls: dict[str, tuple[dict[str, Any], Target]] = {
        "mask": ({"attn_mask": mask}, at_most(1.5)),
        "mask_and_law": ({"attn_mask": mask, "scale": law}, at_most(2)),
        "softcap": ({"softcap": 30.0}, at_most(1.3)),
    }
    candidates: dict[str, Action] = {OURS: lambda: at.attention(q, k, v)}
    candidates |= {call: partial(at.attention, q, k, v, **options) for call, (options, _) in calls.items()}
    measured = session.measure(candidates)
    return [
        measured.row(
            f"{name}_{call}",
            f"{call.replace('_', ' ')} over plain, {_SHAPE}",
            Unit.RATIO,
            partial(_over, call, OURS),
            most,
            of=call,
        )
        for call, (_, most) in calls.items()
    ]


def tensors_with_options(session: Session, name: str) -> list[Row]:
    """Time of a call on tensors with a boolean mask over PyTorch's."""
    what, target = f"mask on tensors over torch, {_SHAPE}", at_most(1.1)
    if session.torch is None:
        return [skipped(name, what, Unit.RATIO, "torch is not installed", target)]
    torch = session.torch.module
    tensors, mask = session.torch.tensors(*random_heads(4, 16, 16)), torch.from_numpy(_mask())
    fused = torch.nn.functional.scaled_dot_product_attention
    measured = session.measure(
        {
            OURS: lambda: at.torch.attention(*tensors, attn_mask=mask),
            "torch": lambda: fused(*tensors, attn_mask=mask),
        }
    )
    return [measured.row(name, what, Unit.RATIO, partial(_over, OURS, "torch"), target)]


def gradients_with_options(session: Session, name: str) -> list[Row]:
    """Time of gradients on tensors over PyTorch's: plain, with a mask, and with the entropy in the loss."""
    most = {"plain": 1.2, "mask": 1.5, "entropy": 0.5}
    what = {each: f"gradients, {each}, over torch, {_SHAPE}" for each in most}
    if session.torch is None:
        return [
            skipped(f"{name}_{each}", what[each], Unit.RATIO, "torch is not installed", at_most(bound))
            for each, bound in most.items()
        ]
    candidates = _steps(session.torch.module, session.torch.tensors(*random_heads(4, 16, 16)))
    measured = session.measure(candidates)
    names = {"plain": OURS}
    return [
        measured.row(
            f"{name}_{each}",
            what[each],
            Unit.RATIO,
            partial(_over, names.get(each, each), f"torch_{each}"),
            at_most(bound),
            of=names.get(each, each),
        )
        for each, bound in most.items()
    ]


def _steps(torch: Any, tensors: list[Any]) -> dict[str, Action]:
    """Gradients of the output, and of output and entropy, by ours and by PyTorch."""
    inputs, mask = [x.requires_grad_() for x in tensors], torch.from_numpy(_mask())
    ones = torch.ones_like(inputs[0])
    fused, gradients = torch.nn.functional.scaled_dot_product_attention, torch.autograd.grad

    def ours() -> tuple[Any, Any]:
        rows = at.torch.attention_statistics(*inputs, statistics=("entropy",))
        return rows.output, rows.entropy

    def by_hand() -> tuple[Any, Any]:
        q, k, v = inputs
        scores = q @ k.mT * q.shape[-1] ** -0.5
        lse = scores.logsumexp(-1)
        weights = (scores - lse[..., None]).exp()
        return weights @ v, lse - (weights * scores).sum(-1)

    def of_both(call: Callable[[], tuple[Any, Any]]) -> object:
        output, entropy = call()
        return gradients((output * ones).sum() + entropy.sum(), inputs)

    return {
        OURS: lambda: gradients(at.torch.attention(*inputs), inputs, ones),
        "torch_plain": lambda: gradients(fused(*inputs), inputs, ones),
        "mask": lambda: gradients(at.torch.attention(*inputs, attn_mask=mask), inputs, ones),
        "torch_mask": lambda: gradients(fused(*inputs, attn_mask=mask), inputs, ones),
        "entropy": partial(of_both, ours),
        "torch_entropy": partial(of_both, by_hand),
    }


def _mask() -> Any:
    """A mask in which every query sees a key."""
    mask = np.random.default_rng(1).random((16, 16)) < 0.7
    mask[:, 0] = True
    return mask


def _over(candidate: str, other: str, measured: Measured) -> Estimate:
    return measured.samples.ratio(candidate, other)
