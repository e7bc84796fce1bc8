# SPDX-License-Identifier: BSD-3-Clause
"""Cases of short calls on tensors, where the overhead may exceed the kernels' time."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import attnscale as at
from numpy.typing import NDArray

from ._peers import Torch
from ._rows import Row, Target, Unit, at_least, at_most, skipped
from ._session import OURS, Measured, Session, random_heads
from ._timing import Action, Estimate, estimate

__all__ = [
    "FORWARD_1",
    "FORWARD_8",
    "STEP_8",
    "STEP_16",
    "entropy_in_a_loss",
    "forward_on_tensors",
    "gradients_overhead",
    "output_and_entropy_step",
    "step_on_tensors",
    "tensor_overhead",
]

Array = NDArray[Any]


def tensor_overhead(session: Session, name: str) -> list[Row]:
    """Time of a call of 16 tokens on tensors less that on arrays, without and with statistics."""
    what = "call on tensors over the one on arrays, 1 x 16 x 16"
    if session.torch is None:
        return [skipped(name, what, Unit.MICROSECONDS, "torch is not installed", at_most(5e-6))]
    arrays = random_heads(1, 16, 16)
    tensors = session.torch.tensors(*arrays)
    candidates: dict[str, Action] = {
        OURS: lambda: at.torch.attention(*tensors),
        "array": lambda: at.attention(*arrays),
        "statistics": lambda: at.torch.attention_statistics(*tensors),
        "array_statistics": lambda: at.attention_statistics(*arrays),
        "torch": partial(session.torch.fused, *tensors),
    }
    measured = session.measure(candidates)
    over = partial(_over, OURS, "array"), partial(_over, "statistics", "array_statistics")
    return [
        measured.row(name, what, Unit.MICROSECONDS, over[0], at_most(5e-6)),
        measured.row(
            f"{name}_statistics", "  statistics", Unit.MICROSECONDS, over[1], at_most(8e-6), of="statistics"
        ),
    ]


def gradients_overhead(session: Session, name: str) -> list[Row]:
    """Gradients of 16 tokens on arrays, with and without the results of the forward pass."""
    q, k, v = random_heads(1, 16, 16)
    rows = at.attention_statistics(q, k, v)
    measured = session.measure(
        {
            OURS: lambda: at.attention_gradients(q, k, v, v, forward=rows),
            "alone": lambda: at.attention_gradients(q, k, v, v),
        }
    )
    wanted = at_most(15e-6)
    what = "gradients from the forward pass, 1 x 16 x 16"
    return [
        measured.row(name, what, Unit.MICROSECONDS, partial(_seconds, OURS), wanted),
        measured.row(
            f"{name}_alone", "  alone", Unit.MICROSECONDS, partial(_seconds, "alone"), wanted, of="alone"
        ),
    ]


def forward_on_tensors(session: Session, name: str, *, heads: int, targets: dict[int, Target]) -> list[Row]:
    """Forward on tensors: PyTorch's time over ours, at each n."""
    return [_against_fused(session, f"{name}_{n}", heads, n, target) for n, target in targets.items()]


def _against_fused(session: Session, name: str, heads: int, n: int, target: Target) -> Row:
    what = f"forward on tensors faster than torch, {heads} x {n} x 64"
    if session.torch is None:
        return skipped(name, what, Unit.RATIO, "torch is not installed", target)
    tensors, fused = session.torch.tensors(*random_heads(heads, n, 64)), session.torch.fused
    measured = session.measure({OURS: lambda: at.torch.attention(*tensors), "torch": lambda: fused(*tensors)})
    return measured.row(name, what, Unit.RATIO, _speedup, target, flops=4.0 * heads * n * n * 64)


def step_on_tensors(
    session: Session, name: str, *, heads: int, head_dim: int, targets: dict[int, Target]
) -> list[Row]:
    """Forward and backward on tensors: PyTorch's time over ours, at each n."""
    rows = []
    for n, target in targets.items():
        what = f"forward and backward on tensors faster than torch, {heads} x {n} x {head_dim}"
        if session.torch is None:
            rows.append(skipped(f"{name}_{n}", what, Unit.RATIO, "torch is not installed", target))
            continue
        tensors = session.torch.tensors(*random_heads(heads, n, head_dim))
        measured = session.measure(
            {
                OURS: session.torch.step(at.torch.attention, tensors),
                "torch": session.torch.step(session.torch.fused, tensors),
            }
        )
        flops = 14.0 * heads * n * n * head_dim
        rows.append(measured.row(f"{name}_{n}", what, Unit.RATIO, _speedup, target, flops=flops))
    return rows


def entropy_in_a_loss(session: Session, name: str, *, targets: dict[int, Target]) -> list[Row]:
    """Gradients of output and entropy: the time of autograd over the matrices in memory over ours."""
    rows = []
    for n, target in targets.items():
        what = f"output and entropy in a loss faster than torch by hand, 8 x {n} x 64"
        if session.torch is None:
            rows.append(skipped(f"{name}_{n}", what, Unit.RATIO, "torch is not installed", target))
            continue
        arrays = random_heads(8, n, 64)
        candidates = {
            OURS: output_and_entropy_step(session.torch, arrays),
            "torch": session.torch.output_and_entropy_step(*arrays),
        }
        flops = 14.0 * 8 * n * n * 64
        measured = session.measure(candidates)
        rows.append(measured.row(f"{name}_{n}", what, Unit.RATIO, _speedup, target, flops=flops))
    return rows


def output_and_entropy_step(torch: Torch, arrays: Iterable[Array]) -> Action:
    """Gradients of the sums of output and entropy, of arrays (heads, n, head_dim) as tensors."""
    tensors = [tensor.requires_grad_() for tensor in torch.tensors(*arrays)]

    def call() -> object:
        rows = at.torch.attention_statistics(*tensors)
        return torch.module.autograd.grad(rows.output.sum() + rows.entropy.sum(), tensors)

    return call


def _speedup(measured: Measured) -> Estimate:
    return measured.speedup("torch")


def _over(call: str, base: str, measured: Measured) -> Estimate:
    """Seconds of a call less those of another, round by round."""
    wall = measured.samples.wall
    return estimate([a - b for a, b in zip(wall[call], wall[base], strict=True)])


def _seconds(candidate: str, measured: Measured) -> Estimate:
    return estimate(measured.samples.wall[candidate])


#: Least values of PyTorch's time over ours at each n.
FORWARD_8 = {32: at_least(1.0), 64: at_least(1.2), 128: at_least(1.4)}
FORWARD_1 = {32: at_least(0.8), 64: at_least(1.0), 128: at_least(1.2), 256: at_least(1.2)}
STEP_8 = {128: at_least(1.2), 256: at_least(1.25), 512: at_least(1.3)}
STEP_16 = {16: at_least(0.5)}
