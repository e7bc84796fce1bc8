# SPDX-License-Identifier: BSD-3-Clause
"""Devices: which backend computes a call, and the devices and types that a person names."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from ..._base.checks import choose, refusal, shown

#: Names of what computes attention and its linear families; None stands for "auto".
BACKENDS = ("auto", "core", "torch")
#: Types of devices whose tensors the kernels in Triton take; ROCm calls its own "cuda", too.
TRITON_DEVICES = {"cuda"}
#: Types of a model that a person may ask for.
DTYPES = ("float64", "float32", "float16", "bfloat16")

_RULE = "must be one that PyTorch sees here"

Kernel = Literal["core", "triton", "torch"]


# ---- backends -----------------------------------------------------------------------------------


def backend_of(device: torch.device, backend: str | None, *more: str) -> Kernel:
    """The backend of this name, one of BACKENDS or `more`; without a name, that of the device."""
    if backend is None or backend == "auto":
        return "core" if device.type in ("cpu", "meta") else "torch"  # "meta" has shapes and no numbers
    found = choose("backend", backend, (*BACKENDS, *more))
    if found == "torch":
        return "torch"
    if found == "triton":
        if device.type not in TRITON_DEVICES:
            raise ValueError(
                f"backend='triton' takes tensors on a GPU of CUDA or ROCm, got tensors on {device}; "
                "backend='torch' takes tensors on any device"
            )
        return "triton"
    if device.type not in ("cpu", "meta"):
        raise ValueError(
            f"backend='core' takes tensors on the CPU, got tensors on {device}; "
            "backend='torch' takes tensors on any device"
        )
    return "core"


def check_no_threads(num_threads: int | None) -> None:
    """Refuse a number of threads, which the operations of PyTorch do not take."""
    if num_threads is not None:
        raise ValueError(
            f"num_threads must be None with backend='torch', got {shown(num_threads)}; "
            "torch.set_num_threads sets those of PyTorch"
        )


def refuse_jit_trace() -> None:
    """Refuse ``torch.jit.trace``, which cannot record an operator whose arguments are lists of texts."""
    if torch.jit.is_tracing():
        raise RuntimeError(
            "torch.jit.trace cannot record the kernels of attnscale, which torch.export takes; "
            "it records backend='torch'"
        )


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which ``torch.autocast`` is off for a device."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):  # "meta" has no autocast
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


# ---- what a person names ------------------------------------------------------------------------


def device_named(name: Any) -> torch.device:
    """The device of this name, which PyTorch must be able to put tensors on."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise refusal(
            ValueError, "device", f"{_RULE}, got {shown(name)}, which is no device of PyTorch"
        ) from None
    if device.type == "meta":
        raise refusal(ValueError, "device", f"{_RULE}, got {shown(name)}, whose tensors have no numbers")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise refusal(ValueError, "device", f"{_RULE}, got {shown(name)} ({reason})") from None
    return device


def dtype_named(name: Any) -> torch.dtype:
    """The type of this name, one of DTYPES."""
    found: torch.dtype = getattr(torch, choose("dtype", name, DTYPES))
    return found
