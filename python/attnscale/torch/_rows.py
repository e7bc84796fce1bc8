# SPDX-License-Identifier: BSD-3-Clause
"""Operators with gradients for the weights of rows, written out, and for the scales of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._call.call import Call
from .._call.gradients import law_gradients
from .._homes import tensor
from ..laws import Law
from ..matrix import attention_weights
from ..normalizers import Normalizer
from ._arguments import LEARNABLE, N_TENSORS, SCHEMA, Arguments, read_call
from ._autograd import Differentiable
from ._blocks import scales_of_rows, weights_of_rows
from ._device import backend_of, refuse_jit_trace
from ._learned import Learned
from ._ops import pull_back_output
from ._tensors import check_on_cpu

_SCHEMA = f"({SCHEMA}) -> Tensor"
_SCALE = LEARNABLE.index("scale")


def row_weights(
    query: Tensor,
    key: Tensor,
    *,
    scale: Law | Learned | Tensor,
    normalizer: Normalizer,
    causal: int | None = None,
    attn_mask: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """:func:`attnscale.attention_weights` on tensors, (..., heads, n_queries, n_keys), with gradients.

    On the CPU the backward pass is that of attention whose values are unit vectors, and costs
    n_queries * n_keys^2 for each head.
    """
    options = {"scale": scale, "normalizer": normalizer, "causal": causal, "attn_mask": attn_mask}
    call = read_call(query, key, None, options)
    if backend_of(query.device, backend) != "core":
        return weights_of_rows(call)
    refuse_jit_trace()
    found: Tensor = _weights(*call)
    return found


def row_scales(
    query: Tensor,
    key: Tensor,
    *,
    scale: Law | Learned,
    causal: int | None = None,
    attn_mask: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """The scale of each row by a law, no law of the distance, (..., heads, n_queries), in float64.

    The scale has a gradient in the learned parameters of the law. What a law measures on a row counts as a
    constant.
    """
    call = read_call(query, key, None, {"scale": scale, "causal": causal, "attn_mask": attn_mask})
    if backend_of(query.device, backend) != "core":
        return scales_of_rows(call)
    refuse_jit_trace()
    found: Tensor = _scales(*call)
    return found


# ---- weights ------------------------------------------------------------------------------------


@torch.library.custom_op("attnscale::weights", mutates_args=(), device_types="cpu", schema=_SCHEMA)
def weights(*arguments: Any) -> Tensor:
    """The matrix of weights of a call without a value."""
    call = Arguments.of(arguments)
    check_on_cpu(*call.tensors)
    return tensor(attention_weights(*call.arrays()[:2], **call.options()))


@weights.register_fake
def _(*arguments: Any) -> Tensor:
    call = Arguments.of(arguments)
    rows, dtype = call.row_extents
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return call.query.new_empty((*rows, call.key.shape[-2]), dtype=wide)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.form = inputs[N_TENSORS:]
    ctx.save_for_backward(*inputs[:N_TENSORS])


def _pull_back_weights(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    query, key, _, *others = ctx.saved_tensors
    n_keys = key.shape[-2]
    unit = torch.eye(n_keys, dtype=key.dtype).expand(*key.shape[:-1], n_keys)
    wanted = list(ctx.needs_input_grad[: len(LEARNABLE)])
    found = pull_back_output((query, key, unit, *others), ctx.form, grad, wanted)
    return (*found, *(None,) * (len(Arguments._fields) - len(found)))


_weights = Differentiable(weights, _save, _pull_back_weights)


# ---- scales -------------------------------------------------------------------------------------


@torch.library.custom_op("attnscale::row_scales", mutates_args=(), device_types="cpu", schema=_SCHEMA)
def scales(*arguments: Any) -> Tensor:
    """The scale of every row of a call."""
    call = _call(Arguments.of(arguments))
    return torch.tensor(np.broadcast_to(call.scale, call.row_shape), dtype=torch.float64)


@scales.register_fake
def _(*arguments: Any) -> Tensor:
    call = Arguments.of(arguments)
    return call.query.new_empty(call.row_extents[0], dtype=torch.float64)


@torch.library.custom_op(
    "attnscale::row_scales_backward",
    mutates_args=(),
    device_types="cpu",
    schema=f"({SCHEMA}, Tensor grad) -> Tensor",
)
def scales_backward(*arguments: Any) -> Tensor:
    """The gradient of the learned parameters of the law, one after another."""
    given = Arguments.of(arguments)
    found = law_gradients(arguments[-1].numpy(), _call(given))
    assert found is not None
    parts = [np.asarray(found[name]).reshape(-1) for name in given.learned]
    return torch.from_numpy(np.concatenate(parts))


@scales_backward.register_fake
def _(*arguments: Any) -> Tensor:
    return torch.empty_like(arguments[_SCALE])


def _pull_back_scales(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    found = [None] * len(Arguments._fields)
    if ctx.needs_input_grad[_SCALE]:
        found[_SCALE] = _scales_backward(*ctx.saved_tensors, *ctx.form, grad)
    return tuple(found)


def _call(arguments: Arguments) -> Call:
    check_on_cpu(*arguments.tensors)
    return arguments.on_arrays()


_scales_backward = Differentiable(scales_backward)
_scales = Differentiable(scales, _save, _pull_back_scales)
