# SPDX-License-Identifier: BSD-3-Clause
"""What a command says: its table as text, CSV or JSON, or one line about bad input."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .._io import InputError
from .._table import to_csv, to_json

__all__ = ["add_csv_option", "bad_input", "emit", "refuse_two_outputs"]


def add_csv_option(parser: argparse.ArgumentParser, condition: str = "") -> None:
    """``--csv FILE``, the same in every command."""
    parser.add_argument("--csv", metavar="FILE", help=f"{condition}write CSV, to standard output for '-'")


def refuse_two_outputs(options: argparse.Namespace) -> None:
    """Before anything is computed: standard output takes JSON or CSV, not both."""
    if getattr(options, "json", False) and getattr(options, "csv", None) == "-":
        raise InputError("--json and --csv - both print to standard output: give one, or --csv a file")


def emit(
    options: argparse.Namespace,
    text: str,
    rows: Sequence[Mapping[str, Any]] = (),
    report: Any = None,
) -> None:
    """Print a table as the options ask: for people, or as ``--json`` or ``--csv -``; write ``--csv FILE``.

    The rows are what CSV has, and JSON too where there is no report.
    """
    path = getattr(options, "csv", None)
    if path == "-":
        sys.stdout.write(to_csv(rows))
        return
    if path is not None:
        Path(path).write_text(to_csv(rows), encoding="utf-8")
    print(to_json(rows if report is None else report) if options.json else text)


@contextmanager
def bad_input(where: str = "", *also: type[Exception]) -> Iterator[None]:
    """What the library refuses in here is input that the caller can mend: one line and status 2.

    Only calls of the library go inside. A mistake of the command itself keeps its traceback.
    """
    refused: tuple[type[Exception], ...] = (ValueError, TypeError, *also)
    try:
        yield
    except InputError:
        raise
    except refused as error:
        raise InputError(f"{where}: {error}" if where else str(error)) from None
