# SPDX-License-Identifier: BSD-3-Clause
"""Figures of variants: costs and weights against n, one line a variant, no two lines alike."""

from __future__ import annotations

import numpy as np
import pytest

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")

from attnscale_bench import VariantCost, draw_costs, draw_weights  # noqa: E402
from matplotlib import pyplot  # noqa: E402

NAMES = [f"variant {i}" for i in range(10)]
COSTS = [
    VariantCost(name, n, 1e-6 * (i + 1) * n, 100 * n if i else None)
    for i, name in enumerate(NAMES)
    for n in (1024, 4096)
]
ROWS = [
    {
        "variant": name,
        "n": n,
        "entropy": i / 10 * np.log(n),
        "needle_weight": i / 20,
        "max_weight": i / 10,
        "support": n / 2,
        "effective_rank": n / 4,
    }
    for i, name in enumerate(NAMES)
    for n in (64, 512)
]


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    pyplot.close("all")


def costs(**options):
    ax = pyplot.subplots()[1]
    draw_costs(COSTS, ax, **options)
    return ax


def weights(**options):
    ax = pyplot.subplots()[1]
    draw_weights(ROWS, ax, **options)
    return ax


def _looks(ax):
    return {line.get_label(): (line.get_color(), line.get_linestyle()) for line in ax.lines}


@pytest.mark.parametrize("draw", [costs, weights])
def test_ten_variants_look_different(draw):
    looks = _looks(draw())
    assert list(looks) == NAMES
    assert len(set(looks.values())) == 10


def test_a_variant_that_was_not_measured_leaves_the_others_their_colours():
    time, memory = costs(), costs(what="bytes")
    assert NAMES[0] not in _looks(memory)
    for name, look in _looks(memory).items():
        assert look == _looks(time)[name]


@pytest.mark.parametrize(
    ("what", "share"),
    [
        ("entropy", 0.3),
        ("needle_weight", 0.15),
        ("max_weight", 0.3),
        ("support", 0.5),
        ("effective_rank", 0.25),
    ],
)
def test_measures_are_drawn_as_shares_of_the_most_they_can_be(what, share):
    ax = weights(what=what)
    np.testing.assert_allclose(ax.lines[3].get_ydata(), [share, share])


def test_legend_can_be_left_to_a_neighbour():
    assert costs().get_legend() is not None
    assert costs(legend=False).get_legend() is None
    assert weights(legend=False).get_legend() is None
