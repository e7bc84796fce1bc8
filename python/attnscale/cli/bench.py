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
from .._io import InputError, check_is_file
from ._options import add_option, add_outputs
from ._output import Answer, FoundError, bad_input, left_out

_DESCRIPTION = """\
Measure this machine's multiply-add peak and read bandwidth, and every speed that attnscale
promises as a share of them or as a ratio within the same run. A row that misses its target
is marked; the exit status is 0 all the same. --against compares with an earlier run that
--keep wrote: the exit status is 1 if a share or a ratio is worse by more than its scatter.
Needs a checkout of attnscale: its folder benchmarks/ beside the package, or in the working
directory.
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
    for flag in ("--keep", "--report"):
        add_option(parser, flag)
    add_option(
        parser, "--against", help="say what is worse than in this file of --keep, whose cases are the default"
    )
    add_outputs(parser, plot=False, json="print JSON, every sample included")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Answer:
    """Run the benchmark and return its report."""
    bench = _load()
    if options.list:
        left_out(options, "--list", ("keep", "report", "against", "csv"))
        lines = [
            f"{name:<12} {question}\n{'':<12} {' '.join(cases)}"
            for name, (question, cases) in bench.SETS.items()
        ]
        return Answer("\n".join(lines), report={name: list(each) for name, each in bench.SETS.items()})
    if options.against is not None:
        check_is_file(options.against, "--against")
    with bad_input(), progress_line() as progress:
        before = None if options.against is None else bench.read_baseline(options.against)
        report = bench.run(
            _cases(bench, options, before),
            sets=options.sets,
            full=options.full,
            threads=options.threads,
            rounds=options.repeat,
            progress=progress,
            measured=partial(_show, progress),
        )
        written = [] if options.report is None else bench.write_peers(report, options.report)
    if options.keep is not None:
        options.keep.write_text(bench.keep(report) + "\n", encoding="utf-8")
    parts = [report.to_text(), *([] if before is None else [bench.describe(report, before)])]
    parts += [f"Written: {' '.join(map(str, written))}"] if written else []
    return Answer(
        "\n\n".join(parts),
        report.to_rows(),
        report.to_dict(),
        ends=None if before is None else _verdict(bench, report, before),
        interrupted=report.interrupted,
    )


def _cases(bench: Any, options: argparse.Namespace, before: Any) -> list[str] | None:
    """The cases that are asked for by name; those of a file or of a report where none are."""
    if options.only or options.sets:
        return options.only  # type: ignore[no-any-return]  # of argparse
    named = [*(bench.PEER_CASES if options.report is not None else ()), *(before.cases if before else ())]
    return [name for name in dict.fromkeys(named) if name in bench.CASES] or None


def _verdict(bench: Any, report: Any, before: Any) -> FoundError | None:
    fallen = [change.row.name for change in bench.compare(report, before) if change.fell]
    if not fallen:
        return None
    return FoundError(f"worse by more than the scatter (--against): {', '.join(fallen)}", status=1)


def _show(progress: Callable[[str], None], row: Any) -> None:
    """A row on a terminal, as soon as it is measured; the table has it again."""
    if sys.stderr.isatty():
        progress("")
        print(row.line(), file=sys.stderr)


def _load() -> Any:
    """`attnscale_bench` of the checkout that this file lies in, or of the working directory."""
    for checkout in (Path(__file__).resolve().parents[3], Path.cwd()):
        if (checkout / "benchmarks" / "attnscale_bench" / "__init__.py").exists():
            sys.path += [str(checkout / "benchmarks"), str(checkout / "notebooks")]
            return import_module("attnscale_bench")
    raise InputError(
        "the benchmark is not installed with the package: run `attnscale bench` in a checkout of attnscale, "
        f"which has it in benchmarks/; {Path.cwd()} has not"
    )
