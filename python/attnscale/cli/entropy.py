# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale entropy``: entropy of stored queries and keys under scale laws."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .._base.tabled import EFFECTIVE_KEYS, nats_per
from .._base.text import counted, grouped, to_text
from .._core import __version__
from .._files.heads import InputError
from .._files.layers import StoredLayer
from .._grid.finished import finished
from .._grid.kept import kept_arrays
from .._grid.progress import watched
from ..calibration.calibration import rows_that_count
from ..exact.forward import attention_entropy
from ..laws import Law
from ..laws._registry import of_heads
from ._laws import read_laws
from ._options import Parser, add_option, add_outputs, add_unit
from ._output import Answer, Drawing, bad_input
from ._stored import FILES, check_alike, chosen_heads, files_of, head_names, identity_of, layers_of

DEFAULT_LAWS = ("standard", "log_n", "natural_log_n")

# Queries and keys of the trial that measures a call's speed, and the number of pairs below which it is
# skipped.
_TRIAL = (64, 4096)
_FEW = 2**26

DESCRIPTION = f"""\
Mean entropy of each head, and its effective keys, exp(mean entropy in nats), under scale laws.
{FILES}\
The mean is over all queries and over the batch, the axes before the heads; with --causal this includes
the first queries, which see few keys, while calibrate and report use only the last eighth.
"""


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale entropy``."""
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    add_option(parser, "--query", "--key")
    add_option(parser, "--laws", default=DEFAULT_LAWS)
    add_option(parser, "--causal")
    add_option(parser, "--n", help="the first N queries and keys, for each N (default: all)")
    add_option(parser, "--head")
    add_option(parser, "--layout", default="bhsd")
    add_option(parser, "--store", help="keep the means of finished layers here, and resume from them")
    add_unit(parser)
    add_outputs(parser)


def run(options: argparse.Namespace) -> Answer:
    """Measure the entropy of the stored heads, and return the table."""
    files = _files(options)
    layers = layers_of(files, options.layout)
    heads = chosen_heads(options, (layer.open for layer in layers))
    lengths = _check_lengths(options.n, layers)
    laws = read_laws(options.laws)
    rows, interrupted, ends = _measure(options, _Measured(layers, heads, lengths, laws))
    shapes = layers[0].shape
    about = {
        "files": files_of(layers),
        "query_shape": list(shapes[0]),
        "key_shape": list(shapes[1]),
        "dtype": str(layers[0].dtype),
        "causal": options.causal,
        "laws": {text: repr(law) for text, law in laws.items()},
        "unit": "nat",
    }
    drawing = _drawing(options, rows, " and ".join(path.name for path in files))
    return Answer(lambda: _text(options, rows), rows, about, drawing, ends=ends, interrupted=interrupted)


def _files(options: argparse.Namespace) -> list[Path]:
    pair = [path for path in (options.query, options.key) if path is not None]
    if len(pair) == 1 or (pair and options.files) or not 1 <= len(pair or options.files) <= 2:
        raise InputError("give one FILE, two .npy or .pt FILEs, or --query and --key")
    return pair or list(options.files)


def _check_lengths(lengths: list[int] | None, layers: Sequence[StoredLayer]) -> list[int | None]:
    """The numbers of queries and keys to measure, ascending; None is all of both."""
    if lengths is None:
        check_alike(layers)
        return [None]
    for layer in layers:
        most = layer.open.most
        for n in lengths:
            if not 1 <= n <= most:
                raise InputError(f"--n must be between 1 and {most}, the tokens in the file, got {n}")
    return [*sorted(set(lengths))]


class _Measured(NamedTuple):
    """Layers to measure, and how."""

    layers: list[StoredLayer]
    heads: list[int] | None
    lengths: list[int | None]
    laws: dict[str, Law]

    @property
    def sizes(self) -> dict[int | None, tuple[int, int]]:
        """Numbers of queries and keys at each length."""
        queries, keys = (shape[-2] for shape in self.layers[0].shape)
        return {n: (n, n) if n else (queries, keys) for n in self.lengths}

    @property
    def cases(self) -> list[tuple[int, int | None, str]]:
        return [(i, n, law) for i in range(len(self.layers)) for n in self.lengths for law in self.laws]

    def name(self, case: tuple[int, int | None, str]) -> str:
        """A case in words."""
        layer, n, law = self.layers[case[0]].name, case[1], case[2]
        return ", ".join(filter(None, [layer, "" if n is None else f"n = {n}", law]))

    def measure(self, case: tuple[int, int | None, str], *, is_causal: bool) -> NDArray[np.float64]:
        """Mean entropy of each head of a layer at a length under a law."""
        layer, n, law = self.layers[case[0]], case[1], self.laws[case[2]]
        count = layer.shape[0][-3] if self.heads is None else len(self.heads)
        cuts, means, first = None if n is None else [n], [], 0
        for part in layer.open.parts(n, self.heads):
            size = len(part.names)
            own = of_heads(law, slice(first, first + size), count)
            means.append(mean_entropy(part.query, part.key, own, cuts, is_causal=is_causal)[0])
            first += size
            del part  # its memory, before the next one takes as much
        return np.concatenate(means)


def _measure(
    options: argparse.Namespace, wanted: _Measured
) -> tuple[list[dict[str, Any]], bool, OSError | None]:
    """One row for every length, head and law, whether Ctrl-C came, and why results were not stored.

    After Ctrl-C: the layers that are finished; without one, of the first the lengths finished under all laws;
    at the first length, the finished laws.
    """
    pairs = {n: float(n_queries * n_keys) for n, (n_queries, n_keys) in wanted.sizes.items()}
    most = None if None in wanted.lengths else max(n for n in wanted.lengths if n)
    checked: set[int] = set()

    def compute(case: tuple[int, int | None, str]) -> dict[str, NDArray[np.float64]]:
        if case[0] not in checked:
            for before in checked:
                wanted.layers[before].close()
            wanted.layers[case[0]].open.check(most, wanted.heads)
            checked.add(case[0])
        return {"mean": wanted.measure(case, is_causal=options.causal)}

    def measure(case: tuple[int, int | None, str]) -> NDArray[np.float64]:
        what = {"n": case[1], "law": repr(wanted.laws[case[2]]), "heads": wanted.heads}

        def piece() -> dict[str, Any]:
            return {**identity_of(wanted.layers[case[0]]), **what, "causal": options.causal}

        return np.asarray(kept.get(piece, lambda: compute(case))["mean"])

    identity = {"attnscale": __version__, "command": "entropy"}
    with bad_input(), kept_arrays(options.store, "entropy", identity) as kept, watched() as watch:
        cases = wanted.cases
        watch.expect(_seconds_a_pair(wanted.layers[0]) * sum(pairs[n] for _, n, _ in cases))
        found, interrupted = finished(
            cases, measure, watch, work=lambda case: pairs[case[1]], name=wanted.name
        )
    return _rows(wanted, found, is_causal=options.causal), interrupted, kept.ends


def _rows(
    wanted: _Measured, found: dict[Any, NDArray[np.float64]], *, is_causal: bool
) -> list[dict[str, Any]]:
    every = [(n, law) for n in wanted.lengths for law in wanted.laws]
    whole = [i for i in range(len(wanted.layers)) if all((i, *each) in found for each in every)] or [0]
    there = [n for n in wanted.lengths if all((whole[0], n, law) in found for law in wanted.laws)]
    there = there or wanted.lengths[:1]
    laws = [law for law in wanted.laws if all((whole[0], n, law) in found for n in there)]
    rows = []
    for n in there:
        n_queries, n_keys = wanted.sizes[n]
        uniform = _mean_uniform_entropy(n_queries, n_keys, is_causal=is_causal)
        for i in whole:
            for head, name in enumerate(head_names(wanted.layers[i], wanted.heads)):
                for law in laws:
                    mean = float(found[i, n, law][head])
                    rows.append(
                        {"head": name, "n_queries": n_queries, "n_keys": n_keys, "law": law}
                        | {"entropy": mean, "effective_keys": float(np.exp(mean)), "uniform_entropy": uniform}
                    )
    return rows


def mean_entropy(
    query: NDArray[np.floating],
    key: NDArray[np.floating],
    law: Law,
    lengths: Sequence[int] | None,
    *,
    is_causal: bool = False,
) -> NDArray[np.float64]:
    """Mean entropy of each head, shape (n_lengths, heads).

    At length n the first n queries see the first n keys; None is one entry with everything. The
    mean is over the queries and over the axes before the heads.
    """
    cuts = [(query, key)] if lengths is None else [(query[..., :n, :], key[..., :n, :]) for n in lengths]
    gqa = query.shape[-3] != key.shape[-3]
    means = []
    for q, k in cuts:
        with bad_input():  # the law may have another number of heads
            entropy = attention_entropy(q, k, scale=law, is_causal=is_causal, enable_gqa=gqa)
        by_head = np.moveaxis(entropy.astype(np.float64), -2, 0)
        means.append(by_head.reshape(by_head.shape[0], -1).mean(axis=1))
    return np.stack(means)


def _mean_uniform_entropy(n_queries: int, n_keys: int, *, is_causal: bool) -> float:
    """Mean over the queries of ln(number of visible keys): the entropy of equal weights."""
    visible = np.minimum(np.arange(1, n_queries + 1), n_keys) if is_causal else np.full(n_queries, n_keys)
    return float(np.log(visible).mean())


def _seconds_a_pair(layer: StoredLayer) -> float:
    """Seconds of the entropy for one query and key of every head, from a trial; 0 for short rows."""
    (*lead, n_queries, _), (*_, n_keys, _) = layer.shape
    if math.prod(lead) * n_queries * n_keys < _FEW:
        return 0.0
    some = layer.open.read(min(_TRIAL[1], n_keys), check=False)
    q, k = some.query[..., : _TRIAL[0], :], some.key
    start = time.perf_counter()
    attention_entropy(q, k, enable_gqa=q.shape[-3] != k.shape[-3])
    pairs: int = q.shape[-3] * q.shape[-2] * k.shape[-2]
    return (time.perf_counter() - start) * lead[-1] / pairs


def _text(options: argparse.Namespace, rows: list[dict[str, Any]]) -> str:
    """One line for every length and head, with two columns for each law."""
    by_length = grouped(rows, "n_keys")
    several, nats = len(by_length) > 1, nats_per(options.unit)
    table, notes = [], []
    for n_keys, of_length in by_length.items():
        by_law = list(grouped(of_length, "law").values())
        heads = [(row[0]["head"], [each["entropy"] for each in row]) for row in zip(*by_law, strict=True)]
        if len(heads) > 1:
            heads.append(("mean", [np.mean([each["entropy"] for each in of]) for of in by_law]))
            notes = ["The keys beside a mean are exp of the mean entropy, not the mean of the column."]
        for name, means in heads:
            cells = (cell for mean in means for cell in (f"{mean / nats:.3f}", f"{np.exp(mean):.1f}"))
            table.append([*([str(n_keys)] if several else []), name, *cells])
    if options.causal:
        last = rows_that_count(is_causal=True)
        notes.append(f"calibrate and report use {last} only, which see about n keys.")
    laws = (title for law in grouped(rows, "law") for title in (law, "keys"))
    header = [*(["n"] if several else []), "head", *laws]
    told = ["\n".join(notes)] if notes else []
    return "\n\n".join([_title(options, rows), to_text(header, table), *told])


def _title(options: argparse.Namespace, rows: list[dict[str, Any]]) -> str:
    sizes = grouped(rows, "n_queries", "n_keys")
    queries, keys = (", ".join(str(size[axis]) for size in sizes) for axis in (0, 1))
    seen = counted(queries, "token")
    if queries != keys:
        seen = f"{counted(queries, 'query', 'queries')}, {counted(keys, 'key')}"
    causal = ", causal" if options.causal else ""
    limits = [f"{of[0]['uniform_entropy'] / nats_per(options.unit):.3f}" for of in sizes.values()]
    heads = len(rows) // len(sizes) // len(grouped(rows, "law"))
    all_queries = rows_that_count(is_causal=False)
    return (
        f"Mean entropy ({options.unit}) of {counted(heads, 'head')} over {all_queries}, {seen}{causal}; "
        f"keys: {EFFECTIVE_KEYS[options.unit]}. Equal weights: {', '.join(limits)}"
    )


def _drawing(options: argparse.Namespace, rows: list[dict[str, Any]], name: str) -> Drawing:
    sizes, by_law = [*grouped(rows, "n_queries", "n_keys")], grouped(rows, "law")
    of_law = next(iter(by_law.values()))
    heads = [row["head"] for row in of_law[: len(of_law) // len(sizes)]]
    form = {"is_causal": options.causal, "unit": options.unit}

    def draw(axes: Any) -> None:
        from .. import plot  # needs matplotlib
        from ..plot._names import subtitle

        entropy = {
            law: np.array([row["entropy"] for row in of]).reshape(len(sizes), len(heads))
            for law, of in by_law.items()
        }
        if len(sizes) > 1:
            plot.entropy_vs_length(entropy, [n for n, _ in sizes], ax=axes, **form)
        else:
            n_queries, n_keys = sizes[0]
            limit = None if options.causal and n_queries != n_keys else n_keys
            one_size = {law: values[0] for law, values in entropy.items()}
            plot.entropy_by_head(one_size, heads, ax=axes, n_keys=limit, **form)
        subtitle(axes, name)

    return Drawing(draw, (4.6, 3.2 if len(sizes) > 1 else 1.3 + 0.17 * len(heads)))
