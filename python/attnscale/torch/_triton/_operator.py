# SPDX-License-Identifier: BSD-3-Clause
"""The operators ``attend`` and ``attend_backward`` on a GPU: their kernels, by Triton.

Schema, fake kernels, autograd and the rule of vmap are those of `_ops.py`. Results differ from the CPU's only
in rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ... import normalizers
from ..._base.statistics import DIFFERENTIABLE, KEPT, NAMES, statistic_names
from ..._call.arrays import shape_in
from .. import _ops
from .._base.arguments import LEARNABLE, Arguments
from .._base.tensors import swap_heads
from .._plain.plan import RowPlan, plan_rows
from ._backward import backward
from ._forward import forward
from ._problem import Problem


class Folding(NamedTuple):
    """Axes of the rows of a call, (..., heads, n_queries), and the layout of its arrays."""

    row_shape: tuple[int, ...]
    layout: str

    @staticmethod
    def of(call: Arguments) -> Folding:
        return Folding(tuple(call.row_extents()[0]), call.layout)

    @property
    def batch(self) -> tuple[int, ...]:
        """The axes before the heads."""
        return self.row_shape[:-2]

    @property
    def heads(self) -> int:
        return self.row_shape[-2] if len(self.row_shape) > 1 else 1

    def heads_of(self, x: Tensor) -> int:
        return int(shape_in(self.layout, x.shape)[-3]) if x.ndim > 2 else 1

    def array(self, x: Tensor, heads: int) -> Tensor:
        """Query, key or value as (batch, heads, n, dim), a view if possible; the last axis has stride 1."""
        x = self._with_axes(swap_heads(x, self.layout), 3)
        x = x.expand(*self.batch, heads, *x.shape[-2:])
        x = x.reshape(math.prod(self.batch), *x.shape[-3:])
        return x if x.stride(-1) == 1 else x.contiguous()

    def rows(self, x: Tensor | None) -> Tensor | None:
        """Row values, broadcastable to (batch, heads, n_queries)."""
        return None if x is None else self._folded(x, 2)

    def pairs(self, x: Tensor | None) -> Tensor | None:
        """Pair values, broadcastable to (batch, heads, n_queries, n_keys)."""
        return None if x is None else self._folded(x, 3)

    def _folded(self, x: Tensor, own: int) -> Tensor:
        x = self._with_axes(x, own)
        if all(extent == 1 for extent in x.shape[:-own]):
            return x.reshape(1, *x.shape[-own:])
        return x.expand(*self.batch, *x.shape[-own:]).reshape(math.prod(self.batch), *x.shape[-own:])

    def _with_axes(self, x: Tensor, own: int) -> Tensor:
        """The tensor with axes of length 1 in front, for `own` axes after those of the batch."""
        return x[(None,) * (len(self.batch) + own - x.ndim)]

    # ---- back -----------------------------------------------------------------------------------

    def result(self, x: Tensor) -> Tensor:
        """A statistic, (batch, heads, n_queries), or the output, (batch, heads, n_queries, dim)."""
        if x.ndim == 3:
            return x.reshape(self.row_shape)
        return swap_heads(x.reshape(*self.row_shape, x.shape[-1]), self.layout)

    def gradient(self, gradient: Tensor, shape: Sequence[int]) -> Tensor:
        """The gradient of a tensor of this shape, summed over the axes along which it was repeated."""
        batch = self.batch if gradient.shape[0] > 1 else (1,) * len(self.batch)
        return _sum_to(gradient.reshape(*batch, *gradient.shape[1:]), tuple(shape))


def _sum_to(gradient: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The gradient of a tensor of this shape that was repeated; sums are in float32."""
    if gradient.numel() == math.prod(shape):
        return gradient.reshape(shape)
    padded = (1,) * (gradient.ndim - len(shape)) + tuple(shape)
    return gradient.float().sum_to_size(padded).reshape(shape)


#: Names of the learnable tensors in the kernels.
_FIELDS = {**{name: name for name in ("query", "key", "value", "scale", "sink")}, "attn_mask": "mask"}


def attend(call: Arguments, asked: Sequence[str]) -> tuple[Tensor | None, dict[str, Tensor]]:
    """Return the output, None without a value, and the requested statistics of a supported call."""
    names = statistic_names(asked)
    folding = Folding.of(call)
    with _device_of(call):
        output, rows = forward(_problem(call, folding, plan_rows(call)), names)
    found = {name: folding.result(x) for name, x in rows.items()}
    return (None if output is None else folding.result(output)), found


def differentiate(
    call: Arguments, rows: Sequence[Tensor | None], wanted: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Gradients of the tensors LEARNABLE; `rows` and `wanted` as for :func:`_ops.differentiate`."""
    folding, n = Folding.of(call), 1 + len(KEPT)
    gradients = _folded(("output", *DIFFERENTIABLE), rows[n:], folding)
    names = [name for name, want in zip(LEARNABLE, wanted, strict=True) if want]
    if not gradients:
        found = {name: torch.zeros_like(getattr(call, name)) for name in names}
    else:
        kept = _folded(KEPT, rows[1:n], folding)
        output = None if rows[0] is None else folding.array(rows[0], folding.heads)
        plan = plan_rows(call)
        problem = _problem(call, folding, plan)
        with _device_of(call):
            fields = backward(problem, output, kept, gradients, [_FIELDS[name] for name in names])
        found = {name: _unfolded(name, fields[_FIELDS[name]], call, folding, plan) for name in names}
    return tuple(found.get(name) for name in LEARNABLE)


@cache
def register(device_type: str) -> None:
    """Register these functions as kernels of the operators for a type of device; ROCm is "cuda" too."""

    def attend_kernel(*arguments: Any) -> tuple[Tensor, ...]:
        call = Arguments.of(arguments)
        output, rows = attend(call, arguments[-1])
        return _ops.filled(call.query, output, *map(rows.get, NAMES))

    def backward_kernel(*arguments: Any) -> tuple[Tensor, ...]:
        call = Arguments.of(arguments)
        return _ops.filled(call.query, *differentiate(call, arguments[len(call) : -1], arguments[-1]))

    _ops.attend.register_kernel(device_type, attend_kernel)
    _ops.attend_backward.register_kernel(device_type, backward_kernel)


# ---- a call as a problem ------------------------------------------------------------------------


def _problem(call: Arguments, folding: Folding, plan: RowPlan) -> Problem:
    scale = call.scale if plan.scale is None else plan.scale
    query, key, value = (None if x is None else x.detach() for x in call[:3])
    shared = max(folding.heads_of(x) for x in (key, value) if x is not None)
    return Problem(
        folding.array(cast(Tensor, query), folding.heads),
        folding.array(cast(Tensor, key), shared),
        None if value is None else folding.array(value, shared),
        cast(Tensor, folding.rows(cast(Tensor, scale).detach().to(call.query.device))),
        folding.rows(plan.begin),
        folding.rows(plan.end),
        folding.pairs(None if call.attn_mask is None else call.attn_mask.detach()),
        folding.rows(_sink(call)),
        call.softcap,
        call.layout,
    )


def _sink(call: Arguments) -> Tensor | None:
    sink = call.sink
    if sink is None:
        sink = _sink_of_text(call.normalizer, call.query.device)
    if sink is None:
        return None
    sink = sink.detach().float()
    return sink[:, None] if sink.ndim == 1 and call.query.ndim > 2 else sink


@lru_cache(maxsize=64)
def _sink_of_text(text: str, device: torch.device) -> Tensor | None:
    rule = normalizers.get(text)
    if isinstance(rule, normalizers.SoftmaxN):
        return torch.tensor(math.log(rule.n), device=device)
    return torch.tensor(rule.logits, device=device) if isinstance(rule, normalizers.Sink) else None


def _folded(names: Sequence[str], given: Sequence[Tensor | None], folding: Folding) -> dict[str, Tensor]:
    found = {}
    for name, x in zip(names, given, strict=True):
        if x is not None:
            found[name] = (
                folding.array(x, folding.heads) if name == "output" else cast(Tensor, folding.rows(x))
            )
    return found


def _device_of(call: Arguments) -> AbstractContextManager[Any]:
    """Context with the call's device as the current one, for which Triton compiles and runs."""
    device = call.query.device
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


# ---- gradients of the call ----------------------------------------------------------------------


def _unfolded(name: str, gradient: Tensor, call: Arguments, folding: Folding, plan: RowPlan) -> Tensor:
    given = cast(Tensor, getattr(call, name))
    shape: tuple[int, ...] = tuple(given.shape)
    if name in ("query", "key", "value"):
        found = folding.gradient(gradient, shape_in(call.layout, shape))
        return swap_heads(found.to(given.dtype), call.layout).contiguous()
    if name == "scale" and call.law:
        return _of_law(gradient, call, folding, plan)
    if name == "sink" and given.ndim == 1 and call.query.ndim > 2:
        shape = (*shape, 1)
    return folding.gradient(gradient, shape).reshape(given.shape).to(given.dtype)


def _of_law(gradient: Tensor, call: Arguments, folding: Folding, plan: RowPlan) -> Tensor:
    """Gradient of the learned parameters of a law, one after another."""
    assert plan.slopes is not None
    rows = plan.slopes * gradient.reshape(folding.row_shape)
    parts = []
    for each, length in zip(rows, call.lengths, strict=True):
        shared = [axis for axis in range(each.ndim) if not (length and axis == each.ndim - 2)]
        parts.append(each.sum(shared).reshape(-1))
    return torch.cat(parts).to(cast(Tensor, call.scale).dtype)
