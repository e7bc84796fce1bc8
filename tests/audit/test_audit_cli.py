# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale audit``."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import attnscale as at
import pytest
from attnscale.cli import main

MINISTRAL = {
    "model_type": "ministral3",
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "head_dim": 128,
    "num_hidden_layers": 34,
}
GEMMA2 = {
    "model_type": "gemma2",
    "hidden_size": 4608,
    "num_attention_heads": 32,
    "head_dim": 128,
    "num_hidden_layers": 46,
    "query_pre_attn_scalar": 144,
}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def write(config: Any, name: str = "config.json") -> str:
        path = tmp_path / name
        path.write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
        return str(path)

    return write


def test_a_plan_as_a_table(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", write(MINISTRAL)]) == 0
    out = capsys.readouterr().out
    assert "ministral3, 34 layers" in out
    assert "ministral_temperature(beta=0.1, length=16384)" in out
    assert "rotated (128 of 128)" in out
    assert "query position" in out
    assert "= 0.08838835  at position 0  " in out
    assert "llama_4_scaling_beta = 0.1" in out


def test_the_product_of_the_factors(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek V3 in one number; Phi-4 mini in two, as a quarter of its channels is not rotated."""
    yarn = {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}
    deepseek = {"model_type": "deepseek_v3", "hidden_size": 7168, "rope_scaling": yarn}
    assert main(["audit", write(deepseek)]) == 0
    assert "= 0.1352338   " in capsys.readouterr().out
    rope = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}
    phi = {
        "model_type": "phi3",
        "hidden_size": 3072,
        "num_attention_heads": 24,
        "rope_scaling": rope,
        "partial_rotary_factor": 0.75,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
    }
    assert main(["audit", write(phi)]) == 0
    found = [line.split() for line in capsys.readouterr().out.splitlines() if line.lstrip().startswith("=")]
    assert found == [["=", "0.1252168", "rotated"], ["=", "0.08838835", "unrotated"]]


def test_positions_that_scale_nothing_are_named(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    llama = {"model_type": "llama", "hidden_size": 4096, "num_attention_heads": 32, "rope_scaling": rope}
    assert main(["audit", write(llama)]) == 0
    out = capsys.readouterr().out
    assert (
        "rope_scaling: type llama3, factor = 8.0: it changes angles, and has no factor for the score" in out
    )
    assert main(["audit", write(llama), "--against-framework", "vllm"]) == 0
    assert capsys.readouterr().out == (
        "nothing on record: no report about vllm concerns this model, which is no proof of vllm\n"
    )


def test_the_directory_will_do(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(Path(write(GEMMA2)).parent)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^even 0-44 .* constant\(value=0.0833333333\) .* 4096 ", out, re.M)
    assert re.search(r"^odd 1-45 ", out, re.M)
    assert "query_pre_attn_scalar = 144" in out
    assert "soft-cap c: attn_logit_softcapping = 50.0 (default of gemma2)" in out


def test_positions(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", write(MINISTRAL), "--layer", "3", "--at", "0", "16383", "16384", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["position"] for row in rows] == [0, 16383, 16384]
    assert [row["layers"] for row in rows] == [[3]] * 3
    assert rows[1]["rotated"] == 1 / math.sqrt(128)
    assert rows[2]["rotated"] == pytest.approx(1.0693147180559945 / 128**0.5)
    assert main(["audit", write(MINISTRAL), "--at", "16384"]) == 0
    assert "0.094514961" in capsys.readouterr().out


def test_a_plan_as_json(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", write(GEMMA2), "--layer", "1", "--json"]) == 0
    (layer,) = json.loads(capsys.readouterr().out)["layers"]
    assert (layer["layer"], layer["softcap"], layer["sink"]) == (1, 50.0, False)
    assert layer["base"]["law"] == {"name": "constant", "parameters": {"value": 1 / 12}}


def test_two_configs(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    other = write({**GEMMA2, "query_pre_attn_scalar": 128}, "other.json")
    assert main(["audit", write(GEMMA2), "--against", other]) == 0
    assert "layers 0-45" in (out := capsys.readouterr().out)
    assert "differs from i = 0 on: 0.08333333 here, 0.08838835 there (0.9428 times)" in out
    assert main(["audit", write(GEMMA2), "--against", write(GEMMA2, "same.json")]) == 0
    assert capsys.readouterr().out == "no difference\n"


def test_a_framework(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rope = {"rope_type": "default", "llama_4_scaling_beta": 0.1, "original_max_position_embeddings": 16384}
    config = write({**MINISTRAL, "rope_parameters": rope})
    assert main(["audit", config, "--against-framework", "vllm-0.9", "--at", "40000"]) == 0
    out = capsys.readouterr().out
    assert "differs from i = 16384 on: 0.09451496 here, 0.08838835 there (1.0693 times)" in out
    assert "at i = 40000: 0.0980988 here" in out
    assert "https://github.com/vllm-project/vllm/issues/48621" in out
    assert main(["audit", config, "--against-framework", "vllm", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["differences"][0]["first_position"] == 16384
    assert len(report["known"]) == 1


def test_warnings_are_part_of_the_output(write: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", write({**MINISTRAL, "model_type": "novel"})]) == 0
    assert "warning: model_type 'novel' is not known" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "arguments", "message"),
    [
        ("[]", [], "must hold one JSON object, got list"),
        ({**MINISTRAL, "rope_scaling": {"type": "yarn", "factor": 0}}, [], "rope_scaling.factor must be"),
        (MINISTRAL, ["--layer", "34"], "layer must be between 0 and 33, got 34"),
        (MINISTRAL, ["--at", "-1"], "--at must be at least 0, got -1"),
        (MINISTRAL, ["--against-framework", "nobody"], "framework must be one of"),
        (MINISTRAL, ["--against-framework", "vllm", "--at", "-5"], "--at must be at least 0, got -5"),
        (MINISTRAL, ["--part", "encoder"], "part must be a part of the config"),
        (
            {"model_type": "mamba", "num_hidden_layers": 2},
            ["--layer", "0", "--at", "1"],
            "no softmax over keys",
        ),
    ],
)
def test_bad_input_is_one_line(
    write: Any, capsys: pytest.CaptureFixture[str], config: Any, arguments: list[str], message: str
) -> None:
    assert main(["audit", write(config), *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnscale: error: ")
    assert error.count("\n") == 1
    assert message in error


def test_what_a_config_lacks_is_said_with_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "empty.json"
    path.write_text("{}")
    assert main(["audit", str(path)]) == 2
    assert capsys.readouterr().err.startswith(f"attnscale: error: {path}: num_hidden_layers is missing")


def test_the_module_is_called_as_resolve() -> None:
    config = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 8}
    assert str(at.audit(config)) == str(at.audit.resolve(config))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("config", "origin"),
    [
        ({"hidden_size": 4096, "num_attention_heads": 32}, "hidden_size / num_attention_heads = 4096 / 32"),
        ({"hidden_size": 4096, "num_attention_heads": 32, "head_dim": 64}, "head_dim = 64"),
        ({"model_type": "gpt2", "n_embd": 768, "n_head": 12}, "n_embd / n_head = 768 / 12"),
        (
            {"model_type": "deepseek_v3", "qk_nope_head_dim": 128, "qk_rope_head_dim": 64},
            "qk_nope_head_dim + qk_rope_head_dim = 128 + 64",
        ),
        (
            {"model_type": "convbert", "hidden_size": 768, "num_attention_heads": 12, "head_ratio": 2},
            "heads of 64 channels, by num_attention_heads = 12, head_ratio = 2, hidden_size = 768",
        ),
    ],
)
def test_the_head_size_comes_from_keys_of_this_config(config: dict[str, Any], origin: str) -> None:
    plan = at.audit.resolve({"model_type": "llama", "num_hidden_layers": 2, **config})
    assert f"layer 0-1: standard: {origin}\n" in f"{plan.explain()}\n"
