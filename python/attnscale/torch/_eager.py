# SPDX-License-Identifier: BSD-3-Clause
"""A plain call on tensors, without the dispatcher of PyTorch, which takes longer than a small attention.

The results and gradients are those of the operator ``attend``, which serves where PyTorch has more to
do with a call than to run it: to compile, export, transform or watch it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._arguments import LEARNABLE, Arguments
from ._ops import DIFFERENTIABLE, KEPT, attend_arrays, differentiate, differentiate_as_operator
from ._tensors import is_eager

__all__ = ["attend_now"]

_N_TENSORS = len(Arguments._fields) - 1
_N_LEARNABLE = len(LEARNABLE)
#: What backward returns for the arguments of the function that are no tensors.
_NO_GRADIENTS = (None, None, None)


def attend_now(
    call: Arguments, asked: tuple[str, ...], kept: tuple[str, ...]
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """The output, None without a value, and the statistics asked for, of a call that is_eager() speaks for.

    Parameters
    ----------
    call : Arguments
    asked : tuple of str
    kept : tuple of str
        Also what a backward pass starts from.
    """
    learnable = call.tensors[:_N_LEARNABLE]
    if not torch.is_grad_enabled() or not any(x is not None and x.requires_grad for x in learnable):
        return attend_arrays(call, asked)
    names = tuple(dict.fromkeys(asked))
    found = _Attend.apply(call, names, kept, *learnable)
    if call.value is None:
        return None, dict(zip(names, found, strict=True))
    return found[0], dict(zip(names, found[1:], strict=True))


class _Attend(torch.autograd.Function):
    """Attention under autograd; the tensors that may have a gradient are arguments of their own."""

    @staticmethod
    def forward(ctx: Any, call: Arguments, asked: tuple[str, ...], kept: tuple[str, ...], *_: Any) -> Any:
        """The output if there is a value, and the statistics asked for."""
        output, rows = attend_arrays(call, kept)
        ctx.form, ctx.asked = call.form, asked
        ctx.save_for_backward(*call.tensors, output, *(rows.get(name) for name in KEPT))
        ctx.set_materialize_grads(False)
        if counts := [rows[name] for name in asked if name not in DIFFERENTIABLE]:
            ctx.mark_non_differentiable(*counts)
        return (*(() if output is None else (output,)), *(rows[name] for name in asked))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        """The gradients of the learnable tensors."""
        saved, wanted = ctx.saved_tensors, ctx.needs_input_grad[len(_NO_GRADIENTS) :]
        has_value = saved[2] is not None
        given = dict(zip(ctx.asked, grads[has_value:], strict=True))
        of_rows = (given.get(name) for name in DIFFERENTIABLE)
        rows = (*saved[_N_TENSORS:], grads[0] if has_value else None, *of_rows)
        tensors = saved[:_N_TENSORS]
        if torch.is_grad_enabled() or not is_eager(*tensors, *rows):
            return (*_NO_GRADIENTS, *differentiate_as_operator(tensors, ctx.form, rows, wanted))
        return (*_NO_GRADIENTS, *differentiate(Arguments._make((*tensors, ctx.form)), rows, wanted))
