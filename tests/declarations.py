# SPDX-License-Identifier: BSD-3-Clause
"""Structs that the bindings declare beside those of an installed header: a compiler compares the two."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

__all__ = ["check_declarations"]

BINDINGS = Path(__file__).resolve().parents[1] / "cpp" / "bindings"


def check_declarations(
    folder: Path,
    *,
    own: tuple[str, str],
    theirs: tuple[str, str],
    structs: Mapping[tuple[str, str], str],
    numbers: Mapping[str, str],
) -> None:
    """Fail unless fields are at the same places, and numbers the same.

    Parameters
    ----------
    folder : Path
        Where a source file is written.
    own : tuple of str
        A header of the bindings, and its namespace.
    theirs : tuple of str
        The folder that a compiler searches, and the header in it.
    structs : mapping
        From a struct of ours and one of theirs to the names of their fields, "name" or "ours=theirs".
    numbers : mapping
        From the name of a number of ours to theirs.
    """
    compiler = shutil.which("g++") or shutil.which("clang++")
    if compiler is None or not BINDINGS.exists():
        pytest.skip("no compiler, or not a source tree")
    lines = [f"#include <{theirs[1]}>", "#include <cstddef>", f'#include "{BINDINGS / own[0]}"']
    lines.append(f"namespace own = {own[1]};")
    for (a, b), fields in structs.items():
        for field in fields.split():
            x, _, y = field.partition("=")
            lines.append(f"static_assert(offsetof(own::{a}, {x}) == offsetof({b}, {y or x}));")
            lines.append(f"static_assert(sizeof(own::{a}::{x}) == sizeof({b}::{y or x}));")
    lines += [f"static_assert(int(own::{a}) == int({b}));" for a, b in numbers.items()]
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wno-invalid-offsetof", "-I", theirs[0]]
    assert (said := _compile(folder, lines, command)) == "", said
    first = next(line for line in lines if "offsetof" in line)
    assert _compile(folder, [*lines, first.replace(" == ", " + 1 == ")], command) != ""


def _compile(folder: Path, lines: list[str], command: list[str]) -> str:
    """What the compiler says if it refuses the lines; else nothing."""
    source = folder / "compare.cpp"
    source.write_text("\n".join(lines), encoding="utf-8")
    found = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False)
    return found.stderr if found.returncode else ""
