# SPDX-License-Identifier: BSD-3-Clause
"""Results as tables: equal numbers in rows, files, Datasets and figures, also from older files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale._grid import table as columns
from attnscale.montecarlo import ExperimentResult
from attnscale.plot import _curves, _tables

KEPT = Path(__file__).parent / "kept"  # written when results were no tables yet


@pytest.fixture(scope="module")
def result() -> ExperimentResult:
    return at.montecarlo.needle_dilution([8, 40], law=["standard", "log_n"], cosine=0.5, samples=20, rng=7)


def assert_equal(first: Any, second: Any) -> None:
    assert str(first) == str(second)
    assert repr(first.rows()) == repr(second.rows())  # NaN is itself


# ---- a table and its columns ----------------------------------------------------------------------


def test_points_and_parts_of_a_column() -> None:
    column = columns.Column({"n": (8, 64), "law": ("a", "b", "c")}, np.arange(6.0).reshape(2, 3), "nat")
    assert [column.value[index] for index, _ in columns.points(column.axes)] == list(range(6))
    part = column.at("entropy", law="b")
    assert (part.axes, part.value.tolist(), part.unit) == ({"n": (8, 64)}, [1, 4], "nat")
    with pytest.raises(KeyError, match=r"law must be one of \('a', 'b', 'c'\), got 'd'"):
        column.at("entropy", law="d")
    with pytest.raises(KeyError, match="'head' is no axis of entropy, which has n, law"):
        column.at("entropy", head=1)
    with pytest.raises(KeyError, match=r"did you mean 'law'\? 'laws' is no axis of entropy"):
        column.at("entropy", laws="a")


def test_a_column_has_the_fields_of_the_result(result: ExperimentResult) -> None:
    for name, estimate in result.estimates.items():
        column = result.column(name)
        assert (dict(column.axes), column.unit) == (result.axes, estimate.unit)
        np.testing.assert_array_equal(column.value, estimate.value)
        np.testing.assert_array_equal(column.error, estimate.standard_error)
        np.testing.assert_array_equal(column.count, result.samples)
        if name in result.exact():
            np.testing.assert_array_equal(column.exact, result.exact()[name])
        else:
            assert column.exact is None
    assert result.select(n=40, law="log_n") == result.value[1, 1]
    np.testing.assert_array_equal(result.select("entropy", law="standard"), result["entropy"].value[:, 0])


@pytest.mark.parametrize("unit", ["nats", "bits"])
def test_a_dataset_is_read_as_the_table_that_it_was(result: ExperimentResult, unit: Any) -> None:
    pytest.importorskip("xarray")
    read = _tables.read_table("table", result.to_xarray(unit=unit))
    assert set(read.names()) == set(result.names())
    assert (read.names()[0], read.experiment) == (result.names()[0], result.experiment)
    for name in result.names():
        here, there = read.column(name), result.column(name)
        assert (dict(here.axes), here.unit) == (dict(there.axes), there.unit)
        np.testing.assert_allclose(here.value, there.value, rtol=1e-15)
        np.testing.assert_allclose(np.asarray(here.error), np.asarray(there.error), rtol=1e-15)
        np.testing.assert_array_equal(here.count, there.count)


# ---- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_saved_result_is_the_same_and_goes_on(tmp_path: Path, *, interrupted: bool) -> None:
    def stop(done: int, total: int) -> None:
        if interrupted and done:
            raise KeyboardInterrupt

    given: dict[str, Any] = {"n": [8, 40], "law": ["standard", 0.5], "head_dim": 8}
    part = at.montecarlo.entropy_vs_length(**given, samples=20, rng=[5, 6], progress=stop)
    assert part.interrupted == interrupted
    part.save(tmp_path / "part.json")
    again = ExperimentResult.load(tmp_path / "part.json")
    assert_equal(again, part)
    assert again.provenance == part.provenance
    assert json.loads((tmp_path / "part.json").read_text())["parameters"] == part.parameters
    whole = at.montecarlo.entropy_vs_length(**given, samples=50, rng=[5, 6])
    further = at.montecarlo.entropy_vs_length(**given, samples=50, resume=again)
    np.testing.assert_array_equal(further.value, whole.value)
    np.testing.assert_array_equal(further.standard_error, whole.standard_error)


def test_a_saved_result_of_one_point(tmp_path: Path) -> None:
    result = at.montecarlo.max_cosine(8, 8, samples=1, rng=0)  # without an error: NaN
    result.save(tmp_path / "one.json")
    again = ExperimentResult.load(tmp_path / "one.json")
    assert (type(again.value), type(again.samples)) == (float, int)
    assert again.value == result.value
    assert np.isnan(again.standard_error)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format":1,"kind":"attnscale train"}', '{"format":2}'])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="path must be a file that 'attnscale mc' wrote, format 1, got"):
        ExperimentResult.load(path)


# ---- older files ----------------------------------------------------------------------------------


def test_the_store_of_a_sweep_of_before_is_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xarray")
    shutil.copytree(KEPT / "sweep", tmp_path / "sweep")
    import kept_function

    monkeypatch.setattr(at, "attention_entropy", lambda *_, **__: pytest.fail("computed again"))
    table = at.sweep(
        kept_function.entropies,
        {"n": [8, 16], "law": ["standard", "log_n"]},
        constants={"heads": 2},
        store=tmp_path / "sweep",
        progress=False,
    )
    assert table.attrs["seed"] == "7"
    assert table["heads"].dims == ("n", "law", "dim_0")
    np.testing.assert_allclose(table["mean"], table["heads"].mean("dim_0"))
    assert table["name"].values.tolist() == [["standard", "log_n"]] * 2


@pytest.mark.torch
def test_the_store_and_the_file_of_a_training_of_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "experiments"))
    tiny = __import__("tiny")
    from attnscale.experiments import TrainingResult

    shutil.copytree(KEPT / "train", tmp_path / "train")
    monkeypatch.setattr(tiny.Tiny, "measure", None)
    stored = tiny.Tiny(steps=4).run(2, store=tmp_path / "train", progress=False)
    loaded = TrainingResult.load(KEPT / "training.json")
    assert loaded.complete
    for name, values in loaded.arrays.items():
        np.testing.assert_allclose(values, stored.arrays[name], rtol=1e-5)
    loaded.save(tmp_path / "again.json")
    assert_equal(TrainingResult.load(tmp_path / "again.json"), loaded)


@pytest.mark.parametrize(("file", "n_curves"), [("needle-sweep.json", 4), ("entropy-dataset.json", 2)])
def test_datasets_of_before_are_drawn_with_their_exact_curves(file: str, n_curves: int) -> None:
    xarray = pytest.importorskip("xarray")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    table = xarray.Dataset.from_dict(json.loads((KEPT / file).read_text()))
    curves = _curves.read_curves(_tables.read_table("table", table), "n")
    assert len(curves) == n_curves
    for curve in curves:
        assert curve.exact is not None
        assert curve.exact[0].size > curve.x.size  # evaluated anew between the points
    draw = at.plot.sweep if "function" in table.attrs else at.plot.experiment
    assert len(draw(table).containers) == n_curves
    pyplot.close("all")
