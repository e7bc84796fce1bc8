# SPDX-License-Identifier: BSD-3-Clause
"""Cases that need a separate process or signals: another level, memory, imports, interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from attnscale import attention_entropy, show_config

from ._rows import Row, Target, Unit, at_least, at_most, skipped
from ._session import OURS, Session
from ._timing import Estimate, Samples, estimate

__all__ = [
    "additional_memory",
    "avx2_level",
    "import_time",
    "interrupted",
    "print_memory_growth",
    "resident",
    "run_python",
    "version_time",
]


def _python(session: Session, *arguments: str, **environment: str) -> str:
    return run_python(session.threads, *arguments, **environment)


def run_python(num_threads: int, *arguments: str, **environment: str) -> str:
    """Standard output of a Python process with `num_threads` threads."""
    threads = str(num_threads)
    # Without PYTHONSAFEPATH, -c would import from the working directory first.
    here = Path(__file__).resolve().parents[1]
    own = (str(here), str(here.parent / "notebooks"))
    path = os.pathsep.join(filter(None, (*own, os.environ.get("PYTHONPATH", ""))))
    variables = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", "ATTNSCALE_NUM_THREADS": threads, **environment}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        raise RuntimeError(f"a process of the benchmark failed: {last[0]}")
    return done.stdout


def avx2_level(session: Session, name: str) -> list[Row]:
    """Forward at the level avx2, as a share of the multiply-add peak at that level."""
    what, target = "forward at level avx2, 8 x 3072 x 64", at_least(0.75)
    if "avx2" not in show_config()["available_simd_levels"]:
        return [skipped(name, what, Unit.SHARE, "this machine has no avx2", target)]
    command = f"-m bench --json --only forward_64 --repeat {session.rounds}"
    command += "" if session.quick else " --full"
    report = json.loads(_python(session, *command.split(), ATTNSCALE_SIMD="avx2"))
    found = next(row for row in report["rows"] if row["name"] == "forward_64")
    # The row's "others" are left out: PyTorch ran at its own level.
    fields = ("seconds", "flops", "share", "cores", "disturbed", "on_cpu_time", "samples")
    taken = {field: found[field] for field in fields}
    return [Row(name, what, Unit.SHARE, Estimate(found["value"], found["spread"]), target, **taken)]


def additional_memory(session: Session, name: str) -> list[Row]:
    """Growth of the resident memory of a process that computes the entropy of all rows."""
    n = 131072
    what, target = f"memory a thread, entropy, 1 x {n} x 64", at_most(8e6)
    if not Path("/proc/self/status").exists():
        return [skipped(name, what, Unit.MEGABYTES, "needs /proc", target)]
    script = f"from attnscale_bench._process_cases import print_memory_growth; print_memory_growth({n})"
    grown, seconds = json.loads(_python(session, "-c", script))
    found = Estimate(grown / session.threads, 0.0)
    note = f"{grown / 1e6:.1f} MB in all, with the result"
    return [Row(name, what, Unit.MEGABYTES, found, target, seconds, 2.0 * n * n * 64, note=note)]


def print_memory_growth(n: int) -> None:
    """Print [bytes, seconds]: growth of this process at its peak by the entropy of n rows, and its time."""
    rng = np.random.default_rng(0)
    query, key = (np.empty((1, n, 64), np.float32) for _ in range(2))
    for array in (query, key):
        rng.standard_normal(dtype=np.float32, out=array)
    before = resident("VmRSS")
    start = time.perf_counter()
    attention_entropy(query, key)
    print(json.dumps([resident("VmHWM") - before, time.perf_counter() - start]))


def resident(field: str) -> int:
    """A field of /proc in bytes; the maximum of getrusage would start at the parent's."""
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")


@contextmanager
def _python_from_bytecode(session: Session) -> Iterator[Callable[..., str]]:
    """A function like `_python` whose processes share bytecode, as after an installation with pip."""
    with tempfile.TemporaryDirectory() as folder:
        yield partial(_python, session, PYTHONPYCACHEPREFIX=folder, PYTHONDONTWRITEBYTECODE="")


def import_time(session: Session, name: str) -> list[Row]:
    """`import attnscale` in a process with NumPy, from bytecode."""
    script = "import time, numpy; t = time.perf_counter(); import attnscale; print(time.perf_counter() - t)"
    with _python_from_bytecode(session) as python:
        python("-c", script)
        seconds = [float(python("-c", script)) for _ in range(session.rounds)]
    found = estimate(seconds)
    what = "import attnscale, over NumPy"
    samples = {OURS: seconds}
    return [Row(name, what, Unit.MILLISECONDS, found, at_most(0.05), found.value, samples=samples)]


def version_time(session: Session, name: str, *, target: Target) -> list[Row]:
    """A process of `attnscale --version` over one of `import attnscale`, in turns, from bytecode."""
    commands = {OURS: ("-m", "attnscale", "--version"), "import": ("-c", "import attnscale")}
    wall: dict[str, list[float]] = {who: [] for who in commands}
    with _python_from_bytecode(session) as python:
        for turn in range(session.rounds + 1):
            for who, command in commands.items():
                start = time.perf_counter()
                python(*command)
                if turn > 0:  # the first process writes the bytecode
                    wall[who].append(time.perf_counter() - start)
    samples = Samples(wall, {})
    found = samples.ratio(OURS, "import")
    what = "attnscale --version over import attnscale"
    return [Row(name, what, Unit.RATIO, found, target, samples.seconds(OURS), samples=wall)]


class _Alarm(Exception):
    """The exception that the handler of the signal raises."""


def _ring(*_: Any) -> None:
    raise _Alarm


def interrupted(session: Session, name: str) -> list[Row]:
    """Time from a signal in the middle of a long call to the exception of its handler, as after Ctrl-C."""
    what, target = "answer to a signal in a long call", at_most(0.2)
    if not hasattr(signal, "setitimer"):
        return [skipped(name, what, Unit.MILLISECONDS, "needs setitimer", target)]
    before = signal.signal(signal.SIGALRM, _ring)
    try:
        seconds = [_seconds_to_stop(session.threads) for _ in range(session.rounds)]
    finally:
        signal.signal(signal.SIGALRM, before)
    found = estimate(seconds)
    return [Row(name, what, Unit.MILLISECONDS, found, target, found.value, samples={OURS: seconds})]


def _seconds_to_stop(threads: int) -> float:
    rows = np.broadcast_to(np.ones((1, 64), np.float32), (8, 2**19, 64))  # minutes of work
    due = time.perf_counter() + 0.1
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        attention_entropy(rows, rows, num_threads=threads)
    except _Alarm:
        return time.perf_counter() - due
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    raise RuntimeError("the call was over before the signal")
