# SPDX-License-Identifier: BSD-3-Clause
"""Launch of kernels, with block sizes and numbers of warps that are timed once and then kept.

In Triton's interpreter (TRITON_INTERPRET=1 when this module is imported) blocks are small and nothing is
timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
import triton

from ._problem import Problem

#: Whether Triton interprets the kernels, on CPU tensors with NumPy.
INTERPRETED = bool(triton.knobs.runtime.interpret)
#: Options of the compiler. A product and its sum are one instruction; Triton 3.10 changes its default.
OPTIONS = {"enable_fp_fusion": True}


class Configuration(NamedTuple):
    """Queries and keys of a tile, and compile options of Triton."""

    queries: int
    keys: int
    warps: int
    stages: int


def launch(
    kernel: Any,
    programs: Callable[[dict[str, Any]], int],
    configurations: Sequence[Configuration],
    *arguments: Any,
    **sizes: Any,
) -> None:
    """Run a kernel with the number of programs that `programs` returns for a configuration.

    The fastest of several configurations is found at the first call for each width of rows and class of
    lengths, and kept on disk.
    """

    def grid(chosen: dict[str, Any]) -> tuple[int]:
        return (programs(chosen),)

    if INTERPRETED:
        kernel[grid](*arguments, **sizes, BLOCK_M=16, BLOCK_N=16)
    else:
        tuned(kernel, tuple(configurations))[grid](*arguments, **sizes, **OPTIONS)


@cache
def tuned(kernel: Any, configurations: tuple[Configuration, ...]) -> Any:
    choices = [
        triton.Config({"BLOCK_M": each.queries, "BLOCK_N": each.keys}, each.warps, each.stages)
        for each in configurations
    ]
    key = ["D", "DV", "LENGTH"]
    return triton.autotune(choices, key, cache_results=True)(kernel)


def sizes_of(problem: Problem) -> dict[str, Any]:
    """Sizes that a kernel is compiled for: extents of rows, plain and padded, and a class of lengths."""
    head_dim = problem.query.shape[-1]
    value_dim = 1 if problem.value is None else problem.value.shape[-1]
    length = max(problem.query.shape[-2], problem.key.shape[-2])
    return {
        "D": head_dim,
        "PAD_D": _padded(head_dim),
        "DV": value_dim,
        "PAD_DV": _padded(value_dim),
        "LENGTH": 0 if length <= 1024 else 1 if length <= 8192 else 2,
        "WIDEN": INTERPRETED,
    }


def _padded(dim: int) -> int:
    """The next power of two, at least 16, which a matrix product needs."""
    return max(16, int(triton.next_power_of_2(dim)))


_Choices = tuple[Configuration, ...]

#: Configurations by kernel and padded width of rows, at most 64, 128 or 256: queries, keys, warps, stages.
_OF_16_BITS: dict[str, dict[int, _Choices]] = {
    "forward": {
        64: (Configuration(128, 64, 4, 3), Configuration(128, 64, 8, 3)),
        128: (Configuration(128, 64, 8, 3), Configuration(128, 32, 8, 3)),
        256: (Configuration(64, 32, 8, 2),),
    },
    "query": {
        64: (Configuration(128, 64, 8, 2), Configuration(64, 64, 4, 2)),
        128: (Configuration(64, 64, 8, 2), Configuration(128, 64, 8, 2)),
        256: (Configuration(64, 32, 8, 1),),
    },
    "key": {
        64: (Configuration(64, 64, 4, 2), Configuration(64, 128, 8, 2)),
        128: (Configuration(64, 64, 8, 2), Configuration(32, 64, 4, 2)),
        256: (Configuration(32, 64, 8, 1),),
    },
    "mask": {
        64: (Configuration(64, 64, 4, 1),),
        128: (Configuration(64, 64, 8, 1),),
        256: (Configuration(32, 32, 8, 1),),
    },
}
#: float32 products are exact to rounding, so the units for 16-bit products are not used.
_OF_32_BITS: dict[int, _Choices] = {
    64: (Configuration(64, 32, 4, 2), Configuration(32, 32, 4, 2)),
    128: (Configuration(32, 32, 4, 2),),
    256: (Configuration(32, 16, 4, 1),),
}


def configurations(kernel: str, problem: Problem) -> _Choices:
    """Configurations to choose from for a kernel: "forward", "query", "key" or "mask"."""
    sizes = sizes_of(problem)
    width = max(64, sizes["PAD_D"], sizes["PAD_DV"])
    if problem.query.dtype == torch.float32:
        return _OF_32_BITS[width]
    return _OF_16_BITS[kernel][width]
