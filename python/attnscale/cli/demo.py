# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale demo``: what scale laws do to the entropy of real heads as n grows."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import datasets, laws
from .._core import __version__
from .._runtime import show_config
from .._table import to_text
from ..datasets import HeadActivations
from ._export import export
from ._measure import growth_per_doubling, mean_entropy
from ._output import bad_input, emit
from ._pace import Pace, entropy_pace

LENGTHS = (64, 128, 256, 512)
COLUMNS = {
    "standard": "1/sqrt(d)",
    "log_n": "log_512 n/sqrt(d)",
    "natural_log_n": "ln n/sqrt(d)",
    "entropy_invariant": "entropy-invariant",
}
FIGURE = Path("attnscale-demo.png")


def add(commands: Any) -> None:
    """Add the command's parser."""
    parser = commands.add_parser(
        "demo", help="entropy of real attention heads under four scale laws, with a figure"
    )
    parser.add_argument("--figure", type=Path, default=FIGURE, metavar="FILE", help=f"default: {FIGURE}")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--export",
        type=Path,
        metavar="DIR",
        help="only write heads.npz, config.json and text.txt there, for the other commands to read",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure, print and draw; or export."""
    if options.export is not None:
        print(export(options.export))
        return
    data = datasets.minilm_qk()
    by_head = {law: mean_entropy(data.query, data.key, _law(law), LENGTHS) for law in COLUMNS}
    mean = {"uniform": np.log(LENGTHS)} | {law: values.mean(axis=1) for law, values in by_head.items()}
    growth = {law: growth_per_doubling(LENGTHS, values) for law, values in mean.items()}
    pace = entropy_pace(data.query.astype(np.float32), data.key.astype(np.float32))
    figure = _save_figure(options.figure, data, by_head)
    report = _report(data, by_head, mean, growth, pace, figure)
    emit(options, _text(data, mean, growth, pace, figure), report=report)


def _text(
    data: HeadActivations, mean: dict[str, Any], growth: dict[str, float], pace: Pace, figure: str | None
) -> str:
    config = show_config()
    n_heads, n_tokens, _ = data.query.shape
    rows = [
        [str(n), *(f"{values[index]:.2f}" for values in mean.values())] for index, n in enumerate(LENGTHS)
    ]
    peak = f"{pace.share_of_peak:.0%} of this machine's peak, q . k alone counted"
    missing = 'No figure: matplotlib is not installed (pip install "attnscale[plot]").'
    return "\n".join(
        [
            f"attnscale {__version__}, {config['simd_level']}, {_count(config['num_threads'], 'thread')}",
            f"Entropy of {n_heads} attention heads of all-MiniLM-L6-v2 (nats), {n_tokens} tokens of English",
            "",
            to_text(["n", "uniform", *COLUMNS.values()], rows, indent="  "),
            "",
            *_explain(growth),
            "",
            f"{n_tokens} tokens x {n_heads} heads took {1e3 * pace.seconds:.1f} ms ({peak}).",
            f"Figure: {figure}" if figure else missing,
            "Next: notebooks/01_attention_and_entropy.ipynb",
        ]
    )


def _law(name: str) -> laws.Law:
    """The law of a column; the invariant one starts from the first length."""
    return laws.EntropyInvariant(n0=LENGTHS[0]) if name == "entropy_invariant" else laws.get(name)


def _explain(growth: dict[str, float]) -> list[str]:
    """What the numbers say, in words that hold for these numbers only."""
    uniform, standard, log_n, natural, invariant = (growth[name] for name in ("uniform", *COLUMNS))
    verdict = (
        "slows the growth; it does not stop it" if 0 < log_n < standard else "does not slow the growth here"
    )
    span = f"From n = {LENGTHS[0]} to {LENGTHS[-1]}, for each doubling of n, entropy changes by"
    return [
        "Each entry is the mean over the heads and the first n queries, each of which sees the first n keys.",
        f"{span} {uniform:+.2f} nat under equal weights,",
        f"{standard:+.2f} under 1/sqrt(d), {log_n:+.2f} under log_512 n and {natural:+.2f} under ln n.",
        f"log_512 n {verdict}. Up to n = 512 it is at most 1,",
        "so it flattens short rows instead of sharpening long ones, and equals 1/sqrt(d) at 512.",
        f"The entropy-invariant law keeps random keys at what {LENGTHS[0]} of them have; these heads,",
        f"which are not random, change by {invariant:+.2f}.",
        "`attnscale explain log_n` and `attnscale explain entropy_invariant` say why.",
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _save_figure(path: Path, data: HeadActivations, by_head: dict[str, NDArray[np.float64]]) -> str | None:
    """Draw both panels; None without matplotlib."""
    try:
        from matplotlib.figure import Figure

        from .. import plot
    except ImportError:
        return None
    names = [f"L{layer} H{head}" for layer, head in zip(data.layers, data.heads, strict=True)]
    standard = by_head["standard"]
    ends = {f"n = {LENGTHS[0]}": standard[0], f"n = {LENGTHS[-1]}": standard[-1]}
    with plot.style():
        figure = Figure(figsize=(8.6, 4.0))
        panels: Any = figure.subfigures(1, 2, width_ratios=(1.05, 1))  # puts both titles at one height
        left, right = panels
        plot.entropy_vs_length(by_head, LENGTHS, ax=left.subplots())
        left.suptitle(f"Mean of {len(names)} heads of all-MiniLM-L6-v2 (shade: middle half)", fontsize=9.5)
        plot.entropy_by_head(ends, names, ax=right.subplots(), n_keys=LENGTHS[-1])
        right.suptitle(r"Each head (L: layer, H: head) under $1/\sqrt{d}$", fontsize=9.5)
        with bad_input(f"--figure {path}"):  # a suffix that matplotlib does not know
            figure.savefig(path)
    return str(path)


def _report(
    data: HeadActivations,
    by_head: dict[str, NDArray[np.float64]],
    mean: dict[str, NDArray[np.float64]],
    growth: dict[str, float],
    pace: Pace,
    figure: str | None,
) -> dict[str, Any]:
    return {
        "config": show_config(),
        "provenance": dict(data.provenance),
        "layers": data.layers.tolist(),
        "heads": data.heads.tolist(),
        "n": list(LENGTHS),
        "mean_entropy": {law: values.tolist() for law, values in mean.items()},
        "mean_entropy_by_head": {law: values.tolist() for law, values in by_head.items()},
        "growth_per_doubling": growth,
        "seconds": pace.seconds,
        "share_of_peak": pace.share_of_peak,
        "figure": figure,
    }
