# SPDX-License-Identifier: BSD-3-Clause
"""Measures of known matrices of weights, and the output of variant_weights.py."""

from __future__ import annotations

import csv
import io
import json

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from attnscale_bench._measures import measure_weights, weights_of
from variant_weights import main


def test_measures_of_known_weights():
    query = key = np.eye(4)
    one_hot = measure_weights(np.eye(4), query, key)
    np.testing.assert_allclose(one_hot, (0, 1, 1, 4, 1), atol=1e-12)
    flat = measure_weights(np.full((4, 4), 0.25), query, key)
    np.testing.assert_allclose(flat, (np.log(4), 0.25, 4, 1, 0.25), atol=1e-6)


def test_measures_agree_with_the_kernel_and_the_twin():
    query, key = np.random.default_rng(0).standard_normal((2, 40, 8))
    weights = weights_of(at.attention, query, key)
    found = measure_weights(weights, query, key)
    rows = at.attention_statistics(query, key, statistics=("entropy", "max_weight"))
    assert found.entropy == pytest.approx(rows.entropy.mean())
    assert found.max_weight == pytest.approx(rows.max_weight.mean())
    assert found.needle_weight == pytest.approx(found.max_weight)
    expected = reference.weight_ranks(query, key, 8**-0.5).effective_rank
    assert found.effective_rank == pytest.approx(expected)


def test_weights_are_what_a_variant_applies():
    query, key = np.random.default_rng(1).standard_normal((2, 2, 20, 8))
    found = weights_of(at.variants.efficient_attention, query, key)
    np.testing.assert_allclose(found, at.variants.efficient_attention_weights(query, key), atol=1e-12)


def test_what_is_lost_on_real_heads_t26(capsys):
    """Efficient attention is flat and of low rank where softmax is sharp and sparsemax sharper."""
    assert main(["--n", "64", "--data", "real", "--json"]) == 0
    rows = {row["variant"]: row for row in json.loads(capsys.readouterr().out)}
    assert len(rows) == 9
    assert rows["sparsemax"]["support"] < 4 < rows["softmax"]["support"]
    assert rows["efficient"]["entropy"] > 0.95 * np.log(64) > 1.4 * rows["softmax"]["entropy"]
    assert rows["efficient"]["needle_weight"] < 0.2 * rows["softmax"]["needle_weight"]
    assert rows["efficient"]["effective_rank"] < 0.5 * rows["softmax"]["effective_rank"]


def test_the_script_prints_a_table_and_writes_files(capsys, tmp_path):
    options = ["--n", "8", "16", "--variants", "softmax", "efficient"]
    assert main(options) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["heads", "n", "variant"]
    assert [line.split()[:3] for line in lines[1:9]] == [
        [data, n, name]
        for data in ("real", "random")
        for n in ("8", "16")
        for name in ("softmax", "efficient")
    ]
    table = tmp_path / "a.csv"
    assert main([*options, "--csv", str(table)]) == 0
    assert len(list(csv.DictReader(io.StringIO(table.read_text())))) == 8
    pytest.importorskip("matplotlib")
    assert main([*options, "--plot", str(tmp_path / "a.png"), "--csv", str(tmp_path / "a.csv")]) == 0
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert (tmp_path / "a.csv").read_text().startswith("data,n,variant,entropy,max_weight,support")
