# SPDX-License-Identifier: BSD-3-Clause
"""The table "tested with" of docs/installation.md, from the records of both ends."""

from __future__ import annotations

import json
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

from tools.mutants.tree import ROOT

__all__ = ["PAGE", "note", "read_table", "rows", "table", "write_table"]

PAGE = ROOT / "docs" / "installation.md"
_MARKED = re.compile(r"(<!-- tested with: begin -->\n).*?(<!-- tested with: end -->)", re.DOTALL)
_COLUMNS = ("oldest", "usual", "newest")
_EXTRAS = ("plot", "sweep", "torch", "jax")
#: Packages that the table has besides those that pyproject.toml names for users.
_MORE = ("triton", "scikit-learn", "pandas", "pybind11", "xsimd", "xtensor")


def rows() -> list[str]:
    """Packages of the table: Python, what users install, and what the build takes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    lines = [*project["project"]["dependencies"], *(line for extra in _EXTRAS for line in extras[extra])]
    bare = [re.split(r"[\[<>=~!; ]", line)[0].lower().replace("_", "-") for line in lines]
    return list(dict.fromkeys(("python", *bare, *_MORE)))


def read_table(page: str) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Versions by column and package, of the table that a page has, and the notes below it by column."""
    marked = _MARKED.search(page)
    if marked is None:
        raise SystemExit('the page has no markers "tested with: begin" and "tested with: end"')
    found = re.findall(
        r"^\| (?!package )([\w-]+) \| ([^|]*) \| ([^|]*) \| ([^|]*) \|$", marked[0], re.MULTILINE
    )
    columns = dict[str, dict[str, str]]((column, {}) for column in _COLUMNS)
    for name, *versions in found:
        for column, version in zip(_COLUMNS, versions, strict=True):
            columns[column][name] = version.strip()
    return columns, dict(re.findall(r"^- ([a-z]+): (.*)$", marked[0], re.MULTILINE))


def note(record: dict[str, Any]) -> str:
    """The outcome that a record has, in a line."""
    found = Counter(package for _, package, _ in record["failures"])
    failed = ", ".join(f"{count} of {package}" for package, count in found.most_common())
    return f"{record['date']}, {record['count']} tests, failed: {failed or 'none'}"


def table(columns: dict[str, dict[str, str]], notes: dict[str, str]) -> str:
    """Lines of the table and of the notes; a package that an end does not have gets a dash."""
    lines = [f"| package | {' | '.join(_COLUMNS)} |", f"|{'---|' * (1 + len(_COLUMNS))}"]
    for name in rows():
        cells = (columns[column].get(name, "").partition("+")[0] or "-" for column in _COLUMNS)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += ["", *(f"- {column}: {notes[column]}" for column in _COLUMNS if column in notes)]
    return "\n".join(lines) + "\n"


def write_table(records: dict[str, Path], usual: dict[str, str], page: Path = PAGE) -> str:
    """Write the table into the page, and return it; a column without a record of a whole run stays."""
    text = page.read_text("utf-8")
    columns, notes = read_table(text)
    columns["usual"] = usual
    for column, path in records.items():
        if path.exists():
            record = json.loads(path.read_text("utf-8"))
            if record["whole"]:
                columns[column], notes[column] = record["versions"], note(record)
    written = table(columns, notes)
    page.write_text(_MARKED.sub(lambda found: found[1] + written + found[2], text), encoding="utf-8")
    return written
