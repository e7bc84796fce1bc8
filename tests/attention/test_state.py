# SPDX-License-Identifier: BSD-3-Clause
"""States of parts of the keys, and their merge."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from cases import random_inputs, same

RESULTS = ("output", "lse", "mean_score", "entropy")


def parts_of(q: Any, k: Any, v: Any, cuts: list[int], **options: Any) -> list[at.AttentionState]:
    edges = [0, *cuts, k.shape[-2]]
    return [
        at.attention_state(q, k[..., a:b, :], v[..., a:b, :], **options) for a, b in itertools.pairwise(edges)
    ]


@pytest.mark.parametrize("cuts", [[], [50], [1], [10, 20, 90], [0, 0, 100], list(range(1, 100))])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_split_and_merge_is_the_whole(cuts: list[int], dtype: str) -> None:
    q, k, v = random_inputs(1, batch=(2,), n_keys=100, dtype=dtype)
    merged = at.merge_states(parts_of(q, k, v, cuts))
    whole = at.attention_statistics(q, k, v, statistics=("lse", "entropy", "mean_score"))
    near = {"rtol": 1e-12, "atol": 1e-12} if dtype == "float64" else {"rtol": 1e-5, "atol": 2e-6}
    assert merged.output.dtype == merged.lse.dtype == q.dtype
    same(merged, whole, RESULTS, **near)


def test_masked_parts_merge() -> None:
    q, k, v = random_inputs(2, n_queries=40, n_keys=40, dtype="float64")
    mask = np.tri(40, dtype=bool)
    cuts = [slice(0, 11), slice(11, 30), slice(30, 40)]
    merged = at.merge_states(at.attention_state(q, k[:, s], v[:, s], attn_mask=mask[:, s]) for s in cuts)
    whole = at.attention_statistics(q, k, v, is_causal=True)
    np.testing.assert_allclose(merged.output, whole.output, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(merged.entropy, whole.entropy, rtol=1e-12, atol=1e-12)


def test_merging_is_associative_and_commutative() -> None:
    q, k, v = random_inputs(3, n_keys=90, dtype="float64")
    a, b, c = parts_of(q, k, v, [20, 70])
    flat = at.merge_states([a, b, c])
    for other in (
        at.merge_states([at.merge_states([a, b]), c]),
        at.merge_states([a, at.merge_states([b, c])]),
        at.merge_states(iter([c, a, b])),
    ):
        same(other, flat, ("output", "lse", "mean_score"), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_no_keys_are_the_identity(layout: str) -> None:
    q, k, v = (x.swapaxes(0, 1) if layout == "bshd" else x for x in random_inputs(4))
    full = at.attention_state(q, k, v, layout=layout)
    axis = 0 if layout == "bshd" else 1
    nothing = at.attention_state(q, k.take([], axis), v.take([], axis), layout=layout)
    assert np.isneginf(nothing.lse).all()
    np.testing.assert_array_equal(nothing.entropy, 0)
    for states in ([full, nothing], [nothing, full], [full]):
        merged = at.merge_states(states)
        assert merged.layout == layout
        same(merged, full, RESULTS)
    empty = at.merge_states([nothing, nothing])
    assert np.isneginf(empty.lse).all()
    np.testing.assert_array_equal(empty.output, 0)
    np.testing.assert_array_equal(empty.mean_score, 0)


@pytest.mark.parametrize("fill", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("merge", [at.merge_states, reference.merge_states])
def test_rows_without_keys_may_hold_anything(fill: float, layout: Any, merge: Any) -> None:
    q, k, v = random_inputs(4)
    full = at.attention_state(q, k, v)
    without = np.zeros(full.lse.shape, bool)
    without[:, ::3] = True
    lse, mean = (np.where(without, x, y) for x, y in ((-np.inf, full.lse), (fill, full.mean_score)))
    output = np.where(without[..., None], np.float32(fill), full.output)
    part = at.AttentionState(output, lse, mean)
    np.testing.assert_array_equal(part.entropy[without], 0)
    if layout == "bshd" and merge is at.merge_states:
        part, full = (replace(x, output=x.output.swapaxes(0, 1), layout=layout) for x in (part, full))
    for states in ([part, full], [full, part]):
        merged = merge(states)
        assert all(np.isfinite(getattr(merged, name)).all() for name in RESULTS)
        np.testing.assert_allclose(merged.lse[without], full.lse[without], rtol=1e-6)
    of_none = merge([part, part])
    assert np.isneginf(of_none.lse[without]).all()
    np.testing.assert_array_equal(of_none.mean_score[without], 0)
    np.testing.assert_array_equal(of_none.entropy[without], 0)


@pytest.mark.parametrize("name", ["attnscale", "flash_attention_2", "flashinfer", "jax"])
def test_rows_that_an_engine_left_as_they_were_merge(name: str) -> None:
    q, k, v = random_inputs(11, dtype="float64")
    full = at.attention_state(q, k, v)
    empty = at.convert_lse(np.full(full.lse.shape, -np.inf), from_="attnscale", to=name)
    nothing = at.AttentionState(np.full_like(full.output, np.nan), empty)
    theirs = at.AttentionState(full.output, at.convert_lse(full.lse, from_="attnscale", to=name))
    merged = at.merge_states([nothing, theirs, nothing], convention=name)
    np.testing.assert_allclose(merged.output, full.output, rtol=1e-13)
    of_none = at.merge_states([nothing, nothing], convention=name)
    np.testing.assert_array_equal(of_none.output, 0)
    assert np.isneginf(of_none.lse).all()


def large_scores(offset: float) -> tuple[Any, Any, Any]:
    """Exact scores around an offset, of keys in three parts whose means differ."""
    rng = np.random.default_rng(12)
    steps = np.round(rng.standard_normal(4096) * 16) / 16 + np.repeat([0, 16, -32], [96, 1000, 3000])
    q = np.stack([np.ones(5), np.arange(1, 6) / 64], axis=-1)
    k = np.stack([np.full(4096, offset), steps], axis=-1)
    return q, k, rng.standard_normal((4096, 3)) + np.repeat([0, 1, -2], [96, 1000, 3000])[:, None]


def numpy_rows(q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """Output and entropy in float64, from the matrix of scores."""
    scores = q @ k.T
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return weights @ v, -(weights * np.log(weights)).sum(-1)


@pytest.mark.parametrize("offset", [0.0, 8192.0, -8192.0])
def test_the_entropy_has_its_digits_where_scores_are_large(offset: float) -> None:
    def in_parts(*arrays: Any) -> Any:
        return zip(*(np.split(x, [96, 1096]) for x in arrays), strict=True)

    q, k, v = large_scores(offset)
    output, entropy = numpy_rows(q, k, v)
    narrow = [x.astype(np.float32) for x in (q, k, v)]
    whole = at.attention_state(*narrow, scale=1.0)
    np.testing.assert_array_equal(whole.entropy, at.attention_entropy(*narrow[:2], scale=1.0))
    parts = [at.attention_state(narrow[0], *part, scale=1.0) for part in in_parts(*narrow[1:])]
    for found in (whole, at.merge_states(parts), at.merge_states([at.merge_states(parts[:2]), parts[2]])):
        assert found.entropy.dtype == np.float32
        np.testing.assert_allclose(found.entropy, entropy, rtol=0, atol=1e-5)
        np.testing.assert_allclose(found.output, output, rtol=0, atol=1e-4)
        np.testing.assert_array_equal(np.float32(found.lse + found.lse_rest), found.lse)


def test_rounding_errors_of_rows_are_kept() -> None:
    q, k, v = random_inputs(13)
    state = at.attention_state(q, k, v)
    wide = at.attention_state(*(x.astype(np.float64) for x in (q, k, v)))
    np.testing.assert_allclose(state.lse + state.lse_rest, wide.lse, rtol=0, atol=1e-6)
    assert np.abs(state.mean_rest).max() > 0
    assert wide.lse_rest is None is wide.mean_rest
    merged = at.merge_states([at.AttentionState(state.output, state.lse, state.mean_score)] * 2)
    np.testing.assert_allclose(merged.entropy, state.entropy + np.log(2), atol=1e-5)


def test_layout_bshd_merges_along_its_own_axes() -> None:
    q, k, v = random_inputs(5, batch=(2,), heads=3)
    want = at.attention(q, k, v).swapaxes(1, 2)
    q, k, v = (x.swapaxes(1, 2) for x in (q, k, v))
    states = [at.attention_state(q, k[:, s], v[:, s], layout="bshd") for s in (slice(10), slice(10, None))]
    merged = at.merge_states(states)
    assert merged.output.shape == (2, 17, 3, 16)
    np.testing.assert_allclose(merged.output, want, rtol=1e-5, atol=1e-6)


def test_against_the_twin() -> None:
    q, k, v = random_inputs(6, n_keys=60, dtype="float64")
    states = parts_of(q, k, v, [13, 40])
    merged, twin = at.merge_states(states), reference.merge_states(states)
    same(merged, twin, RESULTS, rtol=1e-12, atol=1e-13)


def test_large_and_tiny_parts_do_not_overflow() -> None:
    q, k, v = random_inputs(7, dtype="float64", head_dim=4)
    states = [at.attention_state(q, k * s, v) for s in (1e-3, 300.0, 1e3)]
    merged = at.merge_states(states)
    assert np.isfinite(merged.output).all()
    assert np.isfinite(merged.lse).all()
    assert (merged.entropy >= 0).all()


def test_nan_in_one_part_reaches_its_rows_only() -> None:
    q, k, v = random_inputs(8)
    a, b = parts_of(q, k, v, [16])
    lse = a.lse.copy()
    lse[1, 3] = np.nan
    merged = at.merge_states([at.AttentionState(a.output, lse, a.mean_score), b])
    broken = np.zeros((2, 17), bool)
    broken[1, 3] = True
    np.testing.assert_array_equal(np.isnan(merged.output).all(-1), broken)
    np.testing.assert_array_equal(np.isnan(merged.entropy), broken)


def test_an_infinite_value_shows_however_small_its_weight() -> None:
    q, k, v = np.ones((1, 1, 1)), np.array([[[0.0], [2000.0]]]), np.array([[[np.inf], [1.0]]])
    states = parts_of(q, k, v, [1], scale=1)
    assert not np.isfinite(at.merge_states(states).output).any()


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_types(dtype: str) -> None:
    q, k, v = random_inputs(9, dtype=dtype)
    merged = at.merge_states(parts_of(q, k, v, [9]))
    assert merged.output.dtype == dtype
    assert merged.lse.dtype == merged.entropy.dtype == np.float32


def test_mistakes_are_explained() -> None:
    q, k, v = random_inputs(10)
    state = at.attention_state(q, k, v)
    other = at.attention_state(q[:, :5], k, v)
    swapped = at.AttentionState(state.output, state.lse, state.mean_score, "bshd")
    mistakes: tuple[tuple[Any, type[Exception], str], ...] = (
        ([], ValueError, "states must hold at least one AttentionState, got none"),
        ([state, other], ValueError, r"states must agree in output, got \(2, 17, 16\) and \(2, 5, 16\)"),
        ([state, swapped], ValueError, "states must agree in layout, got bhsd and bshd"),
        ([state, (1, 2, 3)], TypeError, "states must be AttentionState objects, got tuple"),
    )
    for states, error, message in mistakes:
        with pytest.raises(error, match=message):
            at.merge_states(states)
    with pytest.raises(TypeError, match="value must be an array, got None"):
        at.attention_state(q, k, None)  # type: ignore[arg-type]
    assert repr(state).startswith("AttentionState: rows (2, 17), output (2, 17, 16) of float32, bhsd\n")


def test_parts_further_apart_than_the_type_reaches_merge() -> None:
    """The smaller part has no weight, and there is no warning."""
    output = np.array([[[1.0, 2.0]], [[3.0, 4.0]]])
    low, high = (
        at.AttentionState(output * sign, np.full((2, 1), sign * 1.7e308), np.full((2, 1), sign * 1.7e308))
        for sign in (-1, 1)
    )
    for merged in (at.merge_states([low, high]), at.merge_states([high, low])):
        np.testing.assert_array_equal(merged.output, output)
        np.testing.assert_array_equal(merged.lse, high.lse)


@pytest.mark.parametrize("name", ["output", "lse", "mean_score", "lse_rest", "mean_rest"])
def test_the_mask_of_an_array_is_not_dropped(name: str) -> None:
    state = at.attention_state(*random_inputs(14))
    masked = np.ma.masked_array(getattr(state, name), getattr(state, name) > 0)
    said = f"^{name} of a state is a masked array, whose mask would be lost; fill"
    with pytest.raises(TypeError, match=said):
        replace(state, **{name: masked})
