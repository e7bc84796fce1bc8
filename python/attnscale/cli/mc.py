# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale mc``: Monte Carlo experiments, with the exact theory beside them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._checks import shown
from .._io import InputError, read_heads
from .._table import to_text
from ._figure import save_figure
from ._output import add_csv_option, bad_input, emit
from ._spelling import LAW_HELP, read_law

if TYPE_CHECKING:
    from ..montecarlo import ExperimentResult

_DESCRIPTION = """\
Run an experiment of attnscale.montecarlo. Options that take several values give one row for
each combination. The same --seed gives the same numbers on every machine. Ctrl-C prints what
is there.
"""

# What each experiment is about, and its parameters. A * marks those that must be given.
EXPERIMENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "entropy_vs_length": (
        "entropy of rows of n random keys under scale laws",
        ("n*", "law", "head_dim", "model", "correlation", "heads"),
    ),
    "needle_dilution": (
        "weight of one key with a given cosine to the query",
        ("n*", "cosine*", "law", "head_dim"),
    ),
    "averaging_error": ("variance of a mean of n independent values", ("n*", "law", "head_dim")),
    "softmax_saturation": (
        "saturated rows and Jacobians, by default standard and unscaled",
        ("head_dim*", "n", "law"),
    ),
    "dot_product_variance": (
        "variance of q . k, of random components or of a model's vectors",
        ("head_dim", "distribution", "mean", "std", "heads"),
    ),
    "max_cosine": ("largest cosine of a query with n random keys", ("n*", "head_dim")),
    "head_dimension": (
        "how often the right key has the largest weight",
        ("head_dim*", "n", "cosine", "law"),
    ),
    "jl_distortion": (
        "change of distances by a random projection",
        ("n_points*", "dim*", "k*", "kind", "eps"),
    ),
    "rank_and_sparsity": ("effective rank of an n x n matrix of weights", ("n*", "law", "head_dim")),
    "sparsity": (
        "how many keys have a weight, under sparse normalizers",
        ("n*", "law", "normalizer", "head_dim", "model"),
    ),
}

_OPTIONS: dict[str, dict[str, Any]] = {
    "n": {"nargs": "+", "type": int, "metavar": "N", "help": "keys in a row"},
    "n_points": {"type": int, "metavar": "N", "help": "points"},
    "law": {"nargs": "+", "metavar": "LAW", "help": LAW_HELP},
    "normalizer": {"nargs": "+", "metavar": "NAME", "help": "sparsemax (default), entmax15, ..."},
    "head_dim": {"nargs": "+", "type": int, "metavar": "D", "help": "components of q and k"},
    "model": {"choices": ("sphere", "gaussian", "correlated"), "help": "where the scores come from"},
    "correlation": {"type": float, "metavar": "C", "help": "of the keys of --model correlated"},
    "heads": {
        "nargs": "+",
        "type": Path,
        "metavar": "FILE",
        "help": "queries and keys of a model, as in entropy",
    },
    "cosine": {"type": float, "metavar": "C", "help": "of the needle with the query"},
    "distribution": {"nargs": "+", "metavar": "NAME", "help": "of the components: normal, uniform, ..."},
    "mean": {"type": float, "metavar": "M", "help": "of the components"},
    "std": {"type": float, "metavar": "S", "help": "of the components"},
    "dim": {"type": int, "metavar": "D", "help": "coordinates of a point"},
    "k": {"nargs": "+", "type": int, "metavar": "K", "help": "dimensions to project to"},
    "kind": {"nargs": "+", "metavar": "KIND", "help": "gaussian, sign, sparse"},
    "eps": {"nargs": "+", "type": float, "metavar": "E", "help": "tolerances for squared distances"},
}


def add(commands: Any) -> None:
    """Add the command's parser and one for each experiment."""
    parser = commands.add_parser(
        "mc",
        help="Monte Carlo experiments, with the exact theory beside them",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    experiments = parser.add_subparsers(title="experiments", metavar="EXPERIMENT", required=True)
    for name, (subject, parameters) in EXPERIMENTS.items():
        experiment = experiments.add_parser(name, aliases=[name.replace("_", "-")], help=subject)
        for parameter in parameters:
            plain = parameter.rstrip("*")
            flag = "--n" if plain == "n_points" else f"--{plain.replace('_', '-')}"
            experiment.add_argument(flag, dest=plain, required=parameter.endswith("*"), **_OPTIONS[plain])
        _add_common(experiment)
        experiment.set_defaults(run=run, experiment=name)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--quantity", nargs="+", metavar="NAME", help="columns of the table (default: the main one)"
    )
    parser.add_argument("--samples", type=int, metavar="N", help="for each row of the table")
    parser.add_argument(
        "--target-error", type=float, metavar="E", help="instead: until the standard error is E"
    )
    parser.add_argument("--max-samples", type=int, metavar="N", help="the most that --target-error draws")
    parser.add_argument("--seed", type=int, metavar="S", help="default: another one each time")
    parser.add_argument("--threads", type=int, metavar="N", help="default: as attnscale info shows")
    parser.add_argument("--json", action="store_true", help="print JSON, every quantity included")
    add_csv_option(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="save a figure: .png, .pdf, .svg")


def run(options: argparse.Namespace) -> None:
    """Run the experiment and print its result."""
    from .. import montecarlo

    arguments = _arguments(options)
    with bad_input():
        result = getattr(montecarlo, options.experiment)(**arguments)
    quantities = options.quantity or [result.quantity]
    for name in quantities:
        if name not in result.estimates:
            raise InputError(f"--quantity must be one of {', '.join(result.estimates)}, got {shown(name)}")
    rows = _rows(result)
    if options.plot is not None:
        save_figure(options.plot, lambda ax: _draw(result, options.quantity, ax))
    text = f"{_title(result)}\n\n{_table(result, rows, quantities)}"
    emit(options, text, rows, _report(result, rows))
    if result.interrupted:
        print("attnscale: interrupted: these are the samples so far", file=sys.stderr)
        raise SystemExit(130)
    for remark in _remarks(options, result):
        print(f"attnscale: {remark}", file=sys.stderr)


def _remarks(options: argparse.Namespace, result: ExperimentResult) -> list[str]:
    """Where the result is not what was asked for."""
    remarks = []
    drawn = int(np.max(result.samples))
    missed = int(np.sum(~np.ravel(result.target_reached))) if options.target_error is not None else 0
    if missed:
        remarks.append(
            f"--target-error {options.target_error:g} was not reached in {missed} of "
            f"{np.size(result.samples)} rows within {drawn} samples: --max-samples is the most that it draws"
        )
    if options.samples not in (None, drawn):
        remarks.append(f"--samples {options.samples} was rounded up to {drawn}: pairs come in blocks of 64")
    return remarks


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    """What the caller gave, as the experiment takes it."""
    given: dict[str, Any] = {"rng": options.seed, "progress": True, "num_threads": options.threads}
    for name in ("samples", "target_error", "max_samples"):
        if getattr(options, name) is not None:
            given[name] = getattr(options, name)
    for parameter in EXPERIMENTS[options.experiment][1]:
        name = parameter.rstrip("*")
        value = getattr(options, name)
        if value is None:
            continue
        if name == "law":
            value = [read_law(text) for text in value]
        if name == "heads":
            given |= _heads(options)
        else:
            given["n" if name == "n_points" else name] = value
    return given


def _heads(options: argparse.Namespace) -> dict[str, Any]:
    if len(options.heads) > 2:
        raise InputError("--heads takes one file, or two .npy files, queries first")
    heads = read_heads(options.heads)
    if options.experiment == "dot_product_variance":
        return {"query": heads.query, "key": heads.key}
    if options.model is not None:
        raise InputError("--heads and --model exclude each other")
    return {"model": (heads.query, heads.key)}


def _rows(result: ExperimentResult) -> list[dict[str, Any]]:
    """The result's rows, with NAME_exact where the theory has a value."""
    rows = result.rows()
    for name, values in result.exact().items():
        for row, value in zip(rows, np.ravel(values), strict=True):
            row[f"{name}_exact"] = float(value)
    return rows


def _report(result: ExperimentResult, rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "experiment": result.experiment,
        "quantity": result.quantity,
        "units": {name: each.unit for name, each in result.estimates.items()},
        "parameters": result.parameters,
        "interrupted": result.interrupted,
        "target_error": result.target_error,
        "provenance": result.provenance.to_dict(),
        "rows": rows,
    }


def _title(result: ExperimentResult) -> str:
    fixed = [f"{name} {value}" for name, value in result.parameters.items() if name not in result.axes]
    shown = [text for text in fixed if not text.endswith(" None")]
    seed = f"seed {result.provenance.to_dict()['seed']}"
    return f"{result.experiment}: {', '.join([*shown, seed])}"


def _table(result: ExperimentResult, rows: list[dict[str, Any]], quantities: list[str]) -> str:
    exact = {name for name in quantities if f"{name}_exact" in rows[0]}
    header = list(result.axes)
    for name in quantities:
        unit = result[name].unit
        header += [f"{name} ({unit})" if unit else name, "error", *(["exact"] if name in exact else [])]
    cells = [
        [
            *(str(row[name]) for name in result.axes),
            *(cell for name in quantities for cell in _cells(row, name, known=name in exact)),
            str(row["samples"]),
        ]
        for row in rows
    ]
    return to_text([*header, "samples"], cells)


def _cells(row: dict[str, Any], name: str, *, known: bool) -> list[str]:
    """Value, standard error and perhaps the exact value, with two digits of the error."""
    value, error = row[name], row[f"{name}_standard_error"]
    decimals = 4
    if np.isfinite(error) and error > 0:
        decimals = min(max(1 - int(np.floor(np.log10(error))), 0), 12)
    cells = [f"{value:.{decimals}f}", f"{error:.{decimals}f}"]
    return [*cells, f"{row[f'{name}_exact']:.{decimals}f}"] if known else cells


def _draw(result: ExperimentResult, quantity: list[str] | None, ax: Any) -> None:
    from .. import plot

    plot.experiment(result, quantity=quantity[0] if quantity else None, ax=ax)
