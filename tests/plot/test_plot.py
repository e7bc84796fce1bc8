# SPDX-License-Identifier: BSD-3-Clause
"""Figures: what is drawn is what was given, labels carry units, and nothing leaks."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
from attnscale import plot

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")

LENGTHS = [64, 128, 256]
ENTROPY = {"standard": np.array([2.5, 3.0, 3.6]), "log_n": np.array([3.1, 3.5, 3.6])}


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


@pytest.fixture
def ax():
    import matplotlib.pyplot as plt

    return plt.subplots()[1]


def test_functions_draw_on_the_axes_they_get(ax):
    assert plot.entropy_vs_length(ENTROPY, LENGTHS, ax=ax) is ax
    ax.clear()
    assert plot.entropy_by_head({"standard": [1.0, 2.0]}, ax=ax) is ax


def test_new_figures_are_not_shown(monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "show", lambda *_, **__: pytest.fail("plt.show was called"))
    first, second = plot.entropy_vs_length(ENTROPY, LENGTHS), plot.entropy_by_head(ENTROPY)
    assert first.figure is not second.figure


def test_lines_carry_the_data(ax):
    plot.entropy_vs_length(ENTROPY, LENGTHS, ax=ax)
    uniform, *lines = ax.get_lines()
    np.testing.assert_allclose(uniform.get_ydata(), np.log(uniform.get_xdata()))
    assert (uniform.get_xdata()[0], uniform.get_xdata()[-1]) == (64, 256)
    for line, values in zip(lines, ENTROPY.values(), strict=True):
        np.testing.assert_array_equal(line.get_xdata(), LENGTHS)
        np.testing.assert_array_equal(line.get_ydata(), values)
    assert ax.get_xlabel() == "keys per query, $n$"
    assert ax.get_ylabel() == "mean entropy (nats)"
    assert [label.get_text() for label in ax.get_xticklabels()] == ["64", "128", "256"]


def test_heads_become_a_mean_and_the_middle_half(ax):
    values = np.array([[1.0, 2.0, 3.0, 4.0, 10.0], [2.0, 3.0, 4.0, 5.0, 11.0]])
    plot.entropy_vs_length({"standard": values}, [64, 128], ax=ax, uniform=False)
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), [4.0, 5.0])
    corners = ax.collections[0].get_paths()[0].vertices
    assert {(x, y) for x, y in corners} == {(64, 2), (64, 4), (128, 3), (128, 5)}


def test_each_line_is_named_once_and_names_do_not_touch(ax):
    same = {"standard": np.full(3, 3.0), "log_n": np.full(3, 3.0), "mine": np.full(3, 3.01)}
    plot.entropy_vs_length(same, LENGTHS, ax=ax, labels={"mine": "my law"})
    ax.figure.canvas.draw()
    texts = sorted(ax.texts, key=lambda text: text.get_window_extent().y0)
    assert {text.get_text() for text in texts} >= {"my law", r"uniform, $\ln n$"}
    assert len(texts) == 4
    for below, above in itertools.pairwise(texts):
        assert below.get_window_extent().y1 <= above.get_window_extent().y0 + 1


def test_names_of_lines_at_the_top_stay_inside_the_axes(ax):
    plot.entropy_vs_length({f"law {i}": np.log(LENGTHS) - 0.01 * i for i in range(6)}, LENGTHS, ax=ax)
    places = [text.xy[1] for text in ax.texts]
    assert max(places) <= ax.get_ylim()[1]
    assert min(places) > np.log(256) - 0.075 * 7 * np.diff(ax.get_ylim())[0]


def test_names_stand_on_the_side_where_the_lines_are_apart(ax):
    plot.entropy_vs_length(ENTROPY, LENGTHS, ax=ax)
    assert {text.get_ha() for text in ax.texts} == {"right"}
    ax.clear()
    plot.entropy_vs_length({law: values[::-1] for law, values in ENTROPY.items()}, LENGTHS, ax=ax)
    assert {text.get_ha() for text in ax.texts} == {"left"}


def test_marks_carry_the_data(ax):
    plot.entropy_by_head({"a": [1.0, 5.0, 3.0], "b": [2.0, 4.0, 0.5]}, ["x", "y", "z"], ax=ax, n_keys=512)
    first, second = (collection for collection in ax.collections if collection.get_label() in "ab")
    np.testing.assert_array_equal(first.get_offsets(), [(1.0, 0), (5.0, 1), (3.0, 2)])
    np.testing.assert_array_equal(second.get_offsets(), [(2.0, 0), (4.0, 1), (0.5, 2)])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["x", "y", "z"]
    assert ax.get_lines()[0].get_xdata()[0] == pytest.approx(np.log(512))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]


def test_heads_can_be_sorted(ax):
    plot.entropy_by_head({"a": [1.0, 5.0, 3.0]}, ["x", "y", "z"], ax=ax, sort=True)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["x", "z", "y"]


def test_second_scale_counts_effective_keys(ax):
    plot.entropy_by_head({"a": [0.0, np.log(300)]}, ax=ax, n_keys=512)
    ax.figure.canvas.draw()
    (top,) = ax.child_axes
    assert [label.get_text() for label in top.get_xticklabels()] == ["1", "3", "10", "30", "100", "300"]
    assert top.get_xlabel() == "effective keys, $e^H$"


def test_wrong_number_of_lengths():
    with pytest.raises(ValueError, match=r"one row for each of the 3 lengths, got shape \(2,\)"):
        plot.entropy_vs_length({"standard": [1.0, 2.0]}, LENGTHS)


def test_causal_rows_have_their_own_reference_and_name(ax):
    plot.entropy_vs_length(ENTROPY, LENGTHS, ax=ax, is_causal=True)
    uniform = ax.get_lines()[0]
    expected = [np.log(np.arange(1, n + 1)).mean() for n in LENGTHS]
    np.testing.assert_allclose(np.interp(LENGTHS, *uniform.get_data()), expected, rtol=1e-12)
    assert ax.get_xlabel() == "tokens, $n$ (query $i$ sees $i + 1$ keys)"
    ax.clear()
    plot.entropy_vs_length(ENTROPY, LENGTHS, ax=ax, uniform=[3.0, 3.5, 4.0])
    np.testing.assert_array_equal(ax.get_lines()[0].get_ydata(), [3.0, 3.5, 4.0])
    ax.clear()
    plot.entropy_by_head({"a": [1.0, 2.0]}, ax=ax, n_keys=64, is_causal=True)
    assert ax.get_lines()[0].get_xdata()[0] == pytest.approx(expected[0])


def test_exact_values_have_no_marks(ax):
    plot.entropy_vs_length(ENTROPY, LENGTHS, ax=ax, exact=True)
    assert {line.get_marker() for line in ax.get_lines()} == {"None"}


def test_shade_is_explained():
    shaded = plot.entropy_vs_length({"standard": np.ones((3, 5))}, LENGTHS)
    (text,) = shaded.get_legend().get_texts()
    assert text.get_text() == "shade: middle half of the heads; line: mean"
    assert plot.entropy_vs_length(ENTROPY, LENGTHS).get_legend() is None


def test_style_is_left_again():
    matplotlib.rcdefaults()  # whatever an earlier test may have left
    before = dict(matplotlib.rcParams)
    with plot.style():
        assert matplotlib.rcParams["axes.spines.top"] is False
        assert matplotlib.rcParams["pdf.fonttype"] == 42
    plot.entropy_vs_length(ENTROPY, LENGTHS)
    assert dict(matplotlib.rcParams) == before


def test_matplotlib_is_imported_only_to_draw():
    code = "import sys, attnscale; attnscale.plot.COLOURS; print('matplotlib' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


def test_multipliers_of_many_laws_are_told_apart(ax):
    curves = {f"law {index}": [1.0 + index, 2.0 + index] for index in range(20)}
    assert plot.multiplier_vs_length({**curves, "flat": [0.0, 1.0]}, [64, 128], ax=ax) is ax
    looks = {(line.get_color(), str(line._dash_pattern)) for line in ax.lines}
    assert len(looks) == 21
    assert ax.get_legend().get_texts()[0].get_text() == "law 19"  # as the lines lie
    with pytest.raises(ValueError, match="one value for each of the 2 lengths, got a"):
        plot.multiplier_vs_length({"a": [1.0]}, [64, 128], ax=ax)


def test_multiples_of_zero_are_drawn_and_wide_ranges_are_logarithmic(ax):
    plot.multiplier_vs_length({"a": [0.0, 9.0]}, [64, 128], ax=ax)
    assert ax.lines[0].get_ydata().tolist() == [0, 9]
    assert (ax.get_yscale(), ax.get_ylim()[0]) == ("linear", 0)
    ax.clear()
    plot.multiplier_vs_length({"a": [1.0, 9.0]}, [64, 128], ax=ax)
    ax.figure.canvas.draw()
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert ax.get_yscale() == "log"
    assert {"1", "2", "5"} <= set(labels)


def test_equal_laws_are_one_line(ax):
    plot.multiplier_vs_length({"a": [1.0, 2.0], "b": [1.0, 3.0], "c": [1.0, 2.0]}, [64, 128], ax=ax)
    assert len(ax.lines) == 2
    assert {text.get_text() for text in ax.texts} == {"a =\nc", "b"}


def test_one_length_shows_the_reference_and_the_spread_too():
    """Lines and shades of one point are invisible, and a key spoke of them."""
    for uniform in (True, [6.0]):
        ax = plot.entropy_vs_length({"standard": np.array([[2.0, 3.0, 4.0]])}, [512], uniform=uniform)
        reference, mean = ax.lines
        assert reference.get_marker() == "_"
        assert reference.get_markersize() > 5
        assert mean.get_marker() == "o"
        (bar,) = (each for each in ax.collections if hasattr(each, "get_segments"))
        np.testing.assert_allclose(bar.get_segments(), [[[512, 2.5], [512, 3.5]]])
        assert [text.get_text() for text in ax.get_legend().get_texts()] == [
            "bar: middle half of the heads; point: mean"
        ]
    several = plot.entropy_vs_length({"standard": np.ones((2, 3))}, [256, 512])
    assert several.lines[0].get_marker() == "None"
    assert [text.get_text() for text in several.get_legend().get_texts()] == [
        "shade: middle half of the heads; line: mean"
    ]
