# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale sweep``: a function over a grid of parameters, described by a TOML file."""

from __future__ import annotations

import argparse
import importlib
import math
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import laws, plot
from .._base.checks import meant, shown
from .._base.spelling import as_number
from .._base.tabled import nats_per
from .._base.text import error_cell, number_cell, to_text
from .._files.heads import InputError, check_is_file
from .._grid.part import still_missing
from .._sweep import SweepError, SweepInterrupted
from .._sweep.plan import Kept, compute
from ._laws import read_law
from ._options import PART_HELP, Parser, add_option, add_outputs, add_unit
from ._output import Answer, Drawing, Interrupted, bad_input, check_store

if TYPE_CHECKING:
    import xarray

    from .._base.tabled import Unit

DESCRIPTION = """\
Call a function at every point of a grid. FILE is TOML:

    function = "attnscale.theory:sphere_entropy_deficit"  # or of a module beside FILE
    store = "runs/deficit"  # optional: keep finished cases here and resume from them
    n_jobs = 2              # optional: processes

    [grid]                  # every combination of these
    scale = [0.5, 1.0, 2.0]
    head_dim = [64, 128]

    [constants]             # optional: parameters that are the same everywhere

A function with a parameter rng also takes "rng = 0", the seed, beside n_jobs.
"""


# Key: (type, its name in a message).
_KEYS: dict[str, tuple[type, str]] = {
    "function": (str, "a string, 'module:function'"),
    "store": (str, "a string, the name of a directory"),
    "n_jobs": (int, "an integer"),
    "rng": (int, "an integer, the seed"),
    "grid": (dict, "a table: [grid]"),
    "constants": (dict, "a table: [constants]"),
}
#: Parameters that may be laws with parameters, as on the command line.
_LAW_PARAMETERS = ("law", "scale")


@dataclass(frozen=True)
class _File:
    """Arguments of ``sweep`` from a file; None and {} where the file lacks them."""

    function: str
    grid: dict[str, Any]
    constants: dict[str, Any]
    store: str | None
    n_jobs: int | None
    rng: int | None


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale sweep``."""
    parser.add_argument("file", type=Path, metavar="FILE")
    add_option(parser, "--store")
    add_option(parser, "--part", metavar="K/N", help=PART_HELP)
    add_option(parser, "--n-jobs")
    add_unit(parser)
    add_outputs(parser)


def run(options: argparse.Namespace) -> Answer:
    """Run the sweep; the finished cases are an answer even after an error."""
    wanted = _read_file(options.file)
    store = options.store or wanted.store
    if store is not None:
        check_store(f"{options.file}: store {store}", Path(store))
    try:
        return _answer(options, wanted, _compute(options, wanted, store))
    except SweepError as error:
        if error.partial is None:
            raise
        return _answer(options, wanted, error.partial, error)
    except SweepInterrupted as error:
        ends = Interrupted(str(error), store)
        if error.partial is None:
            raise ends from error
        return _answer(options, wanted, error.partial, ends)


def _compute(options: argparse.Namespace, wanted: _File, store: str | None) -> xarray.Dataset:
    n_jobs = wanted.n_jobs if options.n_jobs is None else options.n_jobs
    with _resolve(options.file, wanted.function) as function, bad_input(str(options.file), ImportError):
        _check_laws(options.file, wanted)
        return compute(
            function,
            wanted.grid,
            constants=wanted.constants,
            n_jobs=1 if n_jobs is None else n_jobs,
            store=store,
            part=options.part,
            rng=wanted.rng,
            # After Ctrl-C the last line has the command with a store.
            kept=Kept("the table has them", ", and --store DIR keeps them", "{!r} keeps them"),
        )


def _answer(
    options: argparse.Namespace, wanted: _File, table: xarray.Dataset, ends: BaseException | None = None
) -> Answer:
    axes = list(wanted.grid)
    rows = _flat_rows(table, axes) if options.csv is not None else []
    report = {**table.attrs, "rows": _nested_rows(table, axes)} if options.json else None
    drawing = Drawing(lambda ax: plot.sweep(table, ax=ax, unit=options.unit))
    total = math.prod(map(len, wanted.grid.values()))
    remarks = [] if ends else still_missing(options.part, table.attrs["missing"], total)
    text = table_text(table, axes, options.unit)
    return Answer(text, rows, drawing=drawing, report=report, ends=ends, remarks=remarks)


def _read_file(path: Path) -> _File:
    """Read and check a file; InputError names the key, the rule and the value."""
    check_is_file(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a readable TOML file ({error})") from None
    for key, value in content.items():
        if key not in _KEYS:
            near = meant(key, [*_KEYS])
            raise InputError(f"{path}: {near}unknown key {key!r}; the keys: {', '.join(_KEYS)}")
        kind, rule = _KEYS[key]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise InputError(f"{path}: {key} must be {rule}, got {shown(value)}")
    for key in ("function", "grid"):
        if key not in content:
            raise InputError(f"{path}: {key} is missing; it must be {_KEYS[key][1]}")
    return _File(
        function=content["function"],
        grid={name: _with_laws(name, values) for name, values in content["grid"].items()},
        constants={name: _with_laws(name, value) for name, value in content.get("constants", {}).items()},
        store=content.get("store"),
        n_jobs=content.get("n_jobs"),
        rng=content.get("rng"),
    )


def _with_laws(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_with_laws(name, entry) for entry in value]
    return read_law(value) if name in _LAW_PARAMETERS and isinstance(value, str) and "(" in value else value


def _check_laws(path: Path, wanted: _File) -> None:
    """Refuse unknown laws before a store is claimed, which would then belong to another sweep.

    The user's function, imported by now with the laws that it registers, may use a word otherwise. For such a
    function only a near miss of a law's name, beside names of laws, is refused.
    """
    ours = wanted.function.startswith("attnscale.")
    for name in _LAW_PARAMETERS:
        given = wanted.grid.get(name, wanted.constants.get(name))
        texts = [each for each in (given if isinstance(given, list) else [given]) if isinstance(each, str)]
        unknown = {text: error for text in texts if (error := _no_law(text)) is not None}
        for text, error in unknown.items():
            if ours or (len(unknown) < len(texts) and meant(text, laws.names())):
                raise InputError(f"{path}: {error}") from None


def _no_law(text: str) -> InputError | None:
    try:
        read_law(text)
    except InputError as error:
        return error
    return None


@contextmanager
def _resolve(path: Path, name: str) -> Iterator[Callable[..., Any]]:
    """The function called `name`, importable within this context, also from modules beside the file."""
    directory = str(path.resolve().parent)
    sys.path.insert(0, directory)
    try:
        yield _import(path, name)
    finally:
        sys.path.remove(directory)


def _import(path: Path, name: str) -> Callable[..., Any]:
    """The imported function spelled ``module:function`` or ``module.function``."""
    module, colon, attribute = name.partition(":") if ":" in name else name.rpartition(".")
    problem = f"{path}: function must be an importable 'module:function', got {shown(name)}"
    if not (module and colon and attribute):
        raise InputError(problem)
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{problem} ({error})") from None
    if not callable(found):
        raise InputError(f"{path}: function must be callable, got {shown(name)}, a {type(found).__name__}")
    function: Callable[..., Any] = found
    return function


def _nested_rows(table: xarray.Dataset, axes: list[str]) -> list[dict[str, Any]]:
    """A mapping for each case: its parameters, then its results, with arrays as nested lists."""
    return [
        {**place, **{name: _plain(array) for name, array in results.items()}}
        for place, results in _cases(table, axes)
    ]


def _flat_rows(table: xarray.Dataset, axes: list[str]) -> list[dict[str, Any]]:
    """A mapping for each case, with a column ``name[i,j]`` for every element of an array."""
    rows = []
    for place, results in _cases(table, axes):
        row = dict(place)
        for name, array in results.items():
            for index in np.ndindex(array.shape):
                where = ",".join(map(str, index))
                row[f"{name}[{where}]" if where else name] = _plain(array[index])
        rows.append(row)
    return rows


def table_text(table: xarray.Dataset, axes: list[str], unit: Unit = "nats") -> str:
    """The columns that vary, entropies in `unit`; constants of all rows stand once above them.

    Arrays are shown by their shape, with a dash where the case is not finished.
    """
    nats, units = nats_per(unit), {str(name): each.attrs.get("units") for name, each in table.items()}
    size = {name: nats if kind == "nat" else 1 for name, kind in units.items()}
    header = [*axes, *(f"{name} ({unit})" if kind == "nat" else name for name, kind in units.items())]
    cases = _cases(table, axes)
    rows = [
        [
            *(as_number(value) if isinstance(value, float) else str(value) for value in place.values()),
            *(
                _cell(name, array / size[name] if size[name] != 1 else array)
                for name, array in results.items()
            ),
        ]
        for place, results in cases
    ]
    columns = zip(*([*place.values(), *results.values()] for place, results in cases), strict=True)
    vary = [len(cases) == 1 or not all(_same(each, column[0]) for each in column) for column in columns]
    text = to_text([*compress(header, vary)], [[*compress(row, vary)] for row in rows])
    if not all(vary):
        same = [
            f"{name} {cell}" for name, cell, varies in zip(header, rows[0], vary, strict=True) if not varies
        ]
        text = f"In all rows: {', '.join(same)}\n\n{text}"
    if all(variable.ndim == len(axes) for variable in table.data_vars.values()):
        return text
    return f"{text}\n\nArrays are shown by their extents; --json and --csv have the numbers."


def _cases(table: xarray.Dataset, axes: list[str]) -> list[tuple[dict[str, Any], dict[str, NDArray[Any]]]]:
    labels = {name: table[name].values for name in axes}
    arrays = {str(name): variable.values for name, variable in table.data_vars.items()}
    return [
        (
            {name: _plain(labels[name][i]) for name, i in zip(axes, index, strict=True)},
            {name: np.asarray(array[index]) for name, array in arrays.items()},
        )
        for index in np.ndindex(*(len(values) for values in labels.values()))
    ]


def _plain(array: Any) -> Any:
    """Numbers and text for JSON; anything else as text."""
    if np.asarray(array).dtype.kind in "cmM":
        array = np.asarray(array).astype(np.str_)
    return np.asarray(array).tolist()


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal, or both NaN."""
    a, b = np.asarray(one), np.asarray(other)
    return a.shape == b.shape and bool(np.all((a == b) | ((a != a) & (b != b))))


def _cell(name: str, array: NDArray[Any]) -> str:
    if array.ndim:
        empty = array.size and array.dtype.kind == "f" and np.isnan(array).all()
        return "-" if empty else " x ".join(map(str, array.shape))
    value = array.item()
    if not isinstance(value, float):
        return str(value)
    return error_cell(value, ".6g") if name.endswith("standard_error") else number_cell(value)
