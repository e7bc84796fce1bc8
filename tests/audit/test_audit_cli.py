# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale audit``: one config in full, several in a line each, and its exit status."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attnscale import audit
from attnscale.cli import main
from audit_configs import (
    BROKEN,
    DEEPSEEK,
    GEMMA2,
    GPT_OSS,
    LLAMA,
    MAMBA,
    MINISTRAL,
    NOVEL,
    PHI4_MINI,
    STANDARD,
    tempered,
    typed,
)

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write configs into the working directory: a mapping is JSON, a text is itself."""
    monkeypatch.chdir(tmp_path)

    def write(**configs: Any) -> None:
        for name, config in configs.items():
            file = tmp_path / name.replace("__", "/") / "config.json"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")

    return write


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``attnscale audit``: its status, standard output and standard error."""

    def call(*arguments: str) -> tuple[int, str, str]:
        status = main(["audit", *arguments])
        return (status, *capsys.readouterr())

    return call


def cells(out: str) -> dict[str, list[str]]:
    """Rows of the table by the config's name; columns are two spaces apart."""
    lines = [[cell for cell in line.split("  ") if cell] for line in out.splitlines()]
    return {line[0]: [cell.strip() for cell in line[1:]] for line in lines if len(line) > 1}


def test_one_config_as_a_table(folder: Any, run: Run) -> None:
    folder(ministral=MINISTRAL, gemma=GEMMA2, deepseek=DEEPSEEK, phi=PHI4_MINI)
    status, out, err = run("ministral/config.json")
    assert (status, err) == (0, "")
    for shown in (
        *("ministral3, 34 layers", "ministral_temperature(beta=0.1, length=16384)", "rotated (128 of 128)"),
        *("query position", "= 0.08838835  at position 0  ", "llama_4_scaling_beta = 0.1"),
    ):
        assert shown in out
    status, out, err = run("gemma")  # the directory will do
    assert (status, err) == (0, "")
    assert re.search(r"^even 0-44 .* constant\(value=0.0833333333\) .* 4096 ", out, re.M)
    assert re.search(r"^odd 1-45 ", out, re.M)
    assert "query_pre_attn_scalar = 144" in out
    assert out.endswith("\nask your engine: attnscale probe write gemma -o probe/\n")
    assert "soft-cap c: attn_logit_softcapping = 50.0\n" in out
    # The product of the factors is one number, or two for Phi, where a quarter of the channels is unrotated.
    out = run("deepseek")[1]
    assert "= 0.1352338   " in out
    assert "ask your engine" in out
    assert "ask your engine" not in run("deepseek", "--at", "0")[1]
    found = [line.split() for line in run("phi")[1].splitlines() if line.lstrip().startswith("=")]
    assert found == [["=", "0.1252168", "rotated"], ["=", "0.08838835", "unrotated"]]


def test_positions_and_layers_of_one_config(folder: Any, run: Run) -> None:
    folder(ministral=MINISTRAL, gemma={**GEMMA2, "attn_logit_softcapping": 30.0})
    status, out, _ = run("ministral", "--layer", "3", "--at", "0", "16383", "16384", "--json")
    assert status == 0
    rows = json.loads(out)["rows"]
    assert [row["position"] for row in rows] == [0, 16383, 16384]
    assert [row["layers"] for row in rows] == [[3]] * 3
    assert rows[1]["rotated"] == STANDARD
    assert rows[2]["rotated"] == pytest.approx(1.0693147180559945 * STANDARD)
    assert "0.094514961" in run("ministral", "--at", "16384")[1]
    (layer,) = json.loads(run("gemma", "--layer", "1", "--json")[1])["layers"]
    assert (layer["layer"], layer["softcap"], layer["sink"]) == (1, 30.0, False)
    assert layer["base"]["law"] == {"name": "constant", "parameters": {"value": 1 / 12}}


def test_the_command_prints_what_the_plan_returns(folder: Any, run: Run) -> None:
    folder(gemma={**GEMMA2, "attn_logit_softcapping": 30.0}, other={**GEMMA2, "query_pre_attn_scalar": 128})
    plan = audit.resolve("gemma")
    found = plan.at([0, 7], layer=2)
    report = json.loads(run("gemma", "--layer", "2", "--at", "0", "7", "--json")[1])
    assert found.to_dict() == {name: report[name] for name in ("rows", "warnings")}
    assert [(row["layer"], row["position"], row["refusal"]) for row in found.rows()] == [
        (2, 0, None),
        (2, 7, None),
    ]
    assert found.to_pandas()["unrotated"].isna().all()
    assert found.rows()[1] in plan.at(np.array([7])).rows()
    for part, arguments in ((plan, []), (found, ["--layer", "2", "--at", "0", "7"])):
        lines = list(csv.DictReader(io.StringIO(run("gemma", *arguments, "--csv", "-")[1])))
        assert [line["softcap"] for line in lines] == [str(row["softcap"]) for row in part.rows()]
    lines = list(csv.DictReader(io.StringIO(run("gemma", "--against", "other", "--csv", "-")[1])))
    rows = plan.differences(audit.resolve("other")).rows()
    assert [line["keys_here"] for line in lines] == [row["keys_here"] for row in rows]
    assert rows[0]["keys_here"] == "query_pre_attn_scalar = 144"
    folder(mamba=MAMBA)
    refused = audit.resolve("mamba")
    assert refused.at(1).rows()[0]["refusal"] == refused[0].refusal
    with pytest.raises(audit.PlanError, match="no softmax over keys"):
        refused.at(1, layer=0)


def test_two_configs(folder: Any, run: Run) -> None:
    folder(gemma=GEMMA2, same=GEMMA2, other={**GEMMA2, "query_pre_attn_scalar": 128})
    status, out, _ = run("gemma", "--against", "other")
    assert status == 0
    assert "layers 0-45" in out
    assert "differs from i = 0 on: 0.08333333 here, 0.08838835 there (0.9428 times)" in out
    assert run("gemma", "--against", "same") == (0, "no difference\n", "")


def test_a_framework(folder: Any, run: Run) -> None:
    folder(ministral=tempered(16384), llama=LLAMA)
    status, out, _ = run("ministral", "--against-framework", "vllm-0.9", "--at", "40000")
    assert status == 0
    assert "differs from i = 16384 on: 0.09451496 here, 0.08838835 there (1.0693 times)" in out
    assert "at i = 40000: 0.0980988 here" in out
    assert "https://github.com/vllm-project/vllm/issues/48621" in out
    report = json.loads(run("ministral", "--against-framework", "vllm", "--json")[1])
    assert report["differences"][0]["first_position"] == 16384
    assert len(report["known"]) == 1
    said = "no report about vllm 0.33.0 concerns this model; vllm 0.33.0 may still differ"
    assert run("llama", "--against-framework", "vllm") == (0, f"nothing on record: {said}\n", "")
    newer = "vllm 0.34.1 is newer than any release on record: last seen in 0.33.0"
    said = f"nothing on record: {said.replace('0.33.0', '0.34.1')}\nwarning: {newer}\n"
    assert run("llama", "--against-framework", "vllm-0.34.1") == (0, said, "")
    assert json.loads(run("llama", "--against-framework", "vllm-0.34.1", "--json")[1])["warnings"] == [newer]
    assert f"warning: {newer}" in run("llama", "ministral", "--against-framework", "vllm-0.34.1")[1]


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        ("[]", "", "must hold one JSON object, got list"),
        ("{}", "", "c/config.json: num_hidden_layers is missing"),
        (BROKEN, "", "rope_scaling.factor must be"),
        (MINISTRAL, "--layer 34", "layer must be between 0 and 33, got 34"),
        (MINISTRAL, "--at -1", "--at must be at least 0, got -1"),
        (MINISTRAL, "--against-framework nobody", "framework must be one of"),
        (MINISTRAL, "--against-framework vllm --at -5", "--at must be at least 0, got -5"),
        (MINISTRAL, "--part encoder", "part must be a part of the config"),
        (MAMBA, "--layer 0 --at 1", "no softmax over keys"),
    ],
)
def test_bad_input_is_one_line(folder: Any, run: Run, config: Any, arguments: str, message: str) -> None:
    folder(c=config)
    status, _, error = run("c/config.json", *arguments.split())
    assert status == 2
    assert error.startswith("attnscale: error: ")
    assert error.count("\n") == 1
    assert message in error


def test_one_line_a_model(folder: Any, run: Run) -> None:
    folder(models__gemma=GEMMA2, models__a__b=GPT_OSS, models__phi=PHI4_MINI, models__deepseek=DEEPSEEK)
    status, out, err = run("models")
    assert (status, err) == (0, "")
    rows = cells(out)
    assert rows["gemma/config.json"] == ["gemma2", "46", "0.08333333", "-", "50", "-", "-"]
    assert rows["a/b/config.json"] == ["gpt_oss", "24", "0.2266576", "yarn", "-", "yes", "-"]
    assert rows["phi/config.json"][2:4] == ["0.08838835, 0.1252168", "longrope"]
    assert rows["deepseek/config.json"][3] == "yarn, mla_yarn"
    assert list(rows) == ["config", *(f"{x}/config.json" for x in ("a/b", "deepseek", "gemma", "phi"))]
    assert out.endswith("\n4 configs: 4 without a warning\n")


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        (None, "configs must be a sequence of paths, got None"),
        ([{}], "configs must be paths, got {}"),
        ({"model_type": "gpt2"}, "configs must be a sequence of paths, got {'model_type': 'gpt2'}"),
        ([], "configs must be at least one path, got none"),
    ],
)
def test_survey_takes_paths(configs: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        audit.survey(configs)


def test_the_command_prints_what_survey_returns(folder: Any, run: Run) -> None:
    folder(m__gemma=GEMMA2, m__novel=NOVEL, m__broken=BROKEN, m__tool={})
    found = audit.survey("m", framework="vllm-metal")
    assert found.counts == {"ok": 1, "warned": 1, "refused": 1, "skipped": 1}
    report = json.loads(run("m", "--against-framework", "vllm-metal", "--json")[1])
    assert found.to_dict() == {name: report[name] for name in ("models", "counts", "warnings")}
    lines = run("m", "--against-framework", "vllm-metal")[1].splitlines()
    shown = [line.strip() for line in str(found).splitlines()]
    assert shown[0] == "Survey"
    assert shown[1:] == [line.strip() for line in lines]
    frame = found.to_pandas()
    assert frame["config"].tolist() == [row["config"] for row in found.rows()]
    assert frame["layers"].tolist() == [0, 46, 4, 0]
    broken, gemma, *_ = found.models
    assert isinstance(broken.error, audit.ConfigError)
    assert (gemma.error, gemma.plan) == (None, audit.resolve("m/gemma"))
    assert [model.config for model in audit.survey(["m/gemma/config.json"]).models] == ["m/gemma/config.json"]


def test_ctrl_c_keeps_the_configs_before(folder: Any, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    folder(m__a=LLAMA, m__b=GEMMA2)

    def stops(path: Path, part: str | None) -> Any:
        if path.parent.name == "b":
            raise KeyboardInterrupt
        return audit.resolve(path, part=part)

    monkeypatch.setattr("attnscale.audit._survey.resolve_quietly", stops)
    status, out, err = run("m")
    assert (status, err) == (130, "attnscale: interrupted: this is what was finished\n")
    assert list(cells(out)) == ["config", "a/config.json"]


def test_many_multipliers_are_the_least_and_the_largest(folder: Any, run: Run) -> None:
    sizes = {"n_embd": 768, "n_head": 12, "n_layer": 12}
    folder(m__gpt2=typed("gpt2", **sizes, scale_attn_by_inverse_layer_idx=True))
    assert cells(run("m")[1])["gpt2/config.json"][2] == "0.01041667 ... 0.125"


def test_warnings_are_counted_and_strict_about_them(folder: Any, run: Run) -> None:
    folder(m__gemma=GEMMA2, m__novel=NOVEL)
    status, out, err = run("m")
    assert (status, err) == (0, "")
    assert cells(out)["novel/config.json"][-1] == "1"
    assert "warning: novel/config.json: model_type 'novel' is not known" in out
    assert "2 configs: 1 without a warning, 1 with warnings" in out
    told = "attnscale: error: 1 of 2 configs with warnings or defects (--strict)\n"
    assert run("m", "--strict") == (3, out, told)
    assert run("m/gemma", "--strict")[0] == 0


def test_what_cannot_be_read_is_a_line_and_status_2(folder: Any, run: Run) -> None:
    folder(m__broken=BROKEN, m__gemma=GEMMA2, m__text="{", m__list="[]", m__empty="")
    for options in ([], ["--strict"]):
        status, out, err = run("m", *options)
        assert (status, err) == (2, "attnscale: error: 4 of 5 configs cannot be audited\n")
    rows = cells(out)
    assert rows["broken/config.json"] == ["refused", *["-"] * 6]
    assert rows["gemma/config.json"][0] == "gemma2"
    refused = [line for line in out.splitlines() if line.startswith("refused: ")]
    assert len(refused) == 4
    factor = "rope_scaling.factor must be a finite number greater than 0, got 0"
    assert f"refused: broken/config.json: {factor}" in refused
    assert "refused: list/config.json: must hold one JSON object, got list" in refused


def test_a_mistake_of_the_package_is_a_line_too(
    folder: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder(m__a=LLAMA, m__b=GEMMA2)

    def fails(path: Path, part: str | None) -> Any:
        if path.parent.name == "a":
            raise ZeroDivisionError("division\nby zero")
        return audit.resolve(path, part=part)

    monkeypatch.setattr("attnscale.audit._survey.resolve_quietly", fails)
    status, out, err = run("m")
    assert (status, err.count("\n")) == (2, 1)
    assert "Traceback" in run("m", "--debug")[2]
    assert "refused: a/config.json: ZeroDivisionError: division by zero\n" in out
    assert cells(out)["b/config.json"][0] == "gemma2"


def test_files_of_other_programs_are_skipped(folder: Any, run: Run) -> None:
    """Configs of a pooling layer or an editor are skipped in a folder, and refused if named by the caller."""
    folder(m__gemma=GEMMA2, m__pool__1_Pooling={"word_embedding_dimension": 384}, m__tool={"theme": "dark"})
    status, out, err = run("m", "--strict")
    assert (status, err) == (0, "")
    assert cells(out)["tool/config.json"] == ["skipped", *["-"] * 6]
    assert "3 configs: 1 without a warning, 2 skipped" in out
    assert run("m/gemma/config.json", "m/tool/config.json")[0] == 2


def test_folders_that_begin_with_a_dot_are_not_searched(folder: Any, run: Run) -> None:
    folder(**{"m__gemma": GEMMA2, "m__.git__x": "{", "m__.cache__x": BROKEN})
    assert "\n1 config: 1 without a warning" in run("m")[1]


def test_links_to_files_are_followed_and_circles_of_folders_are_not(
    folder: Any, run: Run, tmp_path: Path
) -> None:
    """A model's folder in a cache holds links to blobs."""
    folder(blobs__x=GEMMA2)
    (tmp_path / "hub" / "snapshot").mkdir(parents=True)
    (tmp_path / "hub" / "snapshot" / "config.json").symlink_to(tmp_path / "blobs" / "x" / "config.json")
    (tmp_path / "hub" / "circle").symlink_to(tmp_path / "hub")
    status, out, _ = run("hub")
    assert status == 0
    assert "\n1 config: " in out


def test_several_files_and_folders(folder: Any, run: Run) -> None:
    folder(m__gemma=GEMMA2, m__llama=LLAMA, other=MINISTRAL)
    status, out, _ = run("m", "other/config.json", "m/llama/config.json")
    assert status == 0
    assert list(cells(out)) == ["config", "m/gemma/config.json", "m/llama/config.json", "other/config.json"]


def test_a_folder_with_a_config_of_its_own_is_one_model(folder: Any, run: Run) -> None:
    folder(m=GEMMA2, m__text_encoder=LLAMA)
    assert run("m")[1].startswith("gemma2, 46 layers\n")
    assert "gemma2, 46 layers" not in run("m", "m/text_encoder")[1]


def test_questions_about_one_config(folder: Any, run: Run) -> None:
    folder(m__gemma=GEMMA2, m__llama=LLAMA, empty__x__y={})
    for flag, value in (("--layer", "0"), ("--at", "0"), ("--against", "m/llama")):
        status, out, err = run("m", flag, value)
        assert (status, out) == (2, "")
        assert err.startswith(f"attnscale: error: {flag} needs a single config")
    (Path("empty") / "x" / "y" / "config.json").unlink()
    assert "empty: there is no config.json here or in a folder below" in run("empty")[2]
    assert "framework must be one of" in run("m", "--against-framework", "nobody")[2]


def test_a_framework_and_all_models(folder: Any, run: Run) -> None:
    folder(m__gemma=GEMMA2, m__llama=LLAMA, m__broken=BROKEN)
    status, out, _ = run("m", "--against-framework", "vllm-metal")
    assert status == 2
    rows = cells(out)
    assert (rows["gemma/config.json"][-1], rows["llama/config.json"][-1]) == ("1", "-")
    assert "known: gemma/config.json: the soft-cap of attention is left out (https://github.com/" in out
    assert run("m/gemma", "m/llama", "--against-framework", "vllm-metal", "--strict")[0] == 3
    assert run("m/gemma", "m/llama", "--against-framework", "prime-rl", "--strict")[0] == 0


def test_a_part_of_each(folder: Any, run: Run) -> None:
    folder(m__a=typed("t5gemma", encoder=LLAMA, decoder=LLAMA), m__b=LLAMA)
    status, out, _ = run("m", "--part", "encoder")
    assert status == 2
    assert cells(out)["a/config.json"][0] == "llama"
    assert "refused: b/config.json: part must be a part of the config" in out


def test_strict_about_one_config(folder: Any, run: Run) -> None:
    folder(gemma=GEMMA2, novel=NOVEL, other={**GEMMA2, "query_pre_attn_scalar": 128})
    assert run("gemma", "--strict")[0] == 0
    status, out, err = run("novel", "--strict")
    assert (status, err) == (3, "attnscale: error: 1 warning (--strict)\n")
    assert out.startswith("novel, 4 layers")
    assert "warning: model_type 'novel' is not known" in out
    status, out, err = run("gemma", "--against", "other", "--strict")
    assert (status, err) == (3, "attnscale: error: 1 difference (--strict)\n")
    assert "from query_pre_attn_scalar = 144 here, query_pre_attn_scalar = 128 there" in out
    assert run("gemma", "--against", "gemma", "--strict")[0] == 0
    assert run("gemma", "--against", "other")[0] == 0
    assert run("novel", "--against", "novel", "--strict")[0] == 3


def test_as_json_and_csv(folder: Any, run: Run) -> None:
    folder(m__broken=BROKEN, m__gemma=GEMMA2, m__novel=NOVEL, m__tool={})
    report = json.loads(run("m", "--json")[1])
    assert (report["schema"], report["report"]) == ("attnscale.audit/1", "models")
    assert report["counts"] == {"ok": 1, "warned": 1, "refused": 1, "skipped": 1}
    broken, gemma, novel, tool = report["models"]
    assert broken["status"] == "refused"
    assert broken["reason"].startswith("rope_scaling.factor must be")
    assert gemma["multipliers"] == [1 / 12]
    assert gemma["softcaps"] == [50.0]
    assert len(novel["warnings"]) == 1
    assert tool == {"config": "tool/config.json", "status": "skipped", "reason": "not the config of a model"}
    status, out, _ = run("m", "--csv", "-")
    assert status == 2
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["status"] for row in rows] == ["refused", "ok", "warned", "skipped"]
    assert (rows[1]["softcaps"], rows[1]["warnings"], rows[2]["warnings"]) == ("50.0", "0", "1")
