# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale jl``: dimensions for n vectors, by the lemma and by the rule of thumb."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .. import theory
from .._table import to_text
from ._figure import save_figure
from ._output import add_csv_option, bad_input, emit

_REMARK = """\
The bound is for a random projection that keeps every squared distance to a factor 1 +- eps; its
constant in front of ln n is never below 24. 8 ln n, and 8.31 ln n unrounded, is where the entropy
2 ln n of n^2 pairs is used up at scale 1: an estimate of what dimension words or heads need.
Different questions."""


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser("jl", help="dimensions for n vectors: Johnson-Lindenstrauss, and 8 ln n")
    parser.add_argument("--n", nargs="+", type=float, required=True, metavar="N", help="numbers of vectors")
    parser.add_argument("--eps", nargs="+", type=float, default=[0.5], metavar="E", help="default: 0.5")
    parser.add_argument(
        "--failure-probability", type=float, metavar="P", help="default: a projection succeeds 1 time in n"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_csv_option(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save a figure: .png, .pdf, .svg")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Compute and print."""
    with bad_input():
        rows = [_row(n, eps, options.failure_probability) for n in options.n for eps in options.eps]
    header = ("n", "eps", "bound", "8 ln n", "8.31 ln n")
    table = to_text(header, [[_cell(value) for value in row.values()] for row in rows])
    report = {"failure_probability": options.failure_probability, "rows": rows}
    emit(options, f"{table}\n\n{_REMARK}", rows, report)
    if options.plot is not None:
        save_figure(options.plot, lambda ax: _draw(options, ax))


def _draw(options: argparse.Namespace, ax: Any) -> None:
    from .. import plot

    plot.jl_dimensions(
        sorted(options.n), eps=sorted(options.eps), failure_probability=options.failure_probability, ax=ax
    )


def _row(n: float, eps: float, failure_probability: float | None) -> dict[str, Any]:
    return {
        "n": n,
        "eps": eps,
        "jl_min_dim": theory.jl_min_dim(n, eps=eps, failure_probability=failure_probability),
        "rule_of_thumb": theory.jl_rule_of_thumb(n),
        "golden_rule": theory.jl_rule_of_thumb(n, theory.GOLDEN_DIMENSION),
    }


def _cell(value: float) -> str:
    return f"{value:.0f}" if value == int(value) else f"{value:.4g}"
