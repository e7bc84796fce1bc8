# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale sweep``: a function over a grid of parameters, as a TOML file says."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import plot
from .._io import InputError
from ..sweep import SweepError, SweepInterrupted, sweep
from ._figure import save_figure
from ._output import add_csv_option, bad_input, emit
from ._sweep_file import SweepFile, read_sweep_file, resolve
from ._sweep_table import flat_rows, nested_rows, table_text

if TYPE_CHECKING:
    import xarray

_DESCRIPTION = """\
Call a function at every point of a grid. FILE is TOML:

    function = "attnscale.theory:sphere_entropy_deficit"  # or of a module beside FILE
    store = "runs/deficit"  # optional: keep finished cases here and go on where a sweep stopped
    n_jobs = 2              # optional: processes
    rng = 0                 # optional: seed of a function that has a parameter rng

    [grid]                  # every combination of these
    scale = [0.5, 1.0, 2.0]
    head_dim = [64, 128]

    [constants]             # optional: parameters that are the same everywhere
"""


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "sweep",
        help="a function over a grid of parameters, from a TOML file",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--store", metavar="DIR", help="instead of the file's")
    parser.add_argument("--n-jobs", type=int, metavar="N", help="instead of the file's")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_csv_option(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save a figure: .png, .pdf, .svg")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Compute and print. What is finished is printed, also if something went wrong."""
    wanted = read_sweep_file(options.file)
    try:
        _show(options, wanted, _compute(options, wanted))
    except SweepInterrupted as interrupted:
        if interrupted.partial is not None:
            _show(options, wanted, interrupted.partial)
        print(f"attnscale: interrupted: {interrupted}", file=sys.stderr)
        raise SystemExit(130) from None
    except SweepError as error:
        if error.partial is not None:
            _show(options, wanted, error.partial)
        raise InputError(str(error)) from None


def _compute(options: argparse.Namespace, wanted: SweepFile) -> xarray.Dataset:
    store = options.store or wanted.store
    n_jobs = wanted.n_jobs if options.n_jobs is None else options.n_jobs
    with resolve(options.file, wanted.function) as function, bad_input(str(options.file), ImportError):
        return sweep(
            function,
            wanted.grid,
            constants=wanted.constants,
            n_jobs=1 if n_jobs is None else n_jobs,
            store=store,
            rng=wanted.rng,
        )


def _show(options: argparse.Namespace, wanted: SweepFile, table: xarray.Dataset) -> None:
    axes = list(wanted.grid)
    rows = flat_rows(table, axes) if options.csv is not None else []
    report = {**table.attrs, "rows": nested_rows(table, axes)} if options.json else None
    emit(options, table_text(table, axes), rows, report)
    if options.plot is not None:
        save_figure(options.plot, lambda ax: plot.sweep(table, ax=ax))
