# SPDX-License-Identifier: BSD-3-Clause
"""The code that the record of frameworks rests on, in wheels that are written here; no network is needed."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import attnscale as at
import pytest

from tools.audit import frameworks, wheels

PLACES: dict[str, Any] = json.loads(frameworks.PLACES.read_text(encoding="utf-8"))

CODE = '''\
"""A file of a framework."""


class Rotary:
    def __init__(self, factor, attention_factor=None):
        # what a comment says does not matter
        self.scale = attention_factor or factor


def get_rope(config):
    keys = ("factor", "mscale")
    return Rotary(**{key: config[key] for key in keys})
'''
FILE = "engine/rope.py"


def wheel(code: str | None, file: str = FILE) -> zipfile.ZipFile:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as written:
        written.writestr("engine/__init__.py", "")
        if code is not None:
            written.writestr(file, code)
    return zipfile.ZipFile(content)


def known(release: str = "1.2.0") -> dict[str, Any]:
    """The record of a package, made from the code above."""
    places: list[dict[str, Any]] = [
        {"file": FILE, "name": "get_rope", "has": ["mscale"], "lacks": ['"attention_factor"']},
        {
            "file": FILE,
            "name": "Rotary.__init__",
            "has": ["attention_factor"],
            "lacks": ['"attention_factor"'],
        },
        {"file": FILE},
        {"file": FILE, "name": "qwen"},
    ]
    return {"release": release, "places": [frameworks._stored(wheel(CODE), each) for each in places]}


def lines(code: str | None, release: str = "1.2.0") -> tuple[list[str], bool]:
    return frameworks.report(release, known(), wheel(code))


def test_the_same_code() -> None:
    assert lines(CODE) == (["release 1.2.0: as on record"], False)
    assert lines(CODE, "1.1.9") == (["release 1.1.9: as on record"], False)


def test_comments_and_layout_do_not_count() -> None:
    other = CODE.replace("# what a comment says", "# a comment").replace("(factor, ", "(\n    factor, ")
    other = other.replace('("factor", "mscale")', '(\n        "factor",  "mscale")\n')
    assert other != CODE
    assert lines(other)[1] is False


def test_a_newer_release() -> None:
    said = "release 1.10.0 is newer than 1.2.0, the last on record"
    assert lines(CODE, "1.10.0") == ([said], True)


@pytest.mark.parametrize(
    ("old", "new", "place", "keys"),
    [
        ('"mscale")', '"mscale", "attention_factor")', "get_rope", ': now with "attention_factor"'),
        ('"factor", "mscale"', '"factor", "weight"', "get_rope", ": now without mscale"),
        ("config[key]", "config.get(key)", "get_rope", ""),
        ("attention_factor or factor", "factor", "Rotary.__init__", ""),
        ("attention_factor", "weight", "Rotary.__init__", ": now without attention_factor"),
    ],
)
def test_a_change_of_a_function_is_seen(old: str, new: str, place: str, keys: str) -> None:
    found, is_behind = lines(CODE.replace(old, new))
    assert found == [f"changed  {FILE} {place}{keys}", f"changed  {FILE}"]
    assert is_behind


def test_code_that_is_gone_or_back() -> None:
    gone = [f"gone     {FILE} get_rope", f"gone     {FILE} Rotary.__init__", f"gone     {FILE}"]
    assert lines(None) == (gone, True)
    moved = CODE.replace("def get_rope", "def rope")
    assert lines(moved) == ([gone[0], f"changed  {FILE}"], True)
    back = f"{CODE}\n\ndef qwen():\n    pass\n"
    assert lines(back) == ([f"changed  {FILE}", f"back     {FILE} qwen"], True)


def test_of_a_file_only_parts_are_loaded() -> None:
    content = bytes(range(256)) * 8192  # 2 MiB, not to be packed
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_STORED) as written:
        for name, each in (("a.py", b"a = 1\n"), ("large.so", content), ("b.py", b"b = 2\n")):
            written.writestr(name, each)
    asked: list[int] = []

    def part(start: int, stop: int) -> bytes:
        asked.append(stop - start)
        return whole.getvalue()[start:stop]

    size = len(whole.getvalue())
    read = zipfile.ZipFile(io.BufferedReader(wheels.Parts(size, part)))
    assert (read.read("a.py"), read.read("b.py")) == (b"a = 1\n", b"b = 2\n")
    assert sum(asked) < size / 2
    assert read.read("large.so") == content


def test_an_index_without_ranges_sends_the_whole_wheel(tmp_path: Path) -> None:
    file = tmp_path / "engine-1.2.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as written:
        written.writestr(FILE, CODE)
    assert wheels.opened(file.as_uri()).read(FILE).decode() == CODE


@pytest.mark.parametrize("package", PLACES)
def test_the_places_are_those_of_the_record(package: str) -> None:
    """Same release, and every file that was read has a place; a file without a digest was gone."""
    framework = at.audit.FRAMEWORKS[package]
    assert PLACES[package]["release"] == framework.newest
    files = {each["file"] for each in PLACES[package]["places"]}
    for defect in framework.defects:
        if any(each.how == "read" for each in defect.seen) and not defect.reference.startswith("https:"):
            assert defect.reference.removesuffix(" and others") in files
    for each in PLACES[package]["places"]:
        assert set(each) <= {"file", "name", "has", "lacks", "digest"}
        assert re.fullmatch("[0-9a-f]{16}", each.get("digest", "0" * 16))
    gone = {each["file"] for each in PLACES[package]["places"] if "digest" not in each}
    assert bool(gone) == any(defect.gone for defect in framework.defects)
