# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale diagnose``: entropy of a model's attention against the length of a text."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._tables.tabled import Unit, nats_per
from .._tables.text import to_text
from ..laws import Law
from ._budget import read_budget
from ._diagnose_figure import Measured, draw
from ._figure import Drawing
from ._interrupt import finished
from ._measure import KEYS
from ._model import Plan, load, plan_of
from ._options import add_option, add_outputs, add_unit
from ._output import Answer, bad_input
from ._per_head import SCHEMA, STATISTICS, head_rows, head_table, heads_of, joined, side_by_side
from ._reader import Reader, add_reading, check_lengths, chosen_of
from ._spelling import read_law, read_laws

if TYPE_CHECKING:
    pass

_LENGTHS = (64, 128, 256, 512)
_DESCRIPTION = """\
Runs a model of transformers on the first N tokens of a text, for each N of --n, and prints the
mean entropy of its attention, layer by layer: as the model has it, and as it would be with its
scale multiplied by each of --laws, on the same queries and keys. The plan of the audit comes first.
A layer's attention sink counts as one more outcome. "equal" is the entropy of equal weights on the keys
that each query of the layer sees: the mean of their logarithm.
--per-head prints a row for every head, with the Renyi entropy of order 2 (renyi2), the mean of the largest
weight of a row and the largest score. --budget bits=B gives a key head B + (H - H_2) / 4 bits, with H_2 its
renyi2 in bits and H the mean over the key heads; --budget tokens=N shares out N tokens a key head by
effective keys.
MODEL is a directory, or a name that transformers knows. Nothing is downloaded for a directory. Of an encoder
and a decoder the encoder reads the text, and the decoder its start token or --decoder-text; where a model has
several towers, --kind and --modules choose among them.
"""


def add(commands: Any) -> None:
    """Add the parser of ``attnscale diagnose``."""
    parser = commands.add_parser(
        "diagnose",
        help="entropy of a model's attention against length, by layer (needs torch and transformers)",
        description=_DESCRIPTION,
    )
    parser.add_argument("model", metavar="MODEL")
    add_reading(parser, "texts in UTF-8; shorter ones are padded, and padding does not count")
    usual = " ".join(map(str, _LENGTHS))
    add_option(parser, "--n", help=f"the first N tokens of the text (default: {usual}, as far as it goes)")
    add_option(parser, "--laws", default=["standard"])
    add_option(parser, "--per-head")
    add_option(parser, "--budget")
    add_unit(parser)
    add_outputs(parser, json="print JSON, with every head")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Answer:
    """Measure the model's attention on the text, and return the table."""
    laws = read_laws(options.laws)
    budget = read_budget(options.budget or ())
    by_head = options.per_head or options.budget is not None
    reader = load(
        *(options.model, options.text or [], options.device, options.dtype),
        decoder_text=options.decoder_text,
        images=options.images,
    )
    plan = plan_of(reader.model)
    asked = _read_lengths(options, reader) if reader.texts else [0]
    chosen = _Chosen(options.kind, options.modules)
    measured, interrupted = finished(
        asked,
        lambda n: measure(reader, [n], laws, by_head=by_head, chosen=chosen),
        work=lambda n: max(n, 1),
        name=lambda n: f"n = {n}",
    )
    lengths, found = list(measured), _joined(list(measured.values()))
    report = _report(options, plan, lengths, found)
    rows, table = _flat_rows(report["rows"]), _table(lengths, found, options.unit)
    if by_head:
        others = [name for name, law in laws.items() if law != read_law("standard")]
        rows = head_rows(lengths, found, found.heads, others, budget)
        table = head_table(rows, options.unit, budget, named=len(found.groups) > 1)
        shared = {name: value for name, value in budget._asdict().items() if value is not None}
        report |= {"heads": rows, "budget": shared}
    if options.plot is not None and len(found.groups) > 1:
        said = "the figure has no line of means, since towers or kinds differ: --kind and --modules choose"
        reader.notes.append(said)
    notes = [f"{note[0].upper()}{note[1:]}." for note in (*reader.notes, *_said_of_padding(found))]
    text = "\n".join([plan.text, "", *notes, *([""] if notes else []), table])
    names = [each.replace("$", r"\$") for each in (Path(options.model).name, *_names(options))]
    about = f"{names[0]}, first $n$ tokens of {', '.join(names[1:])}" if options.text else names[0]
    labels = _labels(laws)
    drawing = Drawing(lambda figure: draw(found, lengths, figure, options.unit, labels, about), panels=None)
    return Answer(text, rows, report, drawing, interrupted=interrupted)


class _Chosen(NamedTuple):
    """Which calls of attention are measured; None: all."""

    kinds: Sequence[str] | None = None
    modules: Sequence[str] | None = None


def measure(
    reader: Reader,
    lengths: list[int],
    laws: dict[str, Law],
    *,
    by_head: bool = False,
    chosen: _Chosen | None = None,
) -> Measured:
    """Run the model on each prefix of its texts; more is measured where each head has a row."""
    from ..torch import record

    found: dict[str, list[NDArray[np.float64]]] = {name: [] for name in laws}
    equal, heads = [], []
    statistics = STATISTICS if by_head else ("entropy", "n_visible")
    others = {name: law for name, law in laws.items() if law != read_law("standard")}
    for n in lengths:
        refused = bad_input(f"MODEL {type(reader.model).__name__}", NotImplementedError)
        with refused, record(reader.model, statistics=statistics, laws=others) as whole:
            reader.run(n)
        log = chosen_of(whole, *(chosen or _Chosen()))
        for name in laws:
            found[name].append(
                side_by_side(log.means(f"entropy under {name}" if name in others else "entropy"))
            )
        visible = log.means("n_visible", lambda rows: np.log(np.maximum(rows, 1)))
        equal.append(np.array([each.mean() for each in visible.values()]))
        heads += [heads_of(log)] if by_head else []
    entropy = {name: np.stack(values) for name, values in found.items()}
    rows = [each for each in log.rows.values() if not each.all()] or [*log.rows.values()]
    padding = int((~rows[0]).sum()), rows[0].size
    parts = log.sink_layers, list(log.modules), list(log.kinds.values()), padding
    return Measured(entropy, np.stack(equal), *parts, joined(heads) if heads else None)


def _said_of_padding(found: Measured) -> list[str]:
    left_out, rows = found.padding
    return [f"{left_out} of {rows} rows are padding, and no part of any number"] if left_out else []


def _names(options: argparse.Namespace) -> list[str]:
    return [each.name for each in options.text or ()]


def _joined(parts: list[Measured]) -> Measured:
    """The measurements of several lengths, one length after another."""
    entropy = {law: np.concatenate([part.entropy[law] for part in parts]) for law in parts[0].entropy}
    heads = None if parts[0].heads is None else joined([part.heads for part in parts])
    return Measured(entropy, np.concatenate([part.equal for part in parts]), *parts[-1][2:-1], heads)


def _read_lengths(options: argparse.Namespace, reader: Reader) -> list[int]:
    """The lengths that were asked for, checked; by default those of _LENGTHS that text and model have."""
    most, what = reader.most(options.text)
    check_lengths(options.n, most, what, "--n")
    return sorted(set(options.n)) if options.n else [n for n in _LENGTHS if n <= most] or [most]


def _table(lengths: list[int], found: Measured, unit: Unit = "nats") -> str:
    """One row for each length and layer, then the mean of the layers, or of those of each tower and kind."""
    rows, nats, groups = [], nats_per(unit), found.groups
    names = [*map(str, found.layers)] if len(groups) == 1 else found.modules
    parts = [([place], name) for place, name in enumerate(names)]
    parts += [(places, " ".join(["mean", *filter(None, group)])) for group, places in groups.items()]
    for index, n in enumerate(lengths):
        for places, name in parts:
            means = [np.nanmean(values[index, places]) for values in found.entropy.values()]
            cells = [cell for mean in means for cell in (f"{mean / nats:.3f}", f"{np.exp(mean):.1f}")]
            equal = np.nanmean(found.equal[index, places]) / nats
            rows.append([str(n or "-"), name, f"{equal:.3f}", *cells])
    header = [
        "n",
        "layer" if len(groups) == 1 else "module",
        "equal",
        *(title for law in found.entropy for title in (law, "keys")),
    ]
    note = (
        f"Mean entropy ({unit}) of the heads; keys: {KEYS[unit]}. A law multiplies the model's own scale.\n"
        "equal: of equal weights on the keys that each query sees."
    )
    if found.sinks:
        layers = ", ".join(map(str, found.sinks))
        note += f"\nThe entropy counts the sink as one more outcome in the layers {layers}."
    return f"{note}\n\n{to_text(header, rows)}"


def _report(
    options: argparse.Namespace,
    plan: Plan,
    lengths: list[int],
    found: Measured,
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": options.model,
        "text": ", ".join(map(str, options.text or ())),
        "unit": "nat",
        "plan": plan.content,
        "rows": [
            {
                "n": n,
                "layer": found.layers[layer],
                "module": found.modules[layer],
                "kind": found.kinds[layer],
                "law": law,
                "entropy_counts_sink": found.layers[layer] in found.sinks,
                "entropy_by_head": values[index, layer][~np.isnan(values[index, layer])].tolist(),
                "entropy": float(np.nanmean(values[index, layer])),
                "uniform_entropy": float(found.equal[index, layer]),
            }
            for index, n in enumerate(lengths)
            for law, values in found.entropy.items()
            for layer in range(values.shape[1])
        ],
    }


def _flat_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each head, as CSV has them."""
    return [
        {name: row[name] for name in ("n", "layer", "module", "kind", "law")}
        | {"head": head, "entropy": entropy, "uniform_entropy": row["uniform_entropy"]}
        for row in rows
        for head, entropy in enumerate(row["entropy_by_head"])
    ]


def _labels(laws: dict[str, Law]) -> dict[str, str]:
    """Names of the laws in the figure: a law multiplies the model's own scale, whatever that is."""
    own = read_law("standard")
    return {name: "as the model has it" if law == own else f"times {name}" for name, law in laws.items()}
