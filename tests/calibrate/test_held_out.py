# SPDX-License-Identifier: BSD-3-Clause
"""held_out_error: a root mean square over heads and texts, and its standard error."""

from __future__ import annotations

import attnscale as at
import numpy as np
import pytest


def drawn(rng: np.random.Generator, texts: int, heads: int) -> np.ndarray:
    """Misses with a part of the text, one of the head, and one of both."""
    parts = (rng.normal(size=shape) for shape in ((texts, 1), (1, heads), (texts, heads)))
    return 0.3 + sum(0.2 * each for each in parts)


def test_the_value_is_the_root_mean_square() -> None:
    misses = np.random.default_rng(0).normal(size=(3, 5, 2))
    misses[1, 2, 0] = np.nan  # a head that does not count
    kept = misses[:, [0, 1, 3, 4]]
    found = at.held_out_error(misses)
    assert found.value == pytest.approx(np.sqrt((kept**2).mean()), rel=1e-12)
    assert found.low < found.value < found.high
    other = np.full_like(misses, 0.5)
    other[:, 0] = np.nan  # neither does one that the other prediction lacks
    both = misses[:, [1, 3, 4]]
    difference = at.held_out_error(misses, less=other)
    assert difference.value == pytest.approx(np.sqrt((both**2).mean()) - 0.5, rel=1e-12)


def test_the_error_is_the_deviation_over_new_heads_and_texts() -> None:
    """The standard error over 400 studies of 12 texts and 20 heads; the common part is counted twice."""
    rng = np.random.default_rng(1)
    values = [np.sqrt((drawn(rng, 12, 20) ** 2).mean()) for _ in range(400)]
    errors = [at.held_out_error(drawn(rng, 12, 20)).error for _ in range(20)]
    assert 0.85 < np.mean(errors) / np.std(values) < 1.3


@pytest.mark.parametrize("shape", [(12, 20), (3, 4), (5, 6, 2)])
def test_it_is_its_twin(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    misses, less = rng.normal(size=(2, *shape)) + np.array([0.3, 0.6]).reshape(2, *(1,) * len(shape))
    for options in ({}, {"less": less}):
        found = at.held_out_error(misses, **options)
        twin = at.reference.held_out_error(misses, rng=rng, **options)
        assert found.value == pytest.approx(twin.value, rel=1e-12)
        assert found.error == pytest.approx(twin.error, rel=0.1)  # of 2000 draws each
        for name in ("low", "high"):
            assert getattr(found, name) == pytest.approx(getattr(twin, name), abs=0.3 * twin.error), name


def test_a_difference_is_paired() -> None:
    """The common part of two predictions cancels."""
    misses = drawn(np.random.default_rng(2), 12, 20)
    alone, against = at.held_out_error(misses), at.held_out_error(misses, less=1.01 * misses)
    assert against.value == pytest.approx(-0.01 * alone.value, rel=1e-9)
    assert against.error == pytest.approx(0.01 * alone.error, rel=1e-9)
    assert against.high < 0


def test_what_is_single_is_not_drawn() -> None:
    misses = np.random.default_rng(3).normal(size=(1, 400))
    assert at.held_out_error(misses).error == pytest.approx(1 / np.sqrt(2 * 400), rel=0.1)
    assert at.held_out_error(misses.T).error == pytest.approx(1 / np.sqrt(2 * 400), rel=0.1)
    assert np.isnan(at.held_out_error(misses[:, :1]).error)


@pytest.mark.parametrize(
    ("misses", "less", "message"),
    [
        (np.ones(3), None, r"misses must be \(texts, heads, ...\) and not empty, got shape \(3,\)"),
        (np.ones((2, 0)), None, "and not empty"),
        (np.ones((2, 3)), np.ones((3, 2)), r"less must have the shape of misses, got \(2, 3\) and \(3, 2\)"),
        (np.full((2, 3), np.nan), None, "misses must have a head without NaN, got none"),
    ],
)
def test_mistakes_are_explained(misses: np.ndarray, less: np.ndarray | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        at.held_out_error(misses, less=less)


def test_words_are_no_misses() -> None:
    with pytest.raises(TypeError, match="misses must be real numbers"):
        at.held_out_error([["a", "b"]])
