# SPDX-License-Identifier: BSD-3-Clause
"""Tables that a command writes beside what it prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .._table import to_csv

__all__ = ["save_csv"]


def save_csv(path: str | None, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the file of ``--csv FILE``; '-' is standard output, which the command prints itself."""
    if path is not None and path != "-":
        Path(path).write_text(to_csv(rows), encoding="utf-8")
