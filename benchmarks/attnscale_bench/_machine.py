# SPDX-License-Identifier: BSD-3-Clause
"""A description of the machine, and the reference measurements of its speed."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from attnscale import _core, show_config

__all__ = ["FmaPeak", "MemoryRead", "cpu_model", "describe_machine"]


class FmaPeak:
    """Multiply-adds in registers at the level in use: calling it does `flops` operations."""

    # 40 000 rounds take about 0.1 ms: a task short enough to share the cores evenly.
    _ROUNDS = 40_000
    _TASKS_PER_THREAD = 64

    def __init__(self, dtype: npt.DTypeLike, threads: int) -> None:
        self._wide = np.dtype(dtype) == np.float64
        self._threads = threads
        self.flops = self()

    def __call__(self) -> float:
        return _core.run_fma(self._TASKS_PER_THREAD * self._threads, self._ROUNDS, self._wide, self._threads)


class MemoryRead:
    """One pass over a C-contiguous array: calling it reads `bytes` bytes."""

    def __init__(self, array: npt.NDArray[Any], threads: int) -> None:
        self._array = array
        self._threads = threads
        self.bytes = self()

    def __call__(self) -> int:
        return _core.read_memory(self._array, self._threads)


def describe_machine(threads: int) -> dict[str, Any]:
    """Machine, software and date of a run, without the names of host and user."""
    config = show_config()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cpus": _usable_cpus(),
        "architecture": platform.machine(),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        **config,
        "num_threads": threads,
        "python": platform.python_version(),
        "torch": _torch_version(),
    }


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The vendor's name of the CPU, or the architecture if the system does not tell."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _torch_version() -> str | None:
    """The version of PyTorch, without importing it (which takes seconds); None if it is missing."""
    if find_spec("torch") is None:
        return None
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return None
