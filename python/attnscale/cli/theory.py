# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale theory``: exact expectations for rows of n independent keys."""

from __future__ import annotations

import argparse
from operator import itemgetter
from typing import Any

import numpy as np

from .. import theory
from .._base.checks import InputError
from .._base.spelling import as_literal, as_number
from .._base.tabled import nats_per
from .._base.text import to_text
from .._call.scale import check_one_scale_a_row
from .._grid.finished import finished
from .._grid.progress import watched
from ._laws import read_laws
from ._options import Parser, add_option, add_outputs, add_unit
from ._output import Answer, Drawing, bad_input

DESCRIPTION = """\
Expected entropy, log-sum-exp and sum of squared weights of a row of n independent keys, at multiples
beta of the standard scale or under scale laws; the multiple that keeps the entropy of n0 keys, and
the one at which Gaussian scores freeze. Exact at every n, not a limit.
"""
_COLUMNS = {
    "n": "n",
    "at": "at",
    "beta": "beta",
    "entropy": "E[H]",
    "lse": "E[lse]",
    "concentration": "E[sum p^2]",
    "invariant_beta": "invariant beta",
    "critical_beta": "critical beta",
}


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale theory``."""
    add_option(parser, "--n", required=True)
    add_option(parser, "--beta", help="multiples of 1/sqrt(head_dim) (default: 1, without --laws)")
    add_option(parser, "--laws", default=[])
    add_option(parser, "--head-dim", default=64)
    add_option(parser, "--model", choices=("sphere", "gaussian"), default="sphere")
    add_option(parser, "--n0", default=512)
    add_unit(parser)
    add_outputs(parser)


def run(options: argparse.Namespace) -> Answer:
    """Compute the expectations and return the table."""
    with bad_input():
        rows, interrupted = _rows(options)
    about = {"model": options.model, "head_dim": options.head_dim, "n0": options.n0, "unit": "nat"}
    size = {"entropy": nats_per(options.unit), "lse": nats_per(options.unit)}
    cells = [
        [_cell(row[name] / size[name] if name in size else row[name]) for name in _COLUMNS] for row in rows
    ]
    table = to_text(list(_COLUMNS.values()), cells)
    drawing = Drawing(lambda ax: _draw(options, ax))
    return Answer(f"{table}\n\n{_legend(options)}", rows, about, drawing, interrupted=interrupted)


def _draw(options: argparse.Namespace, ax: Any) -> None:
    from .. import plot
    from ..plot._exact import dense
    from ..plot._names import subtitle

    model = {"head_dim": options.head_dim, "model": options.model}

    def entropies(n: Any) -> Any:
        betas = _betas(options, n).values()
        return np.stack([theory.expected_entropy(n, beta, **model) for beta in betas], axis=-1)

    lengths, values = dense(entropies, min(options.n), max(options.n))
    curves = dict(zip(_betas(options, lengths), values.T, strict=True))
    plot.entropy_vs_length(curves, lengths, ax=ax, exact=True, unit=options.unit)
    subtitle(ax, f"Expected entropy of {_where(options)}, exact")


def _rows(options: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    """One row for each multiple and number of keys, and whether Ctrl-C came before the last."""
    lengths = np.array(options.n, np.float64)
    model = {"head_dim": options.head_dim, "model": options.model}
    kept = theory.invariant_beta(lengths, n0=options.n0, on_infeasible="nan", **model)
    frozen = theory.critical_beta(lengths)
    rows: list[dict[str, Any]] = []
    multiples = _betas(options, lengths)
    with watched() as watch:
        statistics, interrupted = finished(
            list(multiples), lambda name: theory.expected_statistics(lengths, multiples[name], **model), watch
        )
    for name, found in statistics.items():
        betas = multiples[name]
        values = (betas, found.entropy, found.lse, found.concentration, kept, frozen)
        for n, *others in zip(lengths, *values, strict=True):
            rows.append(dict(zip(_COLUMNS, (float(n), name, *map(float, others)), strict=True)))
    return sorted(rows, key=itemgetter("n")), interrupted


def _betas(options: argparse.Namespace, lengths: Any) -> dict[str, Any]:
    """Multiples of the standard scale at the lengths, by their names in the table."""
    given = options.beta if options.beta or options.laws else [1.0]
    found: dict[str, Any] = {f"beta {as_literal(beta)}": np.full(lengths.shape, beta) for beta in given or []}
    for text, law in read_laws(options.laws).items():
        with bad_input(f"--laws {text}"):
            check_one_scale_a_row(law)
            beta = np.asarray(law.multiplier_at(lengths, options.head_dim))
        if beta.shape != lengths.shape:
            raise InputError(f"--laws {text}: one multiple for each n is needed, got shape {beta.shape}")
        found[text] = beta
    return found


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return value
    if np.isnan(value):
        return "-"
    return f"{value:.0f}" if value == np.floor(value) and 1 < value < 1e7 else f"{value:.5g}"


def _legend(options: argparse.Namespace) -> str:
    return (
        f"Model: {_where(options)}. E[H] and E[lse] are in {options.unit}.\n"
        f"invariant beta keeps the entropy of n0 = {as_number(options.n0)} keys at beta 1;\n"
        "'-': out of reach of n keys. critical beta = sqrt(2 ln n) is where Gaussian scores freeze."
    )


def _where(options: argparse.Namespace) -> str:
    sphere = options.model == "sphere"
    return f"keys on a sphere, head_dim {options.head_dim}" if sphere else "Gaussian scores"
