# SPDX-License-Identifier: BSD-3-Clause
"""The page of engines says what was run, and no more."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import attnscale as at
import pytest

from tools.engines import run, worker
from tools.engines.page import ANSWERS, PAGE, page

KEPT: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))
ENGINES = {name: each for name, each in KEPT["engines"].items() if each["releases"]}


def test_the_page_is_written_from_the_answers() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(KEPT), "run python -m tools.engines.page"


@pytest.mark.parametrize("number", range(len(KEPT["questions"])))
def test_a_changed_answer_changes_the_page(number: int) -> None:
    """Each question is planted in another engine."""
    changed = copy.deepcopy(KEPT)
    each = changed["engines"][list(ENGINES)[number % len(ENGINES)]]
    newest = [*each["releases"].values()][-1]
    newest[list(KEPT["questions"])[number]] = {"says": "planted", "surprising": True}
    assert "**planted**" in page(changed)


def test_enough_is_asked() -> None:
    assert len(KEPT["questions"]) >= 14
    told = {
        name: sum(
            not answer["says"].startswith(("refused", "none"))
            for answer in [*each["releases"].values()][-1].values()
        )
        for name, each in ENGINES.items()
    }
    assert sum(number >= 14 for number in told.values()) >= 22


def test_the_answers_are_to_the_questions_of_the_package() -> None:
    assert KEPT["questions"] == run.questions()
    for name, each in ENGINES.items():
        for release, answers in each["releases"].items():
            assert set(answers) == set(KEPT["questions"]), (name, release)


def test_surprises_are_those_of_the_rules() -> None:
    for each in ENGINES.values():
        for answers in each["releases"].values():
            for question, answer in answers.items():
                usual = (*KEPT["questions"][question]["usual"], "none")
                is_told = not answer["says"].startswith(("refused", "error"))
                assert answer["surprising"] == (is_told and answer["says"] not in usual), (question, answer)


def test_no_question_ends_an_engine() -> None:
    says = [x["says"] for each in ENGINES.values() for y in each["releases"].values() for x in y.values()]
    assert [each for each in says if "process" in each or "no answer" in each] == []


def test_releases_are_compared(tmp_path: Path) -> None:
    changed = copy.deepcopy(KEPT)
    name, each = next(iter(changed["engines"].items()))
    version, answers = [*each["releases"].items()][-1]
    before = copy.deepcopy(answers)
    before["second_call"] = {"says": "differs", "surprising": True}
    each["releases"] = {"0.0": before, version: answers}
    assert f"- {name} 0.0 → {version}: *The call again* second call: differs → same bits." in page(changed)


def test_a_release_that_refuses_is_a_change() -> None:
    changed = copy.deepcopy(KEPT)
    name, each = next(iter(changed["engines"].items()))
    version, answers = [*each["releases"].items()][-1]
    after = copy.deepcopy(answers) | {"second_call": {"says": "refused: it is the last", "surprising": False}}
    each["releases"] = {"0.0": answers, version: after}
    assert f"- {name} 0.0 → {version}: *The call again* second call: same bits → refused." in page(changed)


#: Questions whose answers differ between the releases of PyTorch that were run.
DIFFER = ("mask_and_causal", "emptied_jointly")


@pytest.mark.torch
@pytest.mark.parametrize("name", ["torch", "torch-onnx"])
def test_the_installed_pytorch_gives_its_own_answers(name: str) -> None:
    engine, releases = at.conformance.engines.find_engine(name), ENGINES[name]["releases"]
    assert engine.run_with == ", ".join(releases)
    if engine.installed not in releases:
        pytest.skip(f"answers are kept of PyTorch {engine.run_with}, not of {engine.installed}")
    found = at.conformance.ask(engine, names=DIFFER)
    assert {x: each.says for x, each in found.items()} == {
        x: releases[engine.installed][x]["says"] for x in DIFFER
    }


@pytest.mark.torch
def test_the_answers_of_a_process_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The process of the engine writes what `ask` finds."""
    names = list(at.conformance.QUESTIONS)[:2]
    whole = at.conformance.ask
    monkeypatch.setattr(
        at.conformance, "ask", lambda engine, **options: whole(engine, names=names, **options)
    )
    worker.main("torch", str(tmp_path / "answers"))
    written = (tmp_path / "answers").read_text(encoding="utf-8")

    def process(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        Path(command[4]).write_text(written, encoding="utf-8")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", process)
    version, answers = run.asked("torch", tmp_path)
    assert version == at.conformance.engines.find_engine("torch").installed
    assert {name: each["says"] for name, each in answers.items()} == {
        name: each.says for name, each in whole("torch", names=names).items()
    }


def test_an_engine_that_cannot_run_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nImportError: no /home/me/of/lib.so\n")

    monkeypatch.setattr(subprocess, "run", fails)
    monkeypatch.setattr(run, "installed", lambda *_: Path("folder"))
    kept: dict[str, Any] = {"engines": {}}
    assert run.run("torch", kept) == "torch: not run: ImportError: no lib.so"
    assert kept["engines"]["torch"]["not_run"] == "ImportError: no lib.so"
    assert "Not run: torch (ImportError: no lib.so)." in page({**kept, "questions": {}})
