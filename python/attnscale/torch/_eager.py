# SPDX-License-Identifier: BSD-3-Clause
"""A plain call on tensors, without the dispatcher of PyTorch, which takes longer than a small attention.

The results and gradients are those of the operator ``attend``, which serves where PyTorch has more to
do with a call than to run it: to compile, export, transform or watch it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._call.lost_rows import warn_of_lost_rows
from .._call.statistics import KEPT
from .._core import attend_tensors, differentiate_tensors
from .._results import DIFFERENTIABLE
from ._arguments import LEARNABLE, N_TENSORS, Arguments
from ._ops import attend_arrays, differentiate, differentiate_as_operator
from ._private import is_eager
from ._tensors import array

#: Who sees the calls of attention before they are computed, the last one first: a watch of a model, for that
#: time. Its ``attend`` takes the arguments of :func:`attend_plain`, and returns what is computed.
watchers: list[Any] = []

_N_LEARNABLE = len(LEARNABLE)
#: What backward returns for the arguments of the function that are no tensors.
_NO_GRADIENTS = (None, None, None, None)
#: What backward returns for the learnable tensors that a plain call does not have.
_NOT_OF_PLAIN = (None,) * (_N_LEARNABLE - 3)


def attend_plain(
    query: Any, key: Any, value: Any, statistics: tuple[str, ...], options: Mapping[str, Any]
) -> tuple[Tensor | None, tuple[Tensor, ...]] | None:
    """The output, None without a value, and the statistics of a plain call that nobody differentiates.

    None for any other call: one with other options, or that PyTorch has more to do with than to run.
    """
    if watchers:
        return watchers[-1].attend(query, key, value, statistics, options)
    if query is None or key is None or not is_eager(query, key, value) or torch.is_autocast_enabled("cpu"):
        return None
    if (query.requires_grad or key.requires_grad or (value is not None and value.requires_grad)) and (
        torch.is_grad_enabled()
    ):
        return None
    plain = attend_tensors(query, key, value, statistics, options)
    return None if plain is None else _without_lost_rows(plain, query, key, value)


def _without_lost_rows(
    found: tuple[Any, tuple[Any, ...], bool], *tensors: Tensor | None
) -> tuple[Any, tuple[Any, ...]]:
    """The output and the statistics, after a warning where rows of them are NaN without a reason."""
    output, rows, has_lost_rows = found
    if has_lost_rows:
        warn_of_lost_rows(*(None if each is None else array(each) for each in tensors))
    return output, rows


def attend_now(
    call: Arguments, options: Mapping[str, Any], asked: tuple[str, ...], kept: tuple[str, ...]
) -> tuple[Tensor | None, dict[str, Tensor]]:
    """The output, None without a value, and the statistics asked for, of a call that is_eager() speaks for.

    Parameters
    ----------
    call : Arguments
    options : mapping
        Those that the call was read from.
    asked : tuple of str
    kept : tuple of str
        Also what a backward pass starts from.
    """
    learnable = call.tensors[:_N_LEARNABLE]
    if not torch.is_grad_enabled() or not any(x is not None and x.requires_grad for x in learnable):
        return _attend(call, options, asked)[:2]
    names = tuple(dict.fromkeys(asked))
    found = _Attend.apply(call, options, names, kept, *learnable)
    if call.value is None:
        return None, dict(zip(names, found, strict=True))
    return found[0], dict(zip(names, found[1:], strict=True))


def _attend(
    call: Arguments, options: Mapping[str, Any], names: tuple[str, ...]
) -> tuple[Tensor | None, dict[str, Tensor], bool]:
    """The output, the statistics of these names, which may have one twice, and whether the call is plain."""
    plain = attend_tensors(call.query, call.key, call.value, names, options)
    if plain is None:
        return *attend_arrays(call, names), False
    output, rows = _without_lost_rows(plain, call.query, call.key, call.value)
    return output, dict(zip(names, rows, strict=True)), True


class _Attend(torch.autograd.Function):
    """Attention under autograd; the tensors that may have a gradient are arguments of their own."""

    @staticmethod
    def forward(
        ctx: Any,
        call: Arguments,
        options: Mapping[str, Any],
        asked: tuple[str, ...],
        kept: tuple[str, ...],
        *_: Any,
    ) -> Any:
        """The output if there is a value, and the statistics asked for."""
        output, rows, is_plain = _attend(call, options, kept)
        ctx.form, ctx.asked = call[N_TENSORS:], asked
        ctx.options = options if is_plain else None  # a plain call has no tensors among its options
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
        rows = (*saved[N_TENSORS:], grads[0] if has_value else None, *of_rows)
        tensors = saved[:N_TENSORS]
        if torch.is_grad_enabled() or not is_eager(*tensors, *rows):
            return (*_NO_GRADIENTS, *differentiate_as_operator(tensors, ctx.form, rows, wanted))
        if has_value and ctx.options is not None and all(each is None for each in grads[1:]):
            output, lse = saved[N_TENSORS : N_TENSORS + 2]
            query, key, value = tensors[:3]
            plain = differentiate_tensors(query, key, value, grads[0], output, lse, ctx.options)
            if plain is not None:
                return (*_NO_GRADIENTS, *plain, *_NOT_OF_PLAIN)
        return (*_NO_GRADIENTS, *differentiate(Arguments._make((*tensors, *ctx.form)), rows, wanted))
