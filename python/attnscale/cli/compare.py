# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale compare``: the first layer in which the attention of two runs differs, and why."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ..comparison._compare import compare
from ..comparison._result import RunComparison
from ._model import model_of
from ._options import Parser, add_option, add_outputs
from ._output import Answer, Drawing, FoundError, bad_input, table_of

DESCRIPTION = """\
Compares the attention of two runs on the same tokens, and names the first layer that differs, why, and the
factor: scale, temperature by position, rotation, mask, sink, soft-cap, order of heads, one head, values,
projection, or an input that differs already. Differences as of rounding are no cause.
A and B are files of log.save (attnscale.torch.record with to_compare=True), files of queries and keys, or
folders of models of transformers, which both run on 64 random tokens of a fixed seed.
"""


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale compare``."""
    for name in ("a", "b"):
        parser.add_argument(name, type=Path, metavar=name.upper())
    add_option(parser, "--strict", help="exit status 3 if a cause is found")
    add_outputs(parser)


def run(options: argparse.Namespace) -> Answer:
    """Compare the runs; --strict then raises an error about the cause."""
    runs = [_run_at(path) for path in (options.a, options.b)]
    with bad_input("", NotImplementedError):
        found = compare(*runs)
    table, notes = table_of(found)
    ends = FoundError("a cause was found (--strict)") if options.strict and found.cause else None
    return Answer(
        "\n".join([found.sentence, "", table, *notes]),
        found.rows(),
        report=found.to_dict(),
        drawing=_drawing(found),
        ends=ends,
    )


def _run_at(path: Path) -> Any:
    """A path of a file, or the model in a folder."""
    return model_of(path) if path.is_dir() and path.suffix != ".zarr" else path


def _drawing(found: RunComparison) -> Drawing:
    return Drawing(lambda ax: found.plot(ax=ax))
