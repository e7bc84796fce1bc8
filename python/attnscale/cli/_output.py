# SPDX-License-Identifier: BSD-3-Clause
"""Tables that a command writes beside what it prints."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._io import InputError
from .._table import to_csv

__all__ = ["add_csv_option", "refuse_two_outputs", "save_csv"]


def add_csv_option(parser: argparse.ArgumentParser, condition: str = "") -> None:
    """``--csv FILE``, the same in every command."""
    parser.add_argument("--csv", metavar="FILE", help=f"{condition}write CSV, to standard output for '-'")


def refuse_two_outputs(options: argparse.Namespace) -> None:
    """Before anything is computed: standard output takes JSON or CSV, not both."""
    if getattr(options, "json", False) and getattr(options, "csv", None) == "-":
        raise InputError("--json and --csv - both print to standard output: give one, or --csv a file")


def save_csv(path: str | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the file of ``--csv FILE``; '-' is standard output, which the command prints itself."""
    if path is not None and path != "-":
        Path(path).write_text(to_csv(rows), encoding="utf-8")
