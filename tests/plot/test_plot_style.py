# SPDX-License-Identifier: BSD-3-Clause
"""Style of all figures: a look for each law, readable names, ticks in plain numbers, clear errors."""

from __future__ import annotations

import itertools

import attnscale as at
import numpy as np
import pytest
from attnscale import laws, plot
from attnscale.plot import _exact, _style, _text


def test_every_law_has_a_look_of_its_own():
    found = [(look.colour, look.dashes) for look in _style.looks(laws.names())]
    assert len(set(found)) == len(laws.names())
    for name, look in zip(laws.names(), found, strict=True):
        (alone,) = _style.looks([name])
        assert (alone.colour, alone.dashes) == look


def test_a_law_with_other_parameters_keeps_its_colour():
    first, second, third = _style.looks(["log_n(base=64)", "log_n", "log_n(base=1024)"])
    assert first.colour == second.colour == third.colour
    assert len({first.dashes, second.dashes, third.dashes}) == 3
    assert second == _style.looks(["standard", "log_n"])[1]


def test_other_names_do_not_take_the_look_of_a_law():
    mine, standard = _style.looks(["mine", "standard"])
    assert (mine.colour, mine.dashes) != (standard.colour, standard.dashes)


def colour_of(ax, text):
    return next(each.get_color() for each in ax.texts if each.get_text() == text)


def test_a_law_has_one_colour_in_every_figure():
    n, name = [64, 512], r"$\log_{512} n\,/\sqrt{d}$"
    entropy = plot.entropy_vs_length({"log_n": [3.0, 4.0], "standard": [3.0, 5.0]}, n)
    multiples = plot.law_comparison(["natural_log_n", "log_n"], n)
    result = at.montecarlo.entropy_vs_length(n, law=["standard", "log_n"], samples=5, rng=0).plot()
    assert len({colour_of(ax, name) for ax in (entropy, multiples, result)}) == 1
    phase = plot.phase_diagram(n, [0.5, 2], np.ones((2, 2)), laws=["log_n"])
    assert phase.get_lines()[-1].get_color() == colour_of(entropy, name)


@pytest.mark.parametrize("at_right", [True, False])
def test_names_lie_inside_the_figure_and_beside_their_lines(at_right):
    long, ends = "a law of many letters", ([3.0, 4.0], [3.001, 2.0])
    values = [each if at_right else each[::-1] for each in ends]
    ax = plot.entropy_vs_length(dict(zip((long, "b"), values, strict=True)), [64, 4096])
    ax.figure.canvas.draw()
    (text,) = (each for each in ax.texts if each.get_text() == long)
    box, frame = text.get_window_extent(), ax.get_window_extent()
    assert frame.x0 <= box.x0
    assert box.x1 <= ax.figure.bbox.x1
    line = next(each for each in ax.lines if each.get_label() == long)
    ends = ax.transData.transform(np.column_stack(line.get_data()))[:, 0]
    assert box.x0 > ends.max() if at_right else box.x1 < ends.min()


def test_many_lines_have_a_legend_outside_of_the_axes():
    ax = plot.entropy_vs_length({f"law {i}": [1.0 + i, 2.0 + i] for i in range(12)}, [64, 512])
    ax.figure.canvas.draw()
    assert not ax.texts
    assert ax.get_legend().get_window_extent().x0 >= ax.get_window_extent().x1
    assert ax.get_legend().get_window_extent().x1 <= ax.figure.bbox.x1


def test_keys_lie_below_the_label_of_the_axis():
    ax = at.montecarlo.max_cosine([8, 64], 8, samples=9, rng=0).plot()
    ax.figure.canvas.draw()
    assert ax.get_legend().get_window_extent().y1 <= ax.xaxis.label.get_window_extent().y0
    assert ax.get_legend().get_window_extent().y0 >= 0


def test_a_curve_is_dense_where_it_bends_and_jumps():
    def curve(n):
        return np.stack([np.log(n), np.where(n < 1000, 0.0, 1.0), np.where(n < 777, np.nan, 1.0)], axis=-1)

    n, values = _exact.dense(curve, 10, 100_000)
    assert (n[0], n[-1]) == (10, 100_000)
    assert (np.diff(n) > 0).all()
    assert (n == n.round()).all()
    np.testing.assert_array_equal(values, curve(n))
    assert {776, 777, 999, 1000} <= set(n)
    assert n.size < 120


def test_dense_curves_of_one_and_two_points():
    for low, high in ((5, 5), (5, 6)):
        n, values = _exact.dense(np.log, low, high)
        np.testing.assert_array_equal(n, np.unique([low, high]))
        np.testing.assert_array_equal(values, np.log(n))


def test_ticks_are_plain_and_few():
    assert [_text.plain(value) for value in (64, 0.5, 2.0**18, 2.0**20, 1e7)] == [
        *("64", "0.5", "262144", "$2^{20}$", "$10^{7}$")
    ]
    lengths = np.arange(64, 64 * 40, 64)
    ax = plot.entropy_vs_length({"standard": np.log(lengths) - 0.5}, lengths)
    ax.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
    assert 3 <= len(boxes) <= 9
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


def test_jl_dimensions_are_drawn_between_the_lengths():
    ax = plot.jl_dimensions([64, 32768], eps=[0.1, 0.5])
    n, k = ax.lines[0].get_data()
    assert n.size > 100
    np.testing.assert_array_equal(k, at.theory.jl_min_dim(n, eps=0.1))
    ax.figure.canvas.draw()
    assert not any("times" in label.get_text() for label in ax.get_yticklabels())


def test_calibration_names_what_it_draws():
    data = at.datasets.minilm_qk()
    found = at.calibrate(data.query[:6], data.key[:6], n0=64, laws=["log_n", "ssmax", "standard"])
    ax = found.plot()
    ax.figure.canvas.draw()
    assert {text.get_text() for text in ax.texts} == {
        "measured, median",
        "log_n(base=64) =\nssmax",
        "standard",
    }
    for text in ax.texts:
        assert text.get_window_extent().x0 >= ax.get_window_extent().x0
    (key,) = ax.get_legend().get_texts()
    assert key.get_text().startswith("6 heads, measured")
    low, high = ax.get_ylim()
    outside = ((found.beta < low) | (found.beta > high)).any(-1).sum()
    assert (" the frame" in key.get_text()) == bool(outside)
