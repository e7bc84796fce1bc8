# SPDX-License-Identifier: BSD-3-Clause
"""The map of attention weights: what is blank, who is named, and what the colours mean."""

from __future__ import annotations

import attnscale as at
import numpy as np
import pytest
from cases import random_inputs

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("agg")

Q, K, _ = random_inputs(1, heads=3, n_queries=5, n_keys=5)
CAUSAL = at.attention_weights(Q, K, is_causal=True)
TOKENS = ["the", "$5", "a\nb", "_x_", "end"]


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


def test_one_head_with_its_tokens():
    ax = at.plot.attention_map(CAUSAL[0], TOKENS)
    (image,) = ax.get_images()
    drawn = image.get_array()
    np.testing.assert_array_equal(drawn.mask, np.triu(np.ones((5, 5), bool), 1))  # blank: not seen
    np.testing.assert_array_equal(drawn.data[~drawn.mask], CAUSAL[0][~drawn.mask].astype(np.float64))
    named = ["the", "$5", r"a\nb", "_x_", "end"]
    assert labels(ax.yaxis) == labels(ax.xaxis) == named
    assert not any(label.get_parse_math() for label in ax.get_xticklabels())
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("key", "query")
    bar = ax.figure.axes[-1]
    assert bar.get_ylabel() == "weight of the key in its row (blank: 0)"
    ax.figure.canvas.draw()  # "$5" alone is no formula


def test_blank_is_lighter_than_the_smallest_weight():
    image = at.plot.attention_map(CAUSAL[0]).get_images()[0]
    blank, *ramp = image.get_cmap()(np.ma.array([0.0, *np.linspace(0, 1, 9)], mask=[True] + 9 * [False]))
    brightness = np.array(ramp)[:, :3].sum(-1)
    assert tuple(blank[:3]) == (1, 1, 1)
    assert brightness[0] < 2.9
    assert (np.diff(brightness) < 0).all()


def test_the_first_causal_rows_do_not_set_the_colours():
    weights = np.tril(np.ones((400, 400))) / np.arange(1, 401)[:, None]
    image = at.plot.attention_map(weights).get_images()[0]
    assert image.norm.vmin == 0
    assert 1 / 10 < image.norm.vmax < 1 / 7
    assert at.plot.attention_map(weights, high=0.5).get_images()[0].norm.vmax == 0.5


def test_heads_become_a_grid_with_one_scale():
    panels = at.plot.attention_map(CAUSAL, TOKENS, names=["a", "b", "c"])
    assert [panel.get_title(loc="left") for panel in panels] == ["a", "b", "c"]
    assert len({panel.figure for panel in panels}) == 1
    assert len({panel.get_images()[0].norm.vmax for panel in panels}) == 1
    assert [panel.get_title(loc="left") for panel in at.plot.attention_map(CAUSAL)] == [
        "head 0",
        "head 1",
        "head 2",
    ]


def test_no_text_is_cut_off():
    for weights, tokens in ((CAUSAL, TOKENS), (CAUSAL[0], ["unbelievably_long_token_" * 2, *TOKENS[1:]])):
        first = np.ravel(at.plot.attention_map(weights, tokens))[0]
        figure = first.figure
        figure.canvas.draw()
        box = figure.get_tightbbox()
        assert box.x0 >= -0.02
        assert box.y0 >= -0.02
        assert box.x1 <= figure.get_figwidth() + 0.02
        assert box.y1 <= figure.get_figheight() + 0.02


def test_many_tokens_are_named_in_steps_and_keys_can_have_their_own():
    ax = at.plot.attention_map(np.full((150, 3), 1 / 3), [str(i) for i in range(150)], key_tokens=["xyz"] * 3)
    assert labels(ax.yaxis)[:3] == ["0", "3", "6"]
    assert len(labels(ax.yaxis)) == 50
    assert labels(ax.xaxis) == ["xyz"] * 3


def test_refusals():
    import matplotlib.pyplot as plt

    for call, message in (
        (
            lambda: at.plot.attention_map(np.zeros((2, 2, 3, 3))),
            r"weights must have the shape .* got \(2, 2, 3, 3\)",
        ),
        (lambda: at.plot.attention_map(np.zeros((25, 3, 3))), r"at most 24 heads, got 25; weights\[:24\]"),
        (
            lambda: at.plot.attention_map(CAUSAL[0], TOKENS[1:]),
            "tokens must be as many as the queries, 5, got 4",
        ),
        (
            lambda: at.plot.attention_map(CAUSAL[0], key_tokens=TOKENS[1:]),
            "key_tokens must be as many as the keys",
        ),
        (lambda: at.plot.attention_map(CAUSAL, names=["a"]), "names must be as many as the heads, 3, got 1"),
        (lambda: at.plot.attention_map(CAUSAL, ax=plt.gca()), "ax is for one head"),
        (lambda: at.plot.attention_map(CAUSAL, high=0), "high must be greater than 0, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="tokens must be a sequence of strings, one a token, got 'hello'"):
        at.plot.attention_map(CAUSAL[0], "hello")


def test_all_zero_weights_are_drawn():
    assert at.plot.attention_map(np.zeros((3, 3))).get_images()[0].norm.vmax == 1
