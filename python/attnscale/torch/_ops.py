# SPDX-License-Identifier: BSD-3-Clause
"""Attention and its backward pass as operators of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .._results import NAMES, AttentionStatistics
from ..attention import attention_statistics
from ..gradients import attention_gradients
from ._arguments import FORM_SCHEMA, LEARNABLE, TENSOR_SCHEMA, Arguments, Form
from ._autograd import Differentiable
from ._tensors import array, heads_first, tensor
from ._vmap import attend_backward_rule, attend_rule

__all__ = ["pull_back_output", "run"]

_N_TENSORS = len(Arguments._fields) - 1
_N_ARGUMENTS = _N_TENSORS + len(Form._fields)  # of a call; an operator may have more
_COUNTS = ("n_visible", "argmax", "support")
_DIFFERENTIABLE = tuple(name for name in NAMES if name not in (*_COUNTS, "sink_weight"))
_GRADIENTS = tuple(f"grad_{name}" for name in _DIFFERENTIABLE)
# Statistics that the backward pass would compute again if they were not kept.
_KEPT = ("lse", "entropy", "score_variance", "concentration", "max_weight", "argmax")


def _outputs(count: int) -> str:
    return f"({', '.join(['Tensor'] * count)})"


# ---- forward ------------------------------------------------------------------------------------


@torch.library.custom_op(
    "attnscale::attend",
    mutates_args=(),
    device_types="cpu",
    schema=f"({TENSOR_SCHEMA}, {FORM_SCHEMA}, str[] statistics) -> {_outputs(1 + len(NAMES))}",
)
def attend(*arguments: Any) -> tuple[torch.Tensor, ...]:
    """The output, then the statistics in the order of NAMES; those not asked for are empty tensors."""
    call, asked = Arguments.of(arguments), arguments[-1]
    rows = attention_statistics(*call.arrays(), statistics=asked, **call.options())
    new = call.query.new_empty
    output = new(0) if rows.output is None else tensor(rows.output)
    return output, *(tensor(np.asarray(getattr(rows, name))) if name in asked else new(0) for name in NAMES)


@attend.register_fake
def _(*arguments: Any) -> tuple[torch.Tensor, ...]:
    call, asked = Arguments.of(arguments), arguments[-1]
    rows, dtype = call.row_extents
    new = call.query.new_empty
    output = new(0)
    if call.value is not None:
        shape = (*rows, call.value.shape[-1])
        output = new(heads_first(shape, call.form.layout), dtype=dtype)
    floats = torch.float64 if dtype == torch.float64 else torch.float32
    return output, *(
        new(rows, dtype=torch.int64 if name in _COUNTS else floats) if name in asked else new(0)
        for name in NAMES
    )


# ---- backward -----------------------------------------------------------------------------------


@torch.library.custom_op(
    "attnscale::attend_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"({TENSOR_SCHEMA}, {FORM_SCHEMA}, Tensor? output, "
    + ", ".join(f"Tensor? {name}" for name in (*_KEPT, "grad_output", *_GRADIENTS))
    + f", bool[] wanted) -> {_outputs(len(LEARNABLE))}",
)
def attend_backward(*arguments: Any) -> tuple[torch.Tensor, ...]:
    """The gradients of the tensors LEARNABLE; those that are not wanted are empty tensors."""
    call = Arguments.of(arguments)
    given = [None if x is None else array(x) for x in arguments[_N_ARGUMENTS:-1]]
    n = 1 + len(_KEPT)
    if all(each is None for each in given[n:]):  # no output has a gradient
        return tuple(
            torch.zeros_like(x) if want else call.query.new_empty(0)
            for x, want in zip(call.tensors, arguments[-1], strict=False)
        )
    kept = {name: x for name, x in zip(_KEPT, given[1:n], strict=True) if x is not None}
    rows: dict[str, Any] = dict(zip(_GRADIENTS, given[n + 1 :], strict=True))
    query, key, value = call.arrays()
    found = attention_gradients(
        query,
        key,
        value,
        given[n],
        **rows,
        forward=AttentionStatistics(given[0], **kept),
        wanted=[*(name for name, want in zip(LEARNABLE, arguments[-1], strict=True) if want), "law"],
        **call.options(),
    )
    wanted = zip(LEARNABLE, call.tensors, arguments[-1], strict=False)
    return tuple(
        _gradient(found, name, given, call) if want else call.query.new_empty(0)
        for name, given, want in wanted
    )


def _gradient(found: Any, name: str, given: Any, call: Arguments) -> torch.Tensor:
    """The gradient of a tensor of the call, in the type of the tensor."""
    values: Any
    if name == "scale" and call.form.learned:
        values = np.concatenate([found.law[each].reshape(-1) for each in call.form.learned])
    else:
        values = getattr(found, name, None)
    if values is None and name == "value":  # the output is not in the loss
        return torch.zeros_like(given)
    if values is None:
        raise ValueError(f"{name} has no gradient in this call, and requires one; use {name}.detach()")
    return tensor(np.ascontiguousarray(values)).to(given.dtype).reshape(given.shape)


@attend_backward.register_fake
def _(*arguments: Any) -> tuple[torch.Tensor, ...]:
    return tuple(
        torch.empty(given.shape, dtype=given.dtype) if want else arguments[0].new_empty(0)
        for given, want in zip(arguments, arguments[-1], strict=False)
    )


_backward = Differentiable(attend_backward, rule=attend_backward_rule)


def pull_back_output(
    tensors: tuple[Any, ...], form: tuple[Any, ...], grad: torch.Tensor, wanted: list[bool]
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of the tensors LEARNABLE from the gradient `grad` of the output alone; no rows were kept."""
    given = (*tensors, *form, *(None,) * (1 + len(_KEPT)), grad, *(None,) * len(_GRADIENTS), wanted)
    return tuple(x if want else None for x, want in zip(_backward(*given), wanted, strict=True))


# ---- autograd -----------------------------------------------------------------------------------


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    """Save the tensors that the backward pass of ``attend`` reads."""
    ctx.form, ctx.asked = inputs[_N_TENSORS:_N_ARGUMENTS], inputs[-1]
    rows = dict(zip(NAMES, output[1:], strict=True))
    kept = (rows[name] if name in ctx.asked else None for name in _KEPT)
    ctx.save_for_backward(*inputs[:_N_TENSORS], None if inputs[2] is None else output[0], *kept)
    ctx.mark_non_differentiable(*(x for name, x in rows.items() if name not in _DIFFERENTIABLE))
    ctx.set_materialize_grads(False)


def _pull_back(ctx: Any, *grads: Any) -> tuple[Any, ...]:
    """The gradients of all arguments of ``attend``."""
    saved = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[: len(LEARNABLE)])
    grad_output = None if saved[2] is None else grads[0]
    # Gradients are read for asked statistics only: a compiled graph has zeros for empty tensors, too.
    rows = [grads[1 + NAMES.index(name)] if name in ctx.asked else None for name in _DIFFERENTIABLE]
    given = (*saved[:_N_TENSORS], *ctx.form, *saved[_N_TENSORS:], grad_output, *rows, wanted)
    found = _backward(*given)
    tensors = [grad if want else None for grad, want in zip(found, wanted, strict=True)]
    return (*tensors, *(None for _ in range(_N_ARGUMENTS + 1 - len(LEARNABLE))))


#: The operator ``attend`` under autograd, torch.func and the compiler.
run = Differentiable(attend, _save, _pull_back, attend_rule)
