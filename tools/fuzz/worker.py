# SPDX-License-Identifier: BSD-3-Clause
"""A process of the fuzzer: calls at one SIMD level, reported as lines of JSON."""

from __future__ import annotations

import argparse
import json
import os
import signal
import struct
import sys
import time
import traceback
import warnings
from typing import Any

from . import subjects
from .compare import Findings

__all__ = ["main", "run_case"]

# Faults shown by one process; further ones are counted.
SHOWN = 40


def run_case(seed: int, index: int, only: str | None = None) -> tuple[dict[str, Any], Findings]:
    """The case, and what its check found; an exception of the package is a fault."""
    case = subjects.case(seed, index, only)
    findings = Findings()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # A drawn mask, too, if it is small.
            warnings.filterwarnings("ignore", "attn_mask is float and holds 0 and 1", UserWarning)
            warnings.filterwarnings("ignore", "rows of the result are NaN|attn_mask holds NaN", UserWarning)
            subjects.CHECK[case["subject"]](case, seed, index, findings)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        where = " < ".join(f"{os.path.basename(f.filename)}:{f.lineno}" for f in reversed(frames))
        findings.fault(f"{type(error).__name__}: {str(error)[:300]} ({where})")
    return case, findings


def repeat(seed: int, index: int, only: str | None) -> str:
    """Command that repeats this call."""
    return f"--case {seed}:{index}" + (f" --only {only}" if only else "")


def _report(kind: str, **fields: Any) -> None:
    print(json.dumps({"kind": kind, **fields}), flush=True)


class _Tally:
    def __init__(self) -> None:
        self.calls, self.faults = 0, 0
        self.ratios: dict[str, tuple[float, int]] = {}
        self.subjects: dict[str, int] = {}

    def add(self, case: dict[str, Any], index: int, findings: Findings) -> None:
        self.calls += 1
        self.subjects[case["subject"]] = self.subjects.get(case["subject"], 0) + 1
        self.faults += bool(findings.faults)
        for name, ratio in findings.ratios.items():
            key = f"{case['subject']}/{case.get('function', case['subject'])}.{name}"
            if ratio > self.ratios.get(key, (0.0, 0))[0]:
                self.ratios[key] = (ratio, index)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--step", type=int, required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--until", type=float, required=True)
    parser.add_argument("--only")
    parser.add_argument("--place", required=True)
    options = parser.parse_args()
    tally = _Tally()
    # Ctrl-C reaches the group, and the parent sends it too: both mean to end after this call.
    stopped: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: stopped.append(number))
    # The parent reads here which call crashed or hung.
    place = os.open(options.place, os.O_WRONLY | os.O_CREAT)
    for index in range(options.first, options.first + options.step * options.calls, options.step):
        if stopped or (options.until and time.time() > options.until):
            break
        os.pwrite(place, struct.pack("q", index), 0)
        case, findings = run_case(options.seed, index, options.only)
        tally.add(case, index, findings)
        if findings.faults and tally.faults <= SHOWN:
            again = repeat(options.seed, index, options.only)
            _report("fault", index=index, again=again, faults=findings.faults[:3], case=repr(case))
    _report("done", calls=tally.calls, faults=tally.faults, ratios=tally.ratios, subjects=tally.subjects)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
