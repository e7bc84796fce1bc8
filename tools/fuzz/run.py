# SPDX-License-Identifier: BSD-3-Clause
"""python -m tools.fuzz: processes that call, one SIMD level after the other, and one summary.

A fault is printed with the call that showed it and with the options that repeat it. A process that dies or
stops answering is one too: it leaves behind the index of its call.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["Summary", "fuzz", "levels_of_this_machine", "main"]

ROOT = Path(__file__).resolve().parents[2]
# A call takes milliseconds; a sanitizer some hundred times that.
HANG = 120.0
MANY = 10**9


@dataclasses.dataclass
class Summary:
    """Results of all processes."""

    calls: dict[str, int] = dataclasses.field(default_factory=dict)
    faults: int = 0
    texts: list[str] = dataclasses.field(default_factory=list)
    ratios: dict[str, tuple[float, str]] = dataclasses.field(default_factory=dict)
    subjects: dict[str, int] = dataclasses.field(default_factory=dict)

    def lines(self) -> list[str]:
        """The summary as text."""
        total = sum(self.calls.values())
        levels = ", ".join(f"{level} {n:,}" for level, n in self.calls.items())
        # Ratios are by SUBJECT/FUNCTION.NAME: the largest one of each subject.
        worst: dict[str, tuple[float, str]] = {}
        for name, (ratio, at) in sorted(self.ratios.items(), key=lambda each: -each[1][0]):
            subject, what = name.split("/", 1)
            worst.setdefault(subject, (ratio, f"{what}, {at}"))
        return [
            f"calls: {total:,} ({levels}), faults: {self.faults}",
            "about: " + ", ".join(f"{name} {n:,}" for name, n in sorted(self.subjects.items())),
            "largest error / bound: "
            + ", ".join(f"{n} {r:.2f} ({at})" for n, (r, at) in sorted(worst.items())),
        ]


class _Process:
    """A worker whose output is read by a thread."""

    def __init__(self, level: str, settings: dict[str, Any], first: int, step: int, calls: int) -> None:
        self.level, self.first, self.step, self.total = level, first, step, calls
        self.settings, self.lines, self.done = settings, [], False  # type: ignore[var-annotated]
        self.place, self.hung = "", False
        self.start(first, calls)

    def start(self, first: int, calls: int) -> None:
        self.forget()
        handle, self.place = tempfile.mkstemp(prefix="attnscale-fuzz-")
        os.write(handle, struct.pack("q", first))
        os.close(handle)
        command = [sys.executable, "-m", "tools.fuzz.worker", "--place", self.place]
        values = {**self.settings, "first": first, "step": self.step, "calls": calls}
        for name, value in values.items():
            command += [] if value is None else [f"--{name}", str(value)]
        one = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment = {**os.environ, **one, "ATTNSCALE_SIMD": self.level}
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.errors: list[str] = []
        self.seen, self.since, self.hung = first, time.monotonic(), False
        self.threads = [
            threading.Thread(target=self._read, args=(stream, into), daemon=True)
            for stream, into in ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        ]
        for thread in self.threads:
            thread.start()

    def _read(self, stream: Any, into: list[str]) -> None:
        into.extend(stream)

    def index(self) -> int:
        """Index of the current call."""
        return int(struct.unpack("q", Path(self.place).read_bytes()[:8])[0])

    def hangs(self) -> bool:
        now = self.index()
        if now != self.seen:
            self.seen, self.since = now, time.monotonic()
        return time.monotonic() - self.since > HANG

    def forget(self) -> None:
        """Remove the file of its index."""
        if self.place:
            os.unlink(self.place)
        self.place = ""

    def stop(self) -> None:
        """After its call, or without that if it hangs."""
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(HANG)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.finish()
        self.forget()

    def finish(self) -> None:
        self.process.wait()
        for thread in self.threads:
            thread.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def levels_of_this_machine() -> tuple[str, ...]:
    """Names of the SIMD levels, the lowest one first."""
    from attnscale import _core

    return tuple(_core.available_simd_levels())


def fuzz(
    *,
    seed: int,
    calls: int | None = None,
    seconds: float | None = None,
    levels: Sequence[str],
    jobs: int = 1,
    only: str | None = None,
    first: int = 0,
    show: bool = True,
) -> Summary:
    """Calls first ... first + calls - 1 at each level, or as many as the seconds of all levels allow."""
    summary = Summary()
    for position, level in enumerate(levels):
        until = 0.0 if seconds is None else time.time() + seconds / len(levels)
        many = calls if calls is not None else MANY
        start = first if calls is not None else first + position * 10_000_000
        settings = {"seed": seed, "until": until, "only": only}
        each = [len(range(start + job, start + many, jobs)) for job in range(jobs)]
        running: list[_Process] = []
        try:
            for job, n in enumerate(each):
                if n:
                    running.append(_Process(level, settings, start + job, jobs, n))
            _watch(running, summary, show, seed, only)
        except KeyboardInterrupt:
            for worker in running:
                worker.stop()
                _take(worker, summary, show)
            break
    return summary


def _watch(running: list[_Process], summary: Summary, show: bool, seed: int, only: str | None) -> None:
    left = list(running)
    while left:
        time.sleep(0.05)
        for worker in list(left):
            if worker.process.poll() is None:
                if not worker.hangs():
                    _take(worker, summary, show)
                    continue
                worker.hung = True
                worker.process.kill()
            worker.finish()
            _take(worker, summary, show)
            if worker.done:
                left.remove(worker)
                worker.forget()
                continue
            _crashed(worker, summary, show, seed, only)
            rest = worker.total - (worker.index() - worker.first) // worker.step - 1
            if rest <= 0 or summary.faults > 200:
                left.remove(worker)
                worker.forget()
            else:
                worker.start(worker.index() + worker.step, rest)


def _crashed(worker: _Process, summary: Summary, show: bool, seed: int, only: str | None) -> None:
    """A process that ended without its last line."""
    index, code = worker.index(), worker.process.returncode
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
    if worker.hung:
        how = f"no answer within {HANG:.0f} s"
    again = f"--case {seed}:{index} --level {worker.level}" + (f" --only {only}" if only else "")
    tail = "".join(worker.errors)[-3000:]
    summary.faults += 1
    ran = max(0, (index - worker.first) // worker.step + 1)
    summary.calls[worker.level] = summary.calls.get(worker.level, 0) + ran
    _say(summary, show, f"CRASH: {how} in call {index}\n  repeat: python -m tools.fuzz {again}\n{tail}")


def _take(worker: _Process, summary: Summary, show: bool) -> None:
    """Read what the process has written since the last call."""
    while worker.lines:
        try:
            said = json.loads(worker.lines.pop(0))
        except json.JSONDecodeError:
            continue
        if said["kind"] == "fault":
            text = "\n  ".join(said["faults"])
            again = f"{said['again']} --level {worker.level}"
            _say(summary, show, f"FAULT: {text}\n  repeat: python -m tools.fuzz {again}\n  {said['case']}")
            continue
        worker.done = True
        summary.calls[worker.level] = summary.calls.get(worker.level, 0) + said["calls"]
        summary.faults += said["faults"]
        for name, n in said["subjects"].items():
            summary.subjects[name] = summary.subjects.get(name, 0) + n
        for name, (ratio, index) in said["ratios"].items():
            if ratio > summary.ratios.get(name, (0.0, ""))[0]:
                summary.ratios[name] = (ratio, f"{worker.level} {index}")


def _say(summary: Summary, show: bool, text: str) -> None:
    summary.texts.append(text)
    if show:
        print(text, flush=True)


def _one(case: str, only: str | None, level: str | None) -> int:
    """Run one call in this process, or in one at the level; returns the exit status."""
    if level and os.environ.get("ATTNSCALE_SIMD") != level:
        command = [sys.executable, "-m", "tools.fuzz", "--case", case, *(["--only", only] if only else [])]
        return subprocess.run(
            command, cwd=ROOT, env={**os.environ, "ATTNSCALE_SIMD": level}, check=False
        ).returncode
    from .worker import run_case

    seed, index = (int(part) for part in case.split(":"))
    spec, findings = run_case(seed, index, only)
    print(spec)
    for fault in findings.faults:
        print("FAULT:", fault)
    print("largest error / bound:", {name: round(ratio, 3) for name, ratio in findings.ratios.items()})
    return int(bool(findings.faults))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="for all levels together")
    parser.add_argument("--calls", type=int, help="at each level")
    parser.add_argument("--first", type=int, default=0, help="index of the first call")
    parser.add_argument("--level", action="append", help="a SIMD level; again for more; all by default")
    parser.add_argument("--only", help="one subject")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--case", metavar="SEED:INDEX", help="one call")
    options = parser.parse_args()
    if options.case:
        return _one(options.case, options.only, options.level[0] if options.level else None)
    started = time.monotonic()
    seconds = 20.0 if options.seconds is None and options.calls is None else options.seconds
    summary = fuzz(
        seed=options.seed, calls=options.calls, seconds=seconds, first=options.first, jobs=options.jobs,
        levels=options.level or levels_of_this_machine(), only=options.only,
    )  # fmt: skip
    print("\n".join([*summary.lines(), f"seed {options.seed}, {time.monotonic() - started:.0f} s"]))
    return int(summary.faults > 0)
