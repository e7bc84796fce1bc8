# SPDX-License-Identifier: BSD-3-Clause
"""Calls of operators of PyTorch below autograd, and their operands."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .axes import Axes, Axis, resized
from .scores import Note


def named(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Operators whose result has the entries of one tensor, apart from their type.
SAME = named("clone detach alias contiguous _to_copy lift_fresh lift_fresh_copy nan_to_num to positive _conj")
#: Operators whose result has the axes of both operands.
JOINT = named("mul div neg add sub rsub where masked_fill maximum")
#: Operators that keep all scores except those too far below zero to have a weight.
LIMITS = named("clamp clamp_min maximum")
#: Operators that return all parts of a tensor.
PARTS = named("split split_with_sizes unsafe_split unsafe_split_with_sizes chunk unbind")
#: Operators that compute attention inside and return none of its rows.
_INSIDE = {
    "_native_multi_head_attention": "PyTorch's fused operator of a whole layer",
    "_transformer_encoder_layer_fwd": "PyTorch's fused operator of a whole layer",
    "_flash_attention_forward": "a kernel of flash attention",
    "_efficient_attention_forward": "a kernel of memory-efficient attention",
    "_nested_tensor_softmax_with_shape": "a softmax of nested tensors",
    "_masked_softmax": "a masked softmax of PyTorch's fused layers",
}
#: Names of other libraries' attention operators.
_OF_OTHERS = re.compile(r"attn|attention|(^|_)mha|sdpa")


def attends_inside(function: Any) -> str:
    """Name of an operator that computes attention inside and returns none of its rows; "" for others."""
    schema = function._schema.name
    namespace, _, name = schema.partition("::")
    if namespace in ("aten", "attnscale"):
        return _INSIDE.get(name, "")
    return f"the operator {schema}" if _OF_OTHERS.search(name) else ""


class Operation(NamedTuple):
    """One call of an operator: arguments, the tensors among them with their notes, and the result."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: list[Tensor]
    notes: list[Note]
    out: Tensor
    writes: bool = False  # into its first argument

    def argument(self, place: int, name: str, default: Any) -> Any:
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    @property
    def first(self) -> Note:
        return self.notes[0]


class Known(NamedTuple):
    """Facts from the schema of an operator."""

    name: str  # without the underscore of operators that write into their first argument
    writes: bool
    is_view: bool
    hides: str  # its name if it computes attention inside and returns none of its rows


@cache
def known(function: Any) -> Known:
    schema = function._schema
    name = schema.name.partition("::")[2]
    writes = name.endswith("_") and not name.startswith("__")
    aliases = schema.returns[0].alias_info if schema.returns else None
    is_view = aliases is not None and not aliases.is_write
    return Known(name[:-1] if writes else name, writes, is_view, attends_inside(function))


def leaves(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    for each in (*args, *kwargs.values()):
        if isinstance(each, (list, tuple)):
            yield from each
        else:
            yield each


def broadcasts(shape: torch.Size, whole: torch.Size) -> bool:
    return len(shape) <= len(whole) and all(
        n in (1, m) for n, m in zip(reversed(shape), reversed(whole), strict=False)
    )


def joint_axes(op: Operation, order: list[int]) -> Axes:
    """Each axis from the first operand in which it is neither of size 1 nor spread."""
    found = []
    for place in range(1, op.out.ndim + 1):
        size = op.out.shape[-place]
        choices = [
            op.notes[i].axes[-place]
            for i in order
            if op.given[i].ndim >= place and op.given[i].shape[-place] == size
        ]
        real = (axis for axis in choices if not all(piece.is_spread for piece in axis))
        found.append(next(real, choices[0] if choices else ()))
    return tuple(found[::-1])


def resized_axes(axes: Iterable[tuple[Axis, int, int]]) -> Axes:
    """Axes from (axis, new size, old size), unchanged where the sizes are equal."""
    return tuple(axis if new == old else resized(new, axis) for axis, new, old in axes)


def number_of(x: Any) -> float | None:
    if isinstance(x, Tensor):
        return float(x.detach()) if x.numel() == 1 and x.ndim <= 1 and x.device.type != "meta" else None
    return float(x) if isinstance(x, (int, float)) else None


def operand(op: Operation, place: int) -> Any:
    """The operand that is not the scores: a number, or a tensor with the axes of the result."""
    other = next((x for x in op.args[:2] if x is not op.given[place]), None)
    number = number_of(other)
    return as_wide(other, op.out.ndim) if number is None and isinstance(other, Tensor) else number


def as_wide(x: Tensor, ndim: int) -> Tensor:
    return x.detach().reshape([1] * (ndim - x.ndim) + list(x.shape))
