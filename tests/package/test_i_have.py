# SPDX-License-Identifier: BSD-3-Clause
"""docs/i-have.md and how-to pages: every call and command runs, and prints what the page says."""

from __future__ import annotations

import doctest
import re
import shlex
from operator import attrgetter
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "i-have.md"
LONG = ROOT / "docs" / "how-to" / "long-context.md"

if not PAGE.exists():
    pytest.skip("not a source tree", allow_module_level=True)

TEXT = PAGE.read_text(encoding="utf-8")
BEGIN, *SECTIONS = re.split(r"^## ", TEXT, flags=re.MULTILINE)


def commands(text: str) -> dict[str, str]:
    """Commands of a page, each with the output below it."""
    found = re.findall(r"^```console\n\$ attnscale ([^\n]*)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    return dict(found)


COMMANDS = commands(TEXT)
COMMANDS_OF_LONG = commands(LONG.read_text(encoding="utf-8"))
#: Other how-to pages whose commands need no file but those of the fixture.
OTHERS = [LONG.with_name(f"{name}.md") for name in ("measure-a-model", "report", "run-an-experiment")]
COMMANDS_OF_OTHERS = commands("".join(page.read_text(encoding="utf-8") for page in OTHERS))
SHOWN = COMMANDS | COMMANDS_OF_LONG | COMMANDS_OF_OTHERS


def run_calls(sections: list[str]) -> int:
    """Runs the examples of the sections, after those that begin the page; returns how many."""
    test = doctest.DocTestParser().get_doctest("".join([BEGIN, *sections]), {}, PAGE.name, str(PAGE), 0)
    result = doctest.DocTestRunner().run(test)
    assert result.failed == 0
    return result.attempted


def needs_torch(section: str) -> bool:
    return "torch" in section


def needs_jax(section: str) -> bool:
    return "jax" in section


def test_calls_print_what_the_page_says() -> None:
    assert run_calls([each for each in SECTIONS if not (needs_torch(each) or needs_jax(each))]) > 20


@pytest.mark.torch
def test_calls_with_tensors_print_what_the_page_says() -> None:
    pytest.importorskip("torch")
    assert run_calls([section for section in SECTIONS if needs_torch(section)]) > 10


@pytest.mark.jax
def test_calls_with_arrays_of_jax_print_what_the_page_says() -> None:
    pytest.importorskip("jax")
    assert run_calls([section for section in SECTIONS if needs_jax(section)]) > 5


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["demo", "--export", str(tmp_path)]) == 0
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    causal = at.datasets.causal_qk()  # what the calls of the second page write
    np.savez("causal.npz", query=causal.query, key=causal.key, layers=causal.layers, heads=causal.heads)
    return tmp_path


# Loading the model takes four seconds; transformers and torch warn about their own affairs meanwhile.
with_model = [pytest.mark.torch, pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=with_model if "checkpoint" in each else []) for each in SHOWN]
)
def test_commands_print_what_the_page_says(
    command: str, folder: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    if "checkpoint" in command:
        (folder / "checkpoint").symlink_to(request.getfixturevalue("minilm"))
    assert main(shlex.split(command)) == 0
    said, shown = capsys.readouterr().out, SHOWN[command]
    same = doctest.OutputChecker().check_output(shown, said, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert same, f"the page has\n{shown}\nthe command prints\n{said}"


def test_calls_of_the_page_on_long_texts_print_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of the page write the file that its commands read."""
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(LONG), module_relative=False, encoding="utf-8")
    assert result.failed == 0
    assert result.attempted > 8
    assert list(tmp_path.iterdir()) == [tmp_path / "causal.npz"]


def test_the_page_on_long_texts_is_short_and_goes_through_the_steps() -> None:
    assert [each.split()[0] for each in COMMANDS_OF_LONG] == ["audit", "diagnose", "report", "calibrate"]
    assert len(LONG.read_text(encoding="utf-8").split()) <= 1000


def test_other_pages_show_a_command_each() -> None:
    assert [each.split()[0] for each in COMMANDS_OF_OTHERS] == ["diagnose", "report", "mc"]


def test_the_page_has_commands() -> None:
    assert {each.split()[0] for each in COMMANDS} == {
        *("entropy", "diagnose", "report", "audit", "explain", "theory")
    }


def test_the_table_leads_to_every_section() -> None:
    titles = [section.partition("\n")[0] for section in SECTIONS]
    anchors = [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]
    assert re.findall(r"^\| \[[^]]+\]\(#([\w-]+)\) \|", BEGIN, flags=re.MULTILINE) == anchors


def test_calls_of_the_table_exist() -> None:
    names = [name for name in re.findall(r"`at\.([\w.]+)", BEGIN) if not name.startswith(("jax.", "torch."))]
    assert len(names) > 5
    for name in names:
        assert callable(attrgetter(name)(at))


def test_the_call_of_cpp_is_one_of_the_tests_and_prints_what_the_kernels_give() -> None:
    """Kernels that the example calls, from Python; `make test` runs the example itself."""
    section = SECTIONS[-1]
    shown: Any = re.search(r"```cpp\n(.*)\n```", section)
    assert shown[1] in (ROOT / "cpp/tests/test_user_code.cpp").read_text(encoding="utf-8")
    entropy = at.attention_entropy(
        np.full((1000, 64), 0.25, np.float32), np.full((1000, 64), 0.5, np.float32), is_causal=True
    )
    lines = re.search(r"```text\n(.*?)```", section, flags=re.DOTALL)
    assert lines is not None
    assert lines[1].splitlines() == [
        f"n = {n:4d}: entropy {entropy[n - 1]:.6f} nats, ln n = {np.log(n):.6f}" for n in (1, 10, 100, 1000)
    ]
