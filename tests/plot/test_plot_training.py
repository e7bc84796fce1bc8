# SPDX-License-Identifier: BSD-3-Clause
"""Figures of trainings: every curve is drawn once, in panels where one would hold too many."""

from __future__ import annotations

import numpy as np
import pytest
from attnscale.plot._panels import panel_axes
from studies import stored

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def drawn(figure):
    """The values of every set of points with bars, by panel."""
    return [[part.lines[0].get_ydata() for part in ax.containers] for ax in figure.axes if ax.get_visible()]


@pytest.mark.parametrize(
    ("sizes", "along", "split"),
    [
        ({"law": 8, "n": 5}, "n", []),
        ({"task": 3, "own_key": 2, "trained": 3, "law": 4, "n": 6}, "n", ["task", "trained"]),
        ({"task": 4, "variant": 8, "step": 3, "n": 5}, "n", ["task", "step"]),
        ({"model": 2, "layer": 6, "fed": 7}, "fed", ["model"]),
        ({"model": 30, "n": 2}, "n", ["model"]),
    ],
)
def test_panels_hold_at_most_twelve_lines(sizes, along, split):
    assert panel_axes({axis: range(size) for axis, size in sizes.items()}, along) == split


def test_many_curves_are_drawn_in_panels_with_one_key():
    result = stored("context")
    column = result.column(result.names()[0])
    figure = result.plot().figure
    panels = drawn(figure)
    assert [len(panel) for panel in panels] == [8] * 9
    wanted = np.moveaxis(column.value, (0, 2), (0, 1)).reshape(9, 8, -1)
    np.testing.assert_array_equal(panels, wanted)
    assert len(figure.legends) == 1
    assert len(figure.legends[0].get_texts()) == 8
    assert not any(ax.get_legend() for ax in figure.axes)


def test_a_combination_without_a_number_leaves_its_place_empty():
    figure = stored("length_generalization").plot().figure
    titles = [ax.get_title(loc="left") for ax in figure.axes if ax.get_visible()]
    assert "none, O, clipped" not in titles
    assert len(titles) == 6
    figure.canvas.draw()
    lowest = next(ax for ax in figure.axes if ax.get_title(loc="left") == "rotary, E, clipped")
    assert any(label.get_visible() and label.get_text() for label in lowest.get_xticklabels())


def test_all_curves_on_given_axes():
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    assert stored("context").plot(ax=ax) is ax
    assert len(ax.containers) == 72


def test_counts_have_their_own_ticks_and_points_stand_apart():
    recall = stored("recall", "reduced").plot()
    assert [label.get_text() for label in recall.get_xticklabels()] == ["32"]
    scales = stored("learned_scales").plot()
    x = [part.lines[0].get_xdata()[0] for part in scales.containers]
    assert len(set(np.round(x, 6))) == len(x) == 11
    assert np.ptp(x) < 0.5
