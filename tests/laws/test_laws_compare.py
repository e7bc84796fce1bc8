# SPDX-License-Identifier: BSD-3-Clause
"""attnscale laws --n: every law at the same lengths."""

from __future__ import annotations

import csv
import functools
import io
import json

import attnscale as at
import numpy as np
import pytest
from attnscale import laws
from attnscale.calibration import comparison
from attnscale.cli import main


@pytest.fixture(autouse=True, scope="module")
def _heads_are_measured_once():
    """Compute the entropy of the shipped heads once for all tests; it takes most of a call's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparison, "_heads_entropy", functools.cache(comparison._heads_entropy))
        yield


def test_the_command_prints_what_the_function_returns(run):
    found = laws.compare([512, 64], ["log_n", 0.25], train_length=256)
    given = ("--n", "64", "512", "--laws", "log_n", "0.25", "--train-length", "256")
    assert json.loads(run(*given, "--json")) == found.rows()
    sheet = found._sheet(1.0, "nats")
    assert found.lengths.tolist() == [64, 512]
    assert [row.split()[:1] for row in run(*given).splitlines()[-2:]] == [[row[0]] for row in sheet.rows]
    frame = found.to_pandas()
    assert frame["minilm_entropy"].tolist() == [row["minilm_entropy"] for row in found.rows()]
    np.testing.assert_allclose(
        found.to_pandas(unit="bits")["sphere_entropy"] * np.log(2), frame["sphere_entropy"]
    )


def test_ctrl_c_keeps_the_finished_laws(monkeypatch):
    seen = []

    def columns(law, *given):
        if seen:
            raise KeyboardInterrupt
        seen.append(law)
        return own(law, *given)

    own = comparison._columns
    monkeypatch.setattr(comparison, "_columns", columns)
    found = laws.compare(64, ["log_n", "standard"])
    assert (list(found.laws), found.interrupted, found.multiplier.shape) == (["log_n"], True, (1, 1))
    with pytest.raises(KeyboardInterrupt):
        laws.compare(64, ["standard"])


def test_progress_counts_the_laws():
    seen = []
    laws.compare(64, ["log_n", "standard"], progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([], {}, "lengths must be at least one number of keys, got none"),
        (5.5, {}, "lengths must be an integer, got 5.5"),
        (None, {}, "lengths must be a sequence of numbers of keys, got None"),
        (5, {"laws": "log_n"}, "laws must be a sequence of laws, got 'log_n'"),
        (5, {"laws": []}, "laws must be at least one law, got none"),
        (5, {"head_dim": 1}, "head_dim must be at least 2, got 1"),
        (5, {"train_length": 1}, "train_length must be at least 2, got 1"),
        (5, {"laws": ["[1, 2] * log_n"]}, "one value for all heads is compared"),
    ],
)
def test_bad_arguments(lengths, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        laws.compare(lengths, **options)


@pytest.fixture
def run(capsys):
    """Run `attnscale laws` with these arguments and return its output."""

    def call(*arguments):
        assert main(["laws", *arguments]) == 0
        return capsys.readouterr().out

    return call


def table(text):
    """Rows of the JSON by (law, n)."""
    return {(row["law"], row["n"]): row for row in json.loads(text)}


def test_known_numbers(run):
    rows = table(run("--n", "512", "4096", "32768", "--json"))
    multiplier = {
        ("standard", 32768): 1,
        ("mup", 512): 0.125,
        ("log_n", 32768): 15 / 9,
        ("qwen_log_n(train_length=512)", 512): 1,
        ("longrope(train_length=512, factor=64)", 512): 15 / 9,  # one value at every length
        ("yarn(factor=64)", 512): 2.004740,
        ("llama4_temperature", 32768): 1.160944,
        ("ministral_temperature(length=512)", 32768): 1.415888,  # its length is --train-length too
        ("info_scale(train_length=512)", 32768): 1.25148,
        ("annealed", 4096): 2.271317,
    }
    for key, value in multiplier.items():
        assert rows[key]["multiplier"] == pytest.approx(value, abs=2e-6), key
    # Keys uniform on a sphere, head_dim 64.
    sphere = {"standard": (5.7523, 7.8292, 9.9083), "log_n": (5.7523, 7.4642, 9.0894)}
    sphere["natural_log_n"] = (1.2367, 1.1723, 1.1232)
    for law, values in sphere.items():
        seen = [rows[law, n]["sphere_entropy"] for n in (512, 4096, 32768)]
        np.testing.assert_allclose(seen, values, atol=5e-5)
    assert rows["annealed", 512]["sphere_entropy"] == rows["standard", 512]["sphere_entropy"]
    assert rows["scale_invariant", 512]["multiplier"] is None
    assert rows["scale_invariant", 512]["sphere_entropy"] is None
    assert rows["standard", 4096]["minilm_entropy"] is None  # 512 tokens


def test_every_law_that_a_length_determines(run):
    rows = table(run("--n", "64", "128", "--train-length", "64", "--json"))
    named = {law.partition("(")[0] for law, _ in rows}
    learned = "constant per_head layer_index disentangled_scale latent_scale kappa asentmax mla_yarn"
    learned += " retrieval qk_norm_scale selective_temperature nope_temperature"
    assert set(laws.names()) - named == {*learned.split()}
    assert not named & {*learned.split()}
    assert rows["log_n(base=64)", 128]["definition"] == "LogN(base=64.0, floor=1.0)"
    assert rows["yarn(factor=2)", 64]["definition"].startswith("YaRN(factor=2.0")


def test_named_laws_take_the_training_length(run):
    """Arguments that leave the laws open give the rows of no --laws."""
    at_all = ("--n", "512", "--train-length", "256", "--json")
    every = table(run(*at_all))
    names = ("annealed", "log_n", "qwen_log_n", "ministral_temperature")
    chosen = table(run(*at_all, "--laws", *names, "log_n(base=512)", "log_n(floor=2)"))
    spelled = ("annealed(n0=256)", "log_n(base=256)", "qwen_log_n(train_length=256)")
    assert every["annealed(n0=256)", 512]["multiplier"] == pytest.approx(1.5448, abs=1e-4)
    for name in (*spelled, "ministral_temperature(length=256)"):
        assert chosen[name, 512] == every[name, 512]
    assert chosen["log_n", 512]["multiplier"] == 1
    assert chosen["log_n(base=256, floor=2)", 512]["multiplier"] == 9 / 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            "--n 64 --laws ssmax log_n(base=64) --train-length 256",
            "--train-length 256: each of --laws has its own length, or none",
        ),
        ("--train-length 256", "--train-length compares laws at some numbers of keys and needs --n N"),
        ("--head-dim 256", "--head-dim compares laws at some numbers of keys and needs --n N"),
        ("--n 0", "--n must be at least 1, got 0"),
        ("--n 5 --head-dim 1", "--head-dim must be at least 2, got 1"),
        ("--n 5 --train-length 1", "--train-length must be at least 2, got 1"),
        ("--n 5 --laws nope", "the name of a law must be one of"),
        ("--n 5 --laws per_head(values=[1.0,2.0])", "one value for all heads is compared, got Per"),
        ("--plot a.png", "--plot compares laws at some numbers of keys and needs --n N ..."),
        ("--laws log_n", "--laws compares laws at some numbers of keys and needs --n N ..."),
    ],
)
def test_bad_input(capsys, arguments, message):
    assert main(["laws", *arguments.split()]) == 2
    assert message in capsys.readouterr().err


def test_a_factor_stands_beside_its_law(run):
    """The table says that the multiple of yarn follows from the extension of the context, not from n."""
    one, several = (run("--n", "512"), run("--n", "512", "4096", "32768"))
    assert "yarn(factor=1) " in one
    assert "longrope(train_length=512, factor=64) " in several
    assert "their factor is the longest n over that length" in several


def test_a_law_of_some_channels_has_no_entropy(run):
    rows = table(run("--n", "64", "--json", "--laws", "yarn(factor=4)", "yarn(factor=4, channels='all')"))
    some, every = rows["yarn(factor=4)", 64], rows["yarn(factor=4, channels='all')", 64]
    assert some["multiplier"] == every["multiplier"]
    assert some["sphere_entropy"] is some["minilm_entropy"] is None
    assert every["sphere_entropy"] > 0


def test_the_list_says_what_each_law_calls_its_length(run):
    text = run().replace("\n", " ")
    assert "base of log_n, log_power;" in text
    assert "n0 of annealed, entropy_invariant, sparsity_invariant, variance_invariant." in text
    lengths = {row["name"]: row["length_parameter"] for row in json.loads(run("--json"))}
    assert lengths["grok_temperature"] == "length"
    assert lengths["ssmax"] is None


def test_entropy_of_the_shipped_heads(run):
    data = at.datasets.minilm_qk()
    q, k = data.query[:, :64].astype(float), data.key[:, :64].astype(float)
    standard = at.reference.attention_entropy(q, k)
    scales = {
        "standard": None,
        "scale_invariant": "scale_invariant",
        "ssmax(s=0.5)": 0.5 * np.log(64) / np.sqrt(32),
        "adaptive_temperature": laws.AdaptiveTemperature().multiplier(standard, 32) / np.sqrt(32),
    }
    rows = table(run("--n", "64", "--json", "--laws", *scales))
    for law, scale in scales.items():
        entropy = at.reference.attention_entropy(q, k, scale=scale).mean()
        assert rows[law, 64]["minilm_entropy"] == pytest.approx(entropy, abs=1e-5), law


def test_registered_laws_are_compared_too(run):
    @at.laws.register("always_two")
    def always_two(n, head_dim):
        """2 / sqrt(head_dim)"""
        return 2 / np.sqrt(head_dim)

    rows = table(run("--n", "64", "600", "--json", "--laws", "always_two", "constant(value=0.25)"))
    for n in (64, 600):
        assert rows["always_two", n]["multiplier"] == 2
        assert rows["always_two", n]["sphere_entropy"] == rows["0.25", n]["sphere_entropy"]


def test_text_and_csv(run, tmp_path):
    path = tmp_path / "laws.csv"
    text = run("--n", "512", "4096", "--csv", str(path))
    line = next(line for line in text.splitlines() if line.startswith("log_n "))
    assert line.split() == ["log_n", "visible", "keys", "1.0000", "1.3333", "5.752", "7.464", "4.300"]
    assert "equal weights: 6.238, 8.318" in text
    rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    assert [row["n"] for row in rows[:2]] == ["512", "4096"]
    printed = run("--n", "512", "4096", "--csv", "-")
    assert printed == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("suffix", ["png", "pdf", "svg"])
def test_one_figure_of_all_laws(run, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"laws.{suffix}"
    run("--n", "512", "4096", "32768", "--plot", str(path))
    assert path.stat().st_size > 5000
    if suffix == "svg":
        drawn = path.read_text(encoding="utf-8")
        for law in ("qwen_log_n(train_length=512)", "llama4_temperature", "yarn(factor=64)", "annealed"):
            assert f">{law}<" in drawn
