# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale diagnose``: entropy of a model's attention against the length of a text."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._tables.tabled import Unit, nats_per
from .._tables.text import to_text
from ..laws import Law
from ._interrupt import finished
from ._model import Reader, add_reading, check_lengths, chosen_of, load, plan_of
from ._options import add_option, add_outputs, add_unit, read_law, read_laws
from ._output import Answer, Drawing, bad_input
from ._per_head import (
    SCHEMA,
    STATISTICS,
    Measured,
    head_rows,
    head_table,
    heads_of,
    joined,
    read_budget,
    side_by_side,
)
from .entropy import KEYS

_MOST_MAPS = 4  # side by side
_SIDE = 0.14  # inches of a field of a map
_LINES = 3.2  # inches of the axes with lines
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
    reader = load(options.model, options)
    plan = plan_of(reader.model)
    chosen = _Chosen(options.kind, options.modules)
    measured, interrupted = finished(
        _read_lengths(options, reader) if reader.texts else [0],
        lambda n: _at_length(reader, n, laws, chosen, by_head=by_head),
        work=lambda n: max(n, 1),
        name=lambda n: f"n = {n}",
    )
    lengths, found = list(measured), _joined(list(measured.values()))
    report = {
        "schema": SCHEMA,
        "model": options.model,
        "text": ", ".join(map(str, options.text or ())),
        "unit": "nat",
        "plan": plan.content,
        "rows": _rows(lengths, found),
    }
    if found.heads is not None:
        others = [name for name, law in laws.items() if law != read_law("standard")]
        rows = head_rows(lengths, found, found.heads, others, budget)
        table = head_table(rows, options.unit, budget, named=len(found.groups) > 1)
        shared = {name: value for name, value in budget._asdict().items() if value is not None}
        report |= {"heads": rows, "budget": shared}
    else:
        rows, table = _flat_rows(report["rows"]), _table(lengths, found, options.unit)
    notes = [f"{note[0].upper()}{note[1:]}." for note in (*reader.notes, *_notes(options, found))]
    text = "\n".join([plan.text, "", *notes, *([""] if notes else []), table])
    names = [Path(each).name.replace("$", r"\$") for each in (options.model, *(options.text or ()))]
    about = f"{names[0]}, first $n$ tokens of {', '.join(names[1:])}" if options.text else names[0]
    # In the figure a law multiplies the model's own scale, whatever that is.
    own = read_law("standard")
    labels = {name: "as the model has it" if law == own else f"times {name}" for name, law in laws.items()}
    drawing = Drawing(lambda figure: draw(found, lengths, figure, options.unit, labels, about), panels=None)
    return Answer(text, rows, drawing=drawing, report=report, interrupted=interrupted)


def _notes(options: argparse.Namespace, found: Measured) -> list[str]:
    """What is left out of the figure, and of the numbers."""
    notes = []
    if options.plot is not None and len(found.groups) > 1:
        notes.append(
            "the figure has no line of means, since towers or kinds differ: --kind and --modules choose"
        )
    left_out, rows = found.padding
    return notes + ([f"{left_out} of {rows} rows are padding, and no part of any number"] if left_out else [])


class _Chosen(NamedTuple):
    """Which calls of attention are measured; None: all."""

    kinds: Sequence[str] | None = None
    modules: Sequence[str] | None = None


def measure(
    reader: Reader, lengths: Sequence[int], laws: Mapping[str, Law], *, by_head: bool = False
) -> Measured:
    """Run the model on each prefix of its texts; more is measured where each head has a row."""
    return _joined([_at_length(reader, n, laws, _Chosen(), by_head=by_head) for n in lengths])


def _at_length(
    reader: Reader, n: int, laws: Mapping[str, Law], chosen: _Chosen, *, by_head: bool
) -> Measured:
    from ..torch import record

    statistics = STATISTICS if by_head else ("entropy", "n_visible")
    others = {name: law for name, law in laws.items() if law != read_law("standard")}
    refused = bad_input(f"MODEL {type(reader.model).__name__}", NotImplementedError)
    with refused, record(reader.model, statistics=statistics, laws=others) as whole:
        reader.run(n)
    log = chosen_of(whole, *chosen)
    named = {name: f"entropy under {name}" if name in others else "entropy" for name in laws}
    visible = log.means("n_visible", lambda rows: np.log(np.maximum(rows, 1)))
    rows = [each for each in log.rows.values() if not each.all()] or [*log.rows.values()]
    return Measured(
        entropy={name: side_by_side(log.means(each))[None] for name, each in named.items()},
        equal=np.array([[each.mean() for each in visible.values()]]),
        sinks=log.sink_layers,
        modules=list(log.modules),
        kinds=list(log.kinds.values()),
        padding=(int((~rows[0]).sum()), rows[0].size),
        heads=heads_of(log) if by_head else None,
    )


def _joined(parts: Sequence[Measured]) -> Measured:
    """The measurements of several lengths, one length after another."""
    entropy = {law: np.concatenate([part.entropy[law] for part in parts]) for law in parts[0].entropy}
    heads = [part.heads for part in parts if part.heads is not None]
    equal = np.concatenate([part.equal for part in parts])
    return parts[-1]._replace(entropy=entropy, equal=equal, heads=joined(heads) if heads else None)


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


def _rows(lengths: Sequence[int], found: Measured) -> list[dict[str, Any]]:
    """One row for each length, law and layer, with the entropies of its heads."""
    return [
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
    ]


def _flat_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each head, as CSV has them."""
    return [
        {name: row[name] for name in ("n", "layer", "module", "kind", "law")}
        | {"head": head, "entropy": entropy, "uniform_entropy": row["uniform_entropy"]}
        for row in rows
        for head, entropy in enumerate(row["entropy_by_head"])
    ]


def draw(
    found: Measured,
    lengths: Sequence[int],
    figure: Any,
    unit: Unit = "nats",
    labels: Mapping[str, str] | None = None,
    about: str = "",
) -> None:
    """Draw the mean entropy against length, and below it each head of each layer.

    Where layers are of several towers or kinds, or there is no text, a map of the heads is all.
    """
    from .. import plot
    from ..plot._heads import draw_head_maps
    from ..plot._names import subtitle

    shown = np.unique(np.linspace(0, len(lengths) - 1, min(_MOST_MAPS, len(lengths))).round().astype(int))
    maps = {(labels or {}).get(law, law): values[shown] for law, values in found.entropy.items()}
    n_layers, n_heads = found.entropy[next(iter(found.entropy))].shape[1:]
    height = len(maps) * (0.45 + max(_SIDE * n_layers, 0.8)) + 0.75
    width = max(4.6, 1.6 + len(shown) * (0.25 + max(_SIDE * n_heads, 0.8)))
    has_lines = len(found.groups) == 1 and 0 not in lengths
    figure.set_size_inches(width, _LINES * has_lines + height)
    below = figure
    if has_lines:
        top, below = figure.subfigures(2, 1, height_ratios=[_LINES, height])
        ax = top.subplots()
        there = ~np.isnan(found.entropy[next(iter(found.entropy))]).all(axis=0)
        heads = {law: values[:, there] for law, values in found.entropy.items()}
        equal = np.nanmean(found.equal, axis=1)
        plot.entropy_vs_length(heads, lengths, ax=ax, uniform=equal, labels=labels, unit=unit)
        ax.set_xlabel("tokens, $n$")
        subtitle(ax, about)
    titles = [f"$n = {lengths[index]}$" if lengths[index] else about for index in shown]
    most = float(np.nanmax(found.equal))
    draw_head_maps(below, maps, titles, most=most, modules=found.modules, unit=unit)
