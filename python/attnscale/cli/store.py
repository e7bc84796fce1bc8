# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale store``: operations on the folders in which commands keep their cases."""

from __future__ import annotations

import argparse
from pathlib import Path

from .._base.text import counted
from .._grid.merge import merge_stores
from ._options import Parser, add_option, add_outputs
from ._output import Answer, bad_input, check_folder

_MERGE = """\
Bring the stores that parts of a sweep, an experiment, a training or a report wrote on several machines into
one. Stores of different work are refused in a line that names the difference. Nothing is lost: the merge
keeps the larger number of samples of an experiment's case, and the later step of an unfinished training.
The command that wrote the stores, with --store, then shows the whole result, and computes missing cases.
"""


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale store``."""
    parser.add_commands("actions", "ACTION").offer("merge", _add_merge, help="several stores into one")


def _add_merge(parser: Parser) -> None:
    """Add the options of ``attnscale store merge``."""
    parser.description = _MERGE
    parser.add_argument("stores", nargs="+", type=Path, metavar="DIR")
    add_option(parser, "--to", required=True)
    add_outputs(parser, csv=False, plot=False)


def run(options: argparse.Namespace) -> Answer:
    """Merge the stores, and print the number of cases."""
    check_folder(f"--to {options.to}", options.to)
    with bad_input():
        merged = merge_stores(options.stores, options.to)
    remarks = [f"{path}: damaged, and left out; the case is computed again" for path in merged.damaged]
    text = f"{options.to}: {counted(merged.cases, 'case')} of {counted(len(options.stores), 'store')}"
    report = {"store": str(options.to), "cases": merged.cases, "damaged": [*map(str, merged.damaged)]}
    return Answer(text, report=report, remarks=remarks)
