# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale laws`` and ``attnscale explain``."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import textwrap
from typing import Any, cast

from .. import laws
from .._io import InputError
from .._tables.text import to_text
from ..laws._described import description
from ..laws._registry import class_of
from ._compare_laws import compare
from ._options import add_option, add_outputs
from ._output import Answer
from ._spelling import LAW_HELP, read_law

_REMARK = "Scale multiplies q . k. A parameter written '...' has no default. More: attnscale explain NAME"


def add(commands: Any) -> None:
    """Add the parsers of both commands."""
    listing = commands.add_parser("laws", help="the scale laws that have a name")
    add_option(listing, "--n", help="compare the laws at these numbers of keys")
    add_option(listing, "--laws", help=f"with --n: only these, as {LAW_HELP}")
    add_option(listing, "--head-dim", help="with --n: components of q and k (default: 64)")
    add_option(
        listing,
        "--train-length",
        help="with --n: of the laws that have one and do not give it (default: 512)",
    )
    add_option(listing, "--unit", help="with --n: of entropies in the table (default: nats)")
    add_outputs(listing)
    listing.set_defaults(run=run_laws)
    explain = commands.add_parser("explain", help="formula, meaning of n, source and users of a law")
    explain.add_argument("name", metavar="NAME", help="a law, as in 'log_n' or 'log_n(base=1024)'")
    add_outputs(explain, csv=False, plot=False)
    explain.set_defaults(run=run_explain)


def run_laws(options: argparse.Namespace) -> Answer:
    """Print a table of all laws, or compare them at some lengths."""
    if options.n is not None:
        return compare(options)
    for option in ("laws", "plot", "head_dim", "train_length", "unit"):
        if getattr(options, option) is not None:
            flag = option.replace("_", "-")
            raise InputError(f"--{flag} compares laws at some numbers of keys and needs --n N ...")
    rows = [_describe(law) for law in _law_classes().values()]
    cells = [(_spelling(row), row["scale"].split(";")[0], row["n_means"]) for row in rows]
    text = f"{to_text(('law', 'scale', 'n means'), cells, width=100)}\n\n{_REMARK}\n{_lengths(rows)}"
    flat = [
        {name: value for name, value in row.items() if name not in ("parameters", "required")}
        | {"spelling": _spelling(row)}
        for row in rows
    ]
    return Answer(text, flat, rows)


def run_explain(options: argparse.Namespace) -> Answer:
    """Print what is known about one law."""
    law = _law_classes().get(options.name)
    if law is None or not _describe(law)["required"]:
        chosen = read_law(options.name)
        return Answer(chosen.explain(), report={**_describe(type(chosen)), "definition": repr(chosen)})
    # A law with a required parameter has a formula before the parameter has a value.
    first = f"{_spelling(_describe(law))}: {(inspect.getdoc(law) or '').splitlines()[0]}"
    return Answer("\n".join([first, *description(law)]), report=_describe(law))


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
