# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale bench``: the speed on this machine. The benchmark is in the repository, and not installed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from .._grid.progress import progress_line
from .._io import InputError
from ._options import add_option, add_outputs
from ._output import Answer, bad_input

_DESCRIPTION = """\
Measure this machine's multiply-add peak and read bandwidth, and every speed that attnscale
promises as a share of them or as a ratio within the same run. A row that misses its target
is marked; the exit status is 0 all the same. Needs a checkout of attnscale: its folder
benchmarks/ beside the package, or in the working directory.
"""


def add(commands: Any) -> None:
    """Add the parser of ``attnscale bench``."""
    parser = commands.add_parser(
        "bench",
        help="how fast it is on this machine, beside targets, PyTorch and NumPy (in a checkout)",
        description=_DESCRIPTION,
    )
    parser.add_argument("sets", nargs="*", metavar="SET", help="the cases of these questions; all by default")
    for flag in ("--only", "--list", "--full", "--threads"):
        add_option(parser, flag)
    add_option(parser, "--repeat", help="rounds (default: 3, or 9 with --full)")
    add_outputs(parser, plot=False, json="print JSON, every sample included")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Answer:
    """Run the benchmark and return its report."""
    bench = _load()
    if options.list:
        lines = [
            f"{name:<12} {question}\n{'':<12} {' '.join(cases)}"
            for name, (question, cases) in bench.SETS.items()
        ]
        return Answer("\n".join(lines), report={name: list(each) for name, each in bench.SETS.items()})
    with bad_input(), progress_line() as progress:
        report = bench.run(
            options.only,
            sets=options.sets,
            full=options.full,
            threads=options.threads,
            rounds=options.repeat,
            progress=progress,
            measured=partial(_show, progress),
        )
    return Answer(report.to_text(), report.to_rows(), report.to_dict(), interrupted=report.interrupted)


def _show(progress: Callable[[str], None], row: Any) -> None:
    """A row on a terminal, as soon as it is measured; the table has it again."""
    if sys.stderr.isatty():
        progress("")
        print(row.line(), file=sys.stderr)


def _load() -> Any:
    """`attnscale_bench` of the checkout that this file lies in, or of the working directory."""
    for checkout in (Path(__file__).resolve().parents[3], Path.cwd()):
        if (checkout / "benchmarks" / "attnscale_bench" / "__init__.py").exists():
            sys.path.append(str(checkout / "benchmarks"))
            return import_module("attnscale_bench")
    raise InputError(
        "the benchmark is not installed with the package: run `attnscale bench` in a checkout of attnscale, "
        f"which has it in benchmarks/; {Path.cwd()} has not"
    )
