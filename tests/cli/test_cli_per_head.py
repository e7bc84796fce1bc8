# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale diagnose --per-head`` and ``--budget``: heads, their budgets, and the schema of the JSON."""

from __future__ import annotations

import csv
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from attnscale.cli import main
from attnscale.cli.diagnose import read_budget
from cases import closed_schema

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from attnscale.torch import diagnose  # noqa: E402
from small_model import weights_of  # noqa: E402

# transformers and torch give warnings of their own.
pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]

SCHEMA = json.loads((files("attnscale.cli") / "diagnose.schema.json").read_text(encoding="utf-8"))


def test_json_is_what_its_schema_says_and_what_the_weights_say(
    minilm: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    check = jsonschema.Draft202012Validator(closed_schema(SCHEMA))
    common = ["diagnose", minilm, "--text", text, "--n", "48", "--json"]
    budget = ["--budget", "bits=4", "tokens=20", "--laws", "log_n", "standard"]
    for more, new in (([], set()), (budget, {"bits", "tokens", "entropy under log_n"})):
        assert main([*common, *more]) == 0
        report = json.loads(capsys.readouterr().out)
        assert ("heads" in report) == bool(more)
        plan = report.pop("plan")
        assert plan["model_type"] == "bert"
        check.validate({**report, "plan": {}})
        assert all(new <= head.keys() for head in report.get("heads", ()))
    p = weights_of(minilm, text, 48).reshape(72, 48, 48)
    heads = report["heads"]
    assert [(head["layer"], head["head"]) for head in heads] == [(i, j) for i in range(6) for j in range(12)]
    renyi2 = -np.log((p**2).sum(-1)).mean(-1)
    np.testing.assert_allclose([head["renyi2"] for head in heads], renyi2, atol=1e-4)
    np.testing.assert_allclose([head["max_weight"] for head in heads], p.max(-1).mean(-1), atol=1e-5)
    entropy = -(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(-1).mean(-1)
    np.testing.assert_allclose([head["entropy"] for head in heads], entropy, atol=1e-4)
    np.testing.assert_allclose([head["effective_keys"] for head in heads], np.exp(entropy), rtol=1e-3)
    bits, tokens = (np.array([head[name] for head in heads]) for name in ("bits", "tokens"))
    in_bits = np.array([head["renyi2"] for head in heads]) / np.log(2)
    np.testing.assert_allclose(bits, 4 + 0.25 * (in_bits.mean() - in_bits), rtol=1e-12)
    assert tokens.sum() == 20 * 72
    assert tokens.max() <= 48
    assert tokens.min() >= 1


def test_a_field_that_the_schema_does_not_name_is_refused() -> None:
    """The check above can fail."""
    report = {"schema": "attnscale.diagnose/1", "model": "a", "text": "b", "unit": "nat"}
    report |= {"plan": {}, "rows": []}
    check = jsonschema.Draft202012Validator(closed_schema(SCHEMA))
    assert check.is_valid(report)
    assert not check.is_valid({**report, "novel": 1})
    assert not check.is_valid({**report, "heads": []})  # without its budget


def test_csv_has_a_line_for_every_head_and_the_table_as_well(
    minilm: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "heads.csv"
    arguments = ["diagnose", minilm, "--text", text, "--n", "16", "32", "--per-head", "--csv", str(path)]
    assert main([*arguments, "--unit", "bits"]) == 0
    with path.open(newline="") as stream:
        lines = list(csv.DictReader(stream))
    assert len(lines) == 2 * 6 * 12
    assert {"n", "layer", "module", "head", "key_head", "entropy", "renyi2", "max_weight"} <= lines[0].keys()
    *_, table = capsys.readouterr().out.split("\n\n")
    header, *rows = (line.split() for line in table.splitlines())
    assert header == ["n", "layer", "head", "entropy", "keys", "renyi2", "max_weight", "max_score"]
    for line, row in zip(lines, rows, strict=True):
        assert row[:3] == [line["n"], line["layer"], line["head"]]
        in_bits = [float(line[name]) / np.log(2) for name in ("entropy", "renyi2")]
        np.testing.assert_allclose([float(row[3]), float(row[5])], in_bits, atol=5e-4)


def grouped(window: int | None = None) -> Any:
    """A model of two layers with four heads that share two key heads."""
    sizes = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    options = {"sliding_window": window, "initializer_range": 0.5}
    config = transformers.MistralConfig(**sizes, **heads, **options)
    torch.manual_seed(0)
    return transformers.MistralModel(config).eval()


def test_heads_that_share_keys_share_their_part_of_the_budget() -> None:
    found = diagnose(grouped(), torch.arange(40)[None], [8, 32], per_head=True)
    rows = found.heads(bits=4, tokens=5).rows()
    assert [row["key_head"] for row in rows] == [0, 0, 1, 1] * 4
    at_32 = [row for row in rows if row["n"] == 32]
    pairs = [at_32[i : i + 2] for i in range(0, 8, 2)]
    assert all(one["bits"] == other["bits"] and one["tokens"] == other["tokens"] for one, other in pairs)
    assert sum(one["tokens"] for one, _ in pairs) == 5 * 4
    np.testing.assert_allclose(np.mean([one["bits"] for one, _ in pairs]), 4)
    # Errors of two heads with the same keys add up, as do their sums of squared weights.
    squares = [np.mean([np.exp(-head["renyi2"]) for head in pair]) for pair in pairs]
    in_bits = -np.log2(squares)
    np.testing.assert_allclose([one["bits"] for one, _ in pairs], 4 + (in_bits.mean() - in_bits) / 4)


def test_no_head_keeps_more_tokens_than_its_window_shows() -> None:
    found = diagnose(grouped(window=6), torch.arange(40)[None], [32], per_head=True).heads(tokens=20)
    assert {row["tokens"] for row in found.rows()} == {6}
    assert "tokens: to keep in the cache, 20 tokens on average" in str(found)


@pytest.mark.parametrize(
    "given", [["4"], ["bits"], ["bits=x"], ["bits=0"], ["words=3"], ["bits=2", "bits=3"], ["tokens=inf"]]
)
def test_a_budget_that_is_none_is_one_line(
    given: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", "no-model", "--text", text, "--budget", *given]) == 2
    error = capsys.readouterr().err
    assert f"--budget must be bits=B, tokens=N or both, with numbers above 0, got {' '.join(given)}" in error
    assert error.count("\n") == 1


def test_a_budget_is_read() -> None:
    assert read_budget([]) == {}
    assert read_budget(["tokens=512", "bits=3.5"]) == {"bits": 3.5, "tokens": 512}
