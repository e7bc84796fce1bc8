# SPDX-License-Identifier: BSD-3-Clause
"""How a kernel is started: on blocks of a size and with a number of warps that are timed once, then kept.

In Triton's interpreter (TRITON_INTERPRET=1 when this module is imported) blocks are small, and nothing is
timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import triton

from ._problem import Problem

#: Whether Triton interprets the kernels: on tensors of the CPU, with NumPy.
INTERPRETED = bool(triton.knobs.runtime.interpret)


class Configuration(NamedTuple):
    """Queries and keys of a tile, and how Triton compiles for it."""

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
    """Run a kernel in as many programs as `programs` says for a configuration.

    The fastest of several configurations is found at the first call for each width of rows and class of
    lengths, and kept on disk.
    """

    def grid(chosen: dict[str, Any]) -> tuple[int]:
        return (programs(chosen),)

    if INTERPRETED:
        kernel[grid](*arguments, **sizes, BLOCK_M=16, BLOCK_N=16)
    else:
        tuned(kernel, tuple(configurations))[grid](*arguments, **sizes)


@cache
def tuned(kernel: Any, configurations: tuple[Configuration, ...]) -> Any:
    """The kernel with a choice of configurations."""
    choices = [
        triton.Config({"BLOCK_M": each.queries, "BLOCK_N": each.keys}, each.warps, each.stages)
        for each in configurations
    ]
    key = ["D", "DV", "LENGTH"]
    return triton.autotune(choices, key, cache_results=True)(kernel)


def sizes_of(problem: Problem) -> dict[str, Any]:
    """Sizes that a kernel is compiled for: extents of rows as they are and padded, and a class of lengths."""
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
    """The power of two, at least 16, that a matrix product takes."""
    return max(16, int(triton.next_power_of_2(dim)))
