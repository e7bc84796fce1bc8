# SPDX-License-Identifier: BSD-3-Clause
"""Lists of experiments and of engines, written from what they declare, so that they cannot go stale."""

from __future__ import annotations

import ast
from pathlib import Path

import studies
from attnscale.lse import _ENGINES
from attnscale.montecarlo._experiment import DECLARATIONS


def declared_texts():
    """The text of each file to include."""
    header = ["| function | about | estimates | exact value |", "|---|---|---|---|"]
    engines = ["| name | what its lse is | seen in |", "|---|---|---|"]
    engines += [f"| `{name}` | {known.convention} | {known.source} |" for name, known in _ENGINES.items()]
    return {
        "engines.md": "\n".join(engines),
        "montecarlo.md": "\n".join([*header, *map(_row, DECLARATIONS)]),
        "experiments.md": "\n".join(["```{eval-rst}", *map(_study, _studies()), "```"]),
    }


def _row(name):
    declared = DECLARATIONS[name]
    estimates = ", ".join(f"`{quantity}`" for quantity in declared.quantities)
    link = f"{{func}}`~attnscale.montecarlo.{name}`"
    return f"| {link} | {declared.subject} | {estimates} | {declared.known} |"


def _studies():
    """Files of the studies, which are read where they cannot be imported, without PyTorch."""
    folder = Path(studies.__file__).parent
    return sorted(folder.glob("[a-z]*.py"))


def _study(path):
    """A study with its designs."""
    name = path.stem.title().replace("_", "")
    designs = ", ".join(_class_methods(path, name))
    return f".. autoclass:: studies.{path.stem}.{name}\n   :members: {designs}\n"


def _class_methods(path, name):
    """Names of the class methods of a class in a file: those of a study are designs of their own."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    functions = [node for node in found.body if isinstance(node, ast.FunctionDef)]
    return [each.name for each in functions if "classmethod" in map(ast.unparse, each.decorator_list)]
