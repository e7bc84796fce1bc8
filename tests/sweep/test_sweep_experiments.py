# SPDX-License-Identifier: BSD-3-Clause
"""Sweeps over the experiments of attnscale.montecarlo: a law of one's own, figures, the command, Ctrl-C."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale.cli import main

pytest.importorskip("xarray")

LENGTHS = [512, 4096]
LAWS = ["standard", "log_n", "root_log"]


@pytest.fixture
def root_log() -> None:
    @at.laws.register("root_log")
    def root_log(n: Any, head_dim: int, *, n0: int = 512) -> Any:
        return (1 + 2 * np.log(n / n0)) ** 0.5 / head_dim**0.5


def sweep(**options: Any) -> Any:
    grid = {"n": LENGTHS, "law": LAWS}
    return at.sweep(at.montecarlo.entropy_vs_length, grid, **{"progress": False, **options})


@pytest.mark.usefixtures("root_log")
def test_a_new_law_against_others_in_two_processes_with_a_store(tmp_path: Path) -> None:
    pytest.importorskip("joblib")
    table = sweep(store=tmp_path / "root_log", n_jobs=2, rng=5)
    assert table["value"].dims == ("n", "law")
    beta = {"standard": [1, 1], "log_n": [1, 4 / 3], "root_log": (1 + 2 * np.log([1, 8])) ** 0.5}
    for law in LAWS:
        exact = at.theory.expected_entropy(LENGTHS, beta[law])
        here = table.sel(law=law)
        np.testing.assert_allclose(here["exact"], exact, rtol=1e-9)
        assert (abs(here["value"] - exact) < 5 * here["standard_error"]).all()
        assert (here["standard_error"] < 0.02).all()
    again = sweep(store=tmp_path / "root_log")
    assert again.drop_attrs(deep=False).identical(table.drop_attrs(deep=False))
    assert sweep(rng=5).drop_attrs(deep=False).identical(table.drop_attrs(deep=False))


@pytest.mark.usefixtures("root_log")
def test_figures_of_the_table() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    table = sweep(constants={"samples": 50}, rng=1)
    ax = plt.subplots()[1]
    try:
        assert at.plot.entropy_vs_length(table, ax=ax) is ax
        ax.clear()
        at.plot.sweep(table, ax=ax)
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("keys per query, $n$", "mean entropy (nats)")
        curves = [line for line in ax.get_lines() if line.get_linestyle() == "-"]
        ends = [[np.interp(n, *line.get_data()) for n in table["n"].values] for line in curves]
        np.testing.assert_array_equal(ends, table["exact"].T)
    finally:
        plt.close("all")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "lengths.toml"
    path.write_text(
        'function = "attnscale.montecarlo.entropy_vs_length"\nrng = 3\n'
        '[grid]\nn = [64, 512]\nlaw = ["standard", "log_n(base=64)"]\n'
        "[constants]\nhead_dim = 16\nsamples = 200\n"
    )
    assert main(["sweep", str(path), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["law"] for row in rows[:2]] == ["standard", "log_n(base=64)"]
    for row, beta in zip(rows, (1, 1, 1, 1.5), strict=True):
        exact = at.theory.expected_entropy(row["n"], beta, head_dim=16)
        assert abs(row["value"] - exact) < 5 * row["standard_error"]
        assert row["samples"] == 200


def test_an_experiment_that_was_cut_off_is_not_a_finished_case(tmp_path: Path) -> None:
    """An experiment returns a part at Ctrl-C: useful to its caller, but not a result for a store."""
    stops = tmp_path / "stops"

    def experiment(n: int, rng: Any) -> Any:
        def interrupt(done: int, total: int) -> None:
            if n == 128 and stops.exists() and done:
                raise KeyboardInterrupt

        result = at.montecarlo.entropy_vs_length(n, samples=5000, rng=rng, progress=interrupt)
        assert result.interrupted == (n == 128 and stops.exists())
        return result

    stops.touch()
    with pytest.raises(at.SweepInterrupted, match="1 of 3 cases are finished"):
        at.sweep(experiment, {"n": [64, 128, 256]}, store=tmp_path / "store", rng=2)
    assert len(list((tmp_path / "store" / "cases").iterdir())) == 1
    stops.unlink()
    table = at.sweep(experiment, {"n": [64, 128, 256]}, store=tmp_path / "store", rng=2)
    assert table["samples"].values.tolist() == [5000] * 3
