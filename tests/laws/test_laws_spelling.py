# SPDX-License-Identifier: BSD-3-Clause
"""Spellings tell laws of one name apart, in every result, table and figure."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import laws
from attnscale._sweep import task
from attnscale.cli import main
from attnscale.plot import _exact, _tables

#: Two laws of one name and a third, and their spellings; 512 is the default.
GIVEN = ["annealed(n0=64)", "annealed(n0=512)", "standard"]
SPELLED = ["annealed(n0=64)", "annealed", "standard"]
WINNER, OTHER, _ = SPELLED
LENGTHS = [64, 128, 256, 512]
DATA = at.datasets.minilm_qk()


@pytest.fixture(autouse=True)
def _close_figures() -> Any:
    yield
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.close("all")


@pytest.fixture(scope="module")
def found() -> at.Calibration:
    return at.calibrate(DATA.query, DATA.key, n0=64, lengths=LENGTHS, laws=GIVEN)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("heads") / "heads.npz"
    np.savez(path, query=DATA.query[:3, :96], key=DATA.key[:3, :96])
    return str(path)


def printed(capsys: Any, *arguments: str) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


# ---- calibrate ------------------------------------------------------------------------------------


def test_the_ranking_has_the_error_of_each_law(found: at.Calibration) -> None:
    assert list(found.ranking) == [WINNER, "standard", OTHER]
    errors = np.sqrt((found.entropy_error**2).mean(-1))
    assert [found.ranking[name] for name in SPELLED] == pytest.approx(errors.tolist())
    assert found.ranking[WINNER] == pytest.approx(0.280, abs=1e-3)
    assert found.ranking[OTHER] == pytest.approx(2.226, abs=1e-3)
    assert f"use {WINNER}, one constant per head: it misses by 0.280 nat" in found.recommendation
    assert f"{WINNER} for 1" in found.recommendation
    assert [[found.laws[i].spelling for i in group] for group in found.groups] == [[x] for x in found.ranking]


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0)])
def test_the_estimator_takes_the_first_of_the_ranking(order: tuple[int, ...]) -> None:
    given = [GIVEN[i] for i in order]
    model = at.LawCalibrator(n0=64, lengths=LENGTHS, laws=given).fit(DATA.query, DATA.key)
    assert model.law_ == laws.Annealed(64)
    here = model.calibration_
    np.testing.assert_array_equal(model.amplitude_, here.amplitude[given.index(WINNER)])


def test_tables_and_labels_of_a_calibration(found: at.Calibration) -> None:
    pytest.importorskip("xarray")
    table = found.to_xarray()
    assert table["law"].values.tolist() == SPELLED
    np.testing.assert_array_equal(table["entropy_error"].sel(law=WINNER), found.entropy_error[0])
    assert f"  {WINNER}" in repr(found)
    import xarray

    q, k = (xarray.DataArray(each, dims=("head", "token", "channel")) for each in (DATA.query, DATA.key))
    q = q.rename(token="query")
    named = at.calibrate(q, k, n0=64, lengths=LENGTHS, laws=GIVEN)
    assert named.entropy_error["law"].values.tolist() == SPELLED


def test_the_figure_of_a_calibration(found: at.Calibration) -> None:
    ax = found.plot()
    drawn = {text.get_text() for text in ax.texts}
    assert drawn == {"measured, median", *SPELLED}
    curve = np.median(found.law_beta[0], axis=0)
    assert any(np.array_equal(line.get_ydata(), curve) for line in ax.get_lines())


def test_the_command_calibrate(capsys: Any) -> None:
    report = printed(capsys, "calibrate", "--demo", "--n0", "64", "--n", "64", "512", "--laws", *GIVEN)
    assert set(report["ranking"]) == set(SPELLED)
    assert {head["best"] for head in report["heads"]} <= set(SPELLED)


def test_a_law_in_other_words_is_compared_once() -> None:
    given = ["log_n", "log_n(base=64)", laws.LogN(64.0), "standard"]
    found = at.calibrate(DATA.query[:2], DATA.key[:2], n0=64, lengths=[64, 128], laws=given)
    assert found.laws == (laws.LogN(64), laws.Standard())
    assert set(found.ranking) == {"log_n(base=64)", "standard"}


# ---- Monte Carlo, sweeps --------------------------------------------------------------------------


def test_experiments_label_laws_by_spellings_that_are_read_back(capsys: Any) -> None:
    laws.register("spelling_power")(lambda n, head_dim, *, power=0.25: n**power / head_dim)
    given = [*GIVEN, 0.125, 2 * laws.Annealed(64), laws.get("spelling_power", power=0.5)]
    result = at.montecarlo.entropy_vs_length([512, 1024], law=given, samples=4, rng=0)
    labels = [*SPELLED, "0.125", "2.0 * annealed(n0=64)", "spelling_power(power=0.5)"]
    assert list(result.axes["law"]) == labels
    assert [laws.get(label) for label in labels] == [laws.get(law) for law in given]
    with pytest.raises(ValueError, match=r"law must have distinct values, got \['log_n', 'log_n'\]"):
        at.montecarlo.entropy_vs_length(64, law=["log_n", "log_n(base=512)"])
    command = ["mc", "entropy_vs_length", "--n", "512", "--samples", "4", "--seed", "0"]
    rows = printed(capsys, *command, "--laws", *GIVEN)["rows"]
    assert [row["law"] for row in rows] == SPELLED


def test_a_figure_of_an_experiment_has_the_exact_curve_of_each_label() -> None:
    laws.register("spelling_linear")(lambda n, head_dim, *, slope: 1 + slope * n / 1000)
    given = [WINNER, "spelling_linear(slope=2)"]
    result = at.montecarlo.entropy_vs_length([64, 512], law=given, head_dim=16, samples=8, rng=0)
    dense = _exact.exact_curve(result, {"n": [64, 512], "law": given}, "n", "entropy")
    assert dense is not None
    beta = np.stack([laws.get(law).multiplier(dense[0], 16) for law in given], axis=-1)
    exact = at.theory.expected_entropy(dense[0][:, None], beta, head_dim=16)
    np.testing.assert_allclose(dense[1], exact, rtol=1e-9)
    ax = at.plot.experiment(result)
    assert {text.get_text() for text in [*ax.texts, *ax.get_legend().get_texts()]} >= set(given)


def test_sweeps_label_laws_by_spellings() -> None:
    pytest.importorskip("xarray")
    table = at.sweep(lambda n, law: n, {"n": [1, 2], "law": [laws.Annealed(64), laws.Annealed(512), 0.5]})
    assert table["law"].values.tolist() == ["annealed(n0=64)", "annealed", "0.5"]
    with pytest.raises(ValueError, match="must have distinct values, got annealed twice"):
        at.sweep(lambda law: 1, {"law": ["annealed", laws.Annealed(512)]})


def test_the_constants_of_a_sweep_are_stored_and_not_parsed() -> None:
    """A law, whose repr is not a literal, is read back from the attributes."""
    pytest.importorskip("xarray")
    constants = {"law": laws.Annealed(64), "head_dim": 16, "samples": 8}
    table = at.sweep(at.montecarlo.entropy_vs_length, {"n": [64, 512]}, constants=constants, rng=0)
    assert json.loads(table.attrs["parameters"]) == constants | {"law": WINNER}
    read = _tables.read_table("table", table)
    assert (read.experiment, read.parameters["law"], read.parameters["head_dim"]) == (
        "entropy_vs_length",
        WINNER,
        16,
    )
    del table.attrs["parameters"]  # as an earlier version wrote it
    read = _tables.read_table("table", table)
    assert (read.experiment, read.parameters) == ("", {})
    at.plot.sweep(table)


def test_a_store_knows_a_registered_law_by_its_function() -> None:
    laws.register("spelling_store")(lambda n, head_dim, *, s=1.0: s)
    (one,) = task.registered_laws(["spelling_store(s=2)"])
    (two,) = task.registered_laws(["spelling_store(s=1.5)", "spelling_store(s=2)"])
    assert one == two == laws.get("spelling_store")


# ---- figures of laws ------------------------------------------------------------------------------


def texts(ax: Any) -> set[str]:
    return {line.get_label() for line in ax.get_lines()}


def test_figures_of_laws() -> None:
    given = ["ssmax(s=0.5)", "ssmax(s=1)", "log_n(base=64)"]
    drawn = texts(at.plot.law_comparison(given, [64, 512, 4096]))
    assert drawn == {*given[:2], r"$\log_{64} n\,/\sqrt{d}$"}
    ax = at.plot.phase_diagram([10, 1000], [0.5, 4.0], [[1.0, 2.0], [1.0, 2.0]], laws=given)
    assert texts(ax) > {*given[:2]}
    # Laws of one name have different labels.
    ax = at.plot.law_comparison(given[:2], [64, 512, 4096], labels={"ssmax(s=0.5)": "half"})
    assert texts(ax) == {"half", "ssmax(s=1)"}
    ax = at.plot.law_comparison(["log_n", "log_n(floor=2)"], [64, 4096], labels={"log_n": "mine"})
    assert texts(ax) == {"mine =\nlog_n(floor=2)"}


# ---- commands, models -----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["entropy", "theory", "laws"])
def test_commands_label_a_law_once_and_by_its_spelling(command: str, file: str, capsys: Any) -> None:
    given = ["--laws", "annealed( n0 = 64. )", "annealed(n0=64)", "annealed(n0=16)"]
    first = [command, file] if command == "entropy" else [command, "--n", "64"]
    report = printed(capsys, *first, *given)
    rows = report if isinstance(report, list) else report["rows"]
    key = "at" if command == "theory" else "law"
    assert list(dict.fromkeys(row[key] for row in rows)) == ["annealed(n0=64)", "annealed(n0=16)"]


def test_multiples_that_are_nearly_equal_are_two(capsys: Any) -> None:
    report = printed(capsys, "theory", "--n", "64", "--beta", "1", "1.0000001")
    rows = report if isinstance(report, list) else report["rows"]
    assert [row["at"] for row in rows] == ["beta 1", "beta 1.0000001"]


def test_a_training_length_stands_in_the_label(capsys: Any) -> None:
    rows = printed(capsys, "laws", "--n", "64", "--train-length", "64", "--laws", "log_n")
    assert [laws.get(row["law"]) for row in rows] == [laws.LogN(64)]


def test_a_recording_labels_laws_by_spellings() -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=8, n_head=2, n_layer=1, vocab_size=50)
    model = transformers.GPT2Model(config).eval()
    given = [laws.LogN(base=8), "log_n( base=16 )", "log_n"]
    with torch.no_grad(), at.torch.record(model, laws=given) as log:
        model(torch.arange(20)[None])
    assert list(log.laws) == ["log_n(base=8)", "log_n(base=16)", "log_n"]
    for law in ("log_n(base=8)", "log_n(base=8.0)", laws.LogN(8)):
        np.testing.assert_array_equal(log.mean_entropy(law), log.mean_entropy("log_n(base=8)"))
    assert not np.array_equal(log.mean_entropy("log_n(base=8)"), log.mean_entropy("log_n(base=16)"))
    with pytest.raises(KeyError, match="'entropy under ssmax' was not recorded; there is entropy"):
        log.mean_entropy("ssmax")


# ---- the spelling itself --------------------------------------------------------------------------

NUMBERS = (0.1 + 0.2, 1 / 3, 1e300, 5e-324, 2.0**60, 12345678.9)


@pytest.mark.parametrize("x", NUMBERS)
def test_numbers_are_read_back_to_the_last_bit(x: float) -> None:
    plain = (laws.Constant(x), laws.SSMax(s=x), laws.SSMax(s=[x, -x]))
    for law in (*plain, x * laws.LogN(), [x, 1] * laws.LogN()):
        assert laws.get(law.spelling) == law


def test_parameters_of_a_registered_law_are_read_back() -> None:
    laws.register("spelling_any")(lambda n, head_dim, *, a=1, b="x", c=None: n)
    for a in (math.inf, -math.inf, np.float64(0.1), np.int64(3), True, (1, 2.5), [0.5], np.array([0.5, 2])):
        law = laws.get("spelling_any", a=a)
        back = dict(laws.get(law.spelling).parameters)
        np.testing.assert_array_equal(back["a"], a)
        assert (back["b"], back["c"]) == ("x", None)
    assert laws.get("spelling_any", a=1.0).spelling == "spelling_any"
    assert laws.get("spelling_any", b="y, z").spelling == "spelling_any(b='y, z')"


@pytest.mark.parametrize("name", ["my-law", "a(b)", "2 * x", "inf", "lambda", "1e3", " log"])
def test_a_name_that_no_spelling_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"name must be a Python identifier, .* and no number, got"):
        laws.register(name)


def test_nothing_but_the_name_is_read_from_a_file_of_an_earlier_version(tmp_path: Path) -> None:
    """Labels that are the repr of a law are printed unchanged, without an exact curve."""
    xarray = pytest.importorskip("xarray")
    result = at.montecarlo.entropy_vs_length([64, 512], law=[WINNER], samples=8, rng=0).to_xarray()
    old = result.assign_coords(law=["Annealed(n0=64.0, least=0.0, variance=1.0)"])
    assert isinstance(old, xarray.Dataset)
    ax = at.plot.experiment(old)
    assert len(ax.get_lines())
