# SPDX-License-Identifier: BSD-3-Clause
"""Custom operators under autograd, torch.func and the compiler."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..._call.options import AXES
from .arguments import Arguments
from .private import has_forward_derivatives, is_transformed

_ARRAYS = ("query", "key", "value")
#: Tensors per head: if they differ between samples, one call has no axis for them.
_OF_HEADS = ("distance_scale", "distance_bias", "sink", "bias", "alpha")


def by_loop(call: Callable[..., Any], info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    """Rule of vmap that makes one call per sample; it is right for every operator."""
    if not info.batch_size:
        raise ValueError(
            "vmap needs at least one sample where each takes a call of its own (sinks, tables of the "
            "distance, learned laws, families of linear time), got none"
        )
    found = [
        call(*(_sample(x, dim, i) for x, dim in zip(arguments, in_dims, strict=True)))
        for i in range(info.batch_size)
    ]
    if isinstance(found[0], Tensor):
        return torch.stack(found), 0
    outputs = tuple(torch.stack(each) for each in zip(*found, strict=True))
    return outputs, (0,) * len(outputs)


def _sample(x: Any, dim: Any, i: int) -> Any:
    return x.select(dim, i) if isinstance(x, Tensor) and dim is not None else x


class _Fold(NamedTuple):
    """Maps between samples of vmap and one call with the samples as its first axis."""

    size: int
    rank: int  # axes of query, key and value, with heads
    without_heads: bool  # whether an axis of one head is inserted
    layout: str

    @staticmethod
    def of(size: int, in_dims: Any, call: Arguments) -> _Fold:
        arrays = zip(call[:3], in_dims, strict=False)
        rank = max(x.ndim - (dim is not None) for x, dim in arrays if x is not None)
        return _Fold(size, max(rank, 3), rank == 2, call.layout)

    def array(self, x: Tensor | None, dim: int | None, *, expand: bool) -> Tensor | None:
        """Query, key, value, output or the gradient of an output, with the samples on the first axis."""
        if x is None:
            return None
        alone = self.without_heads and x.ndim - (dim is not None) == 2
        found = self.front(x, dim, self.rank - alone, expand=expand)
        return found.unsqueeze(-2 if self.layout == "bshd" else -3) if alone else found

    def front(self, x: Tensor, dim: int | None, rank: int, *, expand: bool) -> Tensor:
        """Samples on the first axis, axes of length 1 up to the rank; without samples only if `expand`."""
        if dim is None and not expand:
            return x
        x = x.expand(self.size, *x.shape) if dim is None else x.movedim(dim, 0)
        return x[(slice(None), *(None,) * (rank + 1 - x.ndim))]

    def tensors(self, call: Arguments, in_dims: Any, wanted: Any) -> list[Tensor | None]:
        """All tensors of a call; those that need a gradient per sample are expanded, without a copy."""
        found: list[Tensor | None] = []
        for i, (name, x) in enumerate(zip(Arguments._fields, call.tensors(), strict=False)):
            expand = i < len(wanted) and bool(wanted[i])
            if x is None:
                found.append(x)
            elif name in _ARRAYS:
                found.append(self.array(x, in_dims[i], expand=expand or name == "query"))
            else:
                rank = self.rank + len(AXES[name]) - 3 if name in AXES else self.rank
                found.append(self.front(x, in_dims[i], rank, expand=expand))
        return found

    def result(self, x: Tensor | None, dim: int | None) -> Tensor | None:
        """An output or a statistic, or its gradient, with the samples on the first axis."""
        if x is None:
            return None
        rank = x.ndim - (dim is not None) + self.without_heads
        return (
            self.array(x, dim, expand=True)
            if rank == self.rank
            else self.front(x, dim, self.rank - 1, expand=True)
        )

    def output(self, x: Tensor) -> Tensor:
        return x.squeeze(-2 if self.layout == "bshd" else -3) if self.without_heads else x

    def rows(self, x: Tensor) -> Tensor:
        return x.squeeze(-2) if self.without_heads else x


def attend_rule(call: Callable[..., Any], info: Any, in_dims: Any, *arguments: Any) -> tuple[Any, Any]:
    """Rule of vmap of ``attend``: one call, unless tensors per head differ between samples."""
    given = Arguments.of(arguments)
    if _has_heads_of_its_own(given, [dim is not None for dim in in_dims[: len(given.tensors())]]):
        return by_loop(call, info, in_dims, *arguments)
    fold = _Fold.of(info.batch_size, in_dims, given)
    tensors = fold.tensors(given, in_dims, ())
    output, *rows = call(*tensors, *arguments[len(tensors) :])
    there = [given.value is not None, *(x.ndim > 1 for x in rows)]  # missing results are empty tensors
    found = [fold.output(output) if there[0] else output]
    found += [fold.rows(x) if has else x for x, has in zip(rows, there[1:], strict=True)]
    return tuple(found), tuple(0 if has else None for has in there)


def attend_backward_rule(
    call: Callable[..., Any], info: Any, in_dims: Any, *arguments: Any
) -> tuple[Any, Any]:
    """Rule of vmap of ``attend_backward``: gradients per sample, also of tensors that all samples share."""
    given, wanted = Arguments.of(arguments), arguments[-1]
    n = len(given.tensors())
    own = [dim is not None or want for dim, want in zip(in_dims[:n], [*wanted, False, False], strict=True)]
    if _has_heads_of_its_own(given, own):
        return by_loop(call, info, in_dims, *arguments)
    fold = _Fold.of(info.batch_size, in_dims, given)
    start, end = len(given), len(arguments) - 1
    saved = [fold.result(arguments[i], in_dims[i]) for i in range(start, end)]
    found = call(*fold.tensors(given, in_dims, wanted), *arguments[n:start], *saved, wanted)
    shapes = (_without(x, dim) for x, dim in zip(given.tensors(), in_dims, strict=False))
    gradients = [
        x.reshape(info.batch_size, *shape) if want else x
        for x, shape, want in zip(found, shapes, wanted, strict=False)
    ]
    return tuple(gradients), tuple(0 if want else None for want in wanted)


def _has_heads_of_its_own(call: Arguments, own: list[bool]) -> bool:
    of_heads = (*_OF_HEADS, "scale") if call.law else _OF_HEADS
    return any(flag for name, flag in zip(Arguments._fields, own, strict=False) if name in of_heads)


def _without(x: Tensor | None, dim: int | None) -> tuple[int, ...]:
    if x is None:
        return ()
    return tuple(x.shape) if dim is None else (*x.shape[:dim], *x.shape[dim + 1 :])


def compute_again(function: Callable[..., Any], *arguments: Any, enabled: bool) -> Any:
    """Call a function; if `enabled`, save only its arguments and compute it again in the backward pass."""
    if not enabled or is_transformed() or not torch.is_grad_enabled():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


class _Zeroed(torch.autograd.Function):
    """Set some entries to 0, and pass the gradient through to all of them."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, bad: Tensor) -> Tensor:
        return x.masked_fill(bad, 0)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


def zeroed(x: Tensor, bad: Tensor) -> Tensor:
    """Set `bad` entries to 0 and pass their gradient through, for NaN and infinities that are added later."""
    if has_forward_derivatives():
        return x.masked_fill(bad, 0)
    found: Tensor = _Zeroed.apply(x, bad)
    return found


def refuse_second_derivative(*_: Any) -> None:
    raise RuntimeError(
        "attention of attnscale has first derivatives only, and cannot be differentiated twice "
        "(create_graph=True and a second backward, or torch.func.grad of a gradient)"
    )


class Differentiable:
    """An operator with formulas for autograd and torch.func.vmap.

    Calls go through a Function with a setup_context, because torch.func takes no other, and because formulas
    registered with PyTorch read the whole schema again for every argument (0.2 ms a call). The compiler takes
    the operator itself. `save` is the setup_context and `pull_back` the backward pass; without them the
    backward pass raises. ``rule(call, info, in_dims, *arguments)`` is the rule of vmap, with this as `call`.
    """

    def __init__(
        self,
        operator: Any,
        save: Callable[..., None] = lambda ctx, inputs, output: None,
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
            is_transformed()
            or (torch.is_grad_enabled() and any(isinstance(x, Tensor) and x.requires_grad for x in arguments))
        ):
            return self.operator(*arguments)
        return self.function.apply(*arguments)
