# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale diagnose``: entropy of a model's attention against the length of a text."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.checks import InputError
from .._base.text import some_of
from .._grid.progress import watched
from ._laws import read_laws
from ._model import Reader, add_reading, check_lengths, chosen_of, load, plan_of
from ._options import Parser, add_option, add_outputs, add_unit
from ._output import Answer, Drawing, bad_input, table_of

if TYPE_CHECKING:
    from ..torch import Diagnosis

#: The "schema" of the command's JSON; diagnose.schema.json beside this file describes its fields.
SCHEMA = "attnscale.diagnose/1"
_LENGTHS = (64, 128, 256, 512)
DESCRIPTION = """\
Runs a model of transformers on the first N tokens of a text, for each N of --n, and prints the
mean entropy of its attention, layer by layer: as the model has it, and with its scale multiplied by
each of --laws, on the same queries and keys. The plan of the audit comes first.
A layer's attention sink counts as one more outcome. "equal" is the entropy of equal weights on each
query's visible keys and sink: the mean of the logarithm of their number. All means are over all queries,
without padding.
--per-head prints a row for every head, with the Renyi entropy of order 2 (renyi2), the mean of the largest
weight of a row and the largest score. --budget bits=B gives a key head B + (H - H_2) / 4 bits, with H_2 its
renyi2 in bits and H the mean over the key heads; --budget tokens=N divides N tokens a key head among the
heads by effective keys.
MODEL is a directory, or a name that transformers knows. Nothing is downloaded for a directory. In an
encoder-decoder model the encoder reads the text, and the decoder its start token or --decoder-text; in a
model with several towers, --kind and --modules choose among them.
"""


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale diagnose``."""
    parser.add_argument("model", metavar="MODEL")
    add_reading(parser, "texts in UTF-8; shorter ones are padded, and padding does not count")
    usual = " ".join(map(str, _LENGTHS))
    add_option(parser, "--n", help=f"the first N tokens of the text (default: {usual}, as far as it goes)")
    add_option(parser, "--laws", default=["standard"])
    add_option(parser, "--per-head", "--budget")
    add_unit(parser)
    add_outputs(parser, json="print JSON, with every head")


def run(options: argparse.Namespace) -> Answer:
    """Measure the model's attention on the text, and return the table."""
    laws, budget = read_laws(options.laws), read_budget(options.budget or ())
    by_head = options.per_head or options.budget is not None
    reader = load(options.model, options)
    plan = plan_of(reader.model)
    lengths = _read_lengths(options, reader) if reader.texts else [0]
    with bad_input(f"MODEL {type(reader.model).__name__}", NotImplementedError), watched() as watch:
        from ..torch import diagnose

        found = diagnose(
            reader.model,
            reader.run,
            lengths,
            laws=laws.values(),
            select=lambda log: chosen_of(log, options.kind, options.modules),
            per_head=by_head,
            progress=watch,
        )
    _check_heads(options, found)
    heads = found.heads(**budget) if by_head else None
    report = {
        "schema": SCHEMA,
        "model": options.model,
        "text": ", ".join(map(str, options.text or ())),
        "unit": "nat",
        "plan": plan.content,
        "unmeasured": dict(found.unmeasured),
        "rows": found.rows(),
    }
    report |= {} if heads is None else {"heads": heads.rows(), "budget": budget}
    table, told = table_of(heads or found, options.unit)
    notes = [f"{note[0].upper()}{note[1:]}." for note in (*reader.notes, *_notes(options, found))]
    told = tuple(note for note in told if note not in notes)
    text = "\n".join([plan.text, "", *notes, *([""] if notes else []), *told, "", table])
    rows = heads.rows() if heads is not None else _flat_rows(report["rows"])
    return Answer(text, rows, drawing=_drawing(options, found), report=report, interrupted=found.interrupted)


def _drawing(options: argparse.Namespace, found: Diagnosis) -> Drawing:
    names = [Path(each).name.replace("$", r"\$") for each in (options.model, *(options.text or ()))]
    about = f"{names[0]}, first $n$ tokens of {', '.join(names[1:])}" if options.text else names[0]
    return Drawing(lambda figure: found.plot(figure=figure, unit=options.unit, about=about), panels=None)


def _notes(options: argparse.Namespace, found: Diagnosis) -> list[str]:
    """Remarks on parts left out of the figure or the numbers."""
    said = "the figure has no line of means, since towers or kinds differ: --kind and --modules choose"
    return [said] * (options.plot is not None and len(found.groups) > 1) + found._remarks()


def _check_heads(options: argparse.Namespace, found: Diagnosis) -> None:
    """Refuse options about heads if no layer has known heads."""
    given = {"--per-head": options.per_head, "--budget": options.budget, "--plot": options.plot}
    flag = next((name for name, value in given.items() if value), None)
    if flag is not None and len(found.without_heads) == len(found.modules):
        raise InputError(
            f"{flag} needs heads: texts and heads cannot be told apart in {some_of(found.modules)}"
        )


def _read_lengths(options: argparse.Namespace, reader: Reader) -> list[int]:
    """The requested lengths, checked; by default those of _LENGTHS that fit text and model."""
    most, what = reader.most(options.text)
    check_lengths(options.n, most, what, "--n")
    return options.n or [n for n in _LENGTHS if n <= most] or [most]


def _flat_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each head, for CSV."""
    return [
        {name: row[name] for name in ("n", "layer", "module", "kind", "law")}
        | {"head": head, "entropy": entropy, "uniform_entropy": row["uniform_entropy"]}
        for row in rows
        for head, entropy in enumerate(row["entropy_by_head"])
    ]


def read_budget(given: Sequence[str]) -> dict[str, float]:
    """The values of ``--budget``: bits=4, tokens=512, or both."""
    found: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = np.nan
        if name not in ("bits", "tokens") or name in found or not 0 < number < np.inf:
            rule = "must be bits=B, tokens=N or both, with numbers above 0"
            raise InputError(f"--budget {rule}, got {' '.join(given)}")
        found[name] = number
    return found
