# SPDX-License-Identifier: BSD-3-Clause
"""What every command does with its table and with bad input."""

from __future__ import annotations

import argparse
import ast
import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attnscale import cli
from attnscale._io import InputError
from attnscale.cli._main import build_parser
from attnscale.cli._output import Answer, bad_input, emit

ROWS = [{"n": 1, "value": 0.5}, {"n": 2, "value": 0.25}]
MODULES = sorted(Path(cli.__file__).parent.glob("*.py"))


def emitted(capsys: pytest.CaptureFixture[str], *, report: Any = None, **options: Any) -> str:
    emit(
        argparse.Namespace(**{"json": False, "csv": None, **options}), Answer("a table", ROWS, report=report)
    )
    return capsys.readouterr().out


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)


def test_a_table_goes_out_in_the_form_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert emitted(capsys) == "a table\n"
    assert json.loads(emitted(capsys, json=True)) == ROWS
    assert json.loads(emitted(capsys, json=True, report={"all": 1})) == {"all": 1}
    printed = emitted(capsys, csv="-")
    assert list(csv.DictReader(io.StringIO(printed))) == [
        {"n": "1", "value": "0.5"},
        {"n": "2", "value": "0.25"},
    ]
    path = tmp_path / "rows.csv"
    assert emitted(capsys, csv=str(path)) == "a table\n"
    assert path.read_text(encoding="utf-8") == printed
    assert json.loads(emitted(capsys, csv=str(path), json=True)) == ROWS


def test_csv_is_a_file_in_every_command() -> None:
    found = [
        action for parser in parsers(build_parser()) for action in parser._actions if action.dest == "csv"
    ]
    assert len(found) > 4
    assert {(action.metavar, action.nargs) for action in found} == {("FILE", None)}


def test_no_command_prints_a_format_by_itself() -> None:
    names = {
        module.name
        for module in MODULES
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and node.id in ("to_csv", "to_json")
    }
    assert names == {"_output.py"}


@pytest.mark.parametrize("error", [ValueError, TypeError, InputError])
def test_what_the_library_refuses_is_bad_input(error: type[Exception]) -> None:
    with pytest.raises(InputError, match=r"^n must be at least 1$"), bad_input():
        raise error("n must be at least 1")


def test_bad_input_says_where_and_takes_other_errors_by_name() -> None:
    with pytest.raises(InputError, match=r"^FILE: no module$"), bad_input("FILE", ImportError):
        raise ImportError("no module")
    with pytest.raises(ImportError), bad_input("FILE"):
        raise ImportError("no module")
    with pytest.raises(ZeroDivisionError), bad_input():
        raise ZeroDivisionError
