# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale calibrate``: the scale that keeps the entropy of stored heads, and the nearest laws."""

from __future__ import annotations

import argparse
import textwrap
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from .._base.tabled import Unit, nats_per
from .._base.text import to_text
from .._core import __version__
from .._files.heads import InputError
from .._files.layers import StoredLayer
from .._grid.finished import finished
from .._grid.kept import kept_arrays
from .._grid.progress import watched
from ..calibration.calibration import Calibration, describe
from ..calibration.fit import candidates, read_lengths, read_start
from ..calibration.parts import Arrays, Wanted
from ..laws import Law
from ._options import Parser, add_option, add_outputs, add_unit
from ._output import Answer, Drawing, bad_input
from ._stored import FILES, check_alike, chosen_heads, head_names, identity_of, layers_of

_ONE_KEY = 0.05  # nats: below this mean entropy, one key of each row has the weight

_IDENTITY = {"attnscale": __version__, "command": "calibrate"}

DESCRIPTION = f"""\
Beta (the multiple of 1/sqrt(head_dim)) that keeps each head's mean entropy of N0 keys at other
lengths, and the laws, with one constant per head, that come closest to it, beside the standard scale.
With --causal the mean covers the last eighth of the queries. Each batch entry has its own rows.
{FILES}"""


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale calibrate``."""
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    add_option(parser, "--demo")
    add_option(parser, "--n0", help="keep the entropy of N0 keys (default: the shortest of --n)")
    add_option(parser, "--n", help="numbers of keys (default: all of them, and halves)")
    add_option(parser, "--laws", "--causal", "--head")
    add_option(parser, "--layout", default="bhsd")
    add_option(parser, "--store", help="keep the numbers of finished layers here, and resume from them")
    add_unit(parser)
    add_outputs(parser)


def run(options: argparse.Namespace) -> Answer:
    """Calibrate the laws on the stored heads, and return the table."""
    layers = _layers(options)
    heads = chosen_heads(options, (layer.open for layer in layers))
    found, done, ends = _measure(options, layers, heads)
    names = [name for layer in done for name in _names(layer, heads)]
    report = _report(found, names)
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
    drawing = Drawing(lambda ax: found.plot(ax=ax))
    return Answer(text, rows, drawing=drawing, report=report, ends=ends, interrupted=len(done) < len(layers))


def _layers(options: argparse.Namespace) -> list[StoredLayer]:
    """The files of the command line or of the package."""
    if options.demo == bool(options.files) or len(options.files) > 2:
        raise InputError("give one FILE, two .npy or .pt FILEs, or --demo")
    if options.demo:
        return layers_of([Path(str(files("attnscale") / "data" / "minilm_qk.npz"))], "bhsd")
    return layers_of(options.files, options.layout)


def _names(layer: StoredLayer, heads: list[int] | None) -> list[str]:
    """Names of a layer's heads, those of each batch entry beside each other."""
    batch, named = layer.shape[0][:-3], head_names(layer, heads)
    if not batch:
        return named
    return [f"{', '.join(map(str, entry))}, {name}" for entry in np.ndindex(*batch) for name in named]


def _measure(
    options: argparse.Namespace, layers: list[StoredLayer], heads: list[int] | None
) -> tuple[Calibration, list[StoredLayer], OSError | None]:
    """The calibration, the layers finished before Ctrl-C, if it came, and why results were not stored."""
    if options.n is None:
        check_alike(layers)
    # The lengths may be wrong, or a law may scale the keys of a row differently.
    with bad_input(), watched() as watch, kept_arrays(options.store, "calibrate", _IDENTITY) as kept:
        n_keys = min(layer.shape[1][-2] for layer in layers)
        start = read_start(options.n0, options.n, options.laws, n_keys)
        lengths = read_lengths(options.n, start, n_keys)
        wanted = Wanted(start, lengths, tuple(candidates(options.laws, start)), heads, options.causal)

        def measure(index: int) -> Arrays:
            layer, alone = layers[index], len(layers) == 1

            def piece() -> dict[str, Any]:
                return {**identity_of(layer), **wanted.described}

            try:
                return kept.get(piece, lambda: wanted.measure(layer.open, watch if alone else False))
            finally:
                layer.close()

        def median(index: int, law: Law) -> Arrays:
            layer = layers[index]

            def piece() -> dict[str, Any]:
                return {**identity_of(layer), **wanted.described, "median": repr(law)}

            try:
                return kept.get(piece, lambda: {"median_entropy": wanted.median_entropy(layer.open, law)})
            finally:
                layer.close()

        shown = watch if len(layers) > 1 else False
        found, _ = finished(range(len(layers)), measure, shown, name=lambda index: layers[index].name)
        return wanted.joined(found, median), [layers[index] for index in found], kept.ends


def _report(found: Calibration, names: list[str]) -> dict[str, Any]:
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
        for i, name in enumerate(names)
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
