# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale calibrate``: the scale that keeps the entropy of stored heads, and the nearest laws."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

from .._base.tabled import Unit, nats_per
from .._base.text import to_text
from .._files.heads import InputError, StoredHeads, read_heads
from .._grid.progress import watched
from ..calibration.calibration import Calibration, calibrate, describe
from ..datasets import minilm_qk
from ._options import Parser, add_option, add_outputs, add_unit
from ._output import Answer, Drawing, bad_input

_ONE_KEY = 0.05  # nats: below this mean entropy, one key of each row has the weight

DESCRIPTION = """\
Beta (the multiple of 1/sqrt(head_dim)) that keeps each head's mean entropy of N0 keys at other
lengths, and the laws, with one constant per head, that come closest to it, beside the standard scale.
With --causal the mean covers the last eighth of the queries. FILE is as for `attnscale entropy`; each
batch entry has its own rows.
"""


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale calibrate``."""
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    add_option(parser, "--demo")
    add_option(parser, "--n0", help="keep the entropy of N0 keys (default: the shortest of --n)")
    add_option(parser, "--n", help="numbers of keys (default: all of them, and halves)")
    add_option(parser, "--laws", "--causal")
    add_option(parser, "--layout", default="bhsd")
    add_unit(parser)
    add_outputs(parser)


def run(options: argparse.Namespace) -> Answer:
    """Calibrate the laws on the stored heads, and return the table."""
    heads = _read(options)
    given = {"laws": options.laws, "is_causal": options.causal}
    gqa = heads.query.shape[-3] != heads.key.shape[-3]
    # The lengths may be wrong, or a law may scale the keys of a row differently.
    with bad_input(), watched() as watch:
        found = calibrate(
            heads.query, heads.key, options.n0, options.n, enable_gqa=gqa, progress=watch, **given
        )
    report = _report(found, heads)
    rows = [
        {
            "head": each["head"],
            "n0": found.n0,
            "target": each["target"],
            "n": n,
            "beta": beta,
            "best": each["best"] or "undetermined",
        }
        for each in report["heads"]
        for n, beta in zip(report["lengths"], each["beta"], strict=True)
    ]
    text = _text(found, report["heads"], options.unit)
    return Answer(text, rows, drawing=Drawing(lambda ax: found.plot(ax=ax)), report=report)


def _read(options: argparse.Namespace) -> StoredHeads:
    """The heads of the files or of the package; all batch entries side by side."""
    if options.demo == bool(options.files) or len(options.files) > 2:
        raise InputError("give one FILE, two .npy or .pt FILEs, or --demo")
    if options.demo:
        data = minilm_qk()
        labels = [f"L{layer} H{head}" for layer, head in zip(data.layers, data.heads, strict=True)]
        return StoredHeads(data.query, data.key, tuple(labels))
    heads = read_heads(options.files, layout=options.layout)
    batch = heads.query.shape[:-3]
    if not batch:
        return heads
    named = [f"{', '.join(map(str, entry))}, {name}" for entry in np.ndindex(*batch) for name in heads.names]
    query, key = (array.reshape(-1, *array.shape[-2:]) for array in (heads.query, heads.key))
    return StoredHeads(query, key, tuple(named))


def _report(found: Calibration, heads: StoredHeads) -> dict[str, Any]:
    fitted = found.determined.any()
    per_head = [
        {
            "head": name,
            "target": float(found.target[i]),
            "beta": found.beta[i].tolist(),
            "determined": bool(found.determined[i]),
            "best": found.laws[int(found.best[i])].spelling if found.best[i] >= 0 else None,
            "equal_scores": bool(found.equal_scores[i]),
        }
        for i, name in enumerate(heads.names)
    ]
    return {
        "n0": found.n0,
        "lengths": found.lengths.tolist(),
        "unit": "nat",
        "heads": per_head,
        "laws": [repr(law) for law in found.laws],
        "ranking": found.ranking,
        "fitted_law": found.fitted_law.spelling if fitted else None,
        "median_law": found.median_law.spelling if fitted else None,
        "median_error": found.median_error,
        "recommendation": found.recommendation,
    }


def _text(found: Calibration, heads: list[dict[str, Any]], unit: Unit) -> str:
    nats = nats_per(unit)
    betas = (f"beta at {n}" for n in found.lengths)
    header = ["head", f"entropy ({unit}) at {found.n0}", *betas, "best law", "constant", "misses by"]
    rows = [
        [
            each["head"],
            f"{each['target'] / nats:.3f}",
            *(_cell(beta) for beta in each["beta"]),
            each["best"] or "undetermined",
            *_of_best(found, i, nats),
        ]
        for i, each in enumerate(heads)
    ]
    title = (
        f"Entropy at n: of the first n queries and keys, the mean over {found.rows}. Beta: multiple of "
        "1/sqrt(head_dim)."
    )
    told = [textwrap.fill(title, 98), to_text(header, rows), textwrap.fill(describe(found, unit), 98)]
    if found.determined.any():  # JSON has the law with the constants
        told.append(
            f"For all heads:  {found.median_law.spelling}\n"
            "Per head:       see fitted_law in --json, or calibrate(...).fitted_law in Python"
        )
    signs = []
    if not np.isfinite(found.beta).all():
        signs.append(f"'-': no beta gives the head the entropy of {found.n0} keys there.")
    if (found.target < _ONE_KEY).any():
        signs.append("'*': the head attends to one key, and almost any large constant keeps it so.")
    return "\n\n".join([*told, *(["\n".join(signs)] if signs else [])])


def _of_best(found: Calibration, head: int, nats: float) -> tuple[str, str]:
    """The amplitude of the head's best law, and its error."""
    best = found.best[head]
    if best < 0:
        return "-", "-"
    flag = "*" if found.target[head] < _ONE_KEY else ""
    return f"{_cell(found.amplitude[best, head])}{flag}", _cell(found.entropy_error[best, head] / nats)


def _cell(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else "-"
