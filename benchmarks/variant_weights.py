# SPDX-License-Identifier: BSD-3-Clause
r"""Statistics of the weights of the variants against n, on real heads and on random ones.

Entropy, largest weight, support, effective rank and the weight of the nearest key, for exact attention, its
normalizers and the linear-time variants: on 18 heads of all-MiniLM-L6-v2 and on standard normal queries and
keys of the same shape. Unit vectors as values make each variant return the weights that it applies.

    python benchmarks/variant_weights.py --n 64 512
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from attnscale import attention
from attnscale import variants as av
from attnscale._base.text import to_text
from attnscale._grid.progress import progress_line
from attnscale.cli._output import Answer, Drawing, OutputError, check_outputs, emit
from attnscale.datasets import minilm_qk
from attnscale_bench import draw_weights
from attnscale_bench._measures import measure_weights, weights_of
from numpy.typing import NDArray

_LEGEND = """\
Means over rows and heads. entropy in nats (uniform: ln n). support: weights that are not 0. rank: effective
rank of the n x n matrix, exp of the entropy of its singular values' shares. needle: weight on the key with
the largest dot product with the query."""


_MOST_KEYS = 2048  # n x n matrices of all heads, and their singular values

Array = NDArray[Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the weights, write and draw them, and print the table."""
    options = _parser().parse_args(argv)
    try:
        check_outputs(options)
        chosen, lengths = _choose(options.variants), _lengths(options)
        with progress_line() as progress:
            rows = list(_measure(chosen, lengths, options, progress))
        emit(options, Answer(_text(rows), rows, drawing=_drawing(rows)))
    except (ValueError, OutputError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1 if isinstance(error, OutputError) else 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", nargs="+", type=int, metavar="N", help="default: 64 128 256 512")
    parser.add_argument("--variants", nargs="+", metavar="NAME", help=f"default: {', '.join(_variants())}")
    parser.add_argument("--data", choices=("real", "random", "both"), default="both", help="default: both")
    parser.add_argument("--seed", type=int, default=0, help="of the random heads and features")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="save the numbers")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save a figure of three of them against n")
    return parser


def _variants() -> dict[str, Callable[..., Any]]:
    """Functions (query, key, value, seed) whose weights are not negative and sum to 1."""

    def exact(normalizer: str) -> Callable[..., Any]:
        return lambda q, k, v, seed: attention(q, k, v, normalizer=normalizer)

    def linformer(q: Array, k: Array, v: Array, seed: int) -> Array:
        # Each of 64 rows is the mean of neighbours, so that weights of the keys are a distribution.
        n = k.shape[-2]
        rows = min(64, n)
        pooled = np.arange(n) * rows // n == np.arange(rows)[:, None]
        return av.linformer_attention(q, k, v, (pooled / pooled.sum(1, keepdims=True)).astype(q.dtype))

    return {
        "softmax": exact("softmax"),
        "entmax15": exact("entmax15"),
        "sparsemax": exact("sparsemax"),
        "efficient": lambda q, k, v, seed: av.efficient_attention(q, k, v),
        "linear": lambda q, k, v, seed: av.linear_attention(q, k, v),
        "performer": lambda q, k, v, seed: av.performer_attention(q, k, v, features=256, rng=seed),
        "cosformer": lambda q, k, v, seed: av.cosformer_attention(q, k, v, max_length=k.shape[-2]),
        "linformer": linformer,
        "local_global": lambda q, k, v, seed: av.local_global_attention(q, k, v, radius=16, global_tokens=4),
    }


def _choose(names: list[str] | None) -> dict[str, Callable[..., Any]]:
    known = _variants()
    for name in names or ():
        if name not in known:
            raise ValueError(f"there is no variant named {name!r}; the variants are {', '.join(known)}")
    return {name: known[name] for name in names or known}


def _lengths(options: argparse.Namespace) -> list[int]:
    lengths = sorted(set(options.n or (64, 128, 256, 512)))
    most = _MOST_KEYS if options.data == "random" else 512
    if lengths[0] < 2 or lengths[-1] > most:
        why = "the shipped heads have 512 keys" if most == 512 else "the matrices are n x n"
        seen = lengths[0] if lengths[0] < 2 else lengths[-1]
        raise ValueError(f"--n must be between 2 and {most} ({why}), got {seen}")
    return lengths


def _measure(
    chosen: dict[str, Callable[..., Any]],
    lengths: list[int],
    options: argparse.Namespace,
    progress: Callable[[str], None],
) -> Iterator[dict[str, Any]]:
    for data, (query, key) in _heads(options, lengths[-1]).items():
        for n in lengths:
            q, k = query[:, :n], key[:, :n]
            for name, function in chosen.items():
                progress(f"{data} heads, n = {n}: {name}")
                weights = weights_of(partial(function, seed=options.seed), q, k)
                yield {"data": data, "n": n, "variant": name, **measure_weights(weights, q, k)._asdict()}


def _heads(options: argparse.Namespace, n: int) -> dict[str, tuple[Array, Array]]:
    found: dict[str, tuple[Array, Array]] = {}
    if options.data != "random":
        data = minilm_qk()
        found["real"] = data.query.astype(np.float32), data.key.astype(np.float32)
    if options.data != "real":
        rng = np.random.default_rng(options.seed)
        query, key = rng.standard_normal((2, 18, n, 32), np.float32)
        found["random"] = query, key
    return found


def _text(rows: list[dict[str, Any]]) -> str:
    header = ["heads", "n", "variant", "entropy", "of ln n", "max weight", "support", "rank", "needle"]
    cells = [
        [
            *(row["data"], str(row["n"]), row["variant"], f"{row['entropy']:.3f}"),
            f"{row['entropy'] / math.log(row['n']):.2f}",
            *(f"{row['max_weight']:.4f}", f"{row['support']:.1f}", f"{row['effective_rank']:.1f}"),
            f"{row['needle_weight']:.4f}",
        ]
        for row in rows
    ]
    return f"{to_text(header, cells)}\n\n{_LEGEND}"


def _drawing(rows: list[dict[str, Any]]) -> Drawing:
    kinds = list(dict.fromkeys(row["data"] for row in rows))
    measures = ("entropy", "needle_weight", "effective_rank")

    def draw(panels: Any) -> None:
        for kind, line in zip(kinds, panels.reshape(len(kinds), -1), strict=True):
            chosen = [row for row in rows if row["data"] == kind]
            for what, ax in zip(measures, line, strict=True):
                draw_weights(chosen, ax, what=what, legend=ax is line[-1])
            line[0].set_title(f"{kind} heads")

    return Drawing(draw, (10.4, 2.9 * len(kinds)), (len(kinds), len(measures)))


if __name__ == "__main__":
    sys.exit(main())
