# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale laws`` and ``attnscale explain``."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import textwrap
from pathlib import Path
from typing import Any, cast

from .. import laws
from .._io import InputError
from .._table import to_text
from ..laws._base import description
from ..laws._registry import class_of
from ._compare_laws import compare
from ._output import add_csv_option, emit
from ._spelling import read_law

_REMARK = "Scale multiplies q . k. A parameter written '...' has no default. More: attnscale explain NAME"


def add(commands: Any) -> None:
    """Add both parsers."""
    listing = commands.add_parser("laws", help="the scale laws that have a name")
    listing.add_argument(
        "--at", nargs="+", type=int, metavar="N", help="compare the laws at these numbers of keys"
    )
    listing.add_argument(
        "--laws", nargs="+", metavar="LAW", help="with --at: only these, as NAME or 'NAME(parameter=value)'"
    )
    listing.add_argument("--head-dim", type=int, metavar="D", help="with --at (default: 64)")
    listing.add_argument(
        "--train-length",
        type=int,
        metavar="N",
        help="with --at: of the laws that have one and do not give it (default: 512)",
    )
    listing.add_argument(
        "--plot", type=Path, metavar="FILE", help="with --at: save a figure: .png, .pdf, .svg"
    )
    add_csv_option(listing, "with --at: ")
    listing.add_argument("--json", action="store_true", help="print JSON")
    listing.set_defaults(run=run_laws)
    explain = commands.add_parser("explain", help="formula, meaning of n, source and users of a law")
    explain.add_argument("name", metavar="NAME", help="a law, as in 'log_n' or 'log_n(base=1024)'")
    explain.set_defaults(run=run_explain)


def run_laws(options: argparse.Namespace) -> None:
    """Print a table of all laws, or compare them at some lengths."""
    if options.at is not None:
        compare(options)
        return
    for option in ("laws", "plot", "csv", "head_dim", "train_length"):
        if getattr(options, option) is not None:
            raise InputError(
                f"--{option.replace('_', '-')} compares laws at some lengths and needs --at N ..."
            )
    rows = [_describe(law) for law in _law_classes().values()]
    cells = [(_spelling(row), row["scale"].split(";")[0], row["n_means"]) for row in rows]
    text = to_text(("law", "scale", "n means"), cells)
    emit(options, f"{text}\n\n{_REMARK}\n{_lengths(rows)}", rows)


def run_explain(options: argparse.Namespace) -> None:
    """Print what is known about one law."""
    law = _law_classes().get(options.name)
    if law is None or not _describe(law)["required"]:
        print(read_law(options.name).explain())
        return
    # A law with a required parameter has a formula before the parameter has a value.
    print(f"{_spelling(_describe(law))}: {(inspect.getdoc(law) or '').splitlines()[0]}")
    print(*description(law), sep="\n")


def _law_classes() -> dict[str, type[laws.Law]]:
    """Laws of the package by name, in the order of :func:`attnscale.laws.names`."""
    found = {name: class_of(name) for name in laws.names()}
    return {name: law for name, law in found.items() if law is not None}


def _describe(law: type[laws.Law]) -> dict[str, Any]:
    parameters = dataclasses.fields(cast(Any, law))
    required = [each.name for each in parameters if each.default is dataclasses.MISSING]
    return {
        "name": law.name,
        "parameters": {each.name: None if each.name in required else each.default for each in parameters},
        "required": required,
        "scale": law.formula,
        "n_means": law.n_means,
        "length_parameter": law.length_parameter,
        "channels": law.channels,
        "layers": law.layers,
        "config_keys": law.config_keys,
        "source": law.source,
        "used_by": law.used_by,
        "remark": law.remark,
    }


def _lengths(rows: list[dict[str, Any]]) -> str:
    """What each law calls its training length, wrapped."""
    own: dict[str, list[str]] = {}
    for row in rows:
        if row["length_parameter"] is not None:
            own.setdefault(row["length_parameter"], []).append(row["name"])
    listed = "; ".join(f"{name} of {', '.join(found)}" for name, found in own.items())
    told = f"train_length=N is understood by every law that counts from a length: {listed}."
    return textwrap.fill(told, 98)


def _spelling(row: dict[str, Any]) -> str:
    """The law with its required parameters and with the numbers that are defaults."""
    parameters = [
        f"{name}={'...' if name in row['required'] else format(value, 'g')}"
        for name, value in row["parameters"].items()
        if name in row["required"] or (isinstance(value, (int, float)) and not isinstance(value, bool))
    ]
    return f"{row['name']}({', '.join(parameters)})" if parameters else str(row["name"])
