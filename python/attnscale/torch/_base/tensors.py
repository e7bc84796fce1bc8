# SPDX-License-Identifier: BSD-3-Clause
"""Tensors as arrays and back, without a copy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..._base.checks import bfloat16_tensor, shown
from ..._call.arrays import shape_in

_BFLOAT16 = torch.bfloat16  # found faster than the name of PyTorch, which a small call would notice


def on_cpu(given: Any) -> Any:
    """A tensor on the CPU that requires no grad; anything else as it is."""
    return given.detach().cpu() if isinstance(given, torch.Tensor) else given


def array(tensor: torch.Tensor, name: str = "tensor") -> Any:
    """An array on the memory of a tensor, which an error names; bfloat16 goes through ml_dtypes."""
    tensor = tensor.detach() if tensor.requires_grad else tensor
    if tensor.dtype is not _BFLOAT16:
        return tensor.numpy()
    return bfloat16_tensor(name, tensor)


def check_on_cpu(*tensors: torch.Tensor | None) -> None:
    """Refuse tensors on devices other than the CPU."""
    for each in tensors:
        if each is not None and not each.is_cpu:
            raise ValueError(
                f"attnscale runs on the CPU, got tensors on {each.device}; use .cpu() or model.to('cpu')"
            )


def check_one_device(device: torch.device, *tensors: torch.Tensor | None) -> None:
    """Refuse tensors on devices other than the query's; a tensor without axes may be anywhere."""
    for each in tensors:
        if each is not None and each.device != device and each.ndim:
            raise ValueError(
                f"all tensors must be on the device of query, {device}, got one on {each.device}"
            )


def check_tensors(*, or_none: bool = False, **given: Any) -> None:
    """Refuse what is no tensor, naming the argument where PyTorch would name the operator's schema."""
    for name, each in given.items():
        if not isinstance(each, torch.Tensor) and not (or_none and each is None):
            raise TypeError(f"{name} must be a tensor, got {shown(each)}")


def autocast(*tensors: Any) -> tuple[Any, ...]:
    """The tensors in the type of ``torch.autocast`` where that is on; None stays None."""
    first = tensors[0]
    kind = "cpu" if first.is_cpu or first.is_meta else first.device.type  # "meta" has no autocast
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(None if each is None else each.to(dtype) for each in tensors)


def common_type(types: Iterable[torch.dtype]) -> torch.dtype:
    """The type of the result of a call on tensors of these types: their own, or a wide one if they differ."""
    found = set(types)
    return found.pop() if len(found) == 1 else wide_type(found)


def wide_type(types: Iterable[torch.dtype]) -> torch.dtype:
    """The type of the arithmetic on tensors of these types."""
    return torch.float64 if torch.float64 in types else torch.float32


def row_extents(
    given: Iterable[torch.Tensor | None], layout: str, *, enable_gqa: bool
) -> tuple[tuple[Any, ...], torch.dtype]:
    """The shape (..., heads, n_queries) of rows and the type of the result of a call."""
    there = [each for each in given if each is not None]
    shapes = [shape_in(layout, each.shape) for each in there]
    batch = _broadcast([shape[:-3] for shape in shapes])
    heads = _broadcast([shape[-3:-2] for shape in shapes[: 1 if enable_gqa else None]])
    return (*batch, *heads, shapes[0][-2]), common_type(each.dtype for each in there)


def _broadcast(shapes: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The broadcast shape; equal shapes are tested first, which takes PyTorch 30 microseconds."""
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    return tuple(torch.broadcast_shapes(*shapes))


def stand_in(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor of this shape and type with one number, NaN, which no mask of zeros and ones has."""
    dtype = torch.float16 if dtype == torch.bfloat16 else dtype
    value = math.nan if dtype.is_floating_point else 0
    return torch.full((), value, dtype=dtype, device="cpu").expand(shape)


def shows(mask: torch.Tensor) -> torch.Tensor:
    """Where a mask lets the key be seen: not at a number as low as half of its type's smallest finite one.

    Models hide keys by the smallest finite number. Arrays are read by the same rule.
    """
    return mask if mask.dtype == torch.bool else ~(mask <= torch.finfo(mask.dtype).min / 2)


def joined(parts: list[torch.Tensor], dim: int) -> torch.Tensor:
    """The parts one behind the other along an axis; one alone is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def swap_heads(rows: torch.Tensor, layout: str) -> torch.Tensor:
    """Rows of a layout as (..., heads, n, dim), and back; tensors with two axes have no heads."""
    return rows.transpose(-3, -2) if layout == "bshd" and rows.ndim > 2 else rows


def repeat_heads(rows: list[torch.Tensor], *, enabled: bool) -> list[torch.Tensor]:
    """Rows (..., heads, n, dim) with as many heads as the first, if groups of its heads share one."""
    if not enabled or rows[0].ndim < 3:
        return rows
    heads = rows[0].shape[-3]
    return [
        x if x.ndim < 3 or x.shape[-3] in (1, heads) else x.repeat_interleave(heads // x.shape[-3], -3)
        for x in rows
    ]
