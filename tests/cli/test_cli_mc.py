# SPDX-License-Identifier: BSD-3-Clause
"""attnscale mc: the same numbers as the functions, in every format."""

from __future__ import annotations

import json
import signal
from contextlib import contextmanager

import attnscale as at
import numpy as np
import pytest
from attnscale import montecarlo as mc
from attnscale.cli import main

# Arguments of a small run of each experiment, and the call that they stand for.
RUNS = {
    "entropy_vs_length": (
        "--n 8 40 --laws standard log_n(base=64) 0.5 --head-dim 8 --model gaussian",
        lambda **o: mc.entropy_vs_length(
            [8, 40], law=["standard", at.laws.LogN(base=64), 0.5], head_dim=[8], model="gaussian", **o
        ),
    ),
    "needle_dilution": (
        "--n 8 40 --cosine 0.7 --head-dim 8",
        lambda **o: mc.needle_dilution([8, 40], cosine=0.7, head_dim=[8], **o),
    ),
    "averaging_error": ("--n 8", lambda **o: mc.averaging_error([8], **o)),
    "softmax_saturation": (
        "--head-dim 4 16 --n 20 --laws standard 1",
        lambda **o: mc.softmax_saturation(head_dim=[4, 16], n=[20], law=["standard", 1.0], **o),
    ),
    "dot_product_variance": (
        "--head-dim 4 --distribution normal laplace --mean 0.5 --std 2",
        lambda **o: mc.dot_product_variance(
            head_dim=[4], distribution=["normal", "laplace"], mean=0.5, std=2, **o
        ),
    ),
    "max_cosine": ("--n 8 40 --head-dim 8", lambda **o: mc.max_cosine([8, 40], [8], **o)),
    "head_dimension": ("--head-dim 4 16 --n 20", lambda **o: mc.head_dimension([4, 16], n=[20], **o)),
    "jl_distortion": (
        "--points 10 --dim 20 --k 4 8 --kind sign --eps 0.5",
        lambda **o: mc.jl_distortion(n=10, dim=20, k=[4, 8], kind=["sign"], eps=[0.5], **o),
    ),
    "rank_and_sparsity": (
        "--n 8 --laws standard 2",
        lambda **o: mc.rank_and_sparsity([8], law=["standard", 2.0], **o),
    ),
    "sparsity": (
        "--n 8 40 --laws standard 2 --normalizer sparsemax entmax15 --model gaussian",
        lambda **o: mc.sparsity(
            [8, 40], law=["standard", 2.0], normalizer=["sparsemax", "entmax15"], model="gaussian", **o
        ),
    ),
}


@pytest.fixture
def run(run):
    """Run an experiment that succeeds and return its output."""
    return lambda *arguments: run("mc", *arguments)


def test_every_experiment_has_its_command():
    named = [name for name in mc.__all__ if name.islower()]
    functions = {name for name in named if not getattr(mc, name).__module__.endswith("._arrays")}
    assert functions == set(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_json_has_the_numbers_of_the_function(name, run):
    arguments, function = RUNS[name]
    report = json.loads(run(name, *arguments.split(), "--samples", "64", "--seed", "7", "--json"))
    result = function(samples=64, rng=7)
    assert report["experiment"] == name
    assert report["parameters"] == result.parameters
    assert report["provenance"]["seed"] == "7"
    for row, expected in zip(report["rows"], result.rows(), strict=True):
        for key, value in expected.items():
            unknown = isinstance(value, float) and not np.isfinite(value)
            assert row[key] == (None if unknown else value)
    for quantity, values in result.exact().items():
        assert [row[f"{quantity}_exact"] for row in report["rows"]] == values.ravel().tolist()


@pytest.mark.parametrize("name", RUNS)
def test_tables(name, run):
    arguments, function = RUNS[name]
    lines = run(name.replace("_", "-"), *arguments.split(), "--samples", "64", "--seed", "7").splitlines()
    result = function(samples=64, rng=7)
    assert lines[0].startswith(f"{name}: ")
    assert lines[0].endswith("seed 7")
    assert lines[2].split()[: len(result.axes)] == list(result.axes)
    assert ("exact" in lines[2].split()) == (result.quantity in result.exact())
    assert len(lines) == 3 + len(result.rows())


def test_the_table_shows_two_digits_of_the_error(run):
    out = run("max_cosine", "--n", "512", "--samples", "2000", "--seed", "0")
    row = out.splitlines()[-1].split()
    result = mc.max_cosine(512, samples=2000, rng=0)
    value, error, exact = map(float, row[1:4])
    assert row[0] == "512"
    assert value == pytest.approx(result.value, abs=0.6e-4)
    assert error == pytest.approx(result.standard_error, rel=0.05)
    assert abs(value - exact) < 5 * error
    assert row[4] == "2000"


@pytest.mark.parametrize("name", RUNS)
def test_an_experiment_runs_without_another_word(name, run):
    report = json.loads(run(name, "--samples", "64", "--seed", "1", "--json"))
    usual = getattr(mc, name)(samples=64, rng=1)
    assert report["parameters"] == usual.parameters
    assert report["rows"][0][usual.quantity] == usual.rows()[0][usual.quantity]


def test_quantities(run):
    out = run("needle_dilution", "--n", "8", "--cosine", "0.5", "--quantity", "entropy", "needle_is_top")
    header = "n entropy (nat) error needle_is_top error exact samples"
    assert out.splitlines()[2].split() == header.split()


def test_target_error(run):
    report = json.loads(run("max_cosine", "--n", "8", "--target-error", "0.02", "--seed", "1", "--json"))
    assert report["rows"][0]["max_cosine_standard_error"] <= 0.02


def test_real_heads(run, tmp_path):
    data = at.datasets.minilm_qk()
    path = tmp_path / "heads.npz"
    np.savez(path, query=data.query[:2], key=data.key[:2])
    common = ("--heads", str(path), "--seed", "1", "--json", "--samples")
    out = run("entropy_vs_length", "--n", "64", *common, "20")
    expected = mc.entropy_vs_length(64, model=(data.query[:2], data.key[:2]), samples=20, rng=1)
    assert json.loads(out)["rows"][0]["entropy"] == expected.value
    out = run("dot_product_variance", *common, "640")
    assert [row["head"] for row in json.loads(out)["rows"]] == [0, 1]


def test_ctrl_c_prints_what_is_there(capsys, monkeypatch):
    monkeypatch.setattr("attnscale.montecarlo._run._MOST_ROWS", 10)

    @contextmanager
    def interrupting(*_):
        yield lambda done: done >= 30 and signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("attnscale._grid.complete.reporter", interrupting)
    assert main(["mc", "max_cosine", "--n", "8", "--samples", "1000"]) == 130
    captured = capsys.readouterr()
    command = "attnscale mc max_cosine --n 8 --samples 1000 --store DIR"
    line = f"interrupted: this is what was finished; with a store it can be resumed: {command}"
    assert captured.err == f"attnscale: {line}\n"
    assert captured.out.splitlines()[-1].split()[-1] in ("20", "30")


def test_a_store_goes_on(run, tmp_path):
    arguments = ("max_cosine", "--n", "8", "64", "--json", "--seed", "3", "--samples")
    run(*arguments, "10", "--store", str(tmp_path / "kept"))
    assert len(list((tmp_path / "kept" / "cases").glob("*.npz"))) == 2
    further, whole = run(*arguments, "25", "--store", str(tmp_path / "kept")), run(*arguments, "25")
    assert json.loads(further)["rows"] == json.loads(whole)["rows"]
    assert main(["mc", *arguments[:6], "4", "--store", str(tmp_path / "kept")]) == 2  # another seed


@pytest.mark.parametrize(("n", "samples"), [(8, 1), (1, 50)])
def test_values_that_agree_have_no_error(run, n, samples):
    """One sample, or supports that are all 1, have no spread: the error is unknown, not 0."""
    text = run("sparsity", *f"--n {n} --samples {samples} --seed 0".split())
    assert text.splitlines()[-1].split()[2:] == ["-", str(samples)]
    printed = mc.sparsity(n, samples=samples, rng=0).table()
    assert printed.splitlines()[2].split()[1:] == ["-", str(samples)]
