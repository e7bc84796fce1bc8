# SPDX-License-Identifier: BSD-3-Clause
"""The speed of attnscale on this machine: ``make bench``, or ``python benchmarks/bench.py --help``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attnscale_bench as bench
from attnscale._files.heads import check_is_file
from attnscale._grid.progress import progress_line
from attnscale.cli import main as run_command
from attnscale.cli._options import Parser, add_option, add_outputs, whole, written
from attnscale.cli._output import Answer, FoundError, bad_input, check_folder, left_out

_DESCRIPTION = """\
Measure this machine's multiply-add peak and read bandwidth, and every speed that attnscale
promises as a share of them or as a ratio within the same run. A row that misses its target
is marked; the exit status is 0 all the same. --against compares with an earlier run that
--keep wrote: the exit status is 1 if a share or a ratio is worse by more than its scatter.
--history appends the shares and ratios to a file, a line a run.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status, as the commands of attnscale do."""
    return run_command(argv, _parser())


def _parser() -> Parser:
    parser = Parser(prog="bench.py", description=_DESCRIPTION)
    parser.add_argument("sets", nargs="*", metavar="SET", help="the cases of these questions; all by default")
    for flag in ("--only", "--threads"):
        add_option(parser, flag)
    add_option(parser, "--list", help="print the sets and their cases, and leave")
    slow = "more rounds, and the cases that take long: ten minutes and more"
    parser.add_argument("--full", action="store_true", help=slow)
    parser.add_argument("--repeat", type=whole(1), metavar="R", help="rounds (default: 3, or 9 with --full)")
    add_option(parser, "--keep", help="write the shares and ratios to a file, for --against")
    line = "append the shares and ratios to this file, as a line of JSON"
    parser.add_argument("--history", type=written, metavar="FILE", help=line)
    pages = "write a table and a figure of other packages' times there"
    parser.add_argument("--report", type=written, metavar="DIR", help=pages)
    worse = "say what is worse than in this file of --keep, whose cases are the default"
    add_option(parser, "--against", help=worse)
    add_outputs(parser, plot=False, json="print JSON, every sample included")
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> Answer:
    """Run the benchmark and return its report."""
    if options.list:
        left_out(options, "--list", ("keep", "report", "against", "csv"))
        lines = [f"{name:<12} {asked}\n{'':<12} {' '.join(of)}" for name, (asked, of) in bench.SETS.items()]
        return Answer("\n".join(lines), report={name: list(each) for name, each in bench.SETS.items()})
    if options.report is not None:
        check_folder(f"--report {options.report}", options.report)
    if options.against is not None:
        check_is_file(options.against, "--against")
    with bad_input(), progress_line() as progress:
        before = None if options.against is None else bench.read_baseline(options.against)
        report = bench.run(
            _cases(options, before),
            sets=options.sets,
            full=options.full,
            threads=options.threads,
            rounds=options.repeat,
            progress=progress,
            measured=partial(_show, progress),
        )
        files = [] if options.report is None else bench.write_peers(report, options.report)
    if options.keep is not None:
        options.keep.write_text(bench.keep(report) + "\n", encoding="utf-8")
    if options.history is not None:
        bench.append_history(report, options.history, commit=bench.commit_of())
    parts = [report.to_text(), *([] if before is None else [bench.describe(report, before)])]
    parts += [f"Written: {' '.join(map(str, files))}"] if files else []
    return Answer(
        "\n\n".join(parts),
        report.to_rows(),
        report=report.to_dict(),
        ends=None if before is None else _verdict(report, before),
        interrupted=report.interrupted,
    )


def _cases(options: argparse.Namespace, before: bench.Baseline | None) -> list[str] | None:
    """The named cases; by default those of the file for --against or of the report."""
    if options.only or options.sets:
        return options.only  # type: ignore[no-any-return]  # of argparse
    named = [*(bench.PEER_CASES if options.report is not None else ()), *(before.cases if before else ())]
    return [name for name in dict.fromkeys(named) if name in bench.CASES] or None


def _verdict(report: bench.Report, before: bench.Baseline) -> FoundError | None:
    fallen = [change.row.name for change in bench.compare(report, before) if change.fell]
    if not fallen:
        return None
    return FoundError(f"worse by more than the scatter (--against): {', '.join(fallen)}", status=1)


def _show(progress: Callable[[str], None], row: Any) -> None:
    """Show a row on a terminal as soon as it is measured, before the table."""
    if sys.stderr.isatty():
        progress("")
        print(row.line(), file=sys.stderr)


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[1] / "notebooks"))  # cases run models of studies
    sys.exit(main())
