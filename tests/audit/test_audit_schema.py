# SPDX-License-Identifier: BSD-3-Clause
"""Output of ``attnscale audit --json`` against its JSON Schema; fields without a schema are refused."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import attnscale as at
import jsonschema
import pytest
from attnscale.cli import main
from audit_configs import BROKEN, GEMMA2, GPT_OSS, MAMBA, MINISTRAL, NOVEL, PHI4_MINI
from cases import closed_schema

from tools.audit import quietly

SHOWN = [defect.config for each in at.audit.FRAMEWORKS.values() for defect in each.defects]


CHECK = jsonschema.Draft202012Validator(closed_schema(at.audit.json_schema()))


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Output of the command for configs in a.json, b.json, ..., or in folders of these names."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str, **configs: Any) -> Any:
        for name, config in configs.items():
            place = tmp_path / "models" / name
            place.mkdir(parents=True, exist_ok=True)
            for file in (tmp_path / f"{name}.json", place / "config.json"):
                file.write_text(json.dumps(config), encoding="utf-8")
        main(["audit", *arguments, "--json"])
        content = json.loads(capsys.readouterr().out)
        CHECK.validate(content)
        assert content["schema"] == at.audit.SCHEMA
        return content

    return call


def test_the_schema_is_one() -> None:
    schema = at.audit.json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["$id"] == at.audit.SCHEMA == "attnscale.audit/1"
    defined = set(schema["$defs"])
    used = {word for word in json.dumps(schema).replace('"', " ").split() if word.startswith("#/$defs/")}
    assert {word.removeprefix("#/$defs/") for word in used} == defined


@pytest.mark.parametrize("config", [*SHOWN, MAMBA, NOVEL, GPT_OSS, PHI4_MINI])
def test_plans(report: Any, config: Any) -> None:
    """Plans, among them some with refusals, warnings, sinks and two kinds of channels."""
    plan, content = quietly(config), report("a.json", a=config)
    assert content["report"] == "plan"
    assert content["layers"]
    assert (content["model_type"], content["warnings"]) == (plan.model_type, list(plan.warnings))


@pytest.mark.parametrize("config", [MAMBA, NOVEL, GPT_OSS, PHI4_MINI])
def test_positions(report: Any, config: Any) -> None:
    content = report("a.json", "--at", "0", "100000", a=config)
    assert content["report"] == "positions"
    assert {row["position"] for row in content["rows"]} == {0, 100000}


def test_differences(report: Any) -> None:
    content = report("a.json", "--against", "b.json", "--at", "0", "7", a=GEMMA2, b=PHI4_MINI)
    assert content["report"] == "differences"
    assert {"layers", "kind", "rotated", "softcap"} <= {each["what"] for each in content["differences"]}
    (at_positions,) = {json.dumps(each["at"]) for each in content["differences"] if each["what"] == "rotated"}
    assert set(json.loads(at_positions)) == {"0", "7"}
    assert report("a.json", "--against", "a.json")["differences"] == []
    assert report("c.json", "--against", "a.json", c=MAMBA)["differences"]


@pytest.mark.parametrize("name", at.audit.FRAMEWORKS)
def test_frameworks(report: Any, name: str) -> None:
    for defect in at.audit.FRAMEWORKS[name].defects:
        seen = (
            f"{name}-{defect.seen[-1].release}" if defect.seen else f"{name}-0.0.1" if defect.before else name
        )
        content = report("a.json", "--against-framework", seen, a=defect.config)
        assert [each["what"] for each in content["known"]] == [defect.what]


def test_tables(report: Any) -> None:
    configs = {"a": GEMMA2, "b": MAMBA, "c": NOVEL, "d": BROKEN, "e": {"theme": "dark"}, "f": MINISTRAL}
    content = report("models", **configs)
    statuses = ["ok", "ok", "warned", "refused", "skipped", "ok"]
    assert [each["status"] for each in content["models"]] == statuses
    assert content["models"][1]["without_answer"] == 2
    content = report("models", "--against-framework", "vllm-metal")
    assert [len(each.get("on_record", ())) for each in content["models"]] == [1, 0, 0, 0, 0, 0]


def test_a_report_that_is_not_as_the_schema_says_is_found() -> None:
    """The check can fail: every field of a report is required."""
    plan = {"schema": at.audit.SCHEMA, "report": "plan", **at.audit.resolve(GEMMA2).to_dict()}
    CHECK.validate(plan)
    for name in plan:
        assert not CHECK.is_valid({key: value for key, value in plan.items() if key != name})
    for change in ({"schema": "attnscale.audit/2"}, {"more": 1}, {"layers": [{}]}, {"known": "yes"}):
        assert not CHECK.is_valid({**plan, **change})
    layer = copy.deepcopy(plan)
    del layer["layers"][0]["base"]["key"]
    assert not CHECK.is_valid(layer)
