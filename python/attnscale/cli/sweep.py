# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale sweep``: a function over a grid of parameters, as a TOML file says."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import plot
from ..sweep import SweepError, SweepInterrupted, sweep
from ..sweep._plan import IN_PARTIAL, IN_STORE
from ._figure import Drawing
from ._options import add_option, add_outputs, add_unit
from ._output import Answer, bad_input, check_folder
from ._sweep_file import SweepFile, check_laws, read_sweep_file, resolve
from ._sweep_table import flat_rows, nested_rows, table_text

if TYPE_CHECKING:
    import xarray

_DESCRIPTION = """\
Call a function at every point of a grid. FILE is TOML:

    function = "attnscale.theory:sphere_entropy_deficit"  # or of a module beside FILE
    store = "runs/deficit"  # optional: keep finished cases here and go on where a sweep stopped
    n_jobs = 2              # optional: processes

    [grid]                  # every combination of these
    scale = [0.5, 1.0, 2.0]
    head_dim = [64, 128]

    [constants]             # optional: parameters that are the same everywhere

A function with a parameter rng also takes "rng = 0", the seed, beside n_jobs.
"""


def add(commands: Any) -> None:
    """Add the parser of ``attnscale sweep``."""
    parser = commands.add_parser(
        "sweep",
        help="a function over a grid of parameters, from a TOML file",
        description=_DESCRIPTION,
    )
    parser.add_argument("file", type=Path, metavar="FILE")
    add_option(parser, "--store")
    add_option(parser, "--n-jobs")
    add_unit(parser)
    add_outputs(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Answer:
    """Run the sweep; the cases that are finished are an answer, also if something went wrong."""
    wanted = read_sweep_file(options.file)
    try:
        return _answer(options, wanted, _compute(options, wanted))
    except (SweepInterrupted, SweepError) as error:
        # After Ctrl-C the last line spells the command with a store.
        kept = "" if isinstance(error, SweepInterrupted) else ", and --store DIR keeps them"
        told = str(error).replace(IN_PARTIAL, f"the table has them{kept}").replace(f", and {IN_STORE}", "")
        error.args = (told,)
        if error.partial is None:
            raise
        return _answer(options, wanted, error.partial, error)


def _compute(options: argparse.Namespace, wanted: SweepFile) -> xarray.Dataset:
    options.store = store = options.store or wanted.store
    if store is not None:
        check_folder(f"{options.file}: store {store}", Path(store))
    n_jobs = wanted.n_jobs if options.n_jobs is None else options.n_jobs
    with resolve(options.file, wanted.function) as function, bad_input(str(options.file), ImportError):
        check_laws(options.file, wanted)
        return sweep(
            function,
            wanted.grid,
            constants=wanted.constants,
            n_jobs=1 if n_jobs is None else n_jobs,
            store=store,
            rng=wanted.rng,
        )


def _answer(
    options: argparse.Namespace, wanted: SweepFile, table: xarray.Dataset, ends: BaseException | None = None
) -> Answer:
    axes = list(wanted.grid)
    rows = flat_rows(table, axes) if options.csv is not None else []
    report = {**table.attrs, "rows": nested_rows(table, axes)} if options.json else None
    drawing = Drawing(lambda ax: plot.sweep(table, ax=ax, unit=options.unit))
    return Answer(table_text(table, axes, options.unit), rows, report, drawing, ends=ends)
