# SPDX-License-Identifier: BSD-3-Clause
"""A folder of layers as the input of ``attnscale report``: its plan, its parts and its progress."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .._files.heads import InputError
from .._files.layers import is_folder_of_layers
from .._grid.progress import MINUTE, Watch, watched
from .._report.folder import Work, read_folder
from .._report.plan import plan_of
from .._report.spread import Ways, measure_folder
from .._sweep.plan import Kept
from ._output import Answer, bad_input

if TYPE_CHECKING:
    from .._report.result import Report

#: Options that only a folder has a use for.
OPTIONS = ("plan", "store", "part", "n_jobs")
#: Pairs of a query and a key from which a report is long enough for a plan.
_FEW = 2**32


def is_folder(source: str, options: argparse.Namespace) -> bool:
    """Whether an input is a folder of layers rather than a model, which has a config and reads a text."""
    path = Path(source)
    return options.text is None and is_folder_of_layers(path) and not any(path.glob("*config.json"))


def check_use(options: argparse.Namespace) -> None:
    """Refuse options of folders without one, and options that a folder has no use for."""
    folders = [each for each in options.inputs if is_folder(each, options)]
    if not folders:
        for name in OPTIONS:
            if getattr(options, name, None) not in (None, False):
                raise InputError(f"--{name.replace('_', '-')} is for a folder with a file for each layer")
        return
    options.store = getattr(options, "store", None)
    for name in ("with_heads", "spans"):
        if getattr(options, name):
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} is for a file or a model: the page of a folder has no heads or text")
    if options.plan and len(options.inputs) > 1:
        raise InputError(f"--plan is of one folder, got {len(options.inputs)} inputs")


def show_plan(options: argparse.Namespace) -> Answer:
    """The plan of a folder, and nothing measured but a trial."""
    work = _work(options.inputs[0], options)
    with bad_input():
        plan = plan_of(work)
    return Answer(plan.to_text, plan.choices(), report=plan.to_dict())


def measure(source: str, options: argparse.Namespace) -> Report:
    """Measure a folder, with its plan before if that takes long."""
    work = _work(source, options)
    with watched(first_counts=False) as watch, bad_input("", ImportError):
        return measure_folder(work, _ways(options, work, watch), None)


def _work(source: str, options: argparse.Namespace) -> Work:
    with bad_input():
        return read_folder(
            source,
            lengths=options.lengths,
            laws=options.laws,
            rows=options.rows,
            heads=None if options.head is None else [head for each in options.head for head in each],
            is_causal=options.causal,
            layout=options.layout,
        )


def _ways(options: argparse.Namespace, work: Work, watch: Watch) -> Ways:
    total = len(work.cases(stored=False))

    def begin(left: int, cases: int) -> None:
        pairs = work.pairs() * left / total * work.n_heads
        if not left or pairs < _FEW:
            return
        plan = plan_of(work)
        if (seconds := plan.seconds * left / total) >= MINUTE:
            print(plan.to_text(), file=sys.stderr, flush=True)
            watch.expect(seconds)

    def progress(done: int, of: int) -> None:
        watch(done, of, f"{done} of {of} cases")

    return Ways(
        n_jobs=1 if options.n_jobs is None else options.n_jobs,
        store=options.store,
        part=options.part,
        progress=progress,
        kept=Kept("the page has them", ", and --store DIR keeps them", "{!r} keeps them"),
        begin=begin,
    )
