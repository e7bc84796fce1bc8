# SPDX-License-Identifier: BSD-3-Clause
"""Figures of experiments and trainings: estimates with errors, exact values, panels."""

from __future__ import annotations

import attnscale as at
import numpy as np
import pytest
from attnscale import laws, plot
from attnscale import montecarlo as mc
from attnscale.plot._training import panel_axes
from studies import stored

theory = pytest.importorskip("attnscale.theory")


@pytest.fixture(scope="module")
def lengths():
    return mc.entropy_vs_length([512, 64], law=["standard", "log_n"], head_dim=8, samples=40, rng=0)


def points(ax):
    """(x, y, error) of each set of points with bars."""
    found = []
    for container in ax.containers:
        line, _, (bars,) = container.lines
        low, high = np.array([segment[:, 1] for segment in bars.get_segments()]).T
        found.append((line.get_xdata(), line.get_ydata(), (high - low) / 2))
    return found


def test_entropy_vs_length_draws_points_on_the_exact_curve(lengths):
    ax = plot.entropy_vs_length(lengths)
    for index, (x, y, error) in enumerate(points(ax)):
        np.testing.assert_array_equal(x, [64, 512])
        np.testing.assert_array_equal(y, lengths.value[::-1, index])
        np.testing.assert_allclose(error, lengths.standard_error[::-1, index], rtol=1e-9)
    drawn = [line for line in ax.get_lines() if line.get_linestyle() == "-"]
    exact = lengths.exact()["entropy"][::-1].T
    for line, ends in zip(drawn, exact, strict=True):
        assert line.get_xdata().size >= 25
        np.testing.assert_allclose(line.get_ydata()[[0, -1]], ends)
        law = "standard" if line is drawn[0] else "log_n"
        n = line.get_xdata()[1:-1:5]
        beta = laws.get(law).multiplier(n, 8)
        np.testing.assert_allclose(line.get_ydata()[1:-1:5], theory.expected_entropy(n, beta, head_dim=8))
    assert {text.get_text() for text in ax.texts} == {
        *(r"uniform, $\ln n$", r"standard, $1/\sqrt{d}$", r"$\log_{512} n\,/\sqrt{d}$")
    }


def test_a_dataset_draws_what_its_result_draws(lengths):
    pytest.importorskip("xarray")
    first, second = plot.entropy_vs_length(lengths), plot.entropy_vs_length(lengths.to_xarray())
    for (x, y, error), (x2, y2, error2) in zip(points(first), points(second), strict=True):
        np.testing.assert_array_equal(x, x2)
        np.testing.assert_array_equal(y, y2)
        np.testing.assert_array_equal(error, error2)
    assert len(first.get_lines()) == len(second.get_lines())


def test_entropy_vs_length_refuses_other_results(lengths):
    with pytest.raises(TypeError, match="lengths go with a mapping"):
        plot.entropy_vs_length(lengths, [64, 512])
    with pytest.raises(TypeError, match="a mapping needs lengths"):
        plot.entropy_vs_length({"standard": [1.0]})
    alone = mc.entropy_vs_length(64, law=["standard", "log_n"], samples=3, rng=0)
    with pytest.raises(ValueError, match="the result must have an axis 'n', got the axes: law"):
        plot.entropy_vs_length(alone)


RESULTS = {
    "entropy": (lambda: mc.entropy_vs_length([8, 16], samples=9, rng=0), "mean entropy (nats)"),
    "saturation": (
        lambda: mc.softmax_saturation(head_dim=[4, 16], n=16, samples=9, rng=0),
        "rows with a weight above 0.99",
    ),
    "needle": (lambda: mc.needle_dilution([8, 16], cosine=0.5, samples=9, rng=0), "weight of the needle"),
    "jl": (
        lambda: mc.jl_distortion(n=10, dim=30, k=[4, 400], samples=3, rng=0),
        "largest relative change of $|x - y|^2$",
    ),
    "cosine": (lambda: mc.max_cosine([8, 16], 4, samples=9, rng=0), "largest cosine"),
    "retrieval": (lambda: mc.head_dimension([8, 16], samples=9, rng=0), "retrieval accuracy"),
    "average": (lambda: mc.averaging_error([8, 16], samples=9, rng=0), "variance of the average"),
    "dots": (
        lambda: mc.dot_product_variance(head_dim=[8, 16], samples=640, rng=0),
        r"variance of $q \cdot k$",
    ),
    "heads": (
        lambda: mc.dot_product_variance(query=np.ones((3, 2, 8)), key=np.ones((3, 2, 8)), samples=640, rng=0),
        r"variance of $q \cdot k$",
    ),
    "sparsity": (lambda: mc.sparsity([8, 16], samples=9, rng=0), "keys with a positive weight"),
    "rank": (lambda: mc.rank_and_sparsity([8, 16], samples=3, rng=0), "effective rank"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_plots_itself(name, ax):
    make, label = RESULTS[name]
    result = make()
    assert result.plot(ax) is ax
    assert ax.get_ylabel() == label
    (x, y, _), *_ = points(ax)
    (axis,) = [labels for axis, labels in result.axes.items() if axis not in ("law", "eps")]
    np.testing.assert_array_equal(x, axis)
    np.testing.assert_array_equal(y, np.reshape(result.value, (len(x), -1))[:, 0])
    assert result.plot() is not ax


def test_another_quantity(lengths):
    ax = plot.experiment(lengths, quantity="concentration")
    assert ax.get_ylabel() == r"$\sum p^2$"
    np.testing.assert_array_equal(points(ax)[0][1], lengths["concentration"].value[::-1, 0])
    assert r"standard, $1/\sqrt{d}$" in {text.get_text() for text in ax.texts}


def test_nothing_to_put_along_x():
    result = mc.entropy_vs_length(8, law=["standard", "log_n"], samples=3, rng=0)
    with pytest.raises(ValueError, match="a sequence of numbers, got axes: law"):
        result.plot()


def test_the_bound_lies_above_the_distortion():
    result = mc.jl_distortion(n=50, dim=500, k=[256, 1024], samples=5, rng=0)
    ax = plot.jl_distortion(result)
    keys = [text.get_text() for text in ax.get_legend().get_texts()]
    assert keys == ["points: Monte Carlo, one standard error", "bound of the lemma for all pairs"]
    bound = next(line for line in ax.get_lines() if line.is_dashed())
    at_k = np.interp(result.axes["k"], bound.get_xdata()[::-1], bound.get_ydata()[::-1])
    assert (at_k > result.value).all()


def test_law_comparison():
    n = np.array([64, 512, 4096])
    ax = plot.law_comparison(
        ["standard", laws.LogN(base=64)], n, others={"mine": [1, 2, 3], "double": lambda n: 2 * n / 64}
    )
    standard, logarithm, mine, double = ax.get_lines()
    np.testing.assert_array_equal(standard.get_ydata(), 1)
    np.testing.assert_allclose(logarithm.get_ydata(), np.log(logarithm.get_xdata()) / np.log(64))
    np.testing.assert_array_equal(mine.get_ydata(), [1, 2, 3])
    np.testing.assert_array_equal(double.get_ydata(), double.get_xdata() / 32)
    names = {text.get_text() for text in ax.texts}
    assert names == {r"standard, $1/\sqrt{d}$", r"$\log_{64} n\,/\sqrt{d}$", "mine", "double"}
    assert ax.get_title() == "Last of $n$ causal queries, $d=64$"
    assert len(plot.law_comparison("log_n", [64, 512]).get_lines()) == 1


def test_steps_and_zeros_of_a_law_are_where_they_are():
    ax = plot.law_comparison(["llama4_temperature", "entropy_invariant"], [128, 65536])
    n, beta = ax.get_lines()[0].get_data()
    (jump, *_) = np.flatnonzero(np.diff(beta))
    assert (n[jump], n[jump + 1]) == (8191, 8192)  # the query at 8191 is the first of the second block
    n, beta = ax.get_lines()[1].get_data()
    start = np.flatnonzero(beta)[0]
    assert 250 < n[start] < 350
    assert n[start] - n[start - 1] == 1
    assert (beta[:start] == 0).all()


def test_laws_that_do_not_count_keys_are_refused():
    for name in ("critical_scale", "scale_invariant", "adaptive_temperature"):
        with pytest.raises(ValueError, match=name):
            plot.law_comparison([name], [64, 512])
        with pytest.raises(ValueError, match=name):
            plot.phase_diagram([64, 512], [0.5, 2], laws=[name])


def test_phase_diagram():
    n, beta = np.geomspace(10, 1e4, 4), np.linspace(0, 5, 5)
    ax = plot.phase_diagram(n, beta, laws=["standard"])
    mesh = next(each for each in ax.collections if hasattr(each, "get_coordinates"))
    share = theory.expected_entropy(n[:, None], beta, model="gaussian") / np.log(n)[:, None]
    np.testing.assert_allclose(np.ravel(mesh.get_array()), share.T.ravel(), atol=1e-6)
    freezing, standard = ax.get_lines()
    np.testing.assert_allclose(freezing.get_ydata(), np.sqrt(2 * freezing.get_xdata()))
    assert freezing.get_xdata().size > 100
    np.testing.assert_array_equal(standard.get_ydata(), 1)
    ax.figure.canvas.draw()
    assert ax.get_legend().get_window_extent().y1 < ax.get_window_extent().y0


def test_head_map():
    values = [[1.0, 2.0, np.nan], [3.0, 4.0, 5.0]]
    ax = plot.head_map(values, low=0.5, high=6)
    (image,) = ax.get_images()
    np.testing.assert_array_equal(image.get_array().filled(np.nan), values)
    assert image.get_clim() == (0.5, 6)
    assert plot.head_map(values).get_images()[0].get_clim() == (0, 5)
    assert plot.head_map(values, n_keys=512).get_images()[0].get_clim() == (0, np.log(512))
    assert plot.head_map([[-1.0, 2.0]]).get_images()[0].get_clim() == (-1, 2)


@pytest.mark.parametrize(
    ("modules", "title", "layers"),
    [
        (["h.3.attn2", "h.5.attn2"], "layers: h.*.attn2", ["3", "5"]),
        (["a.1.b.1", "a.2.b.2"], "", ["a.1.b.1", "a.2.b.2"]),
        (["encoder.0", "decoder.0"], "", ["encoder.0", "decoder.0"]),
        (None, "", ["0", "1"]),
    ],
)
def test_a_head_map_has_the_names_of_the_modules(modules, title, layers):
    ax = plot.head_map([[1.0, 2.0], [3.0, 4.0]], modules=modules)
    assert ax.get_title(loc="left") == title
    assert [label.get_text() for label in ax.get_yticklabels()] == layers


def test_fields_of_a_head_map_are_square_and_its_numbers_plain():
    ax = plot.head_map(3.205 + 1e-5 * np.arange(1024).reshape(32, 32), low=3.2, high=3.21)
    ax.figure.canvas.draw()
    assert ax.get_aspect() == 1
    width, height = ax.figure.get_size_inches()
    assert width < 6
    assert height < 6
    bar = ax.figure.axes[1]
    assert bar.yaxis.get_offset_text().get_text() == ""


def test_a_sweep_of_the_experiment_is_drawn_with_its_exact_curve():
    pytest.importorskip("xarray")
    grid = at.sweep(
        mc.entropy_vs_length,
        {"n": [64, 512], "law": ["standard", "log_n"]},
        constants={"samples": 40},
        progress=False,
    )
    ax = plot.entropy_vs_length(grid)
    first = points(ax)[0]
    np.testing.assert_array_equal(first[0], [64, 512])
    np.testing.assert_array_equal(first[1], grid["value"].sel(law="standard"))
    np.testing.assert_allclose(first[2], grid["standard_error"].sel(law="standard"), rtol=1e-9)
    exact = next(line for line in ax.get_lines() if line.get_linestyle() == "-")
    n = exact.get_xdata()[::6]
    assert exact.get_xdata().size >= 25
    np.testing.assert_allclose(exact.get_ydata()[::6], theory.expected_entropy(n, 1.0))


def test_the_parameter_an_experiment_is_named_for_lies_along_x():
    result = mc.head_dimension([4, 8, 16, 32], n=[16, 256], samples=20, rng=0)
    ax = result.plot()
    assert ax.get_xlabel() == "head dimension, $d$"
    assert {text.get_text() for text in ax.texts} == {"$n = 16$", "$n = 256$"}
    only_n = mc.head_dimension(16, n=[16, 256], samples=20, rng=0).plot()
    assert only_n.get_xlabel() == "keys per query, $n$"


def test_a_figure_says_what_it_shows():
    result = mc.needle_dilution([8, 16], cosine=0.5, head_dim=32, samples=9, rng=0)
    ax = result.plot()
    assert ax.get_title() == r"$d=32$, cosine 0.5, standard, $1/\sqrt{d}$, 9 samples"
    keys = [text.get_text() for text in ax.get_legend().get_texts()]
    assert keys == ["points: Monte Carlo, one standard error; line: exact"]
    one = mc.needle_dilution([8], cosine=0.5, head_dim=32, samples=9, rng=0).plot()
    (exact,) = (line for line in one.get_lines() if line.get_markersize() == 14)
    np.testing.assert_allclose(
        exact.get_ydata(), result.column().exact[0], rtol=1e-12
    )  # between two points nothing is drawn
    assert [text.get_text() for text in one.get_legend().get_texts()] == [keys[0].replace("line", "bar")]
    without = mc.rank_and_sparsity([8, 16], samples=3, rng=0).plot()
    (key,) = without.get_legend().get_texts()
    assert key.get_text() == "points: Monte Carlo, one standard error"


def test_a_parameter_that_changes_nothing_has_one_curve():
    ax = mc.jl_distortion(n=10, dim=30, k=[4, 20], eps=[0.1, 0.5], samples=3, rng=0).plot()
    assert len(points(ax)) == 1
    assert ax.get_title().replace("\n", " ").endswith("the same for every eps")


def test_a_model_that_the_theory_does_not_cover_has_no_exact_curve():
    ax = mc.entropy_vs_length([8, 16], model="correlated", samples=9, rng=0).plot()
    assert len(points(ax)) == 1
    (key,) = ax.get_legend().get_texts()
    assert "exact" not in key.get_text()


def test_laws_keep_their_parameters_in_the_exact_curve():
    law = laws.LogN(base=64)
    ax = mc.entropy_vs_length([16, 1024], law=[law, 0.25], samples=9, rng=0).plot()
    line = next(line for line in ax.get_lines() if line.get_linestyle() == "-")
    n = line.get_xdata()[3::7]
    np.testing.assert_allclose(line.get_ydata()[3::7], theory.expected_entropy(n, law.multiplier(n, 64)))


def test_a_sweep_over_what_an_experiment_has_no_axis_for_has_its_exact_curves():
    pytest.importorskip("xarray")
    grid = {"n": [64, 256], "cosine": [0.3, 0.5]}
    table = at.sweep(mc.needle_dilution, grid, constants={"samples": 4}, progress=False)
    ax = plot.needle(table)
    lines = [line for line in ax.get_lines() if line.get_linestyle() == "-" and line.get_xdata().size > 10]
    for line, cosine in zip(lines, grid["cosine"], strict=True):
        n, weight = (values[::5] for values in line.get_data())
        np.testing.assert_allclose(weight, theory.needle_weight(n, cosine=cosine, beta=1))


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
