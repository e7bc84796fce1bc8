# SPDX-License-Identifier: BSD-3-Clause
"""The page for C++ users: every function of Python is there under its name, or has a row or a reason."""

from __future__ import annotations

import inspect
import re
import sys
from operator import attrgetter
from pathlib import Path

import attnscale as at
import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "cpp.md"

if not PAGE.exists():
    pytest.skip("not a source tree", allow_module_level=True)

sys.path.append(str(ROOT / "docs" / "_ext"))
from _cpp_pages import read_header, read_index  # noqa: E402

CPP = ROOT / "cpp"
TESTS = [path.read_text(encoding="utf-8") for path in (CPP / "tests").glob("test_*.cpp")]
THERE, ALONE = PAGE.read_text(encoding="utf-8").split("## What there is")[1].split("## What Python has alone")


def declared(header: str) -> set[str]:
    """Names that a header declares, with their namespaces, which are names, too."""
    text = (CPP / "include" / "attnscale" / header).read_text(encoding="utf-8")
    found = {name for entry in read_header(text, header).entries for name in entry.names}
    return found | {name.partition("::")[0] for name in found}


DECLARED = set[str]().union(*map(declared, read_index((CPP / "README.md").read_text(encoding="utf-8"))))


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def is_tested(call: str) -> bool:
    return any(re.search(rf"\b{call}\b", text) for text in TESTS)


@pytest.mark.parametrize("row", rows(THERE), ids=lambda row: row[0])
def test_a_row_names_what_is_there(row: list[str]) -> None:
    (call,), (header,), (python, *_) = map(names, row)
    assert call in declared(header)
    assert is_tested(call.rpartition("::")[2])
    attrgetter(python)(at)


def functions() -> set[str]:
    found = {name for name in at.__all__ if inspect.isfunction(getattr(at, name))}
    for part in ("laws", "theory", "montecarlo", "variants"):
        module = getattr(at, part)
        found |= {f"{part}.{name}" for name in module.__all__ if inspect.isfunction(getattr(module, name))}
    return found


def in_cpp(name: str) -> str:
    """What a function of Python is called in C++ unless a row says otherwise."""
    module, _, call = name.rpartition(".")
    return f"montecarlo::{call}" if module == "montecarlo" else call


def test_every_function_has_its_name_a_row_or_a_reason() -> None:
    same = {name for name in functions() if in_cpp(name) in DECLARED}
    assert len(same) > 30
    assert all(is_tested(name.rpartition(".")[2]) for name in same)
    with_row = same | {name for row in rows(THERE) for name in names(row[2])}
    with_reason = {name for row in rows(ALONE) for name in names(row[0])}
    whole = {name.removesuffix("*") for name in with_reason if name.endswith("*")}
    left = {
        name
        for name in functions() - with_row - with_reason
        if not any(name.startswith(start) for start in whole)
    }
    assert not left
    gone = {name for name in with_reason - functions() if not name.endswith("*")}
    assert not gone


def test_the_program_of_the_page_is_that_of_the_tests() -> None:
    """The calls that the page shows are made by tests under these options."""
    shown = re.search(r"```cpp\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    tests = (ROOT / "cpp/tests/test_user_code.cpp").read_text(encoding="utf-8")
    for line in shown[1].splitlines():
        assert not line.startswith("auto ") or line in tests, line
