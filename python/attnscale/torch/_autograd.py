# SPDX-License-Identifier: BSD-3-Clause
"""Custom operators with their formulas for autograd, torch.func and the compiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from ._private import is_transformed
from ._vmap import by_loop


def compute_again(function: Callable[..., Any], *arguments: Any, enabled: bool) -> Any:
    """The function's result; where `enabled`, the backward pass keeps its arguments and computes it again."""
    if not enabled or is_transformed() or not torch.is_grad_enabled():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


def refuse_second_derivative(*_: Any) -> None:
    """Raise an error in place of the backward pass of a backward pass."""
    raise RuntimeError(
        "attention of attnscale has first derivatives only, and was to be differentiated twice "
        "(create_graph=True and a second backward, or torch.func.grad of a gradient)"
    )


def _nothing(ctx: Any, inputs: Any, output: Any) -> None:
    pass


class Differentiable:
    """An operator whose formulas for autograd and torch.func.vmap are registered.

    A call goes through a Function with a setup_context: torch.func takes no other, and what PyTorch makes of
    a registered formula reads the whole schema again for every argument, 0.2 ms a call. The compiler takes
    the operator itself.

    Parameters
    ----------
    operator : CustomOpDef
    save, pull_back : callable
        The setup_context and the backward pass; without them, the backward pass is an error.
    rule : callable
        ``rule(call, info, in_dims, *arguments)`` is the rule of vmap, where `call` is the operator again.
    """

    def __init__(
        self,
        operator: Any,
        save: Callable[..., None] = _nothing,
        pull_back: Callable[..., Any] = refuse_second_derivative,
        rule: Callable[..., Any] = by_loop,
    ) -> None:
        operator.register_autograd(pull_back, setup_context=save)
        operator.register_vmap(partial(rule, operator))

        class Operator(torch.autograd.Function):
            @staticmethod
            def forward(*inputs: Any) -> Any:
                return operator(*inputs)

            setup_context = staticmethod(save)
            backward = staticmethod(pull_back)
            vmap = staticmethod(partial(rule, self))

        self.operator, self.function = operator, Operator

    def __call__(self, *arguments: Any) -> Any:
        if torch.compiler.is_compiling() or not (
            is_transformed() or (torch.is_grad_enabled() and _learns(arguments))
        ):
            return self.operator(*arguments)
        return self.function.apply(*arguments)


def _learns(arguments: tuple[Any, ...]) -> bool:
    """Whether any of the arguments requires grad."""
    return any(isinstance(each, torch.Tensor) and each.requires_grad for each in arguments)
