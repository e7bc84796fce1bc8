# SPDX-License-Identifier: BSD-3-Clause
"""demo --export: commands of the documentation run in the exported folder."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "README.zh-CN.md", "docs/reference/command-line.md")
COMMANDS = sorted(
    {
        line.strip().removeprefix("$ ")
        for page in PAGES
        for line in (ROOT / page).read_text(encoding="utf-8").splitlines()
        if re.match(r" {4}(\$ )?attnscale ", line)
    }
)


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["demo", "--export", str(tmp_path / "new" / "demo")]) == 0
    said = capsys.readouterr().out
    for name in ("heads.npz", "config.json", "text.txt"):
        assert f"\n  {name} " in said
    assert "(replaced" not in said
    return tmp_path / "new" / "demo"


def test_the_documentation_has_commands() -> None:
    assert {command.split()[1] for command in COMMANDS} >= {"entropy", "laws", "audit", "mc"}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_documentation_run(
    command: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(folder)
    arguments = shlex.split(command)[1:]
    training = arguments[0] == "train"
    if training:  # takes hours: the list of what it trains is enough, which has nothing to keep
        pytest.importorskip("torch")
        (folder / "notebooks").symlink_to(ROOT / "notebooks")  # as in a clone, which has the studies
        if "--keep" in arguments:
            at_keep = arguments.index("--keep")
            del arguments[at_keep : at_keep + 2]
        if "--registration" in arguments:  # as the command before it writes one
            file = arguments[arguments.index("--registration") + 1]
            assert main([*arguments[:2], "--seeds", "10", "--register", file]) == 0
        if "--register" not in arguments:  # which trains nothing
            arguments.append("--list")
    assert main(arguments) == 0
    assert len(capsys.readouterr().out.splitlines()) > (0 if training or arguments[0] == "probe" else 2)


def test_what_the_files_hold(folder: Path) -> None:
    data = at.datasets.minilm_qk()
    with np.load(folder / "heads.npz") as heads:
        np.testing.assert_array_equal(heads["query"], data.query)
        np.testing.assert_array_equal(heads["key"], data.key)
    plan = at.audit.resolve(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    assert plan.model_type == "ministral3"
    assert len(plan.layers) == 34
    text = (folder / "text.txt").read_text(encoding="utf-8")
    assert "a python program is constructed from code blocks" in text
    assert "##" not in text
    assert len(text.split()) > 350


def test_the_config_is_understood(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(folder / "config.json")]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "yarn(factor=16, mscale=1, mscale_all_dim=1): 1.0000000" in captured.out
    assert "ministral_temperature(beta=0.1, length=16384)" in captured.out


def test_nothing_is_replaced_without_a_word(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "text.txt").write_text("my own", encoding="utf-8")
    assert main(["demo", "--export", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if "text.txt" in line).endswith("(replaced: it had 6 bytes)")


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert main(["demo", "--export", str(tmp_path / "file" / "demo")]) == 2
    assert "attnscale: error: " in capsys.readouterr().err
