# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale entropy``: entropy of stored queries and keys under scale laws."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._io import InputError, StoredHeads, read_heads
from .._tables.tabled import nats_per
from .._tables.text import counted, to_text
from ..laws import Law
from ._figure import Drawing
from ._interrupt import finished
from ._measure import KEYS, mean_entropy, mean_uniform_entropy, seconds_a_pair
from ._options import add_option, add_outputs, add_unit
from ._output import Answer
from ._spelling import read_laws

DEFAULT_LAWS = ("standard", "log_n", "natural_log_n")

_DESCRIPTION = """\
Mean entropy of each head, and its effective keys, exp(mean entropy in nats), under scale laws.
FILE is a .npz, .safetensors or .pt with arrays named query and key (or q/k, queries/keys,
query_states/key_states) of shape (..., heads, n, head_dim), or two .npy files, queries first.
The mean is over the queries and over the batch, the axes before the heads.
"""


def add(commands: Any) -> None:
    """Add the parser of ``attnscale entropy``."""
    parser = commands.add_parser(
        "entropy",
        help="entropy of the queries and keys in a file, per head and law",
        description=_DESCRIPTION,
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    add_option(parser, "--query")
    add_option(parser, "--key")
    add_option(parser, "--laws", default=DEFAULT_LAWS)
    add_option(parser, "--causal")
    add_option(parser, "--n", help="the first N queries and keys, for each N (default: all)")
    add_option(parser, "--layout", default="bhsd")
    add_unit(parser)
    add_outputs(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Answer:
    """Measure the entropy of the stored heads, and return the table."""
    heads = read_heads(_files(options), layout=options.layout)
    lengths = _check_lengths(options.n, heads)
    laws = read_laws(options.laws)
    lengths, entropy, interrupted = _measure(options, heads, lengths, laws)
    rows = _rows(heads, lengths, entropy, is_causal=options.causal)
    report = {**_settings(options, heads, laws), "rows": rows}
    drawing = _drawing(options, heads, lengths, entropy)
    text = _text(options, heads, lengths, entropy)
    return Answer(text, rows, report, drawing, interrupted=interrupted)


def _measure(
    options: argparse.Namespace, heads: StoredHeads, lengths: list[int] | None, laws: dict[str, Law]
) -> tuple[list[int] | None, dict[str, NDArray[np.float64]], bool]:
    """The lengths, under each law the mean entropy of each head at them, and whether Ctrl-C came.

    After Ctrl-C these are the lengths that all laws have; at the first length, the laws that are finished.
    """
    sizes: list[int | None] = [None] if lengths is None else [*lengths]

    def measure(case: tuple[int | None, str]) -> NDArray[np.float64]:
        n, law = case
        cuts = None if n is None else [n]
        return mean_entropy(heads.query, heads.key, laws[law], cuts, is_causal=options.causal)

    cases = [(n, law) for n in sizes for law in laws]
    pairs = dict(zip(sizes, (float(a * b) for a, b in _sizes(heads, lengths)), strict=True))
    found, interrupted = finished(
        cases,
        measure,
        work=lambda case: pairs[case[0]],
        name=lambda case: case[1] if case[0] is None else f"n = {case[0]}, {case[1]}",
        expected=seconds_a_pair(heads.query, heads.key) * sum(pairs[n] for n, _ in cases),
    )
    there = [n for n in sizes if all((n, law) in found for law in laws)] or sizes[:1]
    measured = {
        law: np.concatenate([found[n, law] for n in there])
        for law in laws
        if all((n, law) in found for n in there)
    }
    kept = None if lengths is None else [n for n in there if n is not None]
    return kept, measured, interrupted


def _files(options: argparse.Namespace) -> list[Path]:
    pair = [path for path in (options.query, options.key) if path is not None]
    if len(pair) == 1 or (pair and options.files) or not 1 <= len(pair or options.files) <= 2:
        raise InputError("give one FILE, two .npy FILEs, or --query and --key")
    return pair or list(options.files)


def _check_lengths(lengths: list[int] | None, heads: StoredHeads) -> list[int] | None:
    if lengths is None:
        return None
    n_queries, n_keys = heads.query.shape[-2], heads.key.shape[-2]
    for n in lengths:
        if not 1 <= n <= min(n_queries, n_keys):
            raise InputError(
                f"--n must be between 1 and {min(n_queries, n_keys)}, the tokens in the file, got {n}"
            )
    return sorted(set(lengths))


def _sizes(heads: StoredHeads, lengths: list[int] | None) -> list[tuple[int, int]]:
    """(n_queries, n_keys) of every row of the result."""
    return [(n, n) for n in lengths] if lengths else [(heads.query.shape[-2], heads.key.shape[-2])]


def _rows(
    heads: StoredHeads, lengths: list[int] | None, entropy: dict[str, NDArray[np.float64]], *, is_causal: bool
) -> list[dict[str, Any]]:
    """One entry for every length, head and law."""
    rows = []
    for index, (n_queries, n_keys) in enumerate(_sizes(heads, lengths)):
        uniform = mean_uniform_entropy(n_queries, n_keys, is_causal=is_causal)
        for head, name in enumerate(heads.names):
            for law, values in entropy.items():
                mean = float(values[index, head])
                rows.append(
                    {"head": name, "n_queries": n_queries, "n_keys": n_keys, "law": law}
                    | {"entropy": mean, "effective_keys": float(np.exp(mean)), "uniform_entropy": uniform}
                )
    return rows


def _settings(options: argparse.Namespace, heads: StoredHeads, laws: dict[str, Law]) -> dict[str, Any]:
    return {
        "files": [str(path) for path in _files(options)],
        "query_shape": list(heads.query.shape),
        "key_shape": list(heads.key.shape),
        "dtype": str(heads.query.dtype),
        "causal": options.causal,
        "laws": {text: repr(law) for text, law in laws.items()},
        "unit": "nat",
    }


def _text(
    options: argparse.Namespace,
    heads: StoredHeads,
    lengths: list[int] | None,
    entropy: dict[str, NDArray[np.float64]],
) -> str:
    several = lengths is not None and len(lengths) > 1
    nats = nats_per(options.unit)
    header = [*(["n"] if several else []), "head"]
    for law in entropy:
        header += [law, "keys"]
    table = []
    for index, (_, n_keys) in enumerate(_sizes(heads, lengths)):
        start = [str(n_keys)] if several else []
        for head, name in enumerate(heads.names):
            table.append([*start, name, *_cells([values[index, head] for values in entropy.values()], nats)])
        if len(heads.names) > 1:
            means = [values[index].mean() for values in entropy.values()]
            table.append([*start, "mean", *_cells(means, nats)])
    mean = "\n\nThe keys of a row mean are those of its entropy, not the mean of the column."
    about = mean if len(heads.names) > 1 else ""
    return f"{_title(options, heads, lengths)}\n\n{to_text(header, table)}{about}"


def _cells(entropies: list[np.float64], nats: float) -> list[str]:
    return [cell for mean in entropies for cell in (f"{mean / nats:.3f}", f"{np.exp(mean):.1f}")]


def _title(options: argparse.Namespace, heads: StoredHeads, lengths: list[int] | None) -> str:
    sizes = _sizes(heads, lengths)
    queries, keys = (", ".join(str(size[axis]) for size in sizes) for axis in (0, 1))
    seen = counted(queries, "token")
    if queries != keys:
        seen = f"{counted(queries, 'query', 'queries')}, {counted(keys, 'key')}"
    nats = nats_per(options.unit)
    limits = [f"{mean_uniform_entropy(*size, is_causal=options.causal) / nats:.3f}" for size in sizes]
    causal = ", causal" if options.causal else ""
    return (
        f"Mean entropy ({options.unit}) of {counted(len(heads.names), 'head')}, {seen}{causal}; "
        f"keys: {KEYS[options.unit]}. Equal weights: {', '.join(limits)}"
    )


def _drawing(
    options: argparse.Namespace,
    heads: StoredHeads,
    lengths: list[int] | None,
    entropy: dict[str, NDArray[np.float64]],
) -> Drawing:
    several = lengths is not None and len(lengths) > 1

    def draw(axes: Any) -> None:
        from .. import plot  # needs matplotlib
        from ..plot._names import subtitle

        if lengths is not None and several:
            plot.entropy_vs_length(entropy, lengths, ax=axes, is_causal=options.causal, unit=options.unit)
        else:
            one_size = {law: values[0] for law, values in entropy.items()}
            n_queries, n_keys = _sizes(heads, lengths)[0]
            limit = None if options.causal and n_queries != n_keys else n_keys
            form = {"is_causal": options.causal, "unit": options.unit}
            plot.entropy_by_head(one_size, heads.names, ax=axes, n_keys=limit, **form)
        subtitle(axes, " and ".join(path.name for path in _files(options)))

    return Drawing(draw, (4.6, 3.2 if several else 1.3 + 0.17 * len(heads.names)))
