# SPDX-License-Identifier: BSD-3-Clause
"""Compiles the kernels of Triton for a GPU that is not there, and counts what the compiler made of them.

python tests/tensors/triton_static.py ARCHITECTURE HEAD_DIM [KERNEL QUERIES,KEYS,WARPS,STAGES ...]

Prints a line of JSON for each kernel and configuration: those of the package, or those that are named.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from attnscale.torch._triton import _backward, _forward, _launch, _problem
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

_TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


class NoDevice:
    """A driver of Triton that knows what to compile for, and runs nothing."""

    def __init__(self, architecture: str) -> None:
        is_amd = architecture.startswith("gfx")
        self.target = (
            GPUTarget("hip", architecture, 64) if is_amd else GPUTarget("cuda", int(architecture), 32)
        )

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def figures_of_cuda(kernel: Any) -> dict[str, int]:
    """Registers of a thread, bytes of its stack, and what the loop of full tiles loads and stores there."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        usage = _output("cuobjdump", "-res-usage", file.name)
        code = _output("nvdisasm", "-c", file.name)
    registers, stack = re.search(r"REG:(\d+) STACK:(\d+)", usage).groups()  # type: ignore[union-attr]
    loop = first_loop_of_products(code.splitlines())
    spills = sum(bool(re.search(r"\s(LDL|STL)\b", line)) for line in loop)
    return {"registers": int(registers), "stack": int(stack), "spills": spills}


def first_loop_of_products(code: list[str]) -> list[str]:
    """The lines of the innermost loop that comes first and has matrix products: that of the full tiles."""
    labels: dict[str, int] = {}
    for at, line in enumerate(code):
        if found := re.match(r"\s*\.L_x_(\d+):", line):
            labels[found[1]] = at
        found = re.search(r"BRA(?:\.\w+)*\s.*`\(\.L_x_(\d+)\)", line)
        start = labels.get(found[1]) if found else None
        if start is not None and any("MMA" in each for each in code[start:at]):
            return code[start:at]
    raise AssertionError("no loop has a matrix product")


def figures_of_hip(kernel: Any) -> dict[str, int]:
    """Vector registers of a thread, and those that did not fit."""
    text = kernel.asm["amdgcn"]
    registers, spills = (
        int(re.search(rf"\.{name}:\s*(\d+)", text)[1]) for name in ("vgpr_count", "vgpr_spill_count")
    )  # type: ignore[index]
    return {"registers": registers, "spills": spills}


def _output(tool: str, *arguments: str) -> str:
    return subprocess.run([_TOOLS / tool, *arguments], capture_output=True, text=True, check=True).stdout


def main(architecture: str, head_dim: int, *chosen: str) -> None:
    """Compile what a causal call in bfloat16 with output and entropy needs, forward and backward."""
    named = [_launch.Configuration(*map(int, each.split(","))) for each in chosen[1:]]
    figures = figures_of_hip if architecture.startswith("gfx") else figures_of_cuda

    def compile_all(kernel: Any, _: Any, own: Any, *arguments: Any, **sizes: Any) -> None:
        if chosen and kernel.__name__ != chosen[0]:
            return
        for each in named or own:
            made = kernel.warmup(
                *arguments,
                grid=(1,),
                BLOCK_M=each.queries,
                BLOCK_N=each.keys,
                num_warps=each.warps,
                num_stages=each.stages,
                **sizes,
                **_launch.OPTIONS,
            )
            found = {"kernel": kernel.__name__, "configuration": list(each), "shared": made.metadata.shared}
            print(json.dumps(found | figures(made)), flush=True)

    driver.set_active(NoDevice(architecture))
    _forward.launch = _backward.launch = compile_all
    _backward._products_with_output = lambda problem, output, gradient: rows
    query, key = (torch.zeros(1, heads, 256, head_dim, dtype=torch.bfloat16) for heads in (4, 2))
    at, rows = torch.arange(256), torch.zeros(1, 4, 256)
    problem = _problem.Problem(query, key, key, torch.zeros(()), at * 0, at + 1)
    _forward.forward(problem, ("lse", "entropy"))
    kept, gradients = {"lse": rows, "entropy": rows}, {"output": query, "entropy": rows}
    _backward.backward(problem, query, kept, gradients, ["query", "key"])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
