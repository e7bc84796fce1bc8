# SPDX-License-Identifier: BSD-3-Clause
"""KL(p || p') of each row, against the written-out formula in float64."""

from __future__ import annotations

import tracemalloc
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from cases import case, close, mask_cases, random_inputs


def pairs(seed: int, **options: Any) -> tuple[np.ndarray, ...]:
    """Queries and keys of two attentions, with head_dim 16 and 24."""
    q, k, _ = random_inputs(seed, **options)
    other_q, other_k, _ = random_inputs(seed + 100, **{"head_dim": 24, **options})
    return q, k, other_q, other_k


def check(arrays: tuple[np.ndarray, ...], **options: Any) -> np.ndarray:
    """Compare with the twin, within 4e-6 (float32) or 1e-13 (float64) of 1 + the divergence."""
    found = at.attention_divergence(*arrays, **options)
    wanted = reference.attention_divergence(*arrays, **options)
    wide = any(x.dtype == np.float64 for x in arrays)
    assert found.dtype == (np.float64 if wide else np.float32)
    close(found, wanted, (1e-13 if wide else 4e-6) * (1 + np.abs(wanted)), "divergence")
    assert not (found < 0).any()
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_every_mask_and_soft_cap(dtype: str) -> None:
    arrays = pairs(1, batch=(2,), n_queries=20, n_keys=41, dtype=dtype)
    for name, options in mask_cases(2, 2, 20, 41).items():
        with case(name):
            check(arrays, **options)
            check(arrays, **options, other_softcap=3.0)


@pytest.mark.parametrize("other_softcap", [None, 2.0])  # with values, and in blocks
def test_scales_of_every_kind(other_softcap: float | None) -> None:
    arrays = pairs(2, n_queries=20, n_keys=20, dtype="float64")
    rows = np.random.default_rng(0).uniform(-0.5, 0.5, (2, 20))
    for scale, other in ((0.3, None), (None, -0.2), (rows, rows[:, :1]), ("log_n", "ssmax(s=0.43)")):
        check(arrays, scale=scale, other_scale=other, is_causal=True, other_softcap=other_softcap)


def test_equal_attentions_diverge_by_rounding_alone() -> None:
    for dtype, most in (("float32", 4e-6), ("float64", 1e-13)):
        q, k, _ = random_inputs(3, n_queries=100, n_keys=1000, dtype=dtype, spread=3.0)
        for other in ({}, {"other_softcap": 1e9}):
            found = at.attention_divergence(q, k, q, k, **other)
            assert found.min() >= 0
            assert found.max() < most
        far = at.attention_divergence(q, k, 2 * q, k)
        np.testing.assert_allclose(far, at.attention_divergence(q, k, q, k, other_scale=0.5), rtol=1e-4)
        assert far.min() > 0.01


def test_a_small_divergence_in_float64() -> None:
    """Scores that differ by a small number: half the variance of the differences, to first order."""
    q, k, _ = random_inputs(4, n_queries=50, n_keys=500, dtype="float64")
    other = k + 1e-5 * np.random.default_rng(1).standard_normal(k.shape)
    scores, _ = reference.scores(q, k)
    change = reference.scores(q, other)[0] - scores
    p = reference.attention_weights(q, k)
    variance = (p * change**2).sum(-1) - (p * change).sum(-1) ** 2
    np.testing.assert_allclose(at.attention_divergence(q, k, q, other), variance / 2, rtol=1e-3)


def test_one_other_head_for_all_and_heads_that_share_keys() -> None:
    q, k, _ = random_inputs(5, batch=(2,), heads=4, kv_heads=2, n_queries=20, n_keys=30, dtype="float64")
    one_q, one_k, _ = random_inputs(6, batch=(2,), heads=1, n_queries=20, n_keys=30, dtype="float64")
    four_q, four_k, _ = random_inputs(7, batch=(2,), heads=4, n_queries=20, n_keys=30, dtype="float64")
    lengths = np.array([10, 30])
    mask = np.random.default_rng(0).random((4, 20, 30)) < 0.7
    for options in ({}, {"key_lengths": lengths}, {"attn_mask": mask}, {"other_softcap": 3.0}):
        wide = [np.broadcast_to(x, (2, 4, *x.shape[-2:])) for x in (one_q, one_k)]
        wanted = reference.attention_divergence(q, k.repeat(2, 1), *wide, **options)
        found = at.attention_divergence(q, k, one_q, one_k, enable_gqa=True, **options)
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-13)
        found = at.attention_divergence(one_q, one_k, four_q, four_k, **options)
        wanted = reference.attention_divergence(*wide, four_q, four_k, **options)
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-13)
    swapped = [x.swapaxes(1, 2) for x in (q, k, one_q, one_k)]
    np.testing.assert_array_equal(
        at.attention_divergence(*swapped, enable_gqa=True, layout="bshd"),
        at.attention_divergence(q, k, one_q, one_k, enable_gqa=True),
    )


def test_a_mask_of_the_other_alone() -> None:
    arrays = pairs(8, n_queries=20, n_keys=30, dtype="float64")
    rng = np.random.default_rng(0)
    own, other = rng.random((20, 30)) < 0.5, rng.random((2, 20, 30)) < 0.9
    found = check(arrays, attn_mask=own, other_attn_mask=own | other)
    assert np.isfinite(found).all()
    found = check(arrays, attn_mask=own, other_attn_mask=other)
    hidden = np.broadcast_to((own & ~other).any(-1), found.shape)
    np.testing.assert_array_equal(np.isinf(found), hidden)
    assert hidden.any()
    assert not hidden.all()
    bias = np.where(other, rng.standard_normal(other.shape), -np.inf)
    np.testing.assert_array_equal(np.isinf(check(arrays, attn_mask=own, other_attn_mask=bias)), hidden)
    whole = np.ones((1, 1), np.bool_)
    assert np.isfinite(check(arrays, attn_mask=own, other_attn_mask=whole)).all()


def test_rows_without_keys() -> None:
    arrays = pairs(9, n_queries=4, n_keys=5, dtype="float64")
    assert not at.attention_divergence(*arrays, key_lengths=0).any()
    nothing, some = np.zeros((1, 1), np.bool_), np.ones((1, 1), np.bool_)
    assert not at.attention_divergence(*arrays, attn_mask=nothing, other_attn_mask=some).any()
    assert np.isinf(at.attention_divergence(*arrays, other_attn_mask=nothing)).all()
    assert not at.attention_divergence(*(x[:, :0] for x in arrays)).size
    no_keys = arrays[0], arrays[1][:, :0], arrays[2], arrays[3][:, :0]
    assert not at.attention_divergence(*no_keys).any()


@pytest.mark.parametrize("other_softcap", [None, 2.0])
def test_a_nan_reaches_the_rows_that_see_it(other_softcap: float | None) -> None:
    for which in range(4):
        arrays = pairs(10, n_queries=6, n_keys=6, dtype="float64")
        arrays[which][0, 3, 0] = np.nan
        found = at.attention_divergence(*arrays, is_causal=True, other_softcap=other_softcap)
        at_query = np.arange(6) == 3
        wanted = np.zeros((2, 6), np.bool_)
        wanted[0] = at_query if which % 2 == 0 else np.arange(6) >= 3
        np.testing.assert_array_equal(np.isnan(found), wanted)


def test_memory_does_not_grow_with_pairs() -> None:
    q, k, other_q, other_k = pairs(12, n_queries=2000, n_keys=2000)
    tracemalloc.start()
    blocks = at.attention_divergence(q, k, other_q, other_k, is_causal=True)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2 * 2000 * 2000  # a byte for each pair
    few = at.attention_divergence(q[:, :50], k, other_q[:, :50], other_k, is_causal=True)
    np.testing.assert_allclose(blocks[:, :50], few, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("other_shapes", "options", "message"),
    [
        (((2, 4, 3), (2, 6, 3)), {}, "other_query must have as many queries as query, got 4 and 5"),
        (((2, 5, 3), (2, 7, 3)), {}, "other_key must have as many keys as key, got 7 and 6"),
        (
            ((3, 5, 3), (3, 6, 3)),
            {},
            "other_query and other_key must broadcast against those of query and key, got (3,) and (2,)",
        ),
        (
            ((2, 5, 3), (2, 6, 4)),
            {},
            "of other_query and other_key: query and key must have the same last dimension (head_dim), got 3",
        ),
        (None, {"other_softcap": -1.0}, "of other_scale and other_softcap: softcap must be greater than 0"),
        (
            None,
            {"other_attn_mask": np.ones((4, 6), np.bool_)},
            "of other_attn_mask: attn_mask must broadcast",
        ),
        (
            None,
            {"other_scale": "scale_invariant"},
            "law 'scale_invariant' gives the keys of a row different scales, and scale takes one a row here",
        ),
        (None, {"layout": "b h n d"}, "layout must be one of 'bhsd', 'bshd', got 'b h n d'"),
    ],
)
def test_bad_input(other_shapes: Any, options: dict[str, Any], message: str) -> None:
    shapes = ((2, 5, 4), (2, 6, 4), *(other_shapes or ((2, 5, 3), (2, 6, 3))))
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # its text is looked at below
        at.attention_divergence(*map(np.zeros, shapes), **options)
    assert message in str(caught.value)
