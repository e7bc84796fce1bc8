# SPDX-License-Identifier: BSD-3-Clause
"""The tests in the environment of an end, and the record of what they showed."""

from __future__ import annotations

import datetime
import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

from .environment import Environment, installed
from .failures import Failure, Outcome, by_package, read_report
from .table import rows

__all__ = ["merged", "run_tests"]

_ALL = ("-m", "not maintainer", "--all")  # also what is unchanged since it passed: the record counts tests
#: Warnings of old packages about newer ones that they call are no fault of ours; the usual run sees ours.
_OLD = tuple(
    f"-Wignore::{name}" for name in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning")
)
_FREE_THREADED = ("-m", "not slow and not torch and not jax and not maintainer", "--all")


def run_tests(
    environment: Environment, place: Path, end: str, only: str | None, free_threaded: bool = False
) -> bool:
    """Run pytest in the copy, print failures by package, and write place/result.json; whether all passed.

    A run of some tests alone changes what the record says of them, if the packages are still the same.
    """
    python, tree, variables = environment
    report, path = place / "junit.xml", place / "result.json"
    report.unlink(missing_ok=True)
    workers = os.environ.get("JOBS") or str(os.cpu_count() or 1)
    command: list[str | Path] = [
        python.with_name("pytest"),  # by python -m a program would name itself otherwise
        "-q",
        "-n",
        workers,
        "--dist",
        "loadfile",
        "--no-loadscope-reorder",
    ]
    command += [*(_FREE_THREADED if free_threaded else _ALL), "-o", "junit_family=xunit1"]
    command += _OLD if end == "yesterday" else ()
    command += [f"--junitxml={report}", *shlex.split(only or "")]
    if free_threaded:
        variables = {**variables, "PYTHON_GIL": "0"}
    has = installed(python, tree)
    versions = {"python": has["python"], **has["packages"]}
    print(f"-- versions; all are in {place / 'lock.txt'}")
    print(", ".join(f"{name} {versions[name]}" for name in rows() if name in versions), flush=True)
    status = subprocess.run(command, cwd=tree, env=variables, check=False).returncode
    if status > 1 or not report.exists():
        raise SystemExit(f"pytest did not run to its end, status {status}: {path} stays as it was")
    outcome = read_report(report, has["imports"])
    before = json.loads(path.read_text("utf-8")) if only and path.exists() else {}
    record = merged(before, versions, outcome, only)
    record |= {"end": end, "date": datetime.date.today().isoformat()}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    part.replace(path)
    _show(record, outcome)
    return status == 0


def merged(
    before: dict[str, Any], versions: dict[str, str], seen: Outcome, only: str | None
) -> dict[str, Any]:
    """The record after a run: what failed before and was not run now still counts, with the same versions.

    A test that a file no longer has does not count, where the run was of whole files.
    """
    failures = list(seen.failures)
    count, whole = len(seen.tests), only is None
    if before and before["versions"] == versions:
        words = shlex.split(only or "")
        files = set() if any(word.startswith("-") for word in words) else set(words)
        run = set(seen.tests)
        failures += [
            Failure(*each)
            for each in before["failures"]
            if each[0] not in run and each[0].partition("::")[0] not in files
        ]
        count, whole = before["count"], before["whole"]
    return {
        "versions": versions,
        "count": count,
        "whole": whole,
        "failures": failures,
        "skipped": seen.skipped,
    }


def _show(record: dict[str, Any], seen: Outcome) -> None:
    for reason, count in sorted(seen.skipped.items()):
        print(f"skipped {count}: {reason}")
    if seen.failures:
        print("-- failures by package", *by_package(seen.failures), sep="\n")
    skipped = sum(seen.skipped.values())
    print(f"-- {len(seen.tests)} tests, {skipped} skipped, {len(seen.failures)} failed; in the record: "
          f"{len(record['failures'])} of {record['count']} fail")  # fmt: skip
