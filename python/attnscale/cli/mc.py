# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale mc``: Monte Carlo experiments, with the exact theory beside them."""

from __future__ import annotations

import argparse
import inspect
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._grid.progress import announce_on_stderr
from .._io import InputError, read_heads
from .._spelling import as_number
from .._tables.tabled import nats_per
from .._tables.text import error_cell, number_cell, to_text
from ..montecarlo._experiment import DECLARATIONS, Declaration
from ..montecarlo._run import MOST_SAMPLES
from ._figure import Drawing
from ._options import OPTIONS, add_option, add_outputs, add_unit
from ._output import Answer, bad_input
from ._spelling import read_law

if TYPE_CHECKING:
    from .._tables.tabled import Unit
    from ..montecarlo import ExperimentResult

_DESCRIPTION = """\
Run an experiment of attnscale.montecarlo. Options that take several values give one row for
each combination. The same --seed gives the same numbers on every machine. Ctrl-C prints what
is there. What takes more than a minute says so before it begins.
"""


#: Parameters that have another option, or none: `points` of a projection is an array.
_FLAGS = {"law": "--laws"}
_NO_OPTION = ("samples", "rng", "options", "points", "scale", "query", "key")


class Parameter(NamedTuple):
    """A parameter of an experiment as an option."""

    name: str
    flag: str
    default: str  # in words; empty where there is none


def parameters(declared: Declaration) -> list[Parameter]:
    """The parameters of an experiment that the command line takes, from the function's signature."""
    found, known = [], inspect.signature(declared.function).parameters
    for each in known.values():
        if each.name in _NO_OPTION:
            continue
        default = declared.defaults.get(each.name, "") if each.default is None else _in_words(each.default)
        # The n of a projection are points, that of all other experiments keys.
        flag = "--points" if "points" in known and each.name == "n" else _flag(each.name)
        found.append(Parameter(each.name, flag, default))
    heads = [Parameter("heads", "--heads", "")] if declared.arrays else []
    return [*found, *heads]


def _in_words(default: Any) -> str:
    if isinstance(default, tuple):
        return " ".join(map(_in_words, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def _flag(name: str) -> str:
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def _value(options: argparse.Namespace, flag: str) -> Any:
    return getattr(options, flag[2:].replace("-", "_"))


def add(commands: Any) -> None:
    """Add the parser of ``attnscale mc`` and one for each experiment."""
    parser = commands.add_parser(
        "mc", help="Monte Carlo experiments, with the exact theory beside them", description=_DESCRIPTION
    )
    experiments = parser.add_subparsers(title="experiments", metavar="EXPERIMENT", required=True)
    for name, each in DECLARATIONS.items():
        aliases = [name.replace("_", "-")] if "_" in name else []
        experiment = experiments.add_parser(name, aliases=aliases, help=each.subject)
        for parameter in parameters(each):
            _add_parameter(experiment, parameter, each)
        _add_common(experiment, each)
        experiment.set_defaults(run=run, experiment=name)


def _add_parameter(parser: argparse.ArgumentParser, parameter: Parameter, declared: Declaration) -> None:
    changes: dict[str, Any] = {}
    if parameter.default:
        changes["help"] = f"{OPTIONS[parameter.flag].meaning} (default: {parameter.default})"
    if parameter.name == "head_dim":
        changes["nargs"] = "+"
    if choices := declared.choices.get(parameter.name):
        changes["choices"] = choices
    add_option(parser, parameter.flag, **changes)


def _add_common(parser: argparse.ArgumentParser, declared: Declaration) -> None:
    quantities = tuple(declared.quantities)
    about = f"{OPTIONS['--quantity'].meaning} (default: {quantities[0]})"
    add_option(parser, "--quantity", choices=quantities, help=about)
    add_option(parser, "--samples", help=f"{OPTIONS['--samples'].meaning} (default: {declared.samples})")
    add_option(parser, "--target-error")
    add_option(parser, "--max-samples", help=f"{OPTIONS['--max-samples'].meaning} (default: {MOST_SAMPLES})")
    add_option(parser, "--seed")
    add_option(parser, "--threads")
    add_option(parser, "--store")
    if any(each.unit == "nat" for each in declared.quantities.values()):
        add_unit(parser)
    add_outputs(parser, json="print JSON, every quantity included")


def run(options: argparse.Namespace) -> Answer:
    """Run the experiment and return its result as an answer."""
    arguments = _arguments(options)
    with bad_input():
        result = DECLARATIONS[options.experiment].function(**arguments)
    rows = _rows(result)
    text = f"{_title(options, result)}\n\n{_table(options, result, rows)}"
    drawing = Drawing(lambda ax: _draw(options, result, ax))
    remarks = [] if result.interrupted else _remarks(options, result)
    return Answer(text, rows, _report(result, rows), drawing, remarks=remarks, interrupted=result.interrupted)


def _remarks(options: argparse.Namespace, result: ExperimentResult) -> list[str]:
    """Remarks on where the result is not what was asked for."""
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


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The arguments of the experiment, from the options that the caller gave."""
    given: dict[str, Any] = {"rng": options.seed, "progress": True, "num_threads": options.threads}
    given["announce"] = announce_on_stderr
    for name in ("samples", "target_error", "max_samples", "store"):
        if getattr(options, name) is not None:
            given[name] = getattr(options, name)
    declared = DECLARATIONS[options.experiment]
    for parameter in parameters(declared):
        value = _value(options, parameter.flag)
        if value is None:
            continue
        if parameter.name == "law":
            value = [read_law(text) for text in value]
        if parameter.name == "heads":
            given |= _heads(options)
        else:
            given[parameter.name] = value
    return given


def _heads(options: argparse.Namespace) -> dict[str, Any]:
    if len(options.heads) > 2:
        raise InputError("--heads takes one file, or two .npy files, queries first")
    heads = read_heads(options.heads)
    if "query" in DECLARATIONS[options.experiment].arrays:
        return {"query": heads.query, "key": heads.key}
    if options.model is not None:
        raise InputError("--heads and --model exclude each other")
    if options.n is None:
        raise InputError(f"--heads needs --n: keys of a row, of the {heads.key.shape[-2]} of a head")
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
    """The title, with what is the same in all rows; arrays by their files, not by their digests."""
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
    form = f".{decimals}f"
    cells = [number_cell(value, form), error_cell(error, form)]
    return [*cells, number_cell(row[f"{name}_exact"] / nats, form)] if known else cells


def _draw(options: argparse.Namespace, result: ExperimentResult, ax: Any) -> None:
    from .. import plot

    quantity = options.quantity[0] if options.quantity else None
    plot.experiment(result, quantity=quantity, ax=ax, unit=_unit(options))
