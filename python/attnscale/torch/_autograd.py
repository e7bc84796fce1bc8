# SPDX-License-Identifier: BSD-3-Clause
"""Custom operators under torch.func, whose transforms take Functions with a setup_context only."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from ._vmap import by_loop

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
    rule: Callable[..., Any] = by_loop,
) -> Any:
    """The operator, which has the same formulas registered; as a Function in a transform.

    rule(call, info, in_dims, *arguments) is that of torch.func.vmap, where `call` is the operator again.
    """
    # The compiler has its own way with operators, and none with a class made in a function.
    if not torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling():
        return operator(*arguments)

    def again(*given: Any) -> Any:
        return apply(operator, given, save, pull_back, rule)

    class Operator(torch.autograd.Function):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            return operator(*inputs)

        setup_context = staticmethod(save)
        backward = staticmethod(pull_back)
        vmap = staticmethod(partial(rule, again))

    return Operator.apply(*arguments)
