# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale mc``: Monte Carlo experiments, with the exact theory beside them."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._io import InputError, read_heads
from .._spelling import as_number
from .._tables.tabled import nats_per
from .._tables.text import to_text
from ._figure import Drawing
from ._memory import refuse_beyond_memory
from ._options import OPTIONS, add_option, add_outputs, add_unit
from ._output import bad_input, emit
from ._spelling import read_law

if TYPE_CHECKING:
    from .._tables.tabled import Unit
    from ..montecarlo import ExperimentResult

_DESCRIPTION = """\
Run an experiment of attnscale.montecarlo. Options that take several values give one row for
each combination. The same --seed gives the same numbers on every machine. Ctrl-C prints what
is there. What takes more than a minute says so before it begins.
"""


class _Experiment(NamedTuple):
    """What an experiment is about, its parameters, the quantities it estimates and how many samples it takes.

    A parameter is written ``name*`` where it must be given, ``name=default`` where the help has a default.
    """

    subject: str
    parameters: tuple[str, ...]
    quantities: tuple[str, ...]
    samples: int
    models: tuple[str, ...] = ()


_ROW = ("entropy", "lse", "concentration", "max_weight", "mean_score", "score_variance")
EXPERIMENTS: dict[str, _Experiment] = {
    "entropy_vs_length": _Experiment(
        "entropy of rows of n random keys under scale laws",
        ("n*", "law=standard", "head_dim=64", "model=sphere", "correlation", "heads"),
        _ROW,
        1000,
        ("sphere", "gaussian", "correlated"),
    ),
    "needle_dilution": _Experiment(
        "weight of one key with a given cosine to the query",
        ("n*", "cosine*", "law=standard", "head_dim=64"),
        ("needle_weight", "needle_is_top", "entropy"),
        1000,
    ),
    "averaging_error": _Experiment(
        "variance of a mean of n independent values",
        ("n*", "law=standard", "head_dim=64"),
        ("error_variance", "concentration"),
        10_000,
    ),
    "softmax_saturation": _Experiment(
        "saturated rows and Jacobians, scaled and not",
        ("head_dim*", "n=512", "law=standard unscaled"),
        ("saturated", "jacobian_trace", "jacobian_norm", "spectral_bound", "gradient_norm"),
        1000,
    ),
    "dot_product_variance": _Experiment(
        "variance of q . k, of random components or of a model's vectors",
        ("head_dim", "distribution=normal", "mean=0", "std=1", "heads"),
        ("variance", "scaled_variance", "mean", "kurtosis"),
        102_400,
    ),
    "max_cosine": _Experiment(
        "largest cosine of a query with n random keys", ("n*", "head_dim=64"), ("max_cosine",), 1000
    ),
    "head_dimension": _Experiment(
        "how often the right key has the largest weight",
        ("head_dim*", "n=512", "cosine=0.5", "law=standard"),
        ("accuracy", "needle_weight"),
        1000,
    ),
    "jl_distortion": _Experiment(
        "change of distances by a random projection",
        ("n_points*", "dim*", "k*", "kind=gaussian", "eps=0.5"),
        ("distortion", "outside", "success", "mean_ratio", "ratio_std"),
        10,
    ),
    "rank_and_sparsity": _Experiment(
        "effective rank of an n x n matrix of weights",
        ("n*", "law=standard", "head_dim=64"),
        ("effective_rank", "stable_rank", "effective_keys", "concentration"),
        8,
    ),
    "sparsity": _Experiment(
        "how many keys have a weight, under sparse normalizers",
        ("n*", "law=standard", "normalizer=sparsemax", "head_dim=64", "model=gaussian"),
        ("support", "entropy", "concentration", "max_weight"),
        1000,
        ("gaussian", "sphere"),
    ),
}

_CHOICES = {
    "--distribution": ("normal", "uniform", "truncated_normal", "laplace"),
    "--kind": ("gaussian", "sign", "sparse"),
}
#: Parameters whose option has another name.
_FLAGS = {"n_points": "--points", "law": "--laws"}
_MAX_SAMPLES = 1_000_000


def _flag(parameter: str) -> str:
    return _FLAGS.get(parameter, f"--{parameter.replace('_', '-')}")


def _value(options: argparse.Namespace, parameter: str) -> Any:
    return getattr(options, _flag(parameter)[2:].replace("-", "_"))


def add(commands: Any) -> None:
    """Add the command's parser and one for each experiment."""
    parser = commands.add_parser(
        "mc", help="Monte Carlo experiments, with the exact theory beside them", description=_DESCRIPTION
    )
    experiments = parser.add_subparsers(title="experiments", metavar="EXPERIMENT", required=True)
    for name, each in EXPERIMENTS.items():
        aliases = [name.replace("_", "-")] if "_" in name else []
        experiment = experiments.add_parser(name, aliases=aliases, help=each.subject)
        for parameter in each.parameters:
            _add_parameter(experiment, parameter, each)
        _add_common(experiment, each)
        experiment.set_defaults(run=run, experiment=name)


def _add_parameter(parser: argparse.ArgumentParser, written: str, experiment: _Experiment) -> None:
    name, _, default = written.rstrip("*").partition("=")
    flag = _flag(name)
    changes: dict[str, Any] = {"required": written.endswith("*")}
    if default:
        changes["help"] = f"{OPTIONS[flag].meaning} (default: {default})"
    if name == "head_dim":
        changes["nargs"] = "+"
    if choices := experiment.models if name == "model" else _CHOICES.get(flag):
        changes["choices"] = choices
    add_option(parser, flag, **changes)


def _add_common(parser: argparse.ArgumentParser, experiment: _Experiment) -> None:
    main, samples = experiment.quantities[0], experiment.samples
    about = f"{OPTIONS['--quantity'].meaning} (default: {main})"
    add_option(parser, "--quantity", choices=experiment.quantities, help=about)
    add_option(parser, "--samples", help=f"{OPTIONS['--samples'].meaning} (default: {samples})")
    add_option(parser, "--target-error")
    add_option(parser, "--max-samples", help=f"{OPTIONS['--max-samples'].meaning} (default: {_MAX_SAMPLES})")
    add_option(parser, "--seed")
    add_option(parser, "--threads")
    if {"entropy", "lse"} & set(experiment.quantities):
        add_unit(parser)
    add_outputs(parser, json="print JSON, every quantity included")


def run(options: argparse.Namespace) -> None:
    """Run the experiment and print its result."""
    from .. import montecarlo

    if options.experiment == "dot_product_variance" and options.head_dim is None and options.heads is None:
        raise InputError("give --head-dim, or --heads FILE")
    _check_memory(options)
    arguments = _arguments(options)
    with bad_input():
        result = getattr(montecarlo, options.experiment)(**arguments)
    options.interrupted = result.interrupted
    rows = _rows(result)
    text = f"{_title(options, result)}\n\n{_table(options, result, rows)}"
    drawing = Drawing(lambda ax: _draw(options, result, ax))
    emit(options, text, rows, _report(result, rows), drawing)
    for remark in [] if result.interrupted else _remarks(options, result):
        print(f"attnscale: {remark}", file=sys.stderr)


def _remarks(options: argparse.Namespace, result: ExperimentResult) -> list[str]:
    """Where the result is not what was asked for."""
    remarks = []
    drawn = int(np.max(result.samples))
    missed = int(np.sum(~np.ravel(result.target_reached))) if options.target_error is not None else 0
    if missed:
        remarks.append(
            f"--target-error {as_number(options.target_error)} was not reached in {missed} of "
            f"{np.size(result.samples)} rows within {drawn} samples: --max-samples is the most that it draws"
        )
    if options.samples not in (None, drawn):
        remarks.append(f"--samples {options.samples} was rounded up to {drawn}: pairs come in blocks of 64")
    return remarks


def _check_memory(options: argparse.Namespace) -> None:
    """Refuse a sample whose arrays are beyond memory; a streamed row keeps sums for each 2^18 keys."""
    kind = options.experiment
    if kind == "jl_distortion":
        size = 4.0 * options.points * (options.dim + max(options.k))
        refuse_beyond_memory(f"--points {options.points} --dim {options.dim}", size)
        return
    n, dim = max(getattr(options, "n", None) or [0]), max(options.head_dim or [64])
    if kind == "rank_and_sparsity":
        size = 8.0 * n * (n + 2 * dim)
    elif kind == "sparsity":
        size = 8.0 * n * (dim if options.model == "sphere" else 1)
    else:
        size = 128.0 * n / 2**18
    refuse_beyond_memory(f"--n {n}", max(size, 4.0 * dim))


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    """What the caller gave, as the experiment takes it."""
    given: dict[str, Any] = {"rng": options.seed, "progress": True, "num_threads": options.threads}
    given["announce"] = lambda line: print(f"attnscale: {line}", file=sys.stderr, flush=True)
    for name in ("samples", "target_error", "max_samples"):
        if getattr(options, name) is not None:
            given[name] = getattr(options, name)
    for parameter in EXPERIMENTS[options.experiment].parameters:
        name = parameter.rstrip("*").partition("=")[0]
        value = _value(options, name)
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


def _title(options: argparse.Namespace, result: ExperimentResult) -> str:
    """What is the same in all rows; arrays by their files, not by their digests."""
    files = getattr(options, "heads", None) or ()
    hidden = {*result.axes, *(("model", "query", "key") if files else ())}
    fixed = {name: value for name, value in result.parameters.items() if name not in hidden}
    words = [f"{name} {value}" for name, value in fixed.items() if value is not None]
    words += [f"heads {' '.join(map(str, files))}"] if files else []
    seed = f"seed {result.provenance.to_dict()['seed']}"
    return f"{result.experiment}: {', '.join([*words, seed])}"


def _unit(options: argparse.Namespace) -> Unit:
    """The unit of entropies; an experiment without one has no such option."""
    return getattr(options, "unit", "nats")


def _table(options: argparse.Namespace, result: ExperimentResult, rows: list[dict[str, Any]]) -> str:
    quantities = options.quantity or [result.quantity]
    exact = {name for name in quantities if f"{name}_exact" in rows[0]}
    entropies = {name for name in quantities if result[name].unit == "nat"}
    nats = {name: nats_per(_unit(options)) if name in entropies else 1.0 for name in quantities}
    header = list(result.axes)
    for name in quantities:
        unit = _unit(options)[:-1] if name in entropies else result[name].unit
        header += [f"{name} ({unit})" if unit else name, "error", *(["exact"] if name in exact else [])]
    cells = [
        [
            *(str(row[name]) for name in result.axes),
            *(cell for name in quantities for cell in _cells(row, name, nats[name], known=name in exact)),
            str(row["samples"]),
        ]
        for row in rows
    ]
    return to_text([*header, "samples"], cells)


def _cells(row: dict[str, Any], name: str, nats: float, *, known: bool) -> list[str]:
    """Value, standard error and perhaps the exact value over `nats`, with two digits of the error."""
    value, error = row[name] / nats, row[f"{name}_standard_error"] / nats
    decimals = 4
    if np.isfinite(error) and error > 0:
        decimals = min(max(1 - int(np.floor(np.log10(error))), 0), 12)
    cells = [f"{value:.{decimals}f}", f"{error:.{decimals}f}"]
    return [*cells, f"{row[f'{name}_exact'] / nats:.{decimals}f}"] if known else cells


def _draw(options: argparse.Namespace, result: ExperimentResult, ax: Any) -> None:
    from .. import plot

    quantity = options.quantity[0] if options.quantity else None
    plot.experiment(result, quantity=quantity, ax=ax, unit=_unit(options))
