# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale diagnose``: entropy of a model's attention against the length of a text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import audit
from .._io import InputError
from .._tables.tabled import Unit, nats_per
from .._tables.text import to_text
from ..laws import Law
from ._budget import read_budget
from ._diagnose_figure import Measured, draw
from ._figure import Drawing
from ._interrupt import finished
from ._measure import KEYS
from ._model import load, plan_of
from ._options import add_option, add_outputs, add_unit
from ._output import Answer
from ._per_head import SCHEMA, STATISTICS, head_rows, head_table, heads_of, joined
from ._spelling import read_law, read_laws

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
MODEL is a directory, or a name that transformers knows. Nothing is downloaded for a directory.
"""


def add(commands: Any) -> None:
    """Add the parser of ``attnscale diagnose``."""
    parser = commands.add_parser(
        "diagnose",
        help="entropy of a model's attention against length, by layer (needs torch and transformers)",
        description=_DESCRIPTION,
    )
    parser.add_argument("model", metavar="MODEL")
    add_option(parser, "--text", required=True)
    add_option(parser, "--device")
    add_option(parser, "--dtype")
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
    tokens, model = load(options.model, options.text, options.device, options.dtype)
    plan = plan_of(model)
    positions = getattr(model.config, "max_position_embeddings", None) if plan.learned_positions else None
    asked = _read_lengths(options, len(tokens), positions)
    measured, interrupted = finished(
        asked,
        lambda n: measure(model, tokens, [n], laws, by_head=by_head),
        work=float,
        name=lambda n: f"n = {n}",
    )
    lengths, found = list(measured), _joined(list(measured.values()))
    report = _report(options, plan, lengths, found)
    rows, table = _flat_rows(report["rows"]), _table(lengths, found, options.unit)
    if by_head:
        others = [name for name, law in laws.items() if law != read_law("standard")]
        rows = head_rows(lengths, found, found.heads, others, budget)
        table = head_table(rows, options.unit, budget)
        shared = {name: value for name, value in budget._asdict().items() if value is not None}
        report |= {"heads": rows, "budget": shared}
    text = f"{plan.explain()}\n\n{table}"
    names = [name.replace("$", r"\$") for name in (Path(options.model).name, options.text.name)]
    about = f"{names[0]}, first $n$ tokens of {names[1]}"
    labels = _labels(laws)
    drawing = Drawing(lambda figure: draw(found, lengths, figure, options.unit, labels, about), panels=None)
    return Answer(text, rows, report, drawing, interrupted=interrupted)


def measure(
    model: Any, tokens: list[int], lengths: list[int], laws: dict[str, Law], *, by_head: bool = False
) -> Measured:
    """Run the model on each prefix of the text; more is measured where each head has a row."""
    import torch

    from ..torch import record

    found: dict[str, list[NDArray[np.float64]]] = {name: [] for name in laws}
    equal, heads = [], []
    statistics = STATISTICS if by_head else ("entropy", "n_visible")
    for n in lengths:
        with torch.no_grad(), record(model, statistics=statistics, laws=laws) as log:
            model(input_ids=torch.tensor([tokens[:n]], device=model.device))
        for name in laws:
            found[name].append(log.mean_entropy(name))
        equal.append(np.log(np.maximum(log["n_visible"], 1)).mean(axis=(1, 2, 3)))
        heads += [heads_of(log)] if by_head else []
    entropy = {name: np.stack(values) for name, values in found.items()}
    modules = [log.modules[layer] for layer in log.layers]
    return Measured(entropy, np.stack(equal), log.sink_layers, modules, joined(heads) if heads else None)


def _joined(parts: list[Measured]) -> Measured:
    """The measurements of several lengths, one length after another."""
    entropy = {law: np.concatenate([part.entropy[law] for part in parts]) for law in parts[0].entropy}
    heads = None if parts[0].heads is None else joined([part.heads for part in parts])
    return Measured(entropy, np.concatenate([part.equal for part in parts]), *parts[0][2:4], heads)


def _read_lengths(options: argparse.Namespace, tokens: int, positions: int | None) -> list[int]:
    """The lengths that were asked for, checked; by default those of _LENGTHS that text and model have."""
    limits = [(tokens, f"the tokens of {options.text}")]
    limits += [] if positions is None else [(positions, "the positions of the model")]
    most, what = min(limits)
    if options.n is None:
        return [n for n in _LENGTHS if n <= most] or [most]
    if max(options.n) > most:
        raise InputError(f"--n must be at most {most}, {what}, got {max(options.n)}")
    return sorted(set(options.n))


def _table(lengths: list[int], found: Measured, unit: Unit = "nats") -> str:
    """One row for each length and layer, then the mean of the layers."""
    rows, nats = [], nats_per(unit)
    for index, n in enumerate(lengths):
        for layer in [*range(found.equal.shape[1]), None]:
            where = index if layer is None else (index, layer)
            means = [values[where].mean() for values in found.entropy.values()]
            cells = [cell for mean in means for cell in (f"{mean / nats:.3f}", f"{np.exp(mean):.1f}")]
            name = "mean" if layer is None else str(layer)
            rows.append([str(n), name, f"{found.equal[where].mean() / nats:.3f}", *cells])
    header = ["n", "layer", "equal", *(title for law in found.entropy for title in (law, "keys"))]
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
    plan: audit.ScalePlan,
    lengths: list[int],
    found: Measured,
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "model": options.model,
        "text": str(options.text),
        "unit": "nat",
        "plan": plan.to_dict(),
        "rows": [
            {
                "n": n,
                "layer": layer,
                "module": found.modules[layer],
                "law": law,
                "entropy_counts_sink": layer in found.sinks,
                "entropy_by_head": values[index, layer].tolist(),
                "entropy": float(values[index, layer].mean()),
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
        {name: row[name] for name in ("n", "layer", "law")}
        | {"head": head, "entropy": entropy, "uniform_entropy": row["uniform_entropy"]}
        for row in rows
        for head, entropy in enumerate(row["entropy_by_head"])
    ]


def _labels(laws: dict[str, Law]) -> dict[str, str]:
    """Names of the laws in the figure: a law multiplies the model's own scale, whatever that is."""
    own = read_law("standard")
    return {name: "as the model has it" if law == own else f"times {name}" for name, law in laws.items()}
