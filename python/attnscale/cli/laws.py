# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale laws``: the laws that have a name, their comparison, and those of a checkpoint."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._base.checks import InputError
from .._base.text import to_text
from .._grid.progress import watched
from ..calibration.comparison import compare
from ._laws import read_law, read_laws
from ._options import LAW_HELP, Parser, add_option, add_outputs
from ._output import Answer, Drawing, bad_input, left_out, table_of
from ._program import program
from .explain import describe, law_classes, spelling

_REMARK = "Scale multiplies q . k. A parameter written '...' has no default. More: {} explain NAME"
#: Options of a comparison.
_COMPARED = ("laws", "plot", "head_dim", "train_length", "unit")


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale laws``."""
    add_option(parser, "--n", help="compare the laws at these numbers of keys")
    add_option(parser, "--from", dest="checkpoint")
    add_option(parser, "--laws", help=f"with --n: only these, as {LAW_HELP}")
    add_option(parser, "--head-dim", help="with --n: components of q and k (default: 64)")
    add_option(
        parser, "--train-length", help="with --n: training length of laws that leave it open (default: 512)"
    )
    add_option(parser, "--unit", help="with --n: of entropies in the table (default: nats)")
    add_outputs(parser)


def run(options: argparse.Namespace) -> Answer:
    """Print a table of all laws, or compare them at some lengths."""
    if options.checkpoint is not None:
        left_out(options, "--from", _COMPARED)
        return _learned(options.checkpoint, options.n or ())
    if options.n is not None:
        return _compare(options)
    for option in _COMPARED:
        if getattr(options, option) is not None:
            flag = option.replace("_", "-")
            raise InputError(f"--{flag} compares laws at some numbers of keys and needs --n N ...")
    rows = [describe(law) for law in law_classes().values()]
    cells = [(spelling(row), row["scale"].split(";")[0], row["n_means"]) for row in rows]
    table = to_text(("law", "scale", "n means"), cells, width=100)
    text = f"{table}\n\n{_REMARK.format(program())}\n{_lengths(rows)}"
    flat = [
        {name: value for name, value in row.items() if name not in ("parameters", "required")}
        | {"spelling": spelling(row)}
        for row in rows
    ]
    return Answer(text, flat, report=rows)


def _compare(options: argparse.Namespace) -> Answer:
    """Compare the laws at each length."""
    given = options.train_length
    if given and options.laws and all(read_law(x, given) == read_law(x, given + 1) for x in options.laws):
        raise InputError(f"--train-length {given}: each of --laws has its own length, or none")
    sizes = {"head_dim": options.head_dim or 64, "train_length": given or 512}
    chosen = None if not options.laws else read_laws(options.laws, sizes["train_length"]).values()
    with bad_input(), watched() as watch:  # a law may give a scale that is not finite
        found = compare(options.n, chosen, progress=watch, **sizes)
    table, notes = table_of(found, options.unit or "nats")
    drawing = Drawing(lambda figure: found.plot(figure=figure), panels=None)
    return Answer(
        "\n".join([*notes, "", table]), found.rows(), drawing=drawing, interrupted=found.interrupted
    )


def _learned(checkpoint: Path, lengths: Sequence[int]) -> Answer:
    """The law of each head of a checkpoint, and its multiple of 1/sqrt(d) at some lengths."""
    from .. import audit  # its rules take a tenth of a second to import

    rows = audit.learned_scales(checkpoint).laws_at(lengths)
    if not rows:
        raise InputError(f"--from {checkpoint}: no weight in it is a law of a head; see attnscale audit")
    header = ("layer", "head", "law", *(f"m({n})" for n in lengths))
    cells = [
        [str(row[x]) if isinstance(row[x], (int, str)) else _cell(row[x]) for x in header] for row in rows
    ]
    about = "m(n): multiple of 1/sqrt(d) for the last of n causal queries. A constant multiplies a cosine."
    return Answer(f"{to_text(header, cells)}\n\n{about}", rows)


def _lengths(rows: list[dict[str, Any]]) -> str:
    """Each law's name for its training length, wrapped."""
    own: dict[str, list[str]] = {}
    for row in rows:
        if row["length_parameter"] is not None:
            own.setdefault(row["length_parameter"], []).append(row["name"])
    listed = "; ".join(f"{name} of {', '.join(found)}" for name, found in own.items())
    told = f"train_length=N works for every law that counts from a length: {listed}."
    return textwrap.fill(told, 98)


def _cell(value: float) -> str:
    return f"{value:.4f}" if np.isfinite(value) else "-"
