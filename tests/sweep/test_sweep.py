# SPDX-License-Identifier: BSD-3-Clause
"""sweep: the grid, the forms of results, seeds, failures and bad input."""

# ruff: noqa: E501  # a mistake is one line: call, error, message

from __future__ import annotations

import collections
import json
import subprocess
import sys
from decimal import Decimal
from typing import Any

import attnscale as at
import numpy as np
import pytest
import sweep_functions
from attnscale._base import seeds as _seeds
from numpy.testing import assert_allclose, assert_array_equal

xarray = pytest.importorskip("xarray")


def sweep(function: Any, grid: Any, **options: Any) -> Any:
    return at.sweep(function, grid, **{"progress": False, **options})


def test_all_combinations_in_the_order_of_the_grid() -> None:
    table = sweep(sweep_functions.power, {"base": [2.0, 3.0], "exponent": [0, 1, 5]})
    assert table["value"].dims == ("base", "exponent")
    assert_array_equal(table["value"], [[1, 2, 32], [1, 3, 243]])
    assert_array_equal(table["base"], [2.0, 3.0])
    assert table["exponent"].dtype == np.int64
    assert table["value"].sel(base=3, exponent=5) == 243


def test_constants() -> None:
    table = sweep(
        sweep_functions.power, {"exponent": range(3)}, constants={"base": 2, "factor": np.float64(10)}
    )
    assert_array_equal(table["value"], [10, 20, 40])
    assert table.attrs["constants"] == "base=2, factor=10.0"


def test_the_example_of_a_law_and_a_registered_law() -> None:
    at.laws.register("sweep_test")(lambda n, head_dim: 0.25)
    scales = ["standard", "sweep_test", at.laws.LogN(base=64), 0.25]
    table = sweep(sweep_functions.entropy, {"n": [16, 32], "scale": scales})
    assert table["scale"].values.tolist() == ["standard", "sweep_test", "log_n(base=64)", "0.25"]
    assert table["entropy"].dims == ("n", "scale", "head", "query")
    data = at.datasets.minilm_qk()
    want = at.attention_entropy(data.query[:2, :32], data.key[:2, :32], scale=at.laws.LogN(base=64))
    assert_array_equal(table["entropy"][1, 2], want)
    assert_array_equal(table["entropy"].sel(scale="0.25"), table["entropy"].sel(scale="sweep_test"))
    assert "output" not in table  # None in every case


def test_shorter_arrays_are_filled_with_nan() -> None:
    table = sweep(lambda n: {"row": np.arange(n), "name": "x" * n}, {"n": [1, 3]})
    assert_array_equal(table["row"], [[0, np.nan, np.nan], [0, 1, 2]])
    assert table["name"].values.tolist() == ["x", "xxx"]


DAY = np.datetime64("2026-08-01")
Pair = collections.namedtuple("Pair", "left right")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda n: n, {"value": [1, 2]}),
        (lambda n: n > 1, {"value": [False, True]}),
        (lambda n: f"n{n}", {"value": ["n1", "n2"]}),
        (lambda n: 1j * n, {"value": [1j, 2j]}),
        (lambda n: np.float32(n), {"value": [1, 2]}),
        (lambda n: [n, n + 1], {"value": [[1, 2], [2, 3]]}),
        (lambda n: (n, -n), {"value_0": [1, 2], "value_1": [-1, -2]}),
        (lambda n: Pair(n, -n), {"left": [1, 2], "right": [-1, -2]}),
        (lambda n: {"a": {"b": n, "c": None}}, {"a.b": [1, 2]}),
        (lambda n: {"n": n, "a": n}, {"a": [1, 2]}),
        (sweep_functions.estimate, {"value": [1, 0.5], "standard_error": [0.1, 0.1], "samples": [10, 20]}),
        (lambda n: xarray.DataArray(n), {"value": [1, 2]}),
        (lambda n: xarray.DataArray(n, name="a"), {"a": [1, 2]}),
        (lambda n: {"x": xarray.Dataset({"a": n})}, {"x.a": [1, 2]}),
        (
            lambda n: np.array([np.datetime64("2026-08-01")]),
            {"value": [[np.datetime64("2026-08-01", "D")]] * 2},
        ),
    ],
)
def test_forms_of_results(function: Any, expected: dict[str, Any]) -> None:
    table = sweep(function, {"n": [1, 2]})
    assert set(table.data_vars) == set(expected)
    for name, values in expected.items():
        assert_array_equal(table[name], values)


class WithXarray:
    def __init__(self, n: int) -> None:
        self.n = n

    def to_xarray(self) -> Any:
        depth = xarray.DataArray(np.arange(self.n, 0, -1), dims="depth")
        value = xarray.DataArray(depth.values + 0.5, dims="depth", attrs={"units": "nat"})
        alone = xarray.DataArray([7.0], dims="n")
        return xarray.Dataset({"v": value, "alone": alone}, {"depth": depth, "n": [self.n], "scalar": 5})


def test_named_axes_and_coordinates_are_kept_and_aligned() -> None:
    table = sweep(WithXarray, {"n": [1, 3]})
    assert table["v"].dims == ("n", "depth")
    assert_array_equal(table["depth"], [1, 2, 3])
    assert_array_equal(table["v"], [[1.5, np.nan, np.nan], [1.5, 2.5, 3.5]])
    assert table["v"].attrs == {"units": "nat"}
    assert table["alone"].dims == ("n",)
    assert_array_equal(table["n"], [1, 3])


def test_two_arrays_of_other_extents_have_axes_of_their_own() -> None:
    table = sweep(lambda n: {"a": np.ones(2), "b": np.ones(3), "c": np.ones((2, 4))}, {"n": [1]})
    assert table["a"].dims == ("n", "a_dim_0")
    assert table["b"].dims == ("n", "b_dim_0")
    assert table["c"].dims == ("n", "c_dim_0", "dim_1")


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "TypeError: a result must be a number, string, array"),
        ({"a": object}, "TypeError: a result's a must be a number, string, array"),
        ([[1], [1, 2]], "TypeError: a result must be a number, string, array"),
        ({}, "TypeError: a result must hold at least one number or array"),
        ({"n": [1, 2]}, "ValueError: a result must not have an array named as a parameter, got 'n'"),
        (
            (xarray.DataArray(1, name="a"), xarray.DataArray(2, name="a")),
            "ValueError: a result must not have two arrays of the same name, got 'a' twice",
        ),
        (
            xarray.DataArray([1, 2], dims="n", name="a"),
            "ValueError: a result must not have an axis named as a parameter, got 'n' of extent 2 in 'a'",
        ),
    ],
)
def test_results_that_cannot_be_kept(result: Any, message: str) -> None:
    with pytest.raises(at.SweepError) as raised:
        sweep(lambda n: result, {"n": [1, 2]})
    assert list(raised.value.failures) == ["n=1", "n=2"]
    assert raised.value.failures["n=1"].startswith(message)
    assert raised.value.partial is None


def test_results_with_other_axes_are_named() -> None:
    with pytest.raises(at.SweepError, match=r"at n=2: ValueError: results must have the same axes, got 1 in"):
        sweep(lambda n: np.ones((2,) * (n - 1)), {"n": [1, 2]})


def test_a_failure_is_named_after_all_others_are_finished() -> None:
    calls = []
    with pytest.raises(at.SweepError) as raised:
        sweep(lambda n: calls.append(n) or sweep_functions.fail_at_3(n), {"n": [1, 3, 5]})
    assert calls == [1, 3, 5]
    assert str(raised.value).startswith("1 of 3 cases failed, the first at n=3: LookupError: no 3")
    assert raised.value.failures == {"n=3": "LookupError: no 3"}
    assert isinstance(raised.value.__cause__, LookupError)
    assert_array_equal(raised.value.partial["value"], [1, np.nan, 5])


def test_a_long_message_does_not_hide_which_case_it_was() -> None:
    def talkative(n: int) -> None:
        raise ValueError("many\nlines\n" + "x" * 5000)

    with pytest.raises(at.SweepError) as raised:
        sweep(talkative, {"n": [1]})
    assert str(raised.value).startswith("1 of 1 cases failed, the first at n=1: ValueError: many lines xxx")
    assert len(str(raised.value)) < 1200
    assert len(raised.value.failures["n=1"]) > 5000


def test_interrupt_keeps_finished_cases() -> None:
    def interrupted(n: int) -> int:
        if n == 3:
            raise KeyboardInterrupt
        return n

    for function in (interrupted, sweep_functions.cut_at_3):
        with pytest.raises(at.SweepInterrupted, match="1 of 3 cases are finished") as raised:
            sweep(function, {"n": [1, 3, 5]})
        assert_array_equal(raised.value.partial["value"], [1, np.nan, np.nan])


def test_progress_is_reported() -> None:
    seen = []
    sweep(lambda n: n, {"n": [1, 2, 3]}, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_provenance() -> None:
    attrs = sweep(sweep_functions.draw, {"n": [1]}, rng=5).attrs
    assert attrs["function"] == "sweep_functions:draw"
    assert (attrs["attnscale"], attrs["seed"]) == (at.__version__, "5")
    json.dumps(attrs)  # numbers and text, as files of arrays want them


# ---- random numbers ----------------------------------------------------------------------------


def test_a_case_draws_the_same_numbers_in_every_grid() -> None:
    whole = sweep(sweep_functions.draw, {"n": [1, 2, 3], "law": ["a", "b"]}, rng=7)["value"]
    turned = sweep(sweep_functions.draw, {"law": ["b", "a"], "n": [3, 1]}, rng=7)["value"]
    for n in (1, 3):
        for law in "ab":
            assert_array_equal(whole.sel(n=n, law=law), turned.sel(n=n, law=law))
    streams = (whole - 1) / whole["n"]  # what draw() does to them, undone
    assert len({tuple(each) for each in streams.values.reshape(6, -1).round(9).tolist()}) == 6


def test_streams_of_different_seeds_and_cases_are_independent() -> None:
    def normals(n: int, rng: Any) -> Any:
        return rng.standard_normal(2000)

    seeds = (3, np.random.SeedSequence(3, spawn_key=(1,)))
    rows = np.concatenate([sweep(normals, {"n": range(20)}, rng=seed)["value"] for seed in seeds])
    correlation = np.corrcoef(rows) - np.eye(len(rows))
    assert abs(correlation).max() < 5 / np.sqrt(2000)


def test_rng_follows_spec_7() -> None:
    grid = {"n": [1, 2]}

    def values(rng: Any) -> Any:
        return sweep(sweep_functions.draw, grid, rng=rng)["value"].values

    assert_array_equal(values(5), values(np.random.SeedSequence(5)))
    generator = np.random.default_rng(5)
    first, second = values(generator), values(generator)
    assert not (first == second).any()
    assert_array_equal(first, values(np.random.default_rng(5)))
    assert not (values(None) == values(None)).any()
    again = _seeds.seed_from_json(json.loads(json.dumps(_seeds.seed_to_json(np.random.SeedSequence([1, 2])))))
    assert_array_equal(again.generate_state(4), np.random.SeedSequence([1, 2]).generate_state(4))


def test_an_rng_in_the_grid_is_the_users() -> None:
    table = sweep(sweep_functions.draw, {"n": [1], "rng": [1, 2]})["value"]
    assert_array_equal(table.sel(n=1, rng=2), sweep_functions.draw(1, rng=2))


# ---- bad input ---------------------------------------------------------------------------------


class Jobs:
    """An executor with futures of its own, like submitit's."""

    def __repr__(self) -> str:
        return "Jobs()"

    def submit(self, *_: Any) -> None:
        pytest.fail("submitted")


F = sweep_functions.power
G = {"base": [1.0], "exponent": [2]}

# fmt: off
MISTAKES = [
    (lambda: sweep(3, G), TypeError, "function must be callable, got 3"),
    (lambda: sweep(F, [1]), TypeError, "grid must map parameter names to their values, got list"),
    (lambda: sweep(F, {}), ValueError, "grid must have at least one parameter, got none"),
    (lambda: sweep(F, {1: [2]}), TypeError, "grid must have names of parameters as keys, got 1"),
    (lambda: sweep(F, {"base": 2}), TypeError, "grid['base'] must be a sequence of values, got 2; one value for all cases goes into constants="),
    (lambda: sweep(F, {"base": "standard"}), TypeError, "grid['base'] must be a sequence of values, got 'standard'"),
    (lambda: sweep(F, {"base": np.float64(2)}), TypeError, "grid['base'] must be a sequence of values, got 2.0"),
    (lambda: sweep(F, {"base": []}), ValueError, "grid['base'] must have at least one value, got none"),
    (lambda: sweep(F, {"base": [1, 2, 1.0]}), ValueError, "grid['base'] must have distinct values, got 1.0 twice"),
    (lambda: sweep(F, {"base": [1, "1"]}), ValueError, "grid['base'] must have distinct values, got '1' twice"),
    (lambda: sweep(F, {**G, "factr": [1]}), TypeError, "function must take the parameters of grid and constants by name, got sweep_functions:power(base: 'float', exponent: 'int', factor: 'float' = 1.0) -> 'float': got an unexpected keyword argument 'factr'"),
    (lambda: sweep(F, {"base": [1]}), TypeError, "function must take the parameters of grid and constants by name"),
    (lambda: sweep(F, G, constants=[1]), TypeError, "constants must map parameter names to values, got list"),
    (lambda: sweep(F, G, constants={1: 2}), TypeError, "constants must have names of parameters as keys, got 1"),
    (lambda: sweep(F, G, constants={"base": 2}), ValueError, "constants must not repeat a parameter of the grid, got 'base' in both"),
    (lambda: sweep(F, G, rng=1), ValueError, "rng must be None where 'rng' is not its parameter: sweep_functions:power, got 1"),
    (lambda: sweep(sweep_functions.draw, {"n": [1], "rng": [1]}, rng=1), ValueError, "rng must be None where 'rng' is in the grid or the constants"),
    (lambda: sweep(sweep_functions.draw, {"n": [1]}, rng=-1), ValueError, "rng must be None, an integer of at least 0, integers, a SeedSequence or a Generator, got -1"),
    (lambda: sweep(sweep_functions.draw, {"n": [1]}, rng="x"), TypeError, "rng must be None, an integer of at least 0, integers, a SeedSequence or a Generator, got 'x'"),
    (lambda: sweep(sweep_functions.draw, {"n": [object()]}, rng=1), TypeError, "grid['n'] must be told apart from one run to the next, got an object of class object"),
    (lambda: sweep(F, G, n_jobs=0), ValueError, "n_jobs must be at least 1, or negative to count from all cores down, got 0"),
    (lambda: sweep(F, G, n_jobs=1.5), TypeError, "n_jobs must be an integer, got 1.5"),
    (lambda: sweep(F, G, executor=3), TypeError, "executor must be a concurrent.futures.Executor, got 3"),
    (lambda: sweep(F, G, executor=Jobs()), TypeError, "executor must be a concurrent.futures.Executor, got Jobs()"),
    (lambda: sweep(F, G, executor=3, n_jobs=2), ValueError, "n_jobs=2 and executor= were both given. Pass one of them."),
    (lambda: sweep(F, G, store=3), TypeError, "store must be a directory, got 3"),
    (lambda: sweep(F, G, store=__file__), ValueError, "store must be a directory, got the file"),
    (lambda: sweep(F, G, store=f"{__file__}/x"), ValueError, f"store must be a folder that can be made and written, got '{__file__}/x' (Not a directory)"),
]
# fmt: on


@pytest.mark.parametrize(("make", "error", "message"), MISTAKES, ids=[case[2][:50] for case in MISTAKES])
def test_mistakes_are_explained_before_anything_runs(make: Any, error: type, message: str) -> None:
    with pytest.raises(error) as raised:
        make()
    assert type(raised.value) is error
    assert str(raised.value).startswith(message)


def test_values_that_are_not_numbers() -> None:
    values = [
        None,
        (1, None),
        True,
        Decimal("0.5"),
        np.array([1, 2]),
        np.array([1, 3]),
        len,
        {"a": 1},
        np.inf,
    ]
    table = sweep(lambda x: str(type(x)), {"x": values})
    labels = table["x"].values.tolist()
    assert labels[:4] == ["None", "(1, None)", "True", "Decimal('0.5')"]
    assert labels[4].startswith("<ndarray (2,) ")
    assert labels[6:] == ["len", "{'a': 1}", "inf"]
    assert_allclose(sweep(lambda x: x, {"x": [1.0, np.inf]})["x"], [1, np.inf])


@pytest.mark.parametrize(("missing", "options"), [("xarray", ""), ("joblib", ", n_jobs=2")])
def test_missing_packages_are_named_with_the_command(missing: str, options: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"import attnscale as at; at.sweep(lambda x: x, {{'x': [1]}}{options})"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = result.stderr.splitlines()[-1]
    assert f"needs {missing}" in last
    assert last.endswith('pip install "attnscale[sweep]"')
    assert last.startswith("ImportError: ")


def test_the_import_of_the_package_stays_cheap() -> None:
    code = (
        "import sys, attnscale\n"
        "heavy = ['xarray', 'pandas', 'joblib', 'dask', 'tqdm', 'concurrent.futures']\n"
        "print([name for name in heavy if name in sys.modules], callable(attnscale.sweep))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[] True\n"
