# SPDX-License-Identifier: BSD-3-Clause
"""Figures for print: the requested width, no collisions, one legend for all panels."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import montecarlo as mc
from attnscale import plot
from attnscale.plot._text import in_lines, printed
from versions import written_for

LENGTHS = [32, 64, 128, 256]
LAWS = ["standard", "log_n", "natural_log_n", "annealed(n0=32)"]
ENTROPY = {law: np.log(LENGTHS) * (1 - 0.1 * i) - 0.3 for i, law in enumerate(LAWS)}
MANY = np.linspace(3, 9, 13)
HEADS = np.linspace(0.5, 4, 18)
WEIGHTS = at.attention_weights(*np.random.default_rng(0).standard_normal((2, 24, 8)))
WORDS = [f"word{i}" for i in range(24)]


def calibrated(ax: Any) -> Any:
    data = at.datasets.minilm_qk()
    laws = ["variance_invariant", "log_n", "natural_log_n", "lssa"]
    return at.calibrate(data.query[:4, :128], data.key[:4, :128], n0=32, laws=laws).plot(ax=ax)


def distortion(ax: Any) -> Any:
    return mc.jl_distortion(n=20, dim=60, k=[8, 16, 32], samples=2, rng=0).plot(ax)


#: Every function that draws on axes; whatever width these have.
DRAWN: dict[str, Callable[[Any], Any]] = {
    "entropy_vs_length": lambda ax: plot.entropy_vs_length(ENTROPY, LENGTHS, ax=ax),
    "causal": lambda ax: plot.entropy_vs_length(ENTROPY, LENGTHS, is_causal=True, ax=ax),
    "many lengths": lambda ax: plot.entropy_vs_length(
        dict.fromkeys(LAWS, MANY), 2 ** np.arange(5, 18), ax=ax
    ),
    "law_comparison": lambda ax: plot.law_comparison(LAWS, [512, 4096, 32768], ax=ax),
    "calibrated_beta": calibrated,
    "needle": lambda ax: mc.needle_dilution([64, 128256], cosine=0.4, samples=4, rng=0).plot(ax),
    "jl_distortion": distortion,
    "jl_dimensions": lambda ax: plot.jl_dimensions([64, 128256], eps=[0.1, 0.5], ax=ax),
    "entropy_by_head": lambda ax: plot.entropy_by_head(
        {"standard": HEADS, "log_n": HEADS / 2}, n_keys=512, ax=ax
    ),
    "head_map": lambda ax: plot.head_map(HEADS.reshape(3, 6), n_keys=512, ax=ax),
    "attention_map": lambda ax: plot.attention_map(WEIGHTS, WORDS, ax=ax),
    "phase_diagram": lambda ax: plot.phase_diagram([8, 64, 4096], [0.5, 2, 4], laws=["log_n"], ax=ax),
}


def overlaps(one: Any, other: Any) -> bool:
    """Whether two boxes share more than the edge of a letter."""
    across = min(one.x1, other.x1) - max(one.x0, other.x0)
    return bool(across > 1 and min(one.y1, other.y1) - max(one.y0, other.y0) > 1)


def check_text(figure: Any) -> None:
    """No label, tick, title or legend lies on another or is cut off by the edge of the figure."""
    figure.canvas.draw()
    boxes: list[tuple[str, Any]] = []
    for ax in [*figure.axes, *(child for each in figure.axes for child in each.child_axes)]:
        labels = [ax.xaxis.label, ax.yaxis.label, ax._left_title, ax.title]
        for axis in (ax.xaxis, ax.yaxis):
            ends = sorted(axis.get_view_interval())
            labels += [
                tick.label1 if tick.label1.get_visible() else tick.label2
                for tick in axis.get_major_ticks()
                if ends[0] <= tick.get_loc() <= ends[1]
            ]
        boxes += [(each.get_text(), each.get_window_extent()) for each in labels if each.get_text()]
        boxes += [("names", each.get_window_extent()) for each in ax.texts if each.get_gid()]
        boxes += [("key", each.get_window_extent()) for each in [ax.get_legend()] if each]
    boxes += [("legend", each.get_window_extent()) for each in figure.legends]
    assert len(boxes) > 5
    for name, box in boxes:
        assert box.x0 >= -1, name
        assert box.y0 >= -1, name
        assert box.x1 <= figure.bbox.x1 + 1, name
        assert box.y1 <= figure.bbox.y1 + 1, name
    for (name, box), (other, there) in itertools.combinations(boxes, 2):
        assert not overlaps(box, there), (name, other)


@pytest.mark.parametrize("width", [3.4, 5.5])
@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_has_the_requested_width(name: str, width: float) -> None:
    with plot.style(width=width):
        figure = DRAWN[name](None).figure
    assert figure.get_size_inches()[0] == pytest.approx(width)
    check_text(figure)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("entropy_vs_length", "law_comparison"),
        # Matplotlib 3.8 leaves a label eight pixels outside of the figure.
        pytest.param("many lengths", "many lengths", marks=written_for("matplotlib>=3.11")),
        ("calibrated_beta", "needle"),
        ("causal", "phase_diagram"),
        ("jl_distortion", "jl_dimensions"),
        ("head_map", "entropy_by_head"),
    ],
)
def test_two_panels_of_a_page_have_one_legend_and_do_not_collide(left: str, right: str) -> None:
    import matplotlib.pyplot as plt

    with plot.style(width=5.5, height=3.0):
        figure, panels = plt.subplots(1, 2)
        for name, ax in zip((left, right), panels, strict=True):
            DRAWN[name](ax)
        legend = plot.shared_legend(figure)
    assert figure.legends == [legend]
    assert figure.get_size_inches().tolist() == [5.5, 3.0]
    assert not any(ax.get_legend() for ax in panels)
    texts = [text.get_text() for text in legend.get_texts()]
    assert len(texts) == len(set(texts)) >= 2
    check_text(figure)
    for ax in panels:
        assert ax.get_window_extent().height > 0.2 * figure.bbox.height


def test_names_go_into_one_legend_once() -> None:
    """Lines keep their place: the room of their names is theirs again."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4))
    plot.entropy_vs_length({"standard": [3.0, 4.0]}, [64, 256], ax=left)
    plot.multiplier_vs_length({"standard": [1.0, 1.0], "log_n": [1.0, 2.0]}, [64, 256], ax=right)
    assert len(left.texts) == len(right.texts) == 2
    assert left.get_xlim()[1] > 300
    right.text(64, 1.5, "mine")
    legend = plot.shared_legend(figure, columns=2)
    assert [text.get_text() for text in legend.get_texts()] == [
        r"uniform, $\ln n$",
        r"standard, $1/\sqrt{d}$",
        r"$\log_{512} n\,/\sqrt{d}$",
    ]
    assert [text.get_text() for text in right.texts] == ["mine"]
    assert left.get_xlim() == pytest.approx((64 * 4**-0.04, 256 * 4**0.04))
    assert legend._ncols == 2


def test_one_name_with_two_colours_is_named_twice() -> None:
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, layout="constrained")
    for ax, colour in zip(panels, ("C0", "C1"), strict=True):
        ax.plot([1, 2], color=colour, label="mine")
        ax.bar([1], [1], color="C2", label="bar")
        ax.errorbar([1], [1], [0.5], color="C3", label="point")
    texts = [text.get_text() for text in plot.shared_legend(figure).get_texts()]
    assert sorted(texts) == ["bar", "mine", "mine", "point"]


def test_unnamed_curves_have_no_legend() -> None:
    import matplotlib.pyplot as plt

    with pytest.raises(ValueError, match="figure must have panels with named lines, got none"):
        plot.shared_legend(plt.subplots()[0])
    with pytest.raises(TypeError, match="figure must be a Figure of matplotlib, got 3"):
        plot.shared_legend(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="columns must be at least 1, got 0"):
        plot.shared_legend(plot.head_map([[1.0]]).figure, columns=0)  # type: ignore[arg-type]


def test_the_size_is_that_of_the_block() -> None:
    import matplotlib.pyplot as plt

    def size(ax: Any = None) -> list[float]:
        return list(
            (ax or plot.entropy_vs_length(ENTROPY, LENGTHS, uniform=False)).figure.get_size_inches().round(3)
        )

    usual = [4.6, 3.2]
    assert size() == usual
    with plot.style(width=6, height=2):
        assert size() == [6, 2]
        assert size(plot.head_map([[1.0, 2.0]])) == [6, 2]
        with plot.style():  # as the functions do
            assert plt.rcParams["figure.figsize"] == [6, 2]
        with plot.style(height=3):
            assert size() == [6, 3]
        with plot.style(width=5):
            assert size() == [5, pytest.approx(5 * 3.2 / 4.6, abs=1e-3)]
    with plot.style(height=2):
        assert size() == [4.6, 2]
    assert size() == usual
    with pytest.raises(ZeroDivisionError), plot.style(width=5):
        raise ZeroDivisionError
    assert size() == usual


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ({"width": "5"}, TypeError, "width must be a number, got '5'"),
        ({"width": 1}, ValueError, "width must be at least 1.5 inches, got 1"),
        ({"height": 0}, ValueError, "height must be at least 1.5 inches, got 0"),
        ({"width": float("nan")}, ValueError, "width must be finite, got nan"),
    ],
)
def test_sizes_that_hold_no_figure_are_refused(given: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message), plot.style(**given):
        pass


def test_long_names_stand_below_and_leave_the_lines_their_room() -> None:
    names = {f"{law} of a head of mine, calibrated": values for law, values in ENTROPY.items()}
    ax = plot.entropy_vs_length(names, LENGTHS, uniform=False)
    ax.figure.canvas.draw()
    assert not ax.texts
    assert [text.get_text().replace("\n", " ") for text in ax.get_legend().get_texts()] == list(names)
    assert ax.get_window_extent().width > 0.8 * ax.figure.bbox.width
    ends = ax.transAxes.inverted().transform(ax.transData.transform(np.column_stack(ax.lines[0].get_data())))
    assert np.ptp(ends[:, 0]) > 0.9


def test_ticks_have_room_at_any_width() -> None:
    """A figure may become narrower after it was drawn, and can still be stored."""
    ax = plot.entropy_vs_length(ENTROPY, [64, 512, 4096, 128256], uniform=False)
    seen = {}
    for width in (9.0, 3.0, 1.8):
        ax.figure.set_size_inches(width, 3)
        ax.figure.canvas.draw()
        labels = [label for label in ax.get_xticklabels() if label.get_text()]
        boxes = [label.get_window_extent() for label in labels]
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
        seen[width] = [label.get_text() for label in labels]
    assert seen[9.0] == ["64", "512", "4096", "128256"]
    assert seen[1.8][-1] == "128256"
    assert len(seen[1.8]) < 4
    again = pickle.loads(pickle.dumps(ax.figure)).axes[0]
    again.figure.canvas.draw()
    assert again.get_xticklabels()[-1].get_text() == "128256"


def test_numbers_of_vectors_are_whole_at_ticks() -> None:
    ax = plot.jl_dimensions(np.geomspace(64, 4096, 5))  # 64, 181.02, ...
    ax.figure.canvas.draw()
    assert [label.get_text() for label in ax.get_xticklabels()] == [
        "64",
        "128",
        "256",
        "512",
        "1024",
        "2048",
        "4096",
    ]


@pytest.mark.parametrize("shape", [(3, 3), (6, 4), (40, 300)])
def test_queries_and_keys_are_counted_in_whole_numbers(shape: tuple[int, int]) -> None:
    ax = plot.attention_map(np.full(shape, 1 / shape[1]))
    ax.figure.canvas.draw()
    for axis in (ax.xaxis, ax.yaxis):
        assert all(float(tick).is_integer() for tick in axis.get_majorticklocs())


def test_a_needle_of_little_weight_is_seen() -> None:
    """No line lies on the floor: above a tenth of the height, or logarithmic."""
    far = mc.needle_dilution([64, 4096, 32768], cosine=0.4, samples=5, rng=0)
    assert far.value.max() > 20 * far.value.min()
    assert far.plot().get_yscale() == "log"
    near = mc.needle_dilution([64, 128], cosine=0.3, samples=5, rng=0)
    low, high = near.plot().get_ylim()
    assert low == 0 or low == pytest.approx(0, abs=0.02)
    assert near.value.min() > 0.1 * high
    most = mc.needle_dilution([8, 64], cosine=0.9, samples=5, rng=0)
    assert most.plot().get_ylim()[1] >= 1


@pytest.mark.parametrize(
    ("text", "width", "lines"),
    [
        ("kept to a factor $1 \\pm \\varepsilon$", 12, ["kept to a", "factor $1 \\pm \\varepsilon$"]),
        (r"$\beta$, multiple of $1/\sqrt{d}$", 16, [r"$\beta$, multiple", r"of $1/\sqrt{d}$"]),
        ("one_word_that_is_long", 5, ["one_word_that_is_long"]),
        ("two\nlines", 2, ["two", "lines"]),
        ("short", 30, ["short"]),
        ("it costs $5 a year", 10, ["it costs", "$5 a year"]),
    ],
)
def test_texts_are_broken_between_words_and_formulas(text: str, width: int, lines: list[str]) -> None:
    assert in_lines(text, width).split("\n") == lines


def test_letters_of_formulas_are_those_that_are_printed() -> None:
    assert [printed(text) for text in ("abc", "$n$", r"$\ln n$", "a\nlonger")] == [3, 1, 3, 6]
