# SPDX-License-Identifier: BSD-3-Clause
"""Choice of the backend of a call, and devices and types by name."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch

from ..._base.checks import choose, refusal, shown

#: Names of the backends of attention and its linear families; None stands for "auto".
BACKENDS = ("auto", "core", "torch")
#: Types of devices with kernels in Triton; ROCm calls its own "cuda", too.
TRITON_DEVICES = {"cuda"}
#: Types of a model that a user may choose.
DTYPES = ("float64", "float32", "float16", "bfloat16")

_RULE = "must be one that PyTorch sees here"

Kernel = Literal["core", "triton", "torch"]


# ---- backends -----------------------------------------------------------------------------------


def backend_of(device: torch.device, backend: str | None, *more: str) -> Kernel:
    """The backend of this name, one of BACKENDS or `more`; for None or "auto", that of the device."""
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
    """Refuse a number of threads, which the PyTorch backend does not take."""
    if num_threads is not None:
        raise ValueError(
            f"num_threads must be None with backend='torch', got {shown(num_threads)}; "
            "torch.set_num_threads sets those of PyTorch"
        )


def refuse_jit_trace() -> None:
    """Refuse ``torch.jit.trace``, which cannot record an operator with arguments that are lists of texts."""
    if torch.jit.is_tracing():
        raise RuntimeError(
            "torch.jit.trace cannot record the kernels of attnscale, which torch.export takes; "
            "it records backend='torch'"
        )


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):  # "meta" has no autocast
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


# ---- names from a user ----------------------------------------------------------------------------


def device_named(name: Any) -> torch.device:
    """The device of this name, checked to hold tensors."""
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise refusal(
            ValueError, "device", f"{_RULE}, got {shown(name)}, which is not a device of PyTorch"
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
    found: torch.dtype = getattr(torch, choose("dtype", name, DTYPES))
    return found
