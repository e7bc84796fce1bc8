# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale demo``: effect of scale laws on the entropy of real heads as n grows."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import datasets, laws
from .._base.runtime import get_num_threads, show_config
from .._base.tabled import Unit, nats_per
from .._base.text import counted, to_text
from .._core import __version__, run_fma
from .._report.measure import growth_per_doubling
from ..datasets import HeadActivations
from ..exact.forward import attention_entropy
from ._options import Parser, add_option, add_outputs, add_unit
from ._output import Answer, Drawing, check_folder, check_outputs, has_matplotlib, left_out
from ._program import activation, program
from .entropy import mean_entropy

LENGTHS = (64, 128, 256, 512)
COLUMNS = {
    "standard": "1/sqrt(d)",
    "log_n": "log_512 n/sqrt(d)",
    "natural_log_n": "ln n/sqrt(d)",
    "entropy_invariant": "entropy-invariant",
}
FIGURE = Path("attnscale-demo.png")

_ROUNDS = 7
# Multiply-adds in registers for about 5 ms: 64 tasks a thread, short enough to balance the cores.
_TASKS, _STEPS = 64, 40_000

#: The config of Mistral's Ministral 3 8B, with all keys that the audit reads.
_CONFIG = {
    "model_type": "ministral3",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 34,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1000000.0,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}

#: Commands to try on the files of --export.
_TRY = (
    "entropy heads.npz --laws standard log_n",
    "calibrate heads.npz",
    "audit config.json --at 0 8192 131072",
)


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale demo``."""
    add_option(parser, "--export")
    add_unit(parser)
    add_outputs(parser)


def run(options: argparse.Namespace) -> Answer:
    """Measure the shipped heads and return table and figure; or export the files."""
    if options.export is not None:
        left_out(options, "--export", ("json", "csv", "plot"))
        check_folder(f"--export {options.export}", options.export)
        return Answer(_export(options.export))
    if options.plot is None and has_matplotlib():
        options = argparse.Namespace(**{**vars(options), "plot": FIGURE})
        check_outputs(options)
    data = datasets.minilm_qk()
    by_head = {law: mean_entropy(data.query, data.key, _law(law), LENGTHS) for law in COLUMNS}
    mean = {"uniform": np.log(LENGTHS)} | {law: values.mean(axis=1) for law, values in by_head.items()}
    growth = {law: float(growth_per_doubling(LENGTHS, values)) for law, values in mean.items()}
    pace = _entropy_pace(data.query.astype(np.float32), data.key.astype(np.float32))
    rows = [
        {"n": n, **{law: float(values[index]) for law, values in mean.items()}}
        for index, n in enumerate(LENGTHS)
    ]
    report = {
        "config": show_config(),
        "provenance": dict(data.provenance),
        "layers": data.layers.tolist(),
        "heads": data.heads.tolist(),
        "n": list(LENGTHS),
        "mean_entropy": {law: [row[law] for row in rows] for law in mean},
        "mean_entropy_by_head": {law: values.tolist() for law, values in by_head.items()},
        "growth_per_doubling": growth,
        **pace._asdict(),
        "figure": None if options.plot is None else str(options.plot),
    }
    drawing = Drawing(lambda parts: _draw(parts, data, by_head, options.unit), (8.6, 4.0), panels=None)
    text = _text(options, data, rows, growth, pace)
    return Answer(text, rows, drawing=drawing, figure=options.plot, report=report)


def _text(
    options: argparse.Namespace,
    data: HeadActivations,
    rows: list[dict[str, Any]],
    growth: dict[str, float],
    pace: _Pace,
) -> str:
    config, unit, nats = show_config(), options.unit, nats_per(options.unit)
    n_heads, n_tokens, _ = data.query.shape
    names = ["uniform", *COLUMNS]
    table = [[str(row["n"]), *(f"{row[name] / nats:.2f}" for name in names)] for row in rows]
    peak = f"{pace.share_of_peak:.0%} of this machine's peak, counting only q . k"
    name, activate = program(), activation()
    hint = f"After `{activate}` attnscale is enough, and python imports it."
    missing = "No figure: matplotlib is not installed (pip install matplotlib)."
    return "\n".join(
        [
            f"attnscale {__version__}, {config['simd_level']}, {counted(config['num_threads'], 'thread')}",
            f"Entropy of {n_heads} attention heads of all-MiniLM-L6-v2 ({unit}), "
            f"{n_tokens} tokens of English",
            "",
            to_text(["n", "uniform", *COLUMNS.values()], table, indent="  "),
            "",
            *_explain({law: value / nats for law, value in growth.items()}, unit[:-1]),
            "",
            f"{n_tokens} tokens x {n_heads} heads took {1e3 * pace.seconds:.1f} ms ({peak}).",
            f"Next: {', '.join(f'{name} {each}' for each in ('laws', 'entropy FILE', '--help'))}",
            *([] if activate is None else [hint]),
            *([] if options.plot is not None else [missing]),
        ]
    )


def _law(name: str) -> laws.Law:
    """The law of a column; the entropy-invariant one starts at the first length."""
    return laws.EntropyInvariant(n0=LENGTHS[0]) if name == "entropy_invariant" else laws.get(name)


def _explain(growth: dict[str, float], unit: str) -> list[str]:
    """Text on these results only."""
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
        f"`{program()} explain log_n` and `{program()} explain entropy_invariant` say why.",
    ]


def _draw(figure: Any, data: HeadActivations, by_head: dict[str, NDArray[np.float64]], unit: Unit) -> None:
    """Draw both panels, on subfigures with titles at one height."""
    from .. import plot  # needs matplotlib

    names = [f"L{layer} H{head}" for layer, head in zip(data.layers, data.heads, strict=True)]
    standard = by_head["standard"]
    ends = {f"n = {LENGTHS[0]}": standard[0], f"n = {LENGTHS[-1]}": standard[-1]}
    left, right = figure.subfigures(1, 2, width_ratios=(1.05, 1))
    plot.entropy_vs_length(by_head, LENGTHS, ax=left.subplots(), unit=unit)
    left.suptitle(f"Mean of {len(names)} heads of all-MiniLM-L6-v2 (shade: middle half)", fontsize=9.5)
    plot.entropy_by_head(ends, names, ax=right.subplots(), n_keys=LENGTHS[-1], unit=unit)
    right.suptitle(r"Each head (L: layer, H: head) under $1/\sqrt{d}$", fontsize=9.5)


class _Pace(NamedTuple):
    """Seconds of a call, and its share of the cores' peak rate of operations."""

    seconds: float
    share_of_peak: float


class _Time(NamedTuple):
    wall: float
    cpu: float


def _entropy_pace(query: NDArray[np.float32], key: NDArray[np.float32]) -> _Pace:
    """Time the entropy of every row, alternating with the peak of the same level and number of threads.

    2 * head_dim operations are counted for each query and key, without the exponentials.
    """
    threads = get_num_threads()
    flops = 2.0 * query.size * key.shape[-2]
    peak_flops = _peak(threads)
    attention_entropy(query, key)  # the first call maps new pages and starts threads
    pairs = [
        (_timed(lambda: _peak(threads)), _timed(lambda: attention_entropy(query, key)))
        for _ in range(_ROUNDS)
    ]
    # If other processes took part of the cores, CPU time is the fair measure.
    disturbed = median(peak.cpu / peak.wall for peak, _ in pairs) < 0.95 * threads
    ratios = [peak.cpu / call.cpu if disturbed else peak.wall / call.wall for peak, call in pairs if call.cpu]
    return _Pace(median(call.wall for _, call in pairs), flops / peak_flops * median(ratios or [0.0]))


def _peak(threads: int) -> float:
    """Run multiply-adds in registers on all threads; returns the number of operations."""
    return run_fma(_TASKS * threads, _STEPS, False, threads)


def _timed(call: Callable[[], object]) -> _Time:
    time.sleep(0.02)
    cpu, wall = time.process_time(), time.perf_counter()
    call()
    return _Time(time.perf_counter() - wall, time.process_time() - cpu)


def _export(folder: Path) -> str:
    """Write files for the documented commands into the folder, and list them.

    The folder is created. Existing files are replaced, and their sizes listed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # The words of the heads: word pieces joined, in lower case as the model read them.
    words = " ".join(datasets.minilm_qk().tokens[1:-1]).replace(" ##", "") + "\n"
    contents = {
        "heads.npz": (
            (files("attnscale") / "data" / "minilm_qk.npz").read_bytes(),
            "queries and keys of 18 heads of all-MiniLM-L6-v2 (Apache-2.0)",
        ),
        "config.json": (
            f"{json.dumps(_CONFIG, indent=2)}\n".encode(),
            "the config of a model with YaRN and a temperature",
        ),
        "text.txt": (words.encode(), "the text of the heads (PSF-2.0)"),
    }
    lines = [f"Written to {folder}:"]
    for name, (content, meaning) in contents.items():
        path = folder / name
        note = f" (replaced: it had {path.stat().st_size} bytes)" if path.exists() else ""
        path.write_bytes(content)
        lines.append(f"  {name:12} {meaning}{note}")
    name = program(anywhere=True)
    return "\n".join([*lines, "Try there:", *(f"  {name} {each}" for each in _TRY)])
