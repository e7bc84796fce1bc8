# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale diagnose``: entropy of a model's attention against the length of a text."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._base.checks import InputError
from .._base.tabled import Unit, nats_per
from .._base.text import by_reason, counted, some_of, to_text
from .._grid.finished import finished
from .._grid.progress import watched
from ..calibration.calibration import rows_that_count
from ..laws import Law
from ._laws import read_law, read_laws
from ._model import (
    Reader,
    add_reading,
    check_lengths,
    check_measured,
    chosen_of,
    load,
    plan_of,
)
from ._options import Parser, add_option, add_outputs, add_unit
from ._output import Answer, Drawing, bad_input
from .entropy import KEYS

if TYPE_CHECKING:
    from ..torch import AttentionLog


_MOST_MAPS = 4  # side by side
_SIDE = 0.14  # inches of a cell of a map
_LINES = 3.2  # inches of the axes with lines
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
    add_option(parser, "--per-head")
    add_option(parser, "--budget")
    add_unit(parser)
    add_outputs(parser, json="print JSON, with every head")


def run(options: argparse.Namespace) -> Answer:
    """Measure the model's attention on the text, and return the table."""
    laws = read_laws(options.laws)
    labels = _labels(laws)
    budget = read_budget(options.budget or ())
    by_head = options.per_head or options.budget is not None
    reader = load(options.model, options)
    plan = plan_of(reader.model)
    chosen = _Chosen(options.kind, options.modules)
    with watched() as watch:
        measured, interrupted = finished(
            _read_lengths(options, reader) if reader.texts else [0],
            lambda n: _at_length(reader, n, laws, chosen, by_head=by_head),
            watch,
            work=lambda n: max(n, 1),
            name=lambda n: f"n = {n}",
        )
    lengths, found = list(measured), _joined(list(measured.values()))
    _check_heads(options, found)
    report = {
        "schema": SCHEMA,
        "model": options.model,
        "text": ", ".join(map(str, options.text or ())),
        "unit": "nat",
        "plan": plan.content,
        "unmeasured": dict(found.unmeasured),
        "rows": _rows(lengths, found),
    }
    if found.heads is not None:
        others = [name for name, law in laws.items() if law != read_law("standard")]
        rows = head_rows(lengths, found, found.heads, others, budget)
        table = head_table(rows, options.unit, budget, named=len(found.groups) > 1)
        shared = {name: value for name, value in budget._asdict().items() if value is not None}
        report |= {"heads": rows, "budget": shared}
    else:
        rows, table = _flat_rows(report["rows"]), _table(lengths, found, labels, options.unit)
    notes = [f"{note[0].upper()}{note[1:]}." for note in (*reader.notes, *_notes(options, found))]
    text = "\n".join([plan.text, "", *notes, *([""] if notes else []), table])
    names = [Path(each).name.replace("$", r"\$") for each in (options.model, *(options.text or ()))]
    about = f"{names[0]}, first $n$ tokens of {', '.join(names[1:])}" if options.text else names[0]
    drawing = Drawing(lambda figure: draw(found, lengths, figure, options.unit, labels, about), panels=None)
    return Answer(text, rows, drawing=drawing, report=report, interrupted=interrupted)


def _labels(laws: Mapping[str, Law]) -> dict[str, str]:
    """Names of columns and curves: a law multiplies the model's own scale."""
    own = read_law("standard")
    return {name: "as the model has it" if law == own else f"times {name}" for name, law in laws.items()}


def _notes(options: argparse.Namespace, found: Measured) -> list[str]:
    """Remarks on parts left out of the figure or the numbers."""
    notes = []
    if options.plot is not None and len(found.groups) > 1:
        notes.append(
            "the figure has no line of means, since towers or kinds differ: --kind and --modules choose"
        )
    left_out, rows = found.padding
    if left_out:
        notes.append(f"{left_out} of {rows} rows are padding, and are left out")
    if unknown := found.without_heads:
        notes.append(f"texts and heads cannot be told apart in {some_of(unknown)}: no number is per head")
    return notes + [f"seen, not measured: {each}" for each in by_reason(found.unmeasured)]


def _check_heads(options: argparse.Namespace, found: Measured) -> None:
    """Refuse options about heads if no layer has known heads."""
    given = {"--per-head": options.per_head, "--budget": options.budget, "--plot": options.plot}
    flag = next((name for name, value in given.items() if value), None)
    if flag is not None and len(found.without_heads) == len(found.modules):
        raise InputError(
            f"{flag} needs heads: texts and heads cannot be told apart in {some_of(found.modules)}"
        )


class _Chosen(NamedTuple):
    """The calls of attention to measure; None: all."""

    kinds: Sequence[str] | None = None
    modules: Sequence[str] | None = None


def measure(
    reader: Reader, lengths: Sequence[int], laws: Mapping[str, Law], *, by_head: bool = False
) -> Measured:
    """Run the model on each prefix of its texts; `by_head` measures more."""
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
    check_measured(whole, type(reader.model).__name__)
    return measured_of(chosen_of(whole, *chosen), laws, by_head=by_head)


def measured_of(log: AttentionLog, laws: Mapping[str, Law], *, by_head: bool = False) -> Measured:
    """Numbers of the last pass of a log, recorded under all laws except the standard one."""
    others = {name for name, law in laws.items() if law != read_law("standard")}
    named = {name: f"entropy under {name}" if name in others else "entropy" for name in laws}
    rows = [each for each in log.rows.values() if not each.all()] or [*log.rows.values()]
    return Measured(
        entropy={name: side_by_side(log.means(each))[None] for name, each in named.items()},
        equal=np.array([_equal_weights(log)]),
        sinks=log.sink_layers,
        modules=list(log.modules),
        kinds=list(log.kinds.values()),
        padding=(int((~rows[0]).sum()), rows[0].size),
        heads=heads_of(log) if by_head else None,
        unmeasured=dict(log.unmeasured),
        without_heads=tuple(name for name, each in log.calls.items() if each.axes == "unknown"),
    )


def _equal_weights(log: AttentionLog) -> list[float]:
    """Mean entropy of equal weights in each layer, on the visible keys and the sink, if any."""

    def means(sinks: int) -> Mapping[str, NDArray[np.float64]]:
        return log.means("n_visible", lambda keys: np.log(np.maximum(keys + sinks, 1)))

    without, beside = means(0), means(1)
    has_sink = (layer in log.sink_layers for layer in log.layers)
    return [
        float((beside if has else without)[name].mean())
        for name, has in zip(log.modules, has_sink, strict=True)
    ]


def _joined(parts: Sequence[Measured]) -> Measured:
    """The measurements of several lengths, concatenated."""
    entropy = {law: np.concatenate([part.entropy[law] for part in parts]) for law in parts[0].entropy}
    heads = [part.heads for part in parts if part.heads is not None]
    equal = np.concatenate([part.equal for part in parts])
    unmeasured = {name: why for part in parts for name, why in part.unmeasured.items()}
    return parts[-1]._replace(
        entropy=entropy, equal=equal, heads=joined(heads) if heads else None, unmeasured=unmeasured
    )


def _read_lengths(options: argparse.Namespace, reader: Reader) -> list[int]:
    """The requested lengths, checked; by default those of _LENGTHS that fit text and model."""
    most, what = reader.most(options.text)
    check_lengths(options.n, most, what, "--n")
    return sorted(set(options.n)) if options.n else [n for n in _LENGTHS if n <= most] or [most]


def _table(lengths: list[int], found: Measured, labels: Mapping[str, str], unit: Unit = "nats") -> str:
    """One row for each length and layer, then the mean of the layers, or of each tower and kind."""
    rows, nats, groups = [], nats_per(unit), found.groups
    names = [*map(str, found.layers)] if len(groups) == 1 else found.modules
    parts = [([place], name) for place, name in enumerate(names)]
    parts += [(places, " ".join(["mean", *filter(None, group)])) for group, places in groups.items()]
    for index, n in enumerate(lengths):
        for places, name in parts:
            means = [
                np.nanmean(np.nanmean(values[index, places], axis=-1)) for values in found.entropy.values()
            ]
            cells = [cell for mean in means for cell in (f"{mean / nats:.3f}", f"{np.exp(mean):.1f}")]
            equal = np.nanmean(found.equal[index, places]) / nats
            rows.append([str(n or "-"), name, f"{equal:.3f}", *cells])
    header = [
        "n",
        "layer" if len(groups) == 1 else "module",
        "equal",
        *(title for law in found.entropy for title in (labels[law], "keys")),
    ]
    note = (
        f"Mean entropy ({unit}) of the heads over {rows_that_count(is_causal=False)}; keys: {KEYS[unit]}.\n"
        f"equal: of equal weights on the keys that each query sees{' and the sink' * bool(found.sinks)}."
    )
    if found.sinks:
        layers = ", ".join(map(str, found.sinks))
        note += f"\nBoth count the sink as one more outcome in the layers {layers}."
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
            "axes": "unknown" if found.modules[layer] in found.without_heads else "batch, heads, queries",
            "entropy_by_head": _by_head(found, layer, values[index, layer]),
            "entropy": float(np.nanmean(values[index, layer])),
            "uniform_entropy": float(found.equal[index, layer]),
        }
        for index, n in enumerate(lengths)
        for law, values in found.entropy.items()
        for layer in range(values.shape[1])
    ]


def _by_head(found: Measured, layer: int, values: NDArray[np.float64]) -> list[float]:
    """Numbers of a layer's heads; empty if its heads are unknown."""
    is_known = found.modules[layer] not in found.without_heads
    return values[~np.isnan(values)].tolist() if is_known else []


def _flat_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each head, for CSV."""
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

    With several towers or kinds of layers, or without a text, draw only a map of the heads.
    """
    from .. import plot
    from ..plot._heads import draw_head_maps
    from ..plot._names import subtitle

    shown = np.unique(np.linspace(0, len(lengths) - 1, min(_MOST_MAPS, len(lengths))).round().astype(int))
    hidden = np.isin(found.modules, found.without_heads)
    # A mean over texts and heads belongs to no head.
    of_heads = {law: np.where(hidden[:, None], np.nan, each) for law, each in found.entropy.items()}
    maps = {(labels or {}).get(law, law): values[shown] for law, values in of_heads.items()}
    n_layers, n_heads = found.entropy[next(iter(found.entropy))].shape[1:]
    height = len(maps) * (0.45 + max(_SIDE * n_layers, 0.8)) + 0.75
    width = max(4.6, 1.6 + len(shown) * (0.25 + max(_SIDE * n_heads, 0.8)))
    has_lines = len(found.groups) == 1 and 0 not in lengths
    figure.set_size_inches(width, _LINES * has_lines + height)
    below = figure
    if has_lines:
        top, below = figure.subfigures(2, 1, height_ratios=[_LINES, height])
        ax = top.subplots()
        there = ~np.isnan(of_heads[next(iter(of_heads))]).all(axis=0)
        heads = {law: values[:, there] for law, values in of_heads.items()}
        equal = np.nanmean(found.equal, axis=1)
        plot.entropy_vs_length(heads, lengths, ax=ax, uniform=equal, labels=labels, unit=unit)
        ax.set_xlabel("tokens, $n$")
        subtitle(ax, about)
    titles = [f"$n = {lengths[index]}$" if lengths[index] else about for index in shown]
    most = float(np.nanmax(found.equal))
    draw_head_maps(below, maps, titles, most=most, modules=found.modules, unit=unit)


# ---- --per-head and --budget: a row for every head in the table, CSV and JSON --------------------


#: The "schema" of the command's JSON; diagnose.schema.json beside this file describes its fields.
SCHEMA = "attnscale.diagnose/1"

#: Statistics recorded of every row.
STATISTICS = ("entropy", "renyi2", "max_weight", "max_score", "n_visible")

_NATS = ("entropy", "renyi2")


class Heads(NamedTuple):
    """Measurements of the heads at each length."""

    values: dict[str, NDArray[np.float64]]  # by name, shape (lengths, layers, heads)
    most_keys: NDArray[np.int64]  # largest number of keys of a row, shape (lengths, layers)
    key_of: list[tuple[int, ...]]  # the key head of each head, for each layer; empty if heads are unknown

    @property
    def key_heads(self) -> list[int]:
        """The number of key heads of each layer."""
        return [len({*each}) for each in self.key_of]


class Measured(NamedTuple):
    """Measurements of the layers at each length."""

    #: Under each law, shape (lengths, layers, heads); NaN where there is no such head.
    entropy: dict[str, NDArray[np.float64]]
    equal: NDArray[np.float64]  # of equal weights on visible keys and the sink, shape (lengths, layers)
    sinks: tuple[int, ...]  # layers whose entropy counts a sink
    modules: list[str]  # the name of each layer's attention in the model
    kinds: list[str]  # "self" or "cross" attention, of each layer
    padding: tuple[int, int]  # rows left out as padding, and all rows, at the largest length
    heads: Heads | None = None  # more about every head, if requested
    #: Modules whose attention was seen and not measured, with the reason.
    unmeasured: Mapping[str, str] = MappingProxyType({})
    #: Modules whose texts and heads cannot be told apart: their only "head" is a mean over both.
    without_heads: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[int, ...]:
        """Number of each layer: that in the names of the modules if it is distinct."""
        from ..torch._models.by_name import layer_numbers

        return layer_numbers(self.modules)

    @property
    def groups(self) -> dict[tuple[str, str], list[int]]:
        """Layers of each tower and kind; "" where there is one tower, or one kind."""
        from ..torch._models.by_name import towers_of

        towers = towers_of(self.modules)
        several = len(set(self.kinds)) > 1
        found: dict[tuple[str, str], list[int]] = {}
        for layer, (name, kind) in enumerate(zip(self.modules, self.kinds, strict=True)):
            found.setdefault((towers[name], kind if several else ""), []).append(layer)
        return found if len(found) > 1 else {("", ""): [*range(len(self.modules))]}


def heads_of(log: AttentionLog) -> Heads:
    """The heads of a model recorded at one length, with STATISTICS."""
    values = {name: side_by_side(log.means(name))[None] for name in ("entropy", "renyi2", "max_weight")}
    largest = {name: _of_texts(log, "max_score", name).max(axis=0) for name in log.modules}
    values["max_score"] = side_by_side(largest)[None]
    most = np.array([[_of_texts(log, "n_visible", name).max() for name in log.modules]])
    key_of = [() if each.axes == "unknown" else each.key_of for each in log.calls.values()]
    return Heads(values, most, key_of)


def _of_texts(log: AttentionLog, statistic: str, name: str) -> NDArray[Any]:
    """The rows of a call that belong to texts, shape (rows, heads)."""
    found: NDArray[Any] = np.moveaxis(log[statistic][name], 1, -1)[log.rows[name]]
    return found


def side_by_side(layers: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    """The heads of all layers, shape (layers, heads), with NaN where a layer has fewer."""
    most = max(map(len, layers.values()))
    rows = [
        np.pad(each.astype(np.float64), (0, most - len(each)), constant_values=np.nan)
        for each in layers.values()
    ]
    return np.stack(rows)


def joined(parts: Sequence[Heads]) -> Heads:
    """The heads of several lengths, concatenated."""
    values = {name: np.concatenate([part.values[name] for part in parts]) for name in parts[0].values}
    return Heads(values, np.concatenate([part.most_keys for part in parts]), parts[0].key_of)


def head_rows(
    lengths: Sequence[int], found: Measured, heads: Heads, laws: Sequence[str], budget: Budget
) -> list[dict[str, Any]]:
    """One row for each length, layer and head; entropies in nats."""
    rows, numbers = [], found.layers
    for index, n in enumerate(lengths):
        shares = _shares(heads, index, budget)
        for layer, module in enumerate(found.modules):
            for head, key_head in enumerate(heads.key_of[layer]):
                where = (index, layer, head)
                values = {name: float(array[where]) for name, array in heads.values.items()}
                rows.append(
                    {"n": n, "layer": numbers[layer], "module": module, "kind": found.kinds[layer]}
                    | {"head": head, "key_head": key_head}
                    | {"entropy": values.pop("entropy")}
                    | {"effective_keys": float(np.exp(heads.values["entropy"][where]))}
                    | values
                    | {"uniform_entropy": float(found.equal[index, layer])}
                    | {f"entropy under {law}": float(found.entropy[law][where]) for law in laws}
                    | {name: each[layer][key_head].item() for name, each in shares.items()}
                )
    return rows


def _shares(heads: Heads, index: int, budget: Budget) -> dict[str, list[NDArray[Any]]]:
    """Share of the budget for each key head of each layer at one length."""
    ends = np.cumsum(heads.key_heads)[:-1]
    found: dict[str, list[NDArray[Any]]] = {}

    def gathered(name: str, how: Any) -> NDArray[np.float64]:
        layers = zip(heads.values[name][index], heads.key_of, strict=True)
        return np.concatenate([_of_key_heads(values, key_of, how) for values, key_of in layers])

    if budget.bits is not None:
        found["bits"] = np.split(bits_by_head(gathered("renyi2", mean_renyi2), budget.bits), ends)
    if budget.tokens is not None:
        keys = np.exp(gathered("entropy", np.max))
        most = np.repeat(heads.most_keys[index], heads.key_heads)
        found["tokens"] = np.split(tokens_by_head(keys, most, budget.tokens), ends)
    return found


def head_table(rows: Sequence[Mapping[str, Any]], unit: Unit, budget: Budget, *, named: bool = False) -> str:
    """The rows as a table, with names of modules or numbers of layers."""
    nats = nats_per(unit)
    hidden = ("layer" if named else "module", "kind", "uniform_entropy", "key_head")
    names = [name for name in rows[0] if name not in hidden]
    entropies = {name for name in names if name in _NATS or name.startswith("entropy under ")}
    digits = {"effective_keys": ".1f", "bits": ".2f"}

    def cell(row: Mapping[str, Any], name: str) -> str:
        value = row[name] / nats if name in entropies else row[name]
        if name == "n" and not value:  # for images
            return "-"
        return str(value) if isinstance(value, (int, str)) else format(value, digits.get(name, ".3f"))

    titles = [name.replace("entropy under ", "times ").replace("effective_keys", "keys") for name in names]
    notes = [
        f"Means over {rows_that_count(is_causal=False)} of each head ({unit}), as the model has it;\n"
        "keys: exp of the mean entropy; max_score: the largest."
    ]
    if any(title.startswith("times ") for title in titles):
        notes.append("times LAW: the entropy with the model's own scale multiplied by the law.")
    if budget.bits is not None:
        notes.append(f"bits: of a number in the cache, {budget.bits:g} on average over the key heads.")
    if budget.tokens is not None:
        kept = counted(f"{budget.tokens:g}", "token")
        notes.append(f"tokens: to keep in the cache, {kept} on average over the key heads.")
    table = to_text(titles, [[cell(row, name) for name in names] for row in rows])
    return "\n".join([*notes, "", table])


class Budget(NamedTuple):
    """Average for a key head; None is not distributed."""

    bits: float | None = None
    tokens: float | None = None


def read_budget(given: Sequence[str]) -> Budget:
    """The values of ``--budget``: bits=4, tokens=512, or both."""
    found: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = np.nan
        if name not in Budget._fields or name in found or not 0 < number < np.inf:
            rule = "must be bits=B, tokens=N or both, with numbers above 0"
            raise InputError(f"--budget {rule}, got {' '.join(given)}")
        found[name] = number
    return Budget(**found)


def bits_by_head(renyi2: NDArray[np.float64], mean: float) -> NDArray[np.float64]:
    """Bits of a number in each key head's cache: mean + (mean of H_2 - H_2) / 4, H_2 = renyi2 in bits."""
    in_bits = renyi2 / np.log(2)
    shared: NDArray[np.float64] = mean + (in_bits.mean() - in_bits) / 4
    return shared


def tokens_by_head(
    effective_keys: NDArray[np.float64], most: NDArray[np.int64], mean: float
) -> NDArray[np.int64]:
    """Tokens to keep for each key head, in proportion to its effective keys, at least 1 and at most `most`.

    The rest of a capped head goes to the others. The tokens add up to the mean times the heads, rounded, or
    to the sum of `most` if that is less.
    """
    total = min(round(mean * len(most)), int(most.sum()))
    # The factor of the effective keys is the root of an increasing function, bracketed here.
    low, high = 0.0, float((most / effective_keys).max())
    for _ in range(200):
        middle = (low + high) / 2
        less = np.clip(middle * effective_keys, 1, most).sum() < total
        low, high = (middle, high) if less else (low, middle)
    shares = np.clip(high * effective_keys, 1, most)
    whole = np.floor(shares).astype(np.int64)
    left = max(total - int(whole.sum()), 0)
    # The largest remainders are rounded up until the sum is right.
    for place in np.argsort(whole - shares, kind="stable")[:left]:
        whole[place] += whole[place] < most[place]
    return whole


def _of_key_heads(values: NDArray[Any], key_of: tuple[int, ...], how: Any) -> NDArray[np.float64]:
    """Combine the values of the query heads of each key head."""
    of_heads, reads = values[: len(key_of)], np.array(key_of, int)
    return np.array([how(of_heads[reads == each], axis=0) for each in sorted({*key_of})], np.float64)


def mean_renyi2(renyi2: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    """H_2 of several heads that share keys: that of the mean of their sums of squared weights."""
    return np.asarray(-np.log(np.exp(-renyi2).mean(axis=axis)))
