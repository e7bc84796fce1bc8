# SPDX-License-Identifier: BSD-3-Clause
"""python -m tools.versions: the tests with the newest packages of the index, or with the oldest.

The oldest are those that pyproject.toml names. All is in build/tomorrow or build/yesterday, and what is there
is used again while the same packages are asked for: remove the folder to look for newer versions. The exit
status is 1 if a test fails; result.json there has the record.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from tools.mutants.tree import ROOT

from .environment import installed, make_environment
from .run import run_tests
from .table import write_table


def main() -> int:
    """0 if all tests passed, or the table is written."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.versions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("end", choices=("tomorrow", "yesterday", "table"), help="table only writes the table")
    parser.add_argument(
        "--python",
        type=Path,
        metavar="PATH",
        help="the interpreter; tomorrow's default is the newest of Debian, unpacked, yesterday's is this one",
    )
    parser.add_argument(
        "--free-threaded", action="store_true", help="quick tests without a GIL; needs --python"
    )
    parser.add_argument(
        "--only", metavar="ARGUMENTS", help="arguments of pytest, such as a file; --only=--lf"
    )
    parser.add_argument("--no-tests", action="store_true", help="only make the environment")
    parser.add_argument("--write", action="store_true", help="write the table of docs/installation.md")
    options = parser.parse_args()
    writes = options.write or options.end == "table"
    # Before the tests: it needs a package that is installed here, too.
    has = installed(Path(sys.executable), ROOT) if writes else {}
    passed = options.end == "table" or _test(options)
    if writes:
        records = {
            column: ROOT / "build" / end / "result.json"
            for column, end in (("oldest", "yesterday"), ("newest", "tomorrow"))
        }
        print(write_table(records, {"python": has["python"], **has["packages"]}))
    return 0 if passed else 1


def _test(options: argparse.Namespace) -> bool:
    """Make the environment and run the tests there; whether all passed."""
    if options.free_threaded and options.python is None:
        raise SystemExit("--free-threaded needs --python PATH: Debian has no free-threaded Python")
    python = options.python and Path(shutil.which(options.python) or options.python)
    place = ROOT / "build" / (options.end + "-free-threaded" * options.free_threaded)
    environment = make_environment(options.end, place, python, options.free_threaded)
    if options.no_tests:
        return True
    return run_tests(environment, place, options.end, options.only, options.free_threaded)


if __name__ == "__main__":
    sys.exit(main())
