# SPDX-License-Identifier: BSD-3-Clause
"""Custom operators under torch.func, whose transforms take Functions with a setup_context only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["apply", "refuse_second_derivative"]


def refuse_second_derivative(*_: Any) -> None:
    """The backward pass of a backward pass."""
    raise RuntimeError(
        "attention of attnscale has first derivatives only, and was to be differentiated twice "
        "(create_graph=True and a second backward, or torch.func.grad of a gradient)"
    )


def _nothing(ctx: Any, inputs: Any, output: Any) -> None:
    pass


def apply(
    operator: Any,
    arguments: tuple[Any, ...],
    save: Callable[..., None] = _nothing,
    pull_back: Callable[..., Any] = refuse_second_derivative,
) -> Any:
    """The operator, which has the same formula registered for autograd; as a Function in a transform."""
    if not torch._C._are_functorch_transforms_active():
        return operator(*arguments)

    class Operator(torch.autograd.Function):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            return operator(*inputs)

        setup_context = staticmethod(save)
        backward = staticmethod(pull_back)

    return Operator.apply(*arguments)
