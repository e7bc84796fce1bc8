# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale conformance``: slips of other engines, and their answers to open questions."""

from __future__ import annotations

import argparse
from typing import Any, NamedTuple

from .. import conformance
from .._base.checks import InputError
from ..conformance.engines import Engine
from ._options import Parser, add_option, add_outputs
from ._output import Answer, bad_input, left_out

DESCRIPTION = """\
Runs engines that have a ready adapter through calls with known answers, and names slips; then asks questions
that documents leave open, such as what a row without keys holds. An answer marked ! departs from what most
expect, with the reason below the table. The packages of the engines must be installed. Engines run in
processes of their own: a call that ends one is an error of its case alone.
"""
#: Most letters in the lines of a table.
_WIDTH = 110
#: Options without effect beside --list.
_OF_RUNS = ("seed", "dtype", "html", "csv")


def add_options(parser: Parser) -> None:
    """Add the options of ``attnscale conformance``."""
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help="name of a ready adapter, as torch")
    add_option(parser, "--list", help="print the ready adapters, and what is installed, and stop")
    add_option(
        parser, "--seed", help="seed of sizes, numbers and order (default: a fresh one, which is told)"
    )
    add_option(parser, "--dtype", help="type of the arrays (default: float32)")
    add_option(parser, "--html")
    add_outputs(parser, plot=False)


class _Found(NamedTuple):
    """An engine, the report of its cases, and its answers."""

    engine: Engine
    report: conformance.Conformance
    answers: dict[str, conformance.Answer]


def run(options: argparse.Namespace) -> Answer:
    """Run the engines, or list the adapters."""
    if options.list or options.engines == ["list"]:
        if options.list and options.engines:
            raise InputError("ENGINE must be left out with --list: it has no effect there")
        left_out(options, "--list", _OF_RUNS)
        return _listed()
    if not options.engines:
        raise InputError("give the name of an engine; attnscale conformance --list shows them")
    with bad_input():
        chosen = [conformance.engines.find_engine(name) for name in options.engines]
    with bad_input("", ImportError):
        for engine in chosen:
            engine.need()
    found = [_run(engine, options) for engine in chosen]
    return Answer(
        "\n\n".join(map(_text, found)),
        [row for each in found for row in _rows(each)],
        report={"schema": "attnscale.conformance/1", "engines": [*map(_content, found)]},
        page=lambda: _page(found),
    )


def _listed() -> Answer:
    from .._base.text import to_text

    rows = [
        {
            "engine": each.name,
            "installed": each.installed,
            "run with": each.run_with,
            "package": each.package,
            "call": each.call,
        }
        for each in conformance.engines.engines().values()
    ]
    cells = [[str(x or "-") for x in row.values()] for row in rows]
    return Answer(to_text([*rows[0]], cells), rows)


def _run(engine: Engine, options: argparse.Namespace) -> _Found:
    dtype = options.dtype or "float32"
    drawn: dict[str, Any] = {} if options.seed is None else {"seed": options.seed}
    with bad_input(engine.name):
        report = conformance.check(engine, dtype=dtype, isolate=True, **drawn)
        return _Found(engine, report, conformance.ask(engine, dtype=dtype, isolate=True))


def _table(found: _Found) -> tuple[list[str], list[list[str]], list[str]]:
    """Header, rows, and a note for each reason of a surprise."""
    rows = [[name, each.says, "!" if each.surprising else ""] for name, each in found.answers.items()]
    notes = [f"! {name}: {each.why}" for name, each in found.answers.items() if each.surprising]
    return ["question", "answer", ""], rows, notes


def _title(found: _Found) -> str:
    engine = found.engine
    package = "" if engine.package == engine.name else f" ({engine.package})"
    return f"{engine.name} {engine.installed}{package}: {engine.call}"


def _text(found: _Found) -> str:
    from .._base.text import to_text

    header, rows, notes = _table(found)
    return "\n".join([_title(found), str(found.report), "", to_text(header, rows, width=_WIDTH), *notes])


def _page(found: list[_Found]) -> str:
    """One HTML page, which needs no other file."""
    import html

    from .._base.text import to_html

    parts = [
        "<!doctype html>",
        '<html lang="en">',
        '<meta charset="utf-8">',
        "<title>attnscale conformance</title>",
    ]
    parts.append(
        "<style>body{font:15px sans-serif;margin:2em}td,th{text-align:left;padding:.1em 1em}</style>"
    )
    for each in found:
        header, rows, notes = _table(each)
        parts += [f"<h1>{html.escape(_title(each))}</h1>", f"<pre>{html.escape(str(each.report))}</pre>"]
        parts.append(to_html("Answers to questions that documents leave open", header, rows, notes))
    return "\n".join([*parts, "</html>", ""])


def _rows(found: _Found) -> list[dict[str, Any]]:
    """A row for each answer."""
    head = {"engine": found.engine.name, "version": found.engine.installed}
    return [{**head, "name": name, **vars(each)} for name, each in found.answers.items()]


def _content(found: _Found) -> dict[str, Any]:
    return {
        **found.report.to_dict(),
        "engine": found.engine.name,
        "package": found.engine.package,
        "version": found.engine.installed,
        "call": found.engine.call,
        "report": str(found.report).splitlines(),
        "answers": {name: vars(each) for name, each in found.answers.items()},
    }
