# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale explain``: formula, meaning of n, source and users of a law."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
from typing import Any, cast

from .. import laws
from ..laws._base import description
from ..laws._registry import class_of
from ._laws import read_law
from ._options import Parser, add_outputs
from ._output import Answer


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale explain``."""
    parser.add_argument("name", metavar="NAME", help="a law, as in 'log_n' or 'log_n(base=1024)'")
    add_outputs(parser, csv=False, plot=False)


def run(options: argparse.Namespace) -> Answer:
    """Print the documentation of one law."""
    law = law_classes().get(options.name)
    if law is None or not describe(law)["required"]:
        chosen = read_law(options.name)
        return Answer(chosen.explain(), report={**describe(type(chosen)), "definition": repr(chosen)})
    # A law with a required parameter has a formula before the parameter has a value.
    first = f"{spelling(describe(law))}: {(inspect.getdoc(law) or '').splitlines()[0]}"
    return Answer("\n".join([first, *description(law)]), report=describe(law))


def law_classes() -> dict[str, type[laws.Law]]:
    """Laws of the package by name, in the order of :func:`attnscale.laws.names`."""
    found = {name: class_of(name) for name in laws.names()}
    return {name: law for name, law in found.items() if law is not None}


def describe(law: type[laws.Law]) -> dict[str, Any]:
    """Facts about a law, for JSON."""
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


def spelling(row: dict[str, Any]) -> str:
    """The law with its required parameters and its numeric defaults."""
    parameters = [
        f"{name}={'...' if name in row['required'] else format(value, 'g')}"
        for name, value in row["parameters"].items()
        if name in row["required"] or (isinstance(value, (int, float)) and not isinstance(value, bool))
    ]
    return f"{row['name']}({', '.join(parameters)})" if parameters else str(row["name"])
