# SPDX-License-Identifier: BSD-3-Clause
"""Split and merge."""

from __future__ import annotations

import itertools
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from cases import random_inputs


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
    for name in ("output", "lse", "mean_score", "entropy"):
        np.testing.assert_allclose(getattr(merged, name), getattr(whole, name), **near, err_msg=name)


def test_masked_parts_merge() -> None:
    q, k, v = random_inputs(2, n_queries=40, n_keys=40, dtype="float64")
    mask = np.tri(40, dtype=bool)
    states = [
        at.attention_state(q, k[:, a:b], v[:, a:b], attn_mask=mask[:, a:b])
        for a, b in ((0, 11), (11, 30), (30, 40))
    ]
    merged = at.merge_states(states)
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
        for name in ("output", "lse", "mean_score"):
            np.testing.assert_allclose(getattr(other, name), getattr(flat, name), rtol=1e-13, atol=1e-14)


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
        for name in ("output", "lse", "mean_score", "entropy"):
            np.testing.assert_array_equal(getattr(merged, name), getattr(full, name))
    empty = at.merge_states([nothing, nothing])
    assert np.isneginf(empty.lse).all()
    np.testing.assert_array_equal(empty.output, 0)
    np.testing.assert_array_equal(empty.mean_score, 0)


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
    for name in ("output", "lse", "mean_score", "entropy"):
        np.testing.assert_allclose(getattr(merged, name), getattr(twin, name), rtol=1e-12, atol=1e-13)


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
    with pytest.raises(ValueError, match="states must hold at least one AttentionState, got none"):
        at.merge_states([])
    with pytest.raises(ValueError, match=r"states must agree in output, got \(2, 17, 16\) and \(2, 5, 16\)"):
        at.merge_states([state, other])
    with pytest.raises(ValueError, match="states must agree in layout, got bhsd and bshd"):
        at.merge_states([state, swapped])
    with pytest.raises(TypeError, match="states must be AttentionState objects, got tuple"):
        at.merge_states([state, (1, 2, 3)])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="value must be an array, got None"):
        at.attention_state(q, k, None)  # type: ignore[arg-type]
    assert repr(state).startswith("AttentionState: rows (2, 17), output (2, 17, 16) of float32, bhsd\n")


def test_parts_further_apart_than_the_type_reaches_merge() -> None:
    """Without a warning: the part that is behind has no weight."""
    output = np.array([[[1.0, 2.0]], [[3.0, 4.0]]])
    low, high = (
        at.AttentionState(output * sign, np.full((2, 1), sign * 1.7e308), np.full((2, 1), sign * 1.7e308))
        for sign in (-1, 1)
    )
    for merged in (at.merge_states([low, high]), at.merge_states([high, low])):
        np.testing.assert_array_equal(merged.output, output)
        np.testing.assert_array_equal(merged.lse, high.lse)
