# SPDX-License-Identifier: BSD-3-Clause
"""The command line: numbers, formats, exit status, and one line on bad input."""

from __future__ import annotations

import csv
import io
import json
import sys
from importlib.resources import files

import attnscale as at
import numpy as np
import pytest
from attnscale import laws

MINILM = str(files("attnscale") / "data" / "minilm_qk.npz")
RNG = np.random.default_rng(5)
QUERY = RNG.standard_normal((2, 3, 20, 8)).astype(np.float32)
KEY = RNG.standard_normal((2, 3, 20, 8)).astype(np.float32)


@pytest.fixture
def heads(tmp_path):
    path = tmp_path / "heads.npz"
    np.savez(path, q=QUERY, k=KEY)
    return str(path)


def expected_entropy(law, query=QUERY, key=KEY, **options):
    """Mean entropy per head over batch and queries, without the kernels."""
    values = at.reference.attention_statistics(query, key, scale=law, **options).entropy
    return values.mean(axis=(0, 2))


def test_entropy_json_is_right_for_every_row(run, heads):
    result = json.loads(run("entropy", heads, "--laws", "standard", "ssmax(s=0.9)", "--json"))
    assert result["query_shape"] == [2, 3, 20, 8]
    assert result["laws"]["ssmax(s=0.9)"] == repr(laws.SSMax(s=0.9))
    first = [("0", "standard"), ("0", "ssmax(s=0.9)"), ("1", "standard")]
    assert [(row["head"], row["law"]) for row in result["rows"][:3]] == first
    for law in (laws.Standard(), laws.SSMax(s=0.9)):
        mine = [row for row in result["rows"] if result["laws"][row["law"]] == repr(law)]
        expected = expected_entropy(law)
        np.testing.assert_allclose([row["entropy"] for row in mine], expected, atol=2e-6)
        np.testing.assert_allclose([row["effective_keys"] for row in mine], np.exp(expected), rtol=4e-6)
        assert mine[0]["uniform_entropy"] == pytest.approx(np.log(20))


def test_entropy_causal_and_lengths(run, heads):
    text = run("entropy", heads, "--laws", "log_n", "--causal", "--n", "20", "5", "--csv", "-")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["n_keys"] for row in rows] == ["5"] * 3 + ["20"] * 3
    for n in (5, 20):
        ours = [float(row["entropy"]) for row in rows if row["n_keys"] == str(n)]
        expected = expected_entropy("log_n", QUERY[..., :n, :], KEY[..., :n, :], is_causal=True)
        np.testing.assert_allclose(ours, expected, atol=2e-6)
        uniform = float(rows[0 if n == 5 else 3]["uniform_entropy"])
        assert uniform == pytest.approx(np.log(np.arange(1, n + 1)).mean())


def test_entropy_table(run):
    lines = run("entropy", MINILM).splitlines()
    told = "Mean entropy (nats) of 18 heads over all queries, 512 tokens; keys: exp(entropy)."
    assert lines[0] == f"{told} Equal weights: 6.238"
    assert lines[2].split() == ["head", "standard", "keys", "log_n", "keys", "natural_log_n", "keys"]
    assert lines[3].split() == ["L0", "H0", "5.779", "323.6", "5.779", "323.6", "1.703", "5.5"]
    assert lines[-3].split()[:3] == ["mean", "4.300", "73.7"]  # not the mean of the column, 144.4
    assert lines[-1] == "The keys beside a mean are exp of the mean entropy, not the mean of the column."
    assert len(lines) == 3 + 18 + 3


def test_entropy_table_with_lengths(run, heads):
    lines = run("entropy", heads, "--laws", "standard", "--n", "10", "20").splitlines()
    assert lines[0].startswith("Mean entropy (nats) of 3 heads over all queries, 10, 20 tokens; ")
    assert lines[2].split() == ["n", "head", "standard", "keys"]
    rows = [[n, head] for n in ("10", "20") for head in ("0", "1", "2", "mean")]
    assert [line.split()[:2] for line in lines[3:-2]] == rows


def test_calibrate_has_a_row_for_each_head_of_each_batch_entry(run, tmp_path):
    query, key = np.random.default_rng(0).standard_normal((2, 3, 2, 40, 8)).astype(np.float32)
    np.savez(tmp_path / "batch.npz", query=query, key=key)
    rows = json.loads(run("calibrate", str(tmp_path / "batch.npz"), "--json"))["heads"]
    assert [row["head"] for row in rows] == ["0, 0", "0, 1", "1, 0", "1, 1", "2, 0", "2, 1"]
    found = at.calibrate(query, key)
    np.testing.assert_allclose([row["target"] for row in rows], found.target.ravel())


def test_entropy_of_a_pair_of_files(run, tmp_path, heads):
    np.save(tmp_path / "q.npy", QUERY)
    np.save(tmp_path / "k.npy", KEY)
    q, k = str(tmp_path / "q.npy"), str(tmp_path / "k.npy")
    expected = json.loads(run("entropy", heads, "--json"))["rows"]
    assert json.loads(run("entropy", q, k, "--json"))["rows"] == expected
    assert json.loads(run("entropy", "--query", q, "--key", k, "--json"))["rows"] == expected


def test_entropy_with_other_numbers_of_queries_and_key_heads(run, tmp_path):
    np.savez(tmp_path / "gqa.npz", q=QUERY[:, :2, :7], k=KEY[:, :1])
    rows = json.loads(run("entropy", str(tmp_path / "gqa.npz"), "--laws", "standard", "--json"))["rows"]
    expected = expected_entropy("standard", QUERY[:, :2, :7], KEY[:, [0, 0]])
    np.testing.assert_allclose([row["entropy"] for row in rows], expected, atol=2e-6)
    assert (rows[0]["n_queries"], rows[0]["n_keys"]) == (7, 20)


def test_entropy_layout(run, tmp_path, heads):
    np.savez(tmp_path / "bshd.npz", q=QUERY.swapaxes(-3, -2), k=KEY.swapaxes(-3, -2))
    rows = json.loads(run("entropy", str(tmp_path / "bshd.npz"), "--layout", "bshd", "--json"))["rows"]
    assert rows == json.loads(run("entropy", heads, "--json"))["rows"]


def test_nan_in_the_data_is_said(fail, tmp_path):
    key = KEY.copy()
    key[0, 1, 2, 3] = np.nan
    np.savez(tmp_path / "nan.npz", q=QUERY, k=key)
    line = fail("entropy", str(tmp_path / "nan.npz"))
    assert "key holds 1 NaN or infinite values, the first at index (0, 1, 2, 3)" in line


def test_info(run):
    config = at.show_config()
    assert json.loads(run("info", "--json")) == json.loads(json.dumps(config))
    text = run("info")
    assert f"simd_level             {at.simd_level()}" in text.splitlines()
    assert all(name in text for name in config)


def test_laws_lists_every_law(run):
    rows = json.loads(run("laws", "--json"))
    assert [row["name"] for row in rows] == list(laws.names())
    by_name = {row["name"]: row for row in rows}
    assert by_name["log_n"]["parameters"] == {"base": 512.0, "floor": 1.0}
    assert by_name["constant"]["parameters"] == {"value": None}
    assert by_name["natural_log_n"]["n_means"] == "row size"
    text = run("laws")
    assert "log_n(base=512, floor=1)" in text
    assert "constant(value=...)" in text


def test_explain(run):
    for name in laws.names():
        text = run("explain", name)
        assert text.startswith(name)
        assert laws.get(name).formula in text if name in ("standard", "log_n") else "source" in text
    assert run("explain", "log_n(base=1024)") == laws.LogN(base=1024).explain() + "\n"
    assert run("explain", "constant(value=0.5)") == laws.Constant(0.5).explain() + "\n"


def test_demo(run, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    text = run("demo")
    assert f"attnscale {at.__version__}, {at.simd_level()}, " in text
    table = [line.split() for line in text.splitlines() if line.strip()[:2] in ("64", "12", "25", "51")]
    assert table[:4] == [
        ["64", "4.16", "2.58", "3.18", "0.63", "2.58"],
        ["128", "4.85", "3.07", "3.52", "0.60", "2.04"],
        ["256", "5.55", "3.66", "3.91", "0.60", "1.78"],
        ["512", "6.24", "4.30", "4.30", "0.56", "1.63"],
    ]
    assert "+0.57 under 1/sqrt(d), +0.37 under log_512 n and -0.02 under ln n" in text
    (figure,) = tmp_path.iterdir()
    assert text.endswith(f"Figure: {figure.name}\n")  # also where none is asked for


def test_demo_json(run, tmp_path):
    report = json.loads(run("demo", "--json", "--plot", str(tmp_path / "demo.svg")))
    assert report["n"] == [64, 128, 256, 512]
    by_head = np.array(report["mean_entropy_by_head"]["standard"])
    assert by_head.shape == (4, 18)
    np.testing.assert_allclose(by_head.mean(axis=1), report["mean_entropy"]["standard"])
    growth = np.diff(report["mean_entropy"]["log_n"]).mean()
    assert report["growth_per_doubling"]["log_n"] == pytest.approx(growth)
    assert report["seconds"] > 0
    assert report["share_of_peak"] is None or report["share_of_peak"] > 0


def test_demo_without_matplotlib(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.chdir(tmp_path)
    text = run("demo")
    assert "No figure: matplotlib is not installed (pip install matplotlib)." in text
    assert json.loads(run("demo", "--json"))["figure"] is None
    assert list(tmp_path.iterdir()) == []


def test_plot_without_matplotlib(fail, heads, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "--plot needs matplotlib: pip install matplotlib" in fail("entropy", heads, "--plot", "a.png")
