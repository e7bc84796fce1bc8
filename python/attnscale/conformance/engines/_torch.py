# SPDX-License-Identifier: BSD-3-Clause
"""Tensors for the adapters of engines on PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np


def to_torch(array: Any) -> Any:
    """A tensor of an array; also of bfloat16, which PyTorch does not take from NumPy."""
    import torch

    array = np.array(array, order="C")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: Any) -> Any:
    """The array of a tensor, float32 for bfloat16."""
    import torch

    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()


def mask_to_torch(mask: Any, like: Any) -> Any:
    """A tensor of a mask, one of floats in the type of the arrays; None for None."""
    if mask is None:
        return None
    found = to_torch(mask)
    return found.to(to_torch(like[:0]).dtype) if found.is_floating_point() else found


def run(
    call: Callable[..., Any], *arrays: Any, differentiated: Iterable[str] = ("output", "lse")
) -> dict[str, Any]:
    """Results of a call of tensors as arrays, and functions that give its gradients.

    The call returns the output, or a mapping with "output" and more. A gradient calls it again, on tensors
    that ask for one, so that the results here are those of inference.
    """
    import torch

    def answer(*tensors: Any) -> dict[str, Any]:
        found = call(*tensors)
        return found if isinstance(found, dict) else {"output": found}

    def gradients(name: str, n: int, grad: Any) -> tuple[Any, ...]:
        leaves = [to_torch(x).requires_grad_() for x in arrays]
        found = answer(*leaves)[name]
        found.backward(to_torch(grad).to(found.dtype))
        return tuple(from_torch(torch.zeros_like(x) if x.grad is None else x.grad) for x in leaves[:n])

    with torch.no_grad():
        results: dict[str, Any] = {name: from_torch(x) for name, x in answer(*map(to_torch, arrays)).items()}
    for name, key, n in (("output", "gradients", 3), ("lse", "lse_gradients", 2)):
        if name in results and name in differentiated:
            results[key] = partial(gradients, name, n)
    return results
