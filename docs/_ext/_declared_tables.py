# SPDX-License-Identifier: BSD-3-Clause
"""Lists of experiments, options, engines and reports, generated from their declarations."""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
from collections import Counter
from pathlib import Path

import studies
from attnscale import laws, reference, theory, variants
from attnscale.audit import FRAMEWORKS
from attnscale.audit._rules.remote import DIFFUSERS, REMOTE
from attnscale.cli import build_parser
from attnscale.cli._options import OPTIONS
from attnscale.exact.lse_conventions import _ENGINES
from attnscale.laws._registry import class_of
from attnscale.montecarlo._experiment import DECLARATIONS
from attnscale.probe._families import FAMILY
from attnscale.probe._gguf.families import FAMILIES as GGUF_FAMILIES


def declared_texts():
    """The text of each file to include."""
    header = ["| function | about | estimates | exact value |", "|---|---|---|---|"]
    engines = ["| name | what its lse is | seen in |", "|---|---|---|"]
    engines += [f"| `{name}` | {known.convention} | {known.source} |" for name, known in _ENGINES.items()]
    return {
        "engines.md": "\n".join(engines),
        "montecarlo.md": "\n".join([*header, *map(_row, DECLARATIONS)]),
        "experiments.md": "\n".join(["```{eval-rst}", *map(_study, _studies()), "```"]),
        "options.md": _options(),
        "frameworks.md": _frameworks(),
        "audit-remote.md": _models("model_type", REMOTE),
        "audit-diffusers.md": _models("_class_name", DIFFUSERS),
        "audit-scan.md": _scanned(),
        "probe-families.md": _probed(),
        "law-classes.md": _by_module("attnscale.laws", _law_classes()),
        "twins.md": _by_module("attnscale.reference", _public(reference)),
        "theory.md": _by_module("attnscale.theory", _public(theory)),
        "variants.md": _by_module("attnscale.variants", _public(variants)),
    }


def _law_classes():
    return [law for law in map(class_of, laws.names()) if law is not None]


def _public(module):
    """Functions and classes of a module, by file."""
    found = [getattr(module, name) for name in module.__all__]
    return sorted(filter(callable, found), key=lambda each: each.__module__)


def _by_module(package, members):
    """Directives for members of a package, under the first line of each of its files."""
    files = {}
    for each in members:
        files.setdefault(each.__module__, []).append(_directive(each))
    parts = []
    for name, lines in files.items():
        title = sys.modules[name].__doc__.strip().splitlines()[0].rstrip(".")
        body = "\n".join([f".. currentmodule:: {package}", "", *lines])
        parts.append(f"### {title}\n\n```{{eval-rst}}\n{body}\n```")
    return "\n\n".join(parts)


def _directive(what):
    """A directive for a function, or for a class with the members that it adds to its base."""
    if not inspect.isclass(what):
        return f".. autofunction:: {what.__name__}"
    known = {each for base in what.__mro__[1:] for each in vars(base)}
    own = [name for name, each in vars(what).items() if inspect.isroutine(each) or isinstance(each, property)]
    own = [name for name in own if name == "__call__" or (not name.startswith("_") and name not in known)]
    return f".. autoclass:: {what.__name__}" + (f"\n   :members: {', '.join(own)}" if own else "")


def _options():
    """Every option of the command line, with its commands."""
    commands = build_parser()._subparsers._group_actions[0].choices
    rows = ["| option | meaning | commands |", "|---|---|---|"]
    for option in OPTIONS.values():
        users = [name for name, parser in commands.items() if option.flag in _flags(parser)]
        value = option.metavar or ("" if option.kind is None else "NAME")
        form = " ".join(filter(None, [option.flag, value, "..." if option.several else ""]))
        where = "all" if len(users) == len(commands) else ", ".join(users)
        choices = f": {', '.join(option.choices)}" if option.choices else ""
        short = f"; also `{option.short}`" if option.short else ""
        rows.append(f"| `{form}` | {option.meaning}{choices}{short} | {where} |")
    return "\n".join(rows)


def _flags(parser):
    """Long spellings of the options of a command and of its subcommands."""
    found = {action.option_strings[-1] for action in parser._actions if action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found = found.union(*map(_flags, action.choices.values()))
    return found


def _frameworks():
    """Every record of a framework, with its source, its releases and the fix."""
    head = ("name", "what it computes instead", "in", "source", "releases", "mended")
    rows = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, framework in FRAMEWORKS.items():
        for each in framework.defects:
            versions = "" if each.versions == "releases not known" else each.versions
            mended = "there" if each.mended == each.reference else _thread(each.mended)
            cells = (f"`{name}`", each.what, each.config["model_type"], _thread(each.reference), versions)
            rows.append(f"| {' | '.join([*cells, mended])} |")
    return "\n".join(rows)


def _models(key, rows):
    """Models whose rules were read from code that no test runs, by the key of their config."""
    lines = [f"| models | {key} | scale |", "|---|---|---|"]
    for row in rows:
        types = ", ".join(f"`{kind}`" for kind in row.family.types)
        lines.append(f"| {row.models} | {types} | {row.rule} |")
    return "\n".join(lines)


def _probed():
    """Model types that a probe can be written for, with the architecture of their GGUF files."""
    architectures = {kind: row.architecture for row in GGUF_FAMILIES for kind in row.types.split()}
    lines = ["| model_type | class | GGUF |", "|---|---|---|"]
    for kind, family in FAMILY.items():
        name = f"`{architectures[kind]}`" if kind in architectures else "none"
        lines.append(f"| `{kind}` | `{family.architecture}` | {name} |")
    return "\n".join(lines)


def _scanned():
    """The stored result of the last ``make audit-scan``."""
    file = Path(studies.__file__).resolve().parents[2] / "tools" / "audit" / "coverage.json"
    found = json.loads(file.read_text(encoding="utf-8"))
    types, configs = (Counter(found[name]) for name in ("types", "configs"))
    known = sum(types[name] for name in ("compared", "refused", "not built", "not measured"))
    answered = sum(configs[name] for name in ("agrees", "refused", "warned", "wrong"))
    waiting = f"{types['not measured']} were not run yet." if types["not measured"] else ""
    return f"""\
With transformers {found["transformers"]}, {types["compared"]} of the {known} model types that hold a language
model were compared. {types["refused"]} more are refused, since their scale is a weight, and
{types["not built"]} take images, sound or another model's output, or cannot be built small on their own.
{waiting} Of {answered} configs {configs["agrees"]} agree, {configs["refused"]} are refused with a reason,
{configs["warned"]} come with a warning, and {configs["wrong"]} have a wrong answer.
From {configs["not built"]} more the classes or the code make no model. {types["a composite"]} types are
composites of others. {types["not known"]} types have no language model: they are read by their
keys, with a warning."""


def _thread(address):
    """A link named by the repository and the number of the thread, or by the commit; a file as code."""
    if not address.startswith("https:"):
        return f"`{address}`" if address else ""
    repository, kind, which = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)/(\w+)/(\w+)", address).groups()
    return f"[commit {which[:8]}]({address})" if kind == "commit" else f"[{repository} {which}]({address})"


def _row(name):
    declared = DECLARATIONS[name]
    estimates = ", ".join(f"`{quantity}`" for quantity in declared.quantities)
    link = f"{{func}}`~attnscale.montecarlo.{name}`"
    return f"| {link} | {declared.subject} | {estimates} | {declared.known} |"


def _studies():
    """Files of the studies, read as text because importing them needs PyTorch."""
    folder = Path(studies.__file__).parent
    return sorted(folder.glob("[a-z]*.py"))


def _study(path):
    """A study with its designs."""
    name = path.stem.title().replace("_", "")
    designs = ", ".join(_class_methods(path, name))
    return f".. autoclass:: studies.{path.stem}.{name}\n   :members: {designs}\n"


def _class_methods(path, name):
    """Names of the class methods of a class in a file; for a study these are its designs."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    functions = [node for node in found.body if isinstance(node, ast.FunctionDef)]
    return [each.name for each in functions if "classmethod" in map(ast.unparse, each.decorator_list)]
