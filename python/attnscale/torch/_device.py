# SPDX-License-Identifier: BSD-3-Clause
"""Devices: which backend computes a call, and the devices and types that a person names."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any, Literal

import torch

from .._checks import choose, shown, warn
from ._arguments import Arguments
from ._tensors import check_one_device
from ._triton import _support

__all__ = [
    "BACKENDS",
    "DTYPES",
    "backend_of",
    "check_no_threads",
    "device_named",
    "dtype_named",
    "kernel_of",
    "without_autocast",
]

#: Names of what computes attention; None stands for "auto".
BACKENDS = ("auto", "core", "torch")
#: Types of a model that a person may ask for.
DTYPES = ("float64", "float32", "float16", "bfloat16")

_RULE = "device must be one that PyTorch sees here"

Kernel = Literal["core", "triton", "torch"]


# ---- backends -----------------------------------------------------------------------------------


def kernel_of(call: Arguments, asked: tuple[str, ...], backend: str | None) -> Kernel:
    """What computes a call, of which the statistics `asked` are wanted.

    "core" are the kernels of this package for the CPU, "triton" its kernel for CUDA and HIP, and "torch"
    plain operations of PyTorch, which any device has.
    """
    device = call.query.device
    check_one_device(device, *call.tensors)
    found = backend_of(device, backend)
    if device.type == "cuda" and backend != "torch" and _is_for_triton(call, asked):
        return "triton"
    return found


def backend_of(device: torch.device, backend: str | None) -> Literal["core", "torch"]:
    """The backend of this name for tensors on a device; without a name, that of the device."""
    if backend is None or backend == "auto":
        return "core" if device.type in ("cpu", "meta") else "torch"  # "meta" has shapes and no numbers
    found = choose("backend", backend, BACKENDS)
    if found == "torch":
        return "torch"
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


def _is_for_triton(call: Arguments, asked: tuple[str, ...]) -> bool:
    """Whether the kernels for CUDA and HIP are here, and compute such a call."""
    return _has_triton() and _support.supports(call, asked)


@torch.compiler.assume_constant_result
def _has_triton() -> bool:
    """Whether there are the kernels for CUDA and HIP."""
    return _load_triton()


@lru_cache(maxsize=1)
def _load_triton() -> bool:
    """Make the kernels for CUDA and HIP those of the operator; without Triton one warning says so."""
    if reason := _support.missing():
        warn(
            "attention on CUDA devices goes through plain operations of PyTorch, "
            f"as the kernels for them need another Triton ({reason}); pip install triton"
        )
        return False
    from ._triton._operator import register  # imports Triton, which may take a second

    register("cuda")
    return True


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which ``torch.autocast`` is off for a device."""
    if device.type == "meta" or not torch.is_autocast_enabled(device.type):  # "meta" has no autocast
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


# ---- what a person names ------------------------------------------------------------------------


def device_named(name: Any) -> torch.device:
    """The device of this name, which PyTorch must be able to put tensors on.

    Raises
    ------
    ValueError
        If there is no such device here.

    Examples
    --------
    >>> device_named("cpu")
    device(type='cpu')
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise ValueError(f"{_RULE}, got {shown(name)}, which is no device of PyTorch") from None
    if device.type == "meta":
        raise ValueError(f"{_RULE}, got {shown(name)}, whose tensors have no numbers")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise ValueError(f"{_RULE}, got {shown(name)} ({reason})") from None
    return device


def dtype_named(name: Any) -> torch.dtype:
    """The type of this name, one of DTYPES.

    Examples
    --------
    >>> dtype_named("bfloat16")
    torch.bfloat16
    """
    found: torch.dtype = getattr(torch, choose("dtype", name, DTYPES))
    return found
