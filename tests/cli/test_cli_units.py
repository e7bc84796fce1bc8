# SPDX-License-Identifier: BSD-3-Clause
"""--unit: tables and figures in bits, JSON and CSV in nats, for every command that shows an entropy."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import plot
from attnscale.cli import main

LN2 = np.log(2)
SWEEP = """
function = "attnscale.montecarlo:entropy_vs_length"
rng = 0
[grid]
n = [16, 64]
[constants]
samples = 64
"""
COMMANDS = {
    "demo": "demo --plot {}/x.png",
    "entropy": "entropy {}/heads.npz --laws standard --n 8 16",
    "entropy at one length": "entropy {}/heads.npz --laws standard --causal",
    "calibrate": "calibrate {}/heads.npz --n0 8 --n 8 16 --laws standard log_n",
    "laws": "laws --n 16 64 --laws log_n",
    "theory": "theory --n 16 64",
    "mc": "mc entropy_vs_length --n 16 64 --samples 64 --seed 0",
    "needle": "mc needle_dilution --n 16 64 --cosine 0.5 --samples 64 --seed 0 --quantity entropy",
    "sparsity": "mc sparsity --n 16 64 --samples 64 --seed 0 --quantity entropy",
    "sweep": "sweep {}/sweep.toml",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    query, key = np.random.default_rng(0).standard_normal((2, 2, 16, 4))
    np.savez(tmp_path / "heads.npz", query=query, key=key)
    (tmp_path / "sweep.toml").write_text(SWEEP, encoding="utf-8")
    return tmp_path


@pytest.fixture
def show(run: Callable[..., str], folder: Path) -> Callable[..., str]:
    def call(name: str, *more: str) -> str:
        return run(*COMMANDS[name].format(folder).split(), *more)

    return call


def column(text: str, name: str) -> list[float]:
    """Numbers of a named column, in a table whose columns are two spaces apart."""
    lines = text.splitlines()
    head = next(i for i, line in enumerate(lines) if name in re.split(r" {2,}", line.strip()))
    place = re.split(r" {2,}", lines[head].strip()).index(name)
    rows = (re.split(r" {2,}", line.strip()) for line in lines[head + 1 :])
    return [float(row[place]) for row in takewhile(lambda row: row != [""], rows)]


#: Names of the column in nats; in bits, "nat" is "bit".
COLUMNS = {
    "demo": "uniform",
    "entropy": "standard",
    "entropy at one length": "standard",
    "calibrate": "entropy (nats) at 8",
    "laws": "H(64)",
    "theory": "E[H]",
    "sweep": "value (nats)",
    **dict.fromkeys(("mc", "needle", "sparsity"), "entropy (nat)"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_is_in_the_unit_and_says_so(name: str, show: Callable[..., str]) -> None:
    pytest.importorskip("xarray")
    nats, bits = show(name), show(name, "--unit", "bits")
    assert show(name, "--unit", "nats").splitlines()[:3] == nats.splitlines()[:3]
    before, after = column(nats, COLUMNS[name]), column(bits, COLUMNS[name].replace("nat", "bit"))
    assert before
    np.testing.assert_allclose(after, np.divide(before, LN2), atol=0.012, rtol=2e-4)
    assert re.search(r"\bbits?\b", bits)
    assert not re.search(r"\bnats?\b", bits)
    assert re.search(r"\bnats?\b", nats)


def test_effective_keys_are_the_same(show: Callable[..., str]) -> None:
    nats, bits = show("entropy"), show("entropy", "--unit", "bits")
    assert column(nats, "keys") == column(bits, "keys")
    assert "keys: exp(entropy). Equal weights: 2.079, 2.773" in nats
    assert "keys: 2^entropy. Equal weights: 3.000, 4.000" in bits


def test_all_that_calibrate_says_is_in_bits(show: Callable[..., str], folder: Path) -> None:
    stored = np.load(folder / "heads.npz")
    found = at.calibrate(stored["query"], stored["key"], 8, [8, 16], laws=["standard", "log_n"])
    text = " ".join(show("calibrate", "--unit", "bits").split())
    (least, *_) = found.ranking.values()
    assert f"it misses by {least / LN2:.3f} bit (root" in text
    assert f"for all of them it misses by {found.median_error / LN2:.3f} bit." in text
    assert f"misses by {least / LN2:.3f} bit" in " ".join(found.table(unit="bits").split())
    assert "nat" not in found.table(unit="bits").replace("alternat", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_files_and_json_are_in_nats(name: str, show: Callable[..., str], folder: Path) -> None:
    pytest.importorskip("xarray")
    show(name, "--csv", str(folder / "a.csv"))
    show(name, "--csv", str(folder / "b.csv"), "--unit", "bits")
    nats, bits = ((folder / each).read_text(encoding="utf-8") for each in ("a.csv", "b.csv"))
    assert nats == bits
    assert list(csv.DictReader(nats.splitlines()))


@pytest.mark.parametrize("printed", [["--json"], ["--csv", "-"]])
def test_a_unit_that_nothing_would_show_is_refused(
    printed: list[str], fail: Callable[..., str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fail("theory", "--n", "16", "--unit", "bits", *printed)
    told = f"--unit bits is of the table and the figure: {' '.join(printed)} is in nats; leave it out\n"
    assert said.endswith(told)
    pytest.importorskip("matplotlib")
    assert main(["theory", "--n", "16", "--unit", "bits", *printed, "--plot", str(tmp_path / "a.png")]) == 0
    out = capsys.readouterr().out
    value = json.loads(out)["rows"][0]["entropy"] if "--json" in printed else float(out.split(",")[10])
    assert value == pytest.approx(at.theory.expected_entropy(16, 1.0), rel=1e-9)


@pytest.mark.parametrize(
    "command", ["demo", "entropy x", "laws --n 8", "theory --n 8", "sweep x", "calibrate x"]
)
def test_another_unit_is_one_line(command: str, fail: Callable[..., str]) -> None:
    told = "did you mean 'bits'? --unit must be one of 'nats', 'bits', got 'bit'"
    assert fail(*command.split(), "--unit", "bit") == f"attnscale: error: {told}\n"


def test_what_shows_no_entropy_has_no_unit(fail: Callable[..., str]) -> None:
    assert "unrecognized arguments: --unit" in fail("mc", "max_cosine", "--n", "8", "--unit", "bits")
    assert "--unit compares laws at some numbers of keys" in fail("laws", "--unit", "bits")


FIGURES = {
    "entropy": "entropy_vs_length",
    "entropy at one length": "entropy_by_head",
    "theory": "entropy_vs_length",
    "mc": "experiment",
    "needle": "experiment",
    "sweep": "sweep",
}


@pytest.mark.parametrize("name", FIGURES)
def test_the_figure_is_in_bits(
    name: str, show: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("xarray")
    found: list[Any] = []
    own = getattr(plot, FIGURES[name])
    monkeypatch.setattr(plot, FIGURES[name], lambda *given, **options: found.append(own(*given, **options)))
    show(name, "--plot", str(folder / "a.png"), "--unit", "bits")
    label = found[0].get_xlabel() if FIGURES[name] == "entropy_by_head" else found[0].get_ylabel()
    assert label == "mean entropy (bits)"


def test_the_demo_draws_both_panels_in_bits(
    show: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    found: list[Any] = []
    for own in (plot.entropy_vs_length, plot.entropy_by_head):

        def keep(*given: Any, _own: Callable[..., Any] = own, **options: Any) -> None:
            found.append(_own(*given, **options))

        monkeypatch.setattr(plot, own.__name__, keep)
    show("demo", "--unit", "bits")
    assert found[0].get_ylabel() == found[1].get_xlabel() == "mean entropy (bits)"
