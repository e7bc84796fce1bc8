# SPDX-License-Identifier: BSD-3-Clause
"""python -m tools.engines.run [NAME ...]: ask engines, keep their answers, and write the page.

``make engines`` runs it. Each engine has a folder with its packages; a question that ends its process, or
takes too long, is an answer.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attnscale as at
from packaging.version import Version

from .page import ANSWERS, PAGE, page

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "attention-engines"


def installed(name: str, pins: Sequence[str]) -> Path:
    """A folder with these packages and no other, installed unless they are there."""
    folder = FOLDER / name
    said = folder / "pins.txt"
    wanted = "\n".join(pins)
    if not said.exists() or said.read_text(encoding="utf-8") != wanted:
        subprocess.run(["rm", "-rf", str(folder)], check=True)
        folder.mkdir(parents=True)
        if pins:
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-compile", "--target"]
            done = subprocess.run([*pip, str(folder), *pins], capture_output=True, text=True)
            if done.returncode:
                raise RuntimeError(f"pip: {done.stderr.strip().splitlines()[-1]}")
        said.write_text(wanted, encoding="utf-8")
    return folder


def asked(name: str, folder: Path) -> tuple[str | None, dict[str, dict[str, Any]]]:
    """Version and answers of an engine."""
    environment = os.environ | {
        "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    }
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "answers")
        command = [sys.executable, "-m", "tools.engines.worker", name, str(file)]
        done = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True)
        if not file.exists():
            lines = done.stderr.strip().splitlines()
            raise RuntimeError(re.sub(r"(/[\w.+-]+){2,}/", "", lines[-1]) if lines else "the process ended")
        found = json.loads(file.read_text(encoding="utf-8"))
    return found["version"], found["answers"]


def run(name: str, kept: dict[str, Any], pins: Sequence[str] = ()) -> str:
    """Ask an engine, keep its answers, and return a line that says so; `pins` replace those of its record."""
    engine = at.conformance.engines.find_engine(name)
    known = kept["engines"].setdefault(name, {"releases": {}})
    known |= {"call": engine.call, "package": engine.package, "notes": engine.notes}
    others = [
        x for x in engine.requirements if x.partition("==")[0] not in {y.partition("==")[0] for y in pins}
    ]
    place = name if not pins else f"{name}-{'-'.join(pins)}"
    try:
        version, answers = asked(name, installed(place, [*pins, *others]))
    except RuntimeError as error:
        known["not_run"] = str(error)
        return f"{name}: not run: {error}"
    known.pop("not_run", None)
    known["releases"][version] = answers
    known["releases"] = {x: known["releases"][x] for x in sorted(known["releases"], key=Version)}
    surprising = sum(each["surprising"] for each in answers.values())
    return f"{name} {version}: {len(answers)} answers, {surprising} surprising"


def main() -> None:
    """Run the engines that are named, or all, and write answers and page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--with", nargs="+", default=[], metavar="PIN", dest="pins", help="another release")
    parser.add_argument("--answers", type=Path, default=ANSWERS)
    options = parser.parse_args()
    kept = json.loads(options.answers.read_text("utf-8")) if options.answers.exists() else {"engines": {}}
    for name in options.names or at.conformance.engines.engines():
        print(run(name, kept, options.pins), flush=True)
        kept = {"questions": questions(), "engines": dict(sorted(kept["engines"].items()))}
        options.answers.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    if options.answers == ANSWERS:
        PAGE.write_text(page(kept), encoding="utf-8")


def questions() -> dict[str, dict[str, Any]]:
    """Every question as data."""
    names = ("subject", "short", "asks", "usual", "rule")
    return {
        name: {x: list(y) if isinstance(y := getattr(each, x), tuple) else y for x in names}
        for name, each in at.conformance.QUESTIONS.items()
    }


if __name__ == "__main__":
    main()
