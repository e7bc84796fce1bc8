# SPDX-License-Identifier: BSD-3-Clause
"""Attention and the weights of rows as operators of PyTorch, with their backward passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from .._base.statistics import COUNTS, DIFFERENTIABLE, KEPT, NAMES, statistic_names
from .._call.arrays import shape_in
from .._call.homes import tensor
from .._call.weights import available, normalizer_of
from ..exact.backward import pull_back
from ..exact.results import AttentionStatistics
from ..exact.weights import attention_weights
from ._base.arguments import LEARNABLE, N_TENSORS, SCHEMA, Arguments, TensorOptions, read_call
from ._base.autograd import Differentiable, attend_backward_rule, attend_rule
from ._base.device import backend_of, refuse_jit_trace
from ._base.tensors import array, check_on_cpu
from ._plain.blocks import weights_of_rows

_N_ARGUMENTS = len(Arguments._fields)  # number for a call; an operator may have more
_GRADIENTS = tuple(f"grad_{name}" for name in DIFFERENTIABLE)


def _outputs(count: int) -> str:
    return f"({', '.join(['Tensor'] * count)})"


def filled(like: torch.Tensor, *found: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """Replace each None by an empty tensor: operators return tensors only."""
    return tuple(like.new_empty(0) if x is None else x for x in found)


# ---- forward ------------------------------------------------------------------------------------


@torch.library.custom_op(
    "attnscale::attend",
    mutates_args=(),
    device_types="cpu",
    schema=f"({SCHEMA}, str[] statistics) -> {_outputs(1 + len(NAMES))}",
)
def attend(*arguments: Any) -> tuple[torch.Tensor, ...]:
    """Return the output, then the statistics in the order of NAMES; an empty tensor where not requested."""
    call = Arguments.of(arguments)
    check_on_cpu(*call.tensors())
    output, rows = attend_arrays(call, arguments[-1])
    return filled(call.query, output, *map(rows.get, NAMES))


def attend_arrays(
    call: Arguments, asked: Sequence[str]
) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
    """Return the output, None without a value, and the requested statistics of tensors on the CPU."""
    read = call.on_arrays()
    normalizer = normalizer_of(read.options)
    output, rows = read.attend(normalizer, available(statistic_names(asked), normalizer, leave_out=False))
    return None if output is None else tensor(output), {name: tensor(x) for name, x in rows.items()}


@attend.register_fake
def _(*arguments: Any) -> tuple[torch.Tensor, ...]:
    call, asked = Arguments.of(arguments), arguments[-1]
    rows, dtype = call.row_extents()
    new, output = call.query.new_empty, None
    if call.value is not None:
        shape = (*rows, call.value.shape[-1])
        output = new(shape_in(call.layout, shape), dtype=dtype)
    floats = torch.float64 if dtype == torch.float64 else torch.float32
    found = {name: new(rows, dtype=torch.int64 if name in COUNTS else floats) for name in asked}
    return filled(call.query, output, *map(found.get, NAMES))


# ---- backward -----------------------------------------------------------------------------------


@torch.library.custom_op(
    "attnscale::attend_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"({SCHEMA}, Tensor? output, "
    + ", ".join(f"Tensor? {name}" for name in (*KEPT, "grad_output", *_GRADIENTS))
    + f", bool[] wanted) -> {_outputs(len(LEARNABLE))}",
)
def attend_backward(*arguments: Any) -> tuple[torch.Tensor, ...]:
    """Gradients of the tensors LEARNABLE; an empty tensor where not wanted."""
    call, wanted = Arguments.of(arguments), arguments[-1]
    check_on_cpu(*call.tensors())
    return filled(call.query, *differentiate(call, arguments[_N_ARGUMENTS:-1], wanted))


def differentiate(
    call: Arguments, rows: Sequence[torch.Tensor | None], wanted: Sequence[bool]
) -> tuple[torch.Tensor | None, ...]:
    """Gradients of the tensors LEARNABLE; None where not wanted.

    `rows` holds the output and KEPT as far as the forward pass had them, then the gradients of the output and
    of DIFFERENTIABLE.
    """
    given = [None if x is None else array(x) for x in rows]
    n = 1 + len(KEPT)
    of_tensors = zip(LEARNABLE, call.tensors(), wanted, strict=False)
    if all(each is None for each in given[n:]):  # no output has a gradient
        return tuple(torch.zeros_like(x) if want else None for _, x, want in of_tensors)
    kept = {name: x for name, x in zip(KEPT, given[1:n], strict=True) if x is not None}
    cotangents = {name: x for name, x in zip(DIFFERENTIABLE, given[n + 1 :], strict=True) if x is not None}
    names = (*(name for name, want in zip(LEARNABLE, wanted, strict=True) if want), "law")
    saved = AttentionStatistics(given[0], **kept)
    found = pull_back(call.on_arrays(), given[n], cotangents, saved, names)
    return tuple(_gradient(found, name, x, call) if want else None for name, x, want in of_tensors)


def _gradient(found: dict[str, Any], name: str, given: Any, call: Arguments) -> torch.Tensor:
    values: Any
    if name == "scale" and call.learned:
        values = np.concatenate([found["law"][each].reshape(-1) for each in call.learned])
    else:
        values = found.get(name)
    if values is None and name == "value":  # the output is not in the loss
        return torch.zeros_like(given)
    if values is None:
        raise ValueError(f"{name} has no gradient in this call, but requires one; use {name}.detach()")
    gradient = tensor(values if values.flags.c_contiguous else np.ascontiguousarray(values))
    if gradient.dtype is not given.dtype:
        gradient = gradient.to(given.dtype)
    return gradient if gradient.shape == given.shape else gradient.reshape(given.shape)


@attend_backward.register_fake
def _(*arguments: Any) -> tuple[torch.Tensor, ...]:
    given = zip(arguments, arguments[-1], strict=False)
    found = (torch.empty(x.shape, dtype=x.dtype, device=x.device) if want else None for x, want in given)
    return filled(arguments[0], *found)


_backward = Differentiable(attend_backward, rule=attend_backward_rule)


def differentiate_as_operator(
    tensors: Sequence[torch.Tensor | None],
    form: Sequence[Any],
    rows: Sequence[torch.Tensor | None],
    wanted: Sequence[bool],
) -> tuple[torch.Tensor | None, ...]:
    """:func:`differentiate` as an operator: PyTorch may transform it, but does not differentiate it."""
    found = _backward(*tensors, *form, *rows, list(wanted))
    return tuple(x if want else None for x, want in zip(found, wanted, strict=True))


# ---- autograd -----------------------------------------------------------------------------------


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.form, ctx.asked = inputs[N_TENSORS:_N_ARGUMENTS], inputs[-1]
    rows = dict(zip(NAMES, output[1:], strict=True))
    kept = (rows[name] if name in ctx.asked else None for name in KEPT)
    ctx.save_for_backward(*inputs[:N_TENSORS], None if inputs[2] is None else output[0], *kept)
    ctx.mark_non_differentiable(*(x for name, x in rows.items() if name not in DIFFERENTIABLE))
    ctx.set_materialize_grads(False)


def _pull_back(ctx: Any, *grads: Any) -> tuple[Any, ...]:
    saved = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[: len(LEARNABLE)])
    grad_output = None if saved[2] is None else grads[0]
    # Only gradients of requested statistics: a compiled graph has zeros for empty tensors, too.
    rows = [grads[1 + NAMES.index(name)] if name in ctx.asked else None for name in DIFFERENTIABLE]
    given = (*saved[N_TENSORS:], grad_output, *rows)
    tensors = differentiate_as_operator(saved[:N_TENSORS], ctx.form, given, wanted)
    return (*tensors, *(None for _ in range(_N_ARGUMENTS + 1 - len(LEARNABLE))))


#: The operator ``attend`` under autograd, torch.func and the compiler.
run = Differentiable(attend, _save, _pull_back, attend_rule)

# ---- weights ------------------------------------------------------------------------------------


def row_weights(query: Tensor, key: Tensor, **options: Unpack[TensorOptions]) -> Tensor:
    """:func:`attnscale.attention_weights` on tensors, (..., heads, n_queries, n_keys), with gradients.

    On the CPU the backward pass is that of attention with unit vectors as values; it costs n_queries *
    n_keys^2 per head.
    """
    call = read_call(query, key, None, options)
    if backend_of(query.device, options.get("backend")) != "core":
        return weights_of_rows(call)
    refuse_jit_trace()
    found: Tensor = _weights(*call)
    return found


@torch.library.custom_op(
    "attnscale::weights", mutates_args=(), device_types="cpu", schema=f"({SCHEMA}) -> Tensor"
)
def weights(*arguments: Any) -> Tensor:
    call = Arguments.of(arguments)
    check_on_cpu(*call.tensors())
    return tensor(attention_weights(*call.arrays()[:2], **call.options()))


@weights.register_fake
def _(*arguments: Any) -> Tensor:
    call = Arguments.of(arguments)
    rows, dtype = call.row_extents()
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return call.query.new_empty((*rows, call.key.shape[-2]), dtype=wide)


def _save_call(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.form = inputs[N_TENSORS:]
    ctx.save_for_backward(*inputs[:N_TENSORS])


def _pull_back_weights(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    query, key, _, *others = ctx.saved_tensors
    n_keys = key.shape[-2]
    unit = torch.eye(n_keys, dtype=key.dtype).expand(*key.shape[:-1], n_keys)
    rows = (*(None,) * (1 + len(KEPT)), grad, *(None,) * len(_GRADIENTS))  # nothing was kept
    wanted = ctx.needs_input_grad[: len(LEARNABLE)]
    found = differentiate_as_operator((query, key, unit, *others), ctx.form, rows, wanted)
    return (*found, *(None,) * (len(Arguments._fields) - len(found)))


_weights = Differentiable(weights, _save_call, _pull_back_weights)
