# SPDX-License-Identifier: BSD-3-Clause
"""python -m tools.mutants: plant each fault into a copy of the repository, and say what catches it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from .core_faults import CORE_FAULTS
from .fault import Fault, Step
from .package_faults import PACKAGE_FAULTS
from .steps import BuildError, Steps
from .tree import is_of_core, make_python, make_tree, planted

FAULTS = (*PACKAGE_FAULTS, *CORE_FAULTS)


class Results:
    """Results: a line for each step on the sound copy, and for each fault.

    Parameters
    ----------
    path : path or None
        A file that gets the lines, too: what it has already is not run again.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        text = path.read_text(encoding="utf-8") if path is not None and path.exists() else ""
        self.lines = dict(line.split("\t", 1) for line in text.splitlines())

    def add(self, name: str, verdict: str, started: float) -> None:
        line = f"{verdict}\t{time.monotonic() - started:.0f} s"
        self.lines[name] = line
        print(f"{name}: {verdict}, {time.monotonic() - started:.0f} s", flush=True)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(f"{name}\t{line}\n")


def run_sound(steps: Steps, faults: Iterable[Fault], results: Results) -> None:
    """Every step of the faults on the copy without any: what fails then can show no fault."""
    for step in dict.fromkeys(step for fault in faults for step in fault.steps):
        if _sound(step) in results.lines:
            continue
        started = time.monotonic()
        results.add(_sound(step), _verdict(steps, step), started)


def _verdict(steps: Steps, step: Step) -> str:
    try:
        if not steps.is_possible(step):
            return f"not run, this machine has no {step.level}"
        passes, text = steps.run(step)
    except BuildError as error:
        passes, text = False, str(error)
    if not passes:
        print(text)
    return "passes" if passes else "FAILS"


def _sound(step: Step) -> str:
    return f"without a fault, {step}"


def catch(steps: Steps, fault: Fault, results: Results) -> str:
    """Plant a fault and take it out again; what was seen of it."""
    for step in fault.steps:
        if not results.lines[_sound(step)].startswith("passes"):
            return f"NOT TRIED, without it: {step}: {results.lines[_sound(step)].split(chr(9))[0]}"
    try:
        with planted(fault):
            if is_of_core(fault.file):
                steps.core_has_changed()
            for step in fault.steps:
                if not steps.run(step)[0]:
                    return f"caught by {fault.target}: {step}"
    except BuildError as error:
        return f"NOT TRIED, it does not compile: {str(error)[-600:]!r}"
    finally:
        if is_of_core(fault.file):
            steps.core_has_changed()
    return "MISSED"


def main() -> int:
    """0 if every fault is caught."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__)
    parser.add_argument("--list", action="store_true", help="only show the faults")
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose name or file has this in it")
    parser.add_argument("--tests", type=Path, metavar="DIR", help="take the tests of another checkout")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="keep the results; go on from what it has"
    )
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if options.only in fault.name or options.only in fault.file]
    if options.list:
        for fault in faults:
            print(f"{fault.name} ({fault.file})\n    {fault.target}: {', '.join(map(str, fault.steps))}")
        return 0
    results = Results(options.results)
    make_tree(None if options.tests is None else options.tests.resolve())
    steps = Steps(make_python())
    run_sound(steps, faults, results)
    for fault in faults:
        if fault.name not in results.lines:
            started = time.monotonic()
            results.add(fault.name, catch(steps, fault, results), started)
    caught = sum(results.lines[fault.name].startswith("caught") for fault in faults)
    print(f"{caught} of {len(faults)} faults are caught")
    return 0 if caught == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
