# SPDX-License-Identifier: BSD-3-Clause
"""Tensors as arrays and back, without a copy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from ..._base.checks import bfloat16_tensor, shown
from ..._call.arrays import Unread, float_type_error, is_float_type, shape_in
from ..._call.rows import check_mask_type

#: A tensor without its numbers.
ShapeAndType = tuple[tuple[int, ...], torch.dtype]

_BFLOAT16 = torch.bfloat16  # found faster than the name of PyTorch, which matters for small calls


def on_cpu(given: Any) -> Any:
    return given.detach().cpu() if isinstance(given, torch.Tensor) else given


def array(tensor: torch.Tensor, name: str = "tensor") -> Any:
    """An array on the memory of a tensor; `name` stands in errors. bfloat16 goes through ml_dtypes."""
    tensor = tensor.detach() if tensor.requires_grad else tensor
    if tensor.dtype is not _BFLOAT16:
        return tensor.numpy()
    return bfloat16_tensor(name, tensor)


def check_on_cpu(*tensors: torch.Tensor | None) -> None:
    for each in tensors:
        if each is not None and not each.is_cpu:
            raise ValueError(
                f"attnscale runs on the CPU, got tensors on {each.device}; use .cpu() or model.to('cpu')"
            )


def check_one_device(device: torch.device, *tensors: torch.Tensor | None) -> None:
    """Refuse tensors on devices other than the query's; a tensor without axes may be on any device."""
    for each in tensors:
        if each is not None and each.device != device and each.ndim:
            raise ValueError(
                f"all tensors must be on the device of query, {device}, got one on {each.device}"
            )


def check_tensors(*, or_none: bool = False, **given: Any) -> None:
    """Refuse arguments that are not tensors, with the argument's name instead of the operator's schema."""
    for name, each in given.items():
        if not isinstance(each, torch.Tensor) and not (or_none and each is None):
            raise TypeError(f"{name} must be a tensor, got {shown(each)}")


def autocast(*tensors: Any) -> tuple[Any, ...]:
    """Convert tensors to the type of ``torch.autocast`` if it is on; None stays None."""
    first = tensors[0]
    kind = "cpu" if first.is_cpu or first.is_meta else first.device.type  # "meta" has no autocast
    if not torch.is_autocast_enabled(kind):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(None if each is None else each.to(dtype) for each in tensors)


def common_type(types: Iterable[torch.dtype]) -> torch.dtype:
    """Type of the result of a call on tensors of these types: their own, or a wide one if they differ."""
    found = set(types)
    return found.pop() if len(found) == 1 else wide_type(found)


def wide_type(types: Iterable[torch.dtype]) -> torch.dtype:
    """The type of the arithmetic on tensors of these types."""
    return torch.float64 if torch.float64 in types else torch.float32


def row_extents(
    given: Iterable[torch.Tensor | None], layout: str, *, enable_gqa: bool
) -> tuple[tuple[Any, ...], torch.dtype]:
    """Shape (..., heads, n_queries) of rows and type of the result of a call."""
    there = [each for each in given if each is not None]
    shapes = [shape_in(layout, each.shape) for each in there]
    batch = _broadcast([shape[:-3] for shape in shapes])
    heads = _broadcast([shape[-3:-2] for shape in shapes[: 1 if enable_gqa else None]])
    return (*batch, *heads, shapes[0][-2]), common_type([each.dtype for each in there])


def _broadcast(shapes: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The broadcast shape; equal shapes are tested first, since PyTorch takes 30 microseconds."""
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    return tuple(torch.broadcast_shapes(*shapes))


def unread_rows(
    query: ShapeAndType, key: ShapeAndType, value: ShapeAndType | None = None
) -> tuple[Unread, Unread, Unread | None]:
    """Query, key and value for a plan, which are of float types."""
    return _unread("query", query), _unread("key", key), None if value is None else _unread("value", value)


def _unread(name: str, given: ShapeAndType) -> Unread:
    shape, dtype = given
    found = numpy_type(name, dtype)
    if not is_float_type(found):
        raise float_type_error(name, dtype, found)
    return Unread(shape, found)


def unread_mask(given: ShapeAndType) -> Unread:
    """A mask for a plan, boolean or of a float type."""
    shape, dtype = given
    found = numpy_type("attn_mask", dtype)
    check_mask_type(dtype, found)
    return Unread(shape, found)


def numpy_type(name: str, dtype: torch.dtype) -> np.dtype[Any]:
    """NumPy's type for that of a tensor; float16 for bfloat16, which NumPy lacks: both are storage."""
    try:
        return np.dtype("float16" if dtype == _BFLOAT16 else str(dtype).removeprefix("torch."))
    except TypeError:
        raise TypeError(f"{name} has a type that NumPy lacks, {dtype}; use {name}.float()") from None


def shows(mask: torch.Tensor) -> torch.Tensor:
    """True where a mask shows the key: not at or below half of its type's lowest finite number.

    Models hide keys by the lowest finite number. Array masks follow the same rule.
    """
    return mask if mask.dtype == torch.bool else ~(mask <= torch.finfo(mask.dtype).min / 2)


def joined(parts: list[torch.Tensor], dim: int) -> torch.Tensor:
    """Concatenate parts along an axis; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)


def swap_heads(rows: torch.Tensor, layout: str) -> torch.Tensor:
    """Convert rows of a layout to (..., heads, n, dim), or back; tensors with two axes have no heads."""
    return rows.transpose(-3, -2) if layout == "bshd" and rows.ndim > 2 else rows


def repeat_heads(rows: list[torch.Tensor], *, enabled: bool) -> list[torch.Tensor]:
    """Repeat shared heads of rows (..., heads, n, dim) to the number of heads of the first."""
    if not enabled or rows[0].ndim < 3:
        return rows
    heads = rows[0].shape[-3]
    return [
        x if x.ndim < 3 or x.shape[-3] in (1, heads) else x.repeat_interleave(heads // x.shape[-3], -3)
        for x in rows
    ]
