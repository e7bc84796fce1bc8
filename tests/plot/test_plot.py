# SPDX-License-Identifier: BSD-3-Clause
"""Figures draw the given numbers, labels carry units, and nothing leaks."""

from __future__ import annotations

import itertools
import subprocess
import sys

import attnscale as at
import numpy as np
import pytest
from attnscale import plot
from cases import random_inputs

_Q, _K, _ = random_inputs(1, heads=3, n_queries=5, n_keys=5)
CAUSAL = at.attention_weights(_Q, _K, is_causal=True)
TOKENS = ["the", "$5", "a\nb", "_x_", "end"]


LENGTHS = [64, 128, 256]
ENTROPY = {"standard": np.array([2.5, 3.0, 3.6]), "log_n": np.array([3.1, 3.5, 3.6])}


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
    assert ax.get_legend() is None


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


def test_names_of_few_heads_do_not_touch():
    ax = plot.entropy_by_head({"a": [1.0, 5.0, 3.0], "b": [2.0, 4.0, 0.5]}, n_keys=512)
    ax.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in ax.get_yticklabels()]
    assert all(above.y0 >= below.y1 for above, below in itertools.pairwise(boxes))


def test_heads_can_be_sorted(ax):
    plot.entropy_by_head({"a": [1.0, 5.0, 3.0]}, ["x", "y", "z"], ax=ax, sort=True)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["x", "z", "y"]


def test_second_scale_counts_effective_keys(ax):
    plot.entropy_by_head({"a": [0.0, np.log(300)]}, ax=ax, n_keys=512)
    ax.figure.canvas.draw()
    (top,) = ax.child_axes
    assert [label.get_text() for label in top.get_xticklabels()] == ["1", "3", "10", "30", "100", "300"]
    assert top.get_xlabel() == "effective keys, $e^H$"


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


def test_style_is_left_again():
    import matplotlib

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


def labels_of(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_one_head_with_its_tokens():
    ax = plot.attention_map(CAUSAL[0], TOKENS)
    (image,) = ax.get_images()
    drawn = image.get_array()
    np.testing.assert_array_equal(drawn.mask, np.triu(np.ones((5, 5), bool), 1))  # blank: not seen
    np.testing.assert_array_equal(drawn.data[~drawn.mask], CAUSAL[0][~drawn.mask].astype(np.float64))
    named = ["the", "$5", r"a\nb", "_x_", "end"]
    assert labels_of(ax.yaxis) == labels_of(ax.xaxis) == named
    assert not any(label.get_parse_math() for label in ax.get_xticklabels())
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    bar = ax.figure.axes[-1]
    assert bar.get_ylabel().replace("\n", " ") == "weight of the key in its row (blank: 0)"
    ax.figure.canvas.draw()  # "$5" alone is not a formula


def test_blank_is_lighter_than_the_smallest_weight():
    image = plot.attention_map(CAUSAL[0]).get_images()[0]
    blank, *ramp = image.get_cmap()(np.ma.array([0.0, *np.linspace(0, 1, 9)], mask=[True] + 9 * [False]))
    brightness = np.array(ramp)[:, :3].sum(-1)
    assert tuple(blank[:3]) == (1, 1, 1)
    assert brightness[0] < 2.9
    assert (np.diff(brightness) < 0).all()


def test_the_first_causal_rows_do_not_set_the_colours():
    weights = np.tril(np.ones((400, 400))) / np.arange(1, 401)[:, None]
    image = plot.attention_map(weights).get_images()[0]
    assert image.norm.vmin == 0
    assert 1 / 10 < image.norm.vmax < 1 / 7
    assert plot.attention_map(weights, high=0.5).get_images()[0].norm.vmax == 0.5


def test_heads_become_a_grid_with_one_scale():
    panels = plot.attention_map(CAUSAL, TOKENS, names=["a", "b", "c"])
    assert [panel.get_title(loc="left") for panel in panels] == ["a", "b", "c"]
    assert len({panel.figure for panel in panels}) == 1
    assert len({panel.get_images()[0].norm.vmax for panel in panels}) == 1
    assert [panel.get_title(loc="left") for panel in plot.attention_map(CAUSAL)] == [
        "head 0",
        "head 1",
        "head 2",
    ]


def test_no_text_is_cut_off():
    for weights, tokens in ((CAUSAL, TOKENS), (CAUSAL[0], ["unbelievably_long_token_" * 2, *TOKENS[1:]])):
        first = np.ravel(plot.attention_map(weights, tokens))[0]
        figure = first.figure
        figure.canvas.draw()
        box = figure.get_tightbbox()
        assert box.x0 >= -0.02
        assert box.y0 >= -0.02
        assert box.x1 <= figure.get_figwidth() + 0.02
        assert box.y1 <= figure.get_figheight() + 0.02


def test_many_tokens_are_named_in_steps_and_keys_can_have_their_own():
    ax = plot.attention_map(np.full((150, 3), 1 / 3), [str(i) for i in range(150)], key_tokens=["xyz"] * 3)
    assert labels_of(ax.yaxis)[:3] == ["0", "3", "6"]
    assert len(labels_of(ax.yaxis)) == 50
    assert labels_of(ax.xaxis) == ["xyz"] * 3


def test_all_zero_weights_are_drawn():
    assert plot.attention_map(np.zeros((3, 3))).get_images()[0].norm.vmax == 1


TYPE_ERRORS = {
    "tokens must be a sequence of strings, one a token, got 'hello'": lambda: plot.attention_map(
        CAUSAL[0], "hello"
    ),
    "entropy must be a mapping from names to nats at each length": lambda: plot.entropy_vs_length(
        [3, 3.6], [128, 256]
    ),
    r"entropy\['a'\] must be an array of numbers, got 'b'": lambda: plot.entropy_vs_length({"a": "b"}, [128]),
    "entropy must be a mapping from names to nats of each head": lambda: plot.entropy_by_head(np.ones(3)),
    "table must be a Dataset of xarray, as attnscale.sweep returns, got 3": lambda: plot.sweep(3),
    "multipliers must be a map": lambda: plot.multiplier_vs_length([1, 2], [64, 128]),
    "values must be an array of numbers": lambda: plot.head_map([["a"]]),
    "found must be a Calibration, .* got 3": lambda: plot.calibrated_beta(3),
    "eps must be an array of numbers, got 'x'": lambda: plot.jl_dimensions([64, 128], eps="x"),
    "ax must be Axes of matplotlib or None, got 3": lambda: plot.head_map([[1.0]], ax=3),
    "labels must be a mapping from names to what is printed, got 3": lambda: plot.entropy_vs_length(
        {"a": [1, 2]}, [128, 256], labels=3
    ),
}
VALUE_ERRORS = {
    r"one row for each of the 3 lengths, got shape \(2,\)": lambda: plot.entropy_vs_length(
        {"standard": [1.0, 2.0]}, LENGTHS
    ),
    "one value for each of the 2 lengths, got a": lambda: plot.multiplier_vs_length({"a": [1.0]}, [64, 128]),
    r"values must have shape \(n_layers, n_heads\), got \(3,\)": lambda: plot.head_map([1.0, 2.0, 3.0]),
    "modules must have one entry": lambda: plot.head_map([[1.0, 2.0]], modules=["one", "two"]),
    r"entropy must have shape \(2, 3\), got \(3, 2\)": lambda: plot.phase_diagram(
        [64, 128], [1, 2, 3], np.ones((3, 2))
    ),
    r"weights must have the shape .* got \(2, 2, 3, 3\)": lambda: plot.attention_map(np.zeros((2, 2, 3, 3))),
    r"at most 24 heads, got 25; weights\[:24\]": lambda: plot.attention_map(np.zeros((25, 3, 3))),
    "tokens must be as many as the queries, 5, got 4": lambda: plot.attention_map(CAUSAL[0], TOKENS[1:]),
    "key_tokens must be as many as the keys": lambda: plot.attention_map(CAUSAL[0], key_tokens=TOKENS[1:]),
    "names must be as many as the heads, 3, got 1": lambda: plot.attention_map(CAUSAL, names=["a"]),
    "ax is for one head": lambda: plot.attention_map(CAUSAL, ax=plot.head_map([[1.0]])),
    "high must be greater than 0, got 0": lambda: plot.attention_map(CAUSAL, high=0),
    "entropy must have at least one entry": lambda: plot.entropy_vs_length({}, [128]),
    "lengths must be incr": lambda: plot.entropy_vs_length({"a": [1, 2]}, [256, 128]),
    r"uniform must have one value for each of the 2 lengths, got \[1.0\]": lambda: plot.entropy_vs_length(
        {"a": [1, 2]}, [128, 256], uniform=[1.0]
    ),
    "names must have one entry for each of the 2 heads, got 1": lambda: plot.entropy_by_head(
        {"a": [3, 3.6]}, ["x"]
    ),
    r"entropy must have one value for each head, got b: shape \(1,\)": lambda: plot.entropy_by_head(
        {"a": [3, 3.6], "b": [1]}
    ),
    "log_n": lambda: plot.law_comparison("logn", [64, 128]),
    "lengths must hold at least 1 numbers": lambda: plot.law_comparison("log_n", []),
    r"others\['x'\] must have 2 values, one for each n, got 1": lambda: plot.law_comparison(
        "log_n", [64, 128], others={"x": [1]}
    ),
    "n must hold at least 2 numbers": lambda: plot.phase_diagram([64], [1, 2]),
    "beta must be increasing": lambda: plot.phase_diagram([64, 128], [2, 1]),
    "model must be one of": lambda: plot.phase_diagram([64, 128], [1, 2], model="x"),
}


@pytest.mark.parametrize("message", TYPE_ERRORS)
def test_a_wrong_kind_of_thing_is_one_clear_error(message):
    with pytest.raises(TypeError, match=message):
        TYPE_ERRORS[message]()


@pytest.mark.parametrize("message", VALUE_ERRORS)
def test_a_wrong_value_is_one_clear_error(message):
    with pytest.raises(ValueError, match=message):
        VALUE_ERRORS[message]()


@pytest.mark.parametrize("given", [3, [1], "x", None], ids=str)
def test_other_objects_are_refused(given):
    for draw in (plot.experiment, plot.saturation, plot.needle, plot.jl_distortion):
        with pytest.raises(TypeError, match=r"result must be a result of attnscale\.montecarlo"):
            draw(given)
