# SPDX-License-Identifier: BSD-3-Clause
"""The SIMD level, the threads and the versions behind all calls."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import numpy as np

from .. import _core
from .checks import thread_count

_LABELS = {
    "version": "attnscale",
    "simd_level": "SIMD level",
    "available_simd_levels": "available levels",
    "num_threads": "threads",
    "threads_library": "threads belong to",
    "compiler": "compiler",
    "flags": "C++ flags",
    "xsimd": "xsimd",
    "xtensor": "xtensor",
    "pybind11": "pybind11",
    "numpy": "NumPy",
}


class Config(dict[str, Any]):
    """A dictionary that prints as a table, one entry a line."""

    def __repr__(self) -> str:
        width = max(map(len, _LABELS.values()))
        return "\n".join(f"{_LABELS[name]:<{width}}  {self._text(name)}" for name in _LABELS)

    def _text(self, name: str) -> str:
        value = self[name]
        return ", ".join(value) if isinstance(value, tuple) else str(value)


def simd_level() -> str:
    """Name of the instruction set in use: "baseline", "avx2", "avx512", "avx512_bf16", "amx_bf16" or "neon".

    Chosen once, at the first call that needs it: the best of this CPU, or the one that the environment
    variable ``ATTNSCALE_SIMD`` names.

    Raises
    ------
    RuntimeError
        ``ATTNSCALE_SIMD`` names a level that this build or this CPU does not have.

    Examples
    --------
    >>> import attnscale as at
    >>> at.simd_level() in at.show_config()["available_simd_levels"]
    True
    """
    return _core.simd_level()


def get_num_threads() -> int:
    """Largest number of threads of a call without ``num_threads=``.

    Until `set_num_threads` is called: the environment variable ``ATTNSCALE_NUM_THREADS``, else the CPUs
    that this process may use (its affinity, cut by the CPU quota of its cgroup), and not more than
    ``torch.get_num_threads()`` once a call had tensors of PyTorch or :mod:`attnscale.torch` is imported.

    Raises
    ------
    RuntimeError
        ``ATTNSCALE_NUM_THREADS`` is not an integer of at least 1.

    Examples
    --------
    >>> import attnscale as at
    >>> at.get_num_threads() >= 1
    True
    """
    return _core.num_threads()


def set_num_threads(n: int) -> None:
    """Set the number of threads for the whole process; results do not depend on it.

    `threadpoolctl.threadpool_limits` does the same for a block of code.

    Parameters
    ----------
    n : int
        At least 1. A call takes at most 256, or the number of CPUs of this process if that is larger.

    Examples
    --------
    >>> import attnscale as at
    >>> before = at.get_num_threads()
    >>> at.set_num_threads(1)
    >>> at.get_num_threads()
    1
    >>> at.set_num_threads(before)
    """
    _core.set_num_threads(thread_count("n", n))


@contextmanager
def threads_within(n: int) -> Iterator[None]:
    """A context in which calls without ``num_threads=`` use `n` threads at most."""
    before = _core.chosen_threads()
    _core.set_num_threads(n)
    try:
        yield
    finally:
        _core.choose_threads(before)


@cache
def use_threads_of_torch() -> None:
    """Run calls on the OpenMP threads of PyTorch, which is imported already.

    They wait awake after each operator of PyTorch; threads of our own would have half of the CPUs.
    """
    _core.use_threads_of("@rpath/libtorch_cpu.dylib" if sys.platform == "darwin" else "libtorch_cpu.so")


def show_config() -> Config:
    """Versions, SIMD level, threads and compiler of this installation.

    Returns
    -------
    Config
        A dictionary that prints as a table.

    Examples
    --------
    >>> import attnscale as at
    >>> at.show_config()["version"] == at.__version__
    True
    """
    return Config(
        version=_core.__version__,
        simd_level=_core.simd_level(),
        available_simd_levels=_core.available_simd_levels(),
        num_threads=_core.num_threads(),
        threads_library=_core.threads_library() or "attnscale",
        numpy=np.__version__,
        **_core.build_info(),
    )


def _register_with(threadpoolctl: Any) -> None:
    """Make `threadpoolctl` see the thread pool."""

    class AttnscaleController(threadpoolctl.LibController):  # type: ignore[misc]
        user_api = "attnscale"
        internal_api = "attnscale"
        filename_prefixes = ("_core",)
        check_symbols = ("attnscale_get_num_threads", "attnscale_set_num_threads", "attnscale_get_version")

        def get_num_threads(self) -> int:
            return int(self.dynlib.attnscale_get_num_threads())

        def set_num_threads(self, num_threads: int) -> None:
            self.dynlib.attnscale_set_num_threads(num_threads)

        def get_version(self) -> str:
            return _core.__version__

    threadpoolctl.register(AttnscaleController)


class _RegisterOnImport:
    """A finder that registers the pool when `threadpoolctl` is imported: the import takes 4 ms."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The usual spec of threadpoolctl, whose module then registers the pool."""
        if name != "threadpoolctl":
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                if cls in sys.meta_path:
                    sys.meta_path.remove(cls)
                _register_with(module)

            spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


if "threadpoolctl" in sys.modules:
    _register_with(sys.modules["threadpoolctl"])
else:
    sys.meta_path.insert(0, _RegisterOnImport)
