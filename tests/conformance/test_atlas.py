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

from tools.engines import run
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


def test_a_process_that_ends_is_followed_by_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    questions = list(at.conformance.QUESTIONS)[:3]
    calls: list[list[str]] = []

    def process(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command[5:])
        lines: list[dict[str, Any]] = [{"version": "1.0"}]
        status = 0
        for each in questions:
            if each not in calls[-1]:
                lines.append({"asked": each})
                if each == questions[1]:
                    status = -11
                    break
                lines.append({"answered": each, "says": "0", "surprising": False})
        Path(command[4]).write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        return subprocess.CompletedProcess(command, status, "", "")

    monkeypatch.setattr(subprocess, "run", process)
    version, answers = run.asked("torch", tmp_path)
    assert version == "1.0"
    assert {name: each["says"] for name, each in answers.items()} == dict(
        zip(questions, ["0", "ends the process", "0"], strict=True)
    )
    assert calls == [[], questions[:2]]


def test_an_engine_that_cannot_run_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nImportError: no /home/me/of/lib.so\n")

    monkeypatch.setattr(subprocess, "run", fails)
    monkeypatch.setattr(run, "installed", lambda *_: Path("folder"))
    kept: dict[str, Any] = {"engines": {}}
    assert run.run("torch", kept) == "torch: not run: ImportError: no lib.so"
    assert kept["engines"]["torch"]["not_run"] == "ImportError: no lib.so"
    assert "Not run: torch (ImportError: no lib.so)." in page({**kept, "questions": {}})
