# SPDX-License-Identifier: BSD-3-Clause
"""``attnscale theory``."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from attnscale import laws, theory


def test_theory_json_is_right_for_every_row(run):
    result = json.loads(
        run("theory", "--n", "4096", "64", "--laws", "log_n", "ssmax(s=0.4)", "--beta", "2", "--json")
    )
    assert (result["model"], result["head_dim"], result["n0"]) == ("sphere", 64, 512)
    assert [(row["n"], row["at"]) for row in result["rows"]] == [
        (n, at) for n in (64, 4096) for at in ("beta 2", "log_n", "ssmax(s=0.4)")
    ]
    for row in result["rows"]:
        law = {"beta 2": laws.Constant(2 / 8), "log_n": laws.LogN()}.get(row["at"], laws.SSMax(s=0.4))
        assert row["beta"] == pytest.approx(law.multiplier(row["n"], 64))
        exact = theory.expected_statistics(row["n"], row["beta"])
        assert (row["entropy"], row["lse"]) == (exact.entropy, exact.lse)
        assert row["concentration"] == exact.concentration
        assert row["critical_beta"] == pytest.approx(np.sqrt(2 * np.log(row["n"])))
    assert result["rows"][0]["invariant_beta"] is None  # 64 keys have fewer nats than 512 at beta 1
    assert result["rows"][3]["invariant_beta"] == pytest.approx(2.43330, abs=5e-6)


def test_theory_table(run):
    lines = run("theory", "--n", "512", "4096").splitlines()
    header = "n at beta E[H] E[lse] E[sum p^2] invariant beta critical beta"
    assert lines[0].split() == header.split()
    assert lines[1].split() == ["512", "beta", "1", "1", "5.7523", "6.7331", "0.0050052", "1", "3.5322"]
    assert lines[2].split()[-2:] == ["2.4333", "4.0787"]
    assert "Model: keys on a sphere, head_dim 64." in lines[4]


def test_theory_csv_and_model(run):
    text = run("theory", "--n", "512", "--model", "gaussian", "--n0", "256", "--csv", "-")
    (row,) = csv.DictReader(io.StringIO(text))
    assert float(row["entropy"]) == theory.expected_entropy(512, 1, model="gaussian")
    assert float(row["invariant_beta"]) == theory.invariant_beta(512, n0=256, model="gaussian")


def test_dimensions_are_those_of_the_lemma():
    plot = pytest.importorskip("attnscale.plot")
    ax = plot.jl_dimensions([64, 512], eps=[0.1, 0.5])
    for line, wanted in zip(ax.lines[1:], (theory.jl_min_dim, theory.jl_rule_of_thumb), strict=True):
        n, dim = line.get_data()
        assert len(n) > 100  # it is a curve, not a segment
        given = {"eps": 0.5} if wanted is theory.jl_min_dim else {}
        np.testing.assert_array_equal(dim, wanted(n, **given))
