# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale mc``: Monte Carlo experiments, with the exact theory beside them."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .._base.spelling import as_number
from .._base.tabled import nats_per
from .._base.text import error_cell, number_cell, to_text
from .._files.heads import InputError, open_heads
from .._grid.errors import SweepError
from .._grid.part import still_missing
from .._grid.progress import announce_on_stderr
from ..montecarlo._experiment import DECLARATIONS, Declaration
from ..montecarlo._run import MOST_SAMPLES
from ._laws import read_law
from ._options import OPTIONS, PART_HELP, Parser, add_option, add_outputs, add_unit
from ._output import Answer, Drawing, bad_input
from ._stored import chosen_heads

if TYPE_CHECKING:
    from .._base.tabled import Unit
    from ..montecarlo import ExperimentResult

DESCRIPTION = """\
Run an experiment of attnscale.montecarlo. Options with several values give one row for each
combination. The same --seed gives the same numbers on every machine. Ctrl-C prints the finished
part. Work of more than a minute is announced.
"""


#: Parameters with another option, or none: `points` of a projection is an array.
_FLAGS = {"law": "--laws"}
#: Options with another meaning in other commands.
_MEANINGS = {"--kind": "entries of the projection"}
_NO_OPTION = ("samples", "rng", "options", "points", "scale", "query", "key")


class Parameter(NamedTuple):
    """A parameter of an experiment as an option."""

    name: str
    flag: str
    default: str  # in words; empty without a default


def parameters(declared: Declaration) -> list[Parameter]:
    """Parameters of an experiment that are options, from the function's signature."""
    found, known = [], inspect.signature(declared.function).parameters
    for each in known.values():
        if each.name in _NO_OPTION:
            continue
        default = declared.defaults.get(each.name, "") if each.default is None else _in_words(each.default)
        # The n of a projection counts points, elsewhere keys.
        named = _FLAGS.get(each.name, f"--{each.name.replace('_', '-')}")
        flag = "--points" if "points" in known and each.name == "n" else named
        found.append(Parameter(each.name, flag, default))
    heads = [Parameter("heads", "--heads", "")] if declared.arrays else []
    return [*found, *heads]


def _in_words(default: Any) -> str:
    if isinstance(default, tuple):
        return " ".join(map(_in_words, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale mc``."""
    experiments = parser.add_commands("experiments", "EXPERIMENT")
    for name, each in DECLARATIONS.items():
        alias = name.replace("_", "-")
        add = partial(_add_experiment, each)
        experiments.offer(name, add, help=each.subject, alias=alias if alias != name else "")


def _add_experiment(declared: Declaration, parser: Parser) -> None:
    """Add the options of an experiment."""
    for parameter in parameters(declared):
        _add_parameter(parser, parameter, declared)
    if declared.arrays:
        add_option(parser, "--head")
    _add_common(parser, declared)
    parser.set_defaults(run=run, experiment=declared.name)


def _add_parameter(parser: argparse.ArgumentParser, parameter: Parameter, declared: Declaration) -> None:
    changes: dict[str, Any] = {}
    if parameter.default:
        meaning = _MEANINGS.get(parameter.flag, OPTIONS[parameter.flag].meaning)
        changes["help"] = f"{meaning} (default: {parameter.default})"
    if parameter.name in ("head_dim", "k"):
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
    add_option(parser, "--seed", "--threads", "--store")
    add_option(parser, "--part", metavar="K/N", help=PART_HELP)
    if any(each.unit == "nat" for each in declared.quantities.values()):
        add_unit(parser)
    add_outputs(parser, json="print JSON, every quantity included")


def run(options: argparse.Namespace) -> Answer:
    """Run the experiment and return its result as an answer."""
    arguments = _arguments(options)
    ends = None
    try:
        with bad_input():
            result = DECLARATIONS[options.experiment].function(**arguments)
    except SweepError as error:  # cases that could not be stored: the result has them
        result, ends = error.partial, error
    rows = result.rows()
    for name, values in result.exact().items():  # NAME_exact, where the theory has a value
        for row, value in zip(rows, np.ravel(values), strict=True):
            row[f"{name}_exact"] = float(value)
    about = {
        "experiment": result.experiment,
        "quantity": result.quantity,
        "units": {name: each.unit for name, each in result.estimates.items()},
        "parameters": result.parameters,
        "interrupted": result.interrupted,
        "target_error": result.target_error,
        "provenance": result.provenance.to_dict(),
    }
    unit: Unit = getattr(options, "unit", "nats")  # experiments without an entropy lack the option
    quantities = options.quantity or [result.quantity]
    text = f"{_title(options, result)}\n\n{_table(result, rows, quantities, unit)}"
    remarks = [] if ends or result.interrupted else _remarks(options, result)
    drawing = Drawing(lambda ax: _draw(result, quantities[0], unit, ax))
    return Answer(text, rows, about, drawing, remarks=remarks, ends=ends, interrupted=result.interrupted)


def _remarks(options: argparse.Namespace, result: ExperimentResult) -> list[str]:
    """Remarks on departures from the request."""
    remarks = still_missing(options.part, result.missing, len(result._tallies))
    drawn = int(np.max(result.samples))
    missed = int(np.sum(~np.ravel(result.target_reached))) if options.target_error is not None else 0
    if missed and not result.missing:
        remarks.append(
            f"--target-error {as_number(options.target_error)} was not reached in {missed} of "
            f"{np.size(result.samples)} rows within {drawn} samples, the limit set by --max-samples"
        )
    if options.samples not in (None, drawn):
        remarks.append(f"--samples {options.samples} was rounded up to {drawn}: pairs come in blocks of 64")
    return remarks


def _arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of the experiment, from the caller's options."""
    given: dict[str, Any] = {"rng": options.seed, "progress": True, "num_threads": options.threads}
    given["announce"] = announce_on_stderr
    for name in ("samples", "target_error", "max_samples", "store", "part"):
        if getattr(options, name) is not None:
            given[name] = getattr(options, name)
    declared = DECLARATIONS[options.experiment]
    for parameter in parameters(declared):
        value = getattr(options, parameter.flag[2:].replace("-", "_"))
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
        raise InputError("--heads takes one file, or two .npy or .pt files, queries first")
    stored = open_heads(options.heads)
    heads = stored.read(heads=chosen_heads(options, [stored]), as_stored=True)
    if "query" in DECLARATIONS[options.experiment].arrays:
        return {"query": heads.query, "key": heads.key}
    if options.model is not None:
        raise InputError("--heads and --model exclude each other")
    if options.n is None:
        raise InputError(f"--heads needs --n: keys of a row, of the {heads.key.shape[-2]} of a head")
    return {"model": (heads.query, heads.key)}


def _title(options: argparse.Namespace, result: ExperimentResult) -> str:
    """The title, with the constants of all rows; arrays by their files, not by their digests."""
    files = getattr(options, "heads", None) or ()
    hidden = {*result.axes, *(("model", "query", "key") if files else ())}
    fixed = {name: value for name, value in result.parameters.items() if name not in hidden}
    words = [f"{name} {value}" for name, value in fixed.items() if value is not None]
    words += [f"heads {' '.join(map(str, files))}"] if files else []
    seed = f"seed {result.provenance.to_dict()['seed']}"
    return f"{result.experiment}: {', '.join([*words, seed])}"


def _table(
    result: ExperimentResult, rows: list[dict[str, Any]], quantities: Sequence[str], unit: Unit
) -> str:
    header = list(result.axes)
    sizes = {}
    for name in quantities:
        is_entropy = result[name].unit == "nat"
        sizes[name] = nats_per(unit) if is_entropy else 1.0
        named = unit[:-1] if is_entropy else result[name].unit
        header += [f"{name} ({named})" if named else name, "error"]
        header += ["exact"] if f"{name}_exact" in rows[0] else []
    cells = [
        [
            *(str(row[name]) for name in result.axes),
            *(cell for name, size in sizes.items() for cell in _cells(row, name, size)),
            str(row["samples"]),
        ]
        for row in rows
    ]
    return to_text([*header, "samples"], cells)


def _cells(row: dict[str, Any], name: str, size: float) -> list[str]:
    """Value, standard error and possibly the exact value over `size`, to two digits of the error."""
    error = row[f"{name}_standard_error"] / size
    decimals = 4
    if np.isfinite(error) and error > 0:
        decimals = min(max(1 - int(np.floor(np.log10(error))), 0), 12)
    form = f".{decimals}f"
    exact = [row[f"{name}_exact"]] if f"{name}_exact" in row else []
    return [number_cell(row[name] / size, form), error_cell(error, form)] + [
        number_cell(each / size, form) for each in exact
    ]


def _draw(result: ExperimentResult, quantity: str, unit: Unit, ax: Any) -> None:
    from .. import plot

    plot.experiment(result, quantity=quantity, ax=ax, unit=unit)
