# SPDX-License-Identifier: BSD-3-Clause
"""Tensors as arrays and back, without a copy."""

from __future__ import annotations

from typing import Any

import torch

from .._checks import bfloat16_tensor, shown

__all__ = ["array", "check_on_cpu", "check_tensors", "tensor"]


def array(tensor: torch.Tensor) -> Any:
    """The tensor's memory as an array; bfloat16 through ml_dtypes."""
    tensor = tensor.detach()
    if tensor.dtype != torch.bfloat16:
        return tensor.numpy()
    return bfloat16_tensor("the tensor", tensor)


def tensor(array: Any) -> torch.Tensor:
    """The array's memory as a tensor; the inverse of :func:`array`."""
    if array.dtype.kind == "V":  # bfloat16; a name takes NumPy longer
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def check_on_cpu(*tensors: torch.Tensor | None) -> None:
    """Refuse tensors of other devices."""
    for each in tensors:
        if each is not None and each.device.type != "cpu":
            raise ValueError(
                f"attnscale runs on the CPU, got tensors on {each.device}; use .cpu() or model.to('cpu')"
            )


def check_tensors(**given: Any) -> None:
    """Refuse what is no tensor, by the name of the argument; PyTorch would name the operator's schema."""
    for name, each in given.items():
        if not isinstance(each, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, got {shown(each)}")
