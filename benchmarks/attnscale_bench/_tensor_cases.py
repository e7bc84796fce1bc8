# SPDX-License-Identifier: BSD-3-Clause
"""Cases of short calls on tensors, where the overhead may exceed the kernels' time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attnscale as at

from ._rows import Row, Target, Unit, at_least, at_most, skipped
from ._session import OURS, Measured, Session, random_heads
from ._timing import Action, Estimate, estimate

__all__ = [
    "FORWARD_1",
    "FORWARD_8",
    "STEP_8",
    "STEP_16",
    "forward_on_tensors",
    "gradients_overhead",
    "small_model_step",
    "step_on_tensors",
    "tensor_overhead",
]

_Attend = Callable[[Any, Any, Any], Any]


def tensor_overhead(session: Session, name: str) -> list[Row]:
    """Time of a call of 16 tokens on tensors less that on arrays, without and with statistics."""
    what = "call on tensors over the one on arrays, 1 x 16 x 16"
    if session.torch is None:
        return [skipped(name, what, Unit.MICROSECONDS, "torch is not installed", at_most(5e-6))]
    arrays = random_heads(1, 16, 16)
    tensors = _tensors(session, arrays)
    candidates: dict[str, Action] = {
        OURS: lambda: at.torch.attention(*tensors),
        "array": lambda: at.attention(*arrays),
        "statistics": lambda: at.torch.attention_statistics(*tensors),
        "array_statistics": lambda: at.attention_statistics(*arrays),
        "torch": partial(_fused(session), *tensors),
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
    tensors, fused = _tensors(session, random_heads(heads, n, 64)), _fused(session)
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
        tensors = [x.requires_grad_() for x in _tensors(session, random_heads(heads, n, head_dim))]
        measured = session.measure(
            {
                OURS: _step(session, at.torch.attention, tensors),
                "torch": _step(session, _fused(session), tensors),
            }
        )
        flops = 14.0 * heads * n * n * head_dim
        rows.append(measured.row(f"{name}_{n}", what, Unit.RATIO, _speedup, target, flops=flops))
    return rows


def small_model_step(session: Session, name: str, *, target: Target) -> list[Row]:
    """A training step of four causal layers on 128 tokens: the time with PyTorch's attention over ours."""
    what = "training step of 4 causal layers faster than torch, 8 x 128 x 32"
    if session.torch is None:
        return [skipped(name, what, Unit.RATIO, "torch is not installed", target)]
    ours = partial(at.torch.attention, is_causal=True)
    fused = partial(_fused(session), is_causal=True)
    measured = session.measure(
        {OURS: _model_step(session.torch.module, ours), "torch": _model_step(session.torch.module, fused)}
    )
    return [measured.row(name, what, Unit.RATIO, _speedup, target, flops=0.0)]


def _model_step(torch: Any, attend: _Attend) -> Action:
    """A step of SGD of a decoder with residual streams of 256 channels and 8 heads."""
    generator = torch.Generator().manual_seed(0)
    heads, width, layers, n = 8, 256, 4, 128
    shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)] * layers
    weights = [
        (torch.randn(*shape, generator=generator) * shape[0] ** -0.5).requires_grad_() for shape in shapes
    ]
    tokens = torch.randn(1, n, width, generator=generator)
    norm = torch.nn.functional.layer_norm

    def step() -> object:
        x = tokens
        for i in range(0, len(weights), 4):
            qkv = (norm(x, (width,)) @ weights[i]).view(1, n, 3, heads, -1).permute(2, 0, 3, 1, 4)
            mixed = attend(*qkv.unbind(0)).transpose(1, 2).reshape(1, n, width)
            x = x + mixed @ weights[i + 1]
            x = x + (norm(x, (width,)) @ weights[i + 2]).relu() @ weights[i + 3]
        gradients = torch.autograd.grad(x.square().mean(), weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(gradient, alpha=1e-6)
        return x

    return step


def _step(session: Session, attend: _Attend, tensors: list[Any]) -> Action:
    assert session.torch is not None
    torch = session.torch.module
    ones = torch.ones_like(tensors[0])
    return lambda: torch.autograd.grad(attend(*tensors), tensors, ones)


def _tensors(session: Session, arrays: Any) -> list[Any]:
    """Tensors (1, heads, n, head_dim): PyTorch's fast path takes four axes."""
    assert session.torch is not None
    return [session.torch.module.from_numpy(array)[None] for array in arrays]


def _fused(session: Session) -> Any:
    assert session.torch is not None
    return session.torch.module.nn.functional.scaled_dot_product_attention


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
