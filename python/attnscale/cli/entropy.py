# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale entropy``: entropy of stored queries and keys under scale laws."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._base.tabled import EFFECTIVE_KEYS, nats_per
from .._base.text import counted, grouped, to_text
from .._files.heads import InputError, StoredHeads, read_heads
from .._grid.finished import finished
from .._grid.progress import watched
from ..calibration.calibration import rows_that_count
from ..exact.forward import attention_entropy
from ..laws import Law
from ._laws import read_laws
from ._options import Parser, add_option, add_outputs, add_unit
from ._output import Answer, Drawing, bad_input

DEFAULT_LAWS = ("standard", "log_n", "natural_log_n")

# Queries and keys of the trial that measures a call's speed, and the number of pairs below which it is
# skipped.
_TRIAL = (64, 4096)
_FEW = 2**26

DESCRIPTION = """\
Mean entropy of each head, and its effective keys, exp(mean entropy in nats), under scale laws.
FILE is a .npz, .safetensors or .pt with arrays named query and key (or q/k, queries/keys,
query_states/key_states) of shape (..., heads, n, head_dim); or two .npy files, or two .pt files with
a tensor each, queries first.
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
    add_option(parser, "--layout", default="bhsd")
    add_unit(parser)
    add_outputs(parser)


def run(options: argparse.Namespace) -> Answer:
    """Measure the entropy of the stored heads, and return the table."""
    files = _files(options)
    heads = read_heads(files, layout=options.layout)
    lengths = _check_lengths(options.n, heads)
    laws = read_laws(options.laws)
    rows, interrupted = _measure(options, heads, lengths, laws)
    about = {
        "files": [str(path) for path in files],
        "query_shape": list(heads.query.shape),
        "key_shape": list(heads.key.shape),
        "dtype": str(heads.query.dtype),
        "causal": options.causal,
        "laws": {text: repr(law) for text, law in laws.items()},
        "unit": "nat",
    }
    drawing = _drawing(options, rows, " and ".join(path.name for path in files))
    return Answer(lambda: _text(options, rows), rows, about, drawing, interrupted=interrupted)


def _files(options: argparse.Namespace) -> list[Path]:
    pair = [path for path in (options.query, options.key) if path is not None]
    if len(pair) == 1 or (pair and options.files) or not 1 <= len(pair or options.files) <= 2:
        raise InputError("give one FILE, two .npy or .pt FILEs, or --query and --key")
    return pair or list(options.files)


def _check_lengths(lengths: list[int] | None, heads: StoredHeads) -> list[int | None]:
    """The numbers of queries and keys to measure, ascending; None is all of both."""
    if lengths is None:
        return [None]
    most = min(heads.query.shape[-2], heads.key.shape[-2])
    for n in lengths:
        if not 1 <= n <= most:
            raise InputError(f"--n must be between 1 and {most}, the tokens in the file, got {n}")
    return [*sorted(set(lengths))]


def _measure(
    options: argparse.Namespace, heads: StoredHeads, lengths: Sequence[int | None], laws: dict[str, Law]
) -> tuple[list[dict[str, Any]], bool]:
    """One row for every length, head and law, and whether Ctrl-C came.

    After Ctrl-C: the lengths finished under all laws; at the first length, the finished laws.
    """
    sizes = {n: (n, n) if n else (heads.query.shape[-2], heads.key.shape[-2]) for n in lengths}
    pairs = {n: float(n_queries * n_keys) for n, (n_queries, n_keys) in sizes.items()}
    cases = [(n, law) for n in lengths for law in laws]

    def measure(case: tuple[int | None, str]) -> NDArray[np.float64]:
        cuts = None if case[0] is None else [case[0]]
        (means,) = mean_entropy(heads.query, heads.key, laws[case[1]], cuts, is_causal=options.causal)
        return np.asarray(means)

    def named(case: tuple[int | None, str]) -> str:
        return case[1] if case[0] is None else f"n = {case[0]}, {case[1]}"

    with watched() as watch:
        watch.expect(_seconds_a_pair(heads.query, heads.key) * sum(pairs[n] for n, _ in cases))
        found, interrupted = finished(cases, measure, watch, work=lambda case: pairs[case[0]], name=named)
    there = [n for n in lengths if all((n, law) in found for law in laws)] or lengths[:1]
    rows = []
    for n in there:
        uniform = _mean_uniform_entropy(*sizes[n], is_causal=options.causal)
        for head, name in enumerate(heads.names):
            for law in (law for law in laws if all((each, law) in found for each in there)):
                mean = float(found[n, law][head])
                rows.append(
                    {"head": name, "n_queries": sizes[n][0], "n_keys": sizes[n][1], "law": law}
                    | {"entropy": mean, "effective_keys": float(np.exp(mean)), "uniform_entropy": uniform}
                )
    return rows, interrupted


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


def _seconds_a_pair(query: NDArray[np.floating], key: NDArray[np.floating]) -> float:
    """Seconds of the entropy for one query and key of every head, from a trial; 0 for short rows."""
    if query[..., 0].size * key.shape[-2] < _FEW:
        return 0.0
    q, k = query[..., : _TRIAL[0], :], key[..., : _TRIAL[1], :]
    start = time.perf_counter()
    attention_entropy(q, k, enable_gqa=q.shape[-3] != k.shape[-3])
    return (time.perf_counter() - start) / float(q.shape[-2] * k.shape[-2])


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
