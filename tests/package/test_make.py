# SPDX-License-Identifier: BSD-3-Clause
"""``make help`` lists every target with a text, and the makefiles hold no programs."""

from __future__ import annotations

import doctest
import re
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = ROOT / "Makefile"
FILES = [MAKEFILE, *sorted((ROOT / "mk").glob("*.mk"))]

if not MAKEFILE.exists() or shutil.which("make") is None:
    pytest.skip("not a source tree, or no make", allow_module_level=True)


def printed(*words: str) -> str:
    """Output of make, which builds nothing here."""
    return subprocess.run(("make", *words), cwd=ROOT, capture_output=True, text=True, check=True).stdout


def listed(text: str) -> list[str]:
    """Targets of a list, whose texts begin in one column."""
    return [name for line in text.splitlines() if line.startswith("  ") for name in line[2:24].split()]


def test_make_alone_prints_the_list() -> None:
    assert printed() == printed("help")


def test_every_target_stands_in_the_list_once() -> None:
    phony = [
        name
        for file in FILES
        for names in re.findall(r"^\.PHONY: (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        for name in names.split()
    ]
    assert len(phony) == len(set(phony)) > 30
    assert sorted(listed(printed("help"))) == sorted(phony)


def test_the_list_is_aligned_and_in_groups() -> None:
    lines = printed("help").splitlines()
    rows = [line for line in lines if line.startswith("  ")]
    assert all(line[24] == " " != line[25] for line in rows)
    assert max(map(len, rows)) <= 110
    headings = [line for line, before in zip(lines[1:], lines, strict=False) if before == "" and line]
    assert headings[0] == "Main targets"
    assert len(headings) == 7


def test_makefiles_are_short_and_hold_no_programs() -> None:
    assert len(MAKEFILE.read_text(encoding="utf-8").splitlines()) <= 150
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= 150, file
        assert not re.search(r"python3?\)? -c\b", text), file


def test_the_other_levels_and_the_tests_that_each_selects() -> None:
    scope = runpy.run_path(str(ROOT / "scripts" / "other_levels.py"))
    found = doctest.DocTestFinder().find(scope["others"], "others", globs=scope)
    results = [doctest.DocTestRunner().run(each) for each in found]
    assert [(each.failed, each.attempted) for each in results] == [(0, 1)]
    assert scope["others"]("avx2", ["avx2", "avx512_bf16"]) == ["avx512_bf16:"]
