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
from .._report.growth import growth_per_doubling
from .._runtime import show_config
from .._tables.tabled import Unit, nats_per
from .._tables.text import counted, to_text
from ..datasets import HeadActivations
from ._export import export
from ._figure import Drawing, has_matplotlib
from ._measure import mean_entropy
from ._options import add_option, add_outputs, add_unit
from ._output import Answer, check_folder, check_outputs, left_out
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
    """Add the parser of ``attnscale demo``."""
    parser = commands.add_parser(
        "demo", help="entropy of real attention heads under four scale laws, with a figure"
    )
    add_option(parser, "--export")
    add_unit(parser)
    add_outputs(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> Answer:
    """Measure the shipped heads and return table and figure; or export the files."""
    if options.export is not None:
        left_out(options, "--export", ("json", "csv", "plot"))
        check_folder(f"--export {options.export}", options.export)
        return Answer(export(options.export))
    if options.plot is None and has_matplotlib():
        options.plot = FIGURE
        check_outputs(options)
    data = datasets.minilm_qk()
    by_head = {law: mean_entropy(data.query, data.key, _law(law), LENGTHS) for law in COLUMNS}
    mean = {"uniform": np.log(LENGTHS)} | {law: values.mean(axis=1) for law, values in by_head.items()}
    growth = {law: float(growth_per_doubling(LENGTHS, values)) for law, values in mean.items()}
    pace = entropy_pace(data.query.astype(np.float32), data.key.astype(np.float32))
    figure = None if options.plot is None else str(options.plot)
    report = _report(data, by_head, mean, growth, pace, figure)
    drawing = Drawing(lambda parts: _draw(parts, data, by_head, options.unit), (8.6, 4.0), panels=None)
    return Answer(_text(options, data, mean, growth, pace), _rows(mean), report, drawing)


def _text(
    options: argparse.Namespace,
    data: HeadActivations,
    mean: dict[str, Any],
    growth: dict[str, float],
    pace: Pace,
) -> str:
    config, unit, nats = show_config(), options.unit, nats_per(options.unit)
    n_heads, n_tokens, _ = data.query.shape
    rows = [
        [str(n), *(f"{values[index] / nats:.2f}" for values in mean.values())]
        for index, n in enumerate(LENGTHS)
    ]
    peak = f"{pace.share_of_peak:.0%} of this machine's peak, q . k alone counted"
    missing = "No figure: matplotlib is not installed (pip install matplotlib)."
    return "\n".join(
        [
            f"attnscale {__version__}, {config['simd_level']}, {counted(config['num_threads'], 'thread')}",
            f"Entropy of {n_heads} attention heads of all-MiniLM-L6-v2 ({unit}), "
            f"{n_tokens} tokens of English",
            "",
            to_text(["n", "uniform", *COLUMNS.values()], rows, indent="  "),
            "",
            *_explain({law: value / nats for law, value in growth.items()}, unit[:-1]),
            "",
            f"{n_tokens} tokens x {n_heads} heads took {1e3 * pace.seconds:.1f} ms ({peak}).",
            "Next: attnscale laws, attnscale entropy FILE, attnscale --help",
            *([] if options.plot is not None else [missing]),
        ]
    )


def _law(name: str) -> laws.Law:
    """The law of a column; the invariant one starts from the first length."""
    return laws.EntropyInvariant(n0=LENGTHS[0]) if name == "entropy_invariant" else laws.get(name)


def _explain(growth: dict[str, float], unit: str) -> list[str]:
    """What the numbers say, in words that hold for these numbers only."""
    uniform, standard, log_n, natural, invariant = (growth[name] for name in ("uniform", *COLUMNS))
    verdict = (
        "slows the growth; it does not stop it" if 0 < log_n < standard else "does not slow the growth here"
    )
    span = f"From n = {LENGTHS[0]} to {LENGTHS[-1]}, for each doubling of n, entropy changes by"
    return [
        "Each entry is the mean over the heads and the first n queries, each of which sees the first n keys.",
        f"{span} {uniform:+.2f} {unit} under equal weights,",
        f"{standard:+.2f} under 1/sqrt(d), {log_n:+.2f} under log_512 n and {natural:+.2f} under ln n.",
        f"log_512 n {verdict}. Up to n = 512 it is at most 1,",
        "so it flattens short rows instead of sharpening long ones, and equals 1/sqrt(d) at 512.",
        f"The entropy-invariant law keeps random keys at what {LENGTHS[0]} of them have; these heads,",
        f"which are not random, change by {invariant:+.2f}.",
        "`attnscale explain log_n` and `attnscale explain entropy_invariant` say why.",
    ]


def _draw(figure: Any, data: HeadActivations, by_head: dict[str, NDArray[np.float64]], unit: Unit) -> None:
    """Draw both panels, on subfigures that put their titles at one height."""
    from .. import plot  # needs matplotlib

    names = [f"L{layer} H{head}" for layer, head in zip(data.layers, data.heads, strict=True)]
    standard = by_head["standard"]
    ends = {f"n = {LENGTHS[0]}": standard[0], f"n = {LENGTHS[-1]}": standard[-1]}
    left, right = figure.subfigures(1, 2, width_ratios=(1.05, 1))
    plot.entropy_vs_length(by_head, LENGTHS, ax=left.subplots(), unit=unit)
    left.suptitle(f"Mean of {len(names)} heads of all-MiniLM-L6-v2 (shade: middle half)", fontsize=9.5)
    plot.entropy_by_head(ends, names, ax=right.subplots(), n_keys=LENGTHS[-1], unit=unit)
    right.suptitle(r"Each head (L: layer, H: head) under $1/\sqrt{d}$", fontsize=9.5)


def _rows(mean: dict[str, NDArray[np.float64]]) -> list[dict[str, Any]]:
    return [
        {"n": n, **{law: float(values[index]) for law, values in mean.items()}}
        for index, n in enumerate(LENGTHS)
    ]


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
