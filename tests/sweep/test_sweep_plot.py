# SPDX-License-Identifier: BSD-3-Clause
"""plot.sweep: curves, error bars, names and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attnscale as at
import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
pytest.importorskip("xarray")
matplotlib.use("agg")


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def estimate(n: int, law: str, deep: bool) -> Any:
    value = n if law == "standard" else -n
    return {"value": value + deep, "standard_error": 0.5, "rows": [n], "note": law}


@pytest.fixture(scope="module")
def table() -> Any:
    grid = {"law": ["standard", "log_n"], "n": [512, 8, 64], "deep": [False, True]}
    return at.sweep(estimate, grid, progress=False)


def test_curves_are_the_numbers_in_the_order_of_x(table: Any) -> None:
    ax = at.plot.sweep(table, labels={"log_n": "log"})
    named = [" ".join(text.get_text().split()) for text in (*ax.texts, *ax.get_legend().get_texts())]
    named.remove("points: with one standard error")  # of any function: not Monte Carlo
    assert sorted(named) == [
        "log, deep False",
        "log, deep True",
        r"standard, $1/\sqrt{d}$, deep False",
        r"standard, $1/\sqrt{d}$, deep True",
    ]
    for container, start, sign in zip(ax.containers, (0, 1, 0, 1), (1, 1, -1, -1), strict=True):
        line, _, (bars,) = container.lines
        np.testing.assert_array_equal(line.get_xdata(), [8, 64, 512])
        np.testing.assert_array_equal(line.get_ydata(), sign * np.array([8, 64, 512]) + start)
        np.testing.assert_array_equal([np.ptp(each[:, 1]) for each in bars.get_segments()], [1, 1, 1])
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_xscale()) == ("n", "estimate", "log")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["8", "64", "512"]


def test_units_names_and_another_quantity() -> None:
    table = at.sweep(lambda x: {"value": x, "other": -x}, {"x": [0.0, 1.0, 2.0]}, progress=False)
    table["other"].attrs = {"units": "nat"}
    ax = at.plot.sweep(table, quantity="other", x="x")
    assert (ax.get_ylabel(), ax.get_xscale(), ax.get_legend()) == ("other (nats)", "linear", None)
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), [0, -1, -2])


def test_cases_without_a_result_are_gaps() -> None:
    with pytest.raises(at.SweepError) as raised:
        at.sweep(lambda n: 1 / (n - 2), {"n": [1, 2, 3]}, progress=False)
    ax = at.plot.sweep(raised.value.partial)
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), [-1, np.nan, 1])


def test_it_draws_on_the_axes_it_gets_and_does_not_show(table: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "show", lambda *_, **__: pytest.fail("plt.show was called"))
    ax = plt.subplots()[1]
    assert at.plot.sweep(table, ax=ax) is ax


def test_results_that_cannot_be_drawn(table: Any) -> None:
    message = "one number for each case, one of: value, standard_error; got 'rows'"
    with pytest.raises(ValueError, match=message):
        at.plot.sweep(table, quantity="rows")
    with pytest.raises(ValueError, match="x must be a parameter with numbers, one of: n; got 'law'"):
        at.plot.sweep(table, x="law")
    with pytest.raises(ValueError, match="a figure needs a parameter with numbers, got law"):
        at.plot.sweep(table.isel(n=0, deep=0))
    message = "needs one number for each case, got only arrays and text: rows, note"
    with pytest.raises(ValueError, match=message):
        at.plot.sweep(table[["rows", "note"]])
