# SPDX-License-Identifier: BSD-3-Clause
"""Promises of every numeric function for any data: rows without keys, NaN and infinity, empty extents,
errors at any n."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from cases import (
    FLOAT_TYPES,
    STATISTICS,
    case,
    check,
    close,
    finfo,
    machine_epsilon,
    random_inputs,
    remembering,
    rows_are_lost,
    same,
)

pytestmark = pytest.mark.levels

EMPTY_ROW = dict.fromkeys(STATISTICS, 0.0)
EMPTY_ROW |= {"lse": -np.inf, "max_score": -np.inf, "min_score": np.inf, "argmax": -1}

# Places of a bad number: in the first, a middle and the last lane, block and tile.
PLACES = (0, 1, 15, 16, 63, 64, 127, 128, 199)


def all_statistics(q: Any, k: Any, v: Any = None, **options: Any) -> at.AttentionStatistics:
    return at.attention_statistics(q, k, v, statistics=STATISTICS, **options)


def assert_broken(rows: at.AttentionStatistics, broken: np.ndarray) -> None:
    """NaN throughout in these rows and in no other; counts are right everywhere."""
    for name in STATISTICS:
        if name in ("n_visible", "argmax"):
            continue
        np.testing.assert_array_equal(np.isnan(getattr(rows, name)), broken, err_msg=name)
    if rows.output is not None:
        nan = np.isnan(rows.output.astype(np.float64))
        np.testing.assert_array_equal(nan, np.broadcast_to(broken[..., None], nan.shape), err_msg="output")


# --- rows that see no key ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize(
    "options",
    [
        {"causal": "bottom_right"},
        {"attn_mask": np.arange(9)[:, None] >= 5},
        {"attn_mask": np.where(np.arange(9)[:, None] >= 5, 0.0, -np.inf)},
        {"attn_mask": (np.arange(9)[:, None] >= 5) & (np.arange(4) > 2), "softcap": 2.0},
        {"window": (0, None), "attn_mask": np.arange(9)[:, None] >= 5},
    ],
    ids=range(5),
)
def test_rows_without_keys(dtype: str, options: dict[str, Any]) -> None:
    q, k, v = random_inputs(1, n_queries=9, n_keys=4, dtype=dtype)
    rows = all_statistics(q, k, v, **options)
    empty = rows.n_visible == 0
    assert empty[:, :5].all()
    for name, wanted in EMPTY_ROW.items():
        np.testing.assert_array_equal(getattr(rows, name)[empty], wanted, err_msg=name)
    np.testing.assert_array_equal(rows.output[empty].astype(np.float64), 0)
    np.testing.assert_array_equal(at.attention(q, k, v, **options)[empty].astype(np.float64), 0)
    check(q, k, v, **options)


# --- NaN and infinity -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_bad_query_breaks_its_row(bad: float, dtype: str) -> None:
    clean, k, v = random_inputs(3, n_queries=200, n_keys=200, dtype=dtype)
    for place in PLACES:
        q = clean.copy()
        q[1, place, 5] = bad
        broken = np.zeros((2, 200), bool)
        broken[1, place] = True
        for options in ({}, {"is_causal": True}, {"softcap": 5.0}):
            with case(place, options):
                assert_broken(all_statistics(q, k, v, **options), broken)
                assert_broken(all_statistics(q, k, **options), broken)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_a_bad_key_breaks_the_rows_that_see_it(bad: float, dtype: str) -> None:
    q, clean, v = random_inputs(4, n_queries=200, n_keys=200, dtype=dtype)
    mask = np.random.default_rng(0).random((200, 200)) < 0.5
    i, j = np.arange(200)[:, None], np.arange(200)
    for options, seen in (
        ({}, np.ones((200, 200), bool)),
        ({"is_causal": True}, j <= i),
        ({"window": (20, 3)}, (j >= i - 20) & (j <= i + 3)),
        ({"attn_mask": mask}, mask),
        ({"attn_mask": np.where(mask, 1.0, -np.inf), "softcap": 4.0}, mask),
        ({"key_lengths": 100}, np.broadcast_to(j < 100, (200, 200))),
    ):
        for place in PLACES:
            k = clean.copy()
            k[0, place, 3] = bad
            broken = np.zeros((2, 200), bool)
            broken[0] = seen[:, place]
            with case(list(options), place):
                rows = all_statistics(q, k, v, **options)
                assert_broken(rows, broken)
                assert_broken(all_statistics(q, k, **options), broken)
                np.testing.assert_array_equal(rows.n_visible, np.broadcast_to(seen.sum(-1), (2, 200)))


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", FLOAT_TYPES)
def test_a_bad_value_reaches_its_channel_in_the_rows_that_see_it(place: int, dtype: str) -> None:
    q, k, v = random_inputs(5, n_queries=200, n_keys=200, value_dim=17, dtype=dtype)
    mask = np.random.default_rng(1).random((200, 200)) < 0.5
    for options in ({}, {"is_causal": True}, {"window": (5, 70)}, {"attn_mask": mask}):
        v[1, place, 16] = 0
        clean = all_statistics(q, k, v, **options)
        seen = reference.visible((200, 200), **options)[:, place]
        for bad in (np.nan, np.inf, -np.inf):
            v[1, place, 16] = bad
            rows = all_statistics(q, k, v, **options)
            wanted = clean.output.copy()
            wanted[1, seen, 16] = bad
            # A tile with a bad number may take another path to the sums of its other channels.
            rounding = 4 * float(finfo(v.dtype).eps)
            with case(bad, list(options)):
                close(rows.output, wanted.astype(np.float64), rounding, "output")
                same(rows, clean, STATISTICS)


@pytest.mark.parametrize("n_queries", [1, 3, 16])
@pytest.mark.parametrize("place", [0, 4999, 8999])
def test_bad_numbers_in_decoding(n_queries: int, place: int) -> None:
    """A few queries split their keys over the threads: merging the parts keeps a NaN."""
    q, k, v = random_inputs(6, n_queries=n_queries, n_keys=9000, head_dim=8)
    clean = all_statistics(q, k, v)
    k[0, place, 0] = np.nan
    broken = np.zeros((2, n_queries), bool)
    broken[0] = True
    rows = all_statistics(q, k, v)
    assert_broken(rows, broken)
    np.testing.assert_array_equal(rows.output[1], clean.output[1])
    k[0, place, 0] = 0
    v[0, place, 3] = np.inf
    rows = all_statistics(q, k, v)
    infinite = np.zeros((2, n_queries, 8), bool)
    infinite[0, :, 3] = True
    np.testing.assert_array_equal(np.isposinf(rows.output), infinite)
    assert np.isfinite(rows.output[~infinite]).all()


def test_an_infinite_value_of_vanishing_weight_is_not_lost() -> None:
    """p = 0 by underflow: 0 * inf is NaN, as in the written-out matrix product."""
    q, k = np.ones((1, 1), np.float32), np.array([[0], [500]], np.float32)
    v = np.array([[np.inf, 1], [2, 3]], np.float32)
    output = at.attention(q, k, v, scale=1)
    assert not np.isfinite(output[0, 0])
    assert output[0, 1] == 3


@rows_are_lost
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_bias_breaks_its_row(bad: float) -> None:
    q, k, v = random_inputs(7, n_queries=70, n_keys=130)
    bias = np.zeros((70, 130), np.float32)
    bias[65, 129] = bias[3, 0] = bad
    broken = np.zeros((2, 70), bool)
    broken[:, [3, 65]] = True
    assert_broken(all_statistics(q, k, v, attn_mask=bias), broken)
    bias[:, 129] = -np.inf
    broken[:, 65] = False
    assert_broken(all_statistics(q, k, v, attn_mask=bias), broken)


@rows_are_lost
def test_a_bias_of_nan_hides_no_key() -> None:
    q, k, v = random_inputs(7, n_queries=70, n_keys=130)
    bias = np.full((70, 130), -np.inf, np.float32)
    bias[:, :10] = 0
    bias[5] = -np.inf
    bias[5, 100] = np.nan  # the only visible key of its tile
    broken = np.zeros((2, 70), bool)
    broken[:, 5] = True
    assert_broken(all_statistics(q, k, v, attn_mask=bias), broken)


@rows_are_lost
def test_scores_that_overflow_are_nan_and_not_zero() -> None:
    q, k, v = random_inputs(8, n_queries=40, n_keys=40)
    q[0, 7] = 3e38
    broken = np.zeros((2, 40), bool)
    broken[0, 7] = True
    assert_broken(all_statistics(q, np.abs(k) * 1e3, v), broken)


def test_hidden_numbers_are_never_read_into_a_result() -> None:
    q, k, v = random_inputs(9, batch=(2,), n_queries=90, n_keys=90)
    mask = np.random.default_rng(2).random((90, 90)) < 0.3
    mask[:, 40:60] = False
    clean = all_statistics(q, k, v, attn_mask=mask)
    lengths = all_statistics(q, k, v, key_lengths=[40, 60])
    k[:, :, 40:60] = np.nan
    v[:, :, 40:60] = np.inf
    rows = all_statistics(q, k, v, attn_mask=mask)
    same(rows, clean, ("output", *STATISTICS))
    rows = all_statistics(q, k, v, key_lengths=[40, 60])
    np.testing.assert_array_equal(rows.output[0], lengths.output[0])
    assert np.isnan(rows.entropy[1]).all()


# --- errors ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0, 30.0, 1000.0])
def test_from_flat_to_one_hot(dtype: str, spread: float) -> None:
    q, k, v = random_inputs(12, n_queries=70, n_keys=300, head_dim=32, dtype=dtype, spread=spread)
    with remembering():
        check(q, k, v)
        check(q, k, v, causal="bottom_right")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-30, -3e-5, 1e3, -1e4])
def test_extreme_scales(dtype: str, scale: float) -> None:
    check(*random_inputs(13, n_queries=33, n_keys=200, dtype=dtype), scale=scale)


@pytest.mark.parametrize("order", [1, -1])
def test_scores_that_rise_or_fall_steeply(order: int) -> None:
    """The running maximum changes in every tile, or never after the first."""
    q = np.ones((70, 1), np.float32)
    k = np.linspace(-2000, 2000, 1000, dtype=np.float32)[::order, None]
    v = np.random.default_rng(14).standard_normal((1000, 9)).astype(np.float32)
    check(q, k, v, scale=1.0)
    check(q, k, v, scale=0.001)
    check(q, k, v, scale=0.03, causal="bottom_right")


def test_denormal_and_huge_values() -> None:
    q, k, v = random_inputs(15, dtype="float32")
    check(q, k, v * np.float32(1e37))
    check(q, k, v * np.float32(1e-38))
    check(q * np.float32(1e-30), k * np.float32(1e30), v)


def rising(room: float, steps: Any, n_queries: int, dtype: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores that rise by these powers of 2, 300 keys each, and values whose sum is `room` in the type."""
    k = np.repeat(np.cumsum(steps) * np.log(2), 300)[:, None].astype(dtype)
    v = np.random.default_rng(63).uniform(0.5, 1, (len(k), 3))
    v *= float(finfo(np.dtype(dtype)).max) * room / v.sum(0).max()
    return np.ones((n_queries, 1), dtype), k, v.astype(dtype)


NORMALIZERS = ["softmax", "softmax_1", "sigmoid", "relu", "squared_relu", "softpick", "entmax15", "sparsemax"]


@rows_are_lost
@pytest.mark.parametrize("n_queries", [3, 70])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_with_room_for_partial_sums(dtype: str, n_queries: int) -> None:
    """Output is finite where 2^9 sum |v| fits the type; beyond, it is right or not finite."""
    for steps in ([0, 8, 8], [0, 7.9, 7.9, 200], [-30, 10, 3]):
        q, k, v = rising(2.0**-9, steps, n_queries, dtype)
        large = rising(2.0**-1, steps, n_queries, dtype)[2]
        for normalizer in (*NORMALIZERS, at.normalizers.Sink(300.0), at.normalizers.TopK(400)):
            with case(steps, normalizer):
                kept = at.attention(q, k, v, scale=1.0, normalizer=normalizer)
                assert np.isfinite(kept).all()
                output = at.attention(q, k, large, scale=1.0, normalizer=normalizer)
                same = np.isclose(output / 2.0**8, kept, rtol=1e-5, atol=float(np.abs(kept).max()) * 1e-6)
                assert (same | ~np.isfinite(output)).all()


@pytest.mark.parametrize("n_queries", [3, 70])
@pytest.mark.parametrize("normalizer", ["softmax", "softmax_1", "softpick"])
@pytest.mark.parametrize(("dtype", "least"), [("float32", -118.5), ("float64", -1014.5)])
def test_weights_are_kept_down_to(least: float, dtype: str, normalizer: str, n_queries: int) -> None:
    """2^-118.5 of the largest weight (float64: 2^-1014.5), also if the largest comes later."""
    for first in (0.0, 7.9):
        for weight in np.arange(least - 12, least + 3, 0.25):
            scores = np.repeat([0.0, first, first - weight], [100, 200, 600])
            k = (scores * np.log(2))[:, None].astype(dtype)
            v = np.zeros((900, 1), dtype)
            v[299] = 2.0**50  # large, so that the product is not subnormal
            output = at.attention(np.ones((n_queries, 1), dtype), k, v, scale=1.0, normalizer=normalizer)
            share = np.exp(np.float64(k[299, 0]) - np.float64(k[899, 0])) / 600
            wanted = share * (1 - 2.0**-first if normalizer == "softpick" else 1) * 2.0**50
            right = np.isclose(output, wanted, rtol=1e-4 if dtype == "float32" else 1e-11, atol=0)
            lost = (weight < least + 0.01) & (output >= 0) & (output < 1.01 * wanted)  # or a part of it
            assert (right | lost).all(), (first, weight)


@pytest.mark.parametrize("data", ["ones", "positive", "alternating", "one large"])
@pytest.mark.parametrize("n", [2**12, 2**16])
def test_sums_are_blocked(data: str, n: int) -> None:
    """The error is below 64 eps sum p |v| for any data and n; a running float32 sum would lose 1e-4 here."""
    rng = np.random.default_rng(16)
    v = {
        "ones": np.ones((n, 3)),
        "positive": rng.uniform(0.5, 1.5, (n, 3)),
        "alternating": np.where(np.arange(n)[:, None] % 2, 1.0, -1.0) * rng.uniform(0.9, 1.1, (n, 3)),
        "one large": np.where(np.arange(n)[:, None] == n // 3, 1e6, rng.uniform(0, 1, (n, 3))),
    }[data].astype(np.float32)
    q = rng.standard_normal((20, 4)).astype(np.float32)
    k = rng.standard_normal((n, 4)).astype(np.float32)
    for rows in (slice(1), slice(None)):
        check(q[rows], k, v, data_factor=16)
        check(q[rows] * 0, k, v, data_factor=16)


def test_a_million_keys() -> None:
    n = 2**20
    rng = np.random.default_rng(17)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 8), (n, 8), (n, 1)))
    check(q, k, v, data_factor=16)
    np.testing.assert_allclose(at.attention_entropy(q * 0, k), np.log(n), atol=2e-6)


def test_error_is_a_few_eps_and_not_more() -> None:
    """The bounds of `check` are loose where scores are large; on tame data errors are a few eps."""
    q, k, v = random_inputs(18, n_queries=200, n_keys=600, head_dim=64)
    truth = reference.attention_statistics(q, k, v)
    rows = at.attention_statistics(q, k, v)
    assert np.abs(rows.output - truth.output).max() < 8 * machine_epsilon(q)
    assert np.abs(rows.entropy - truth.entropy).max() < 2e-6
    assert np.abs(rows.lse - truth.lse).max() < 1e-6


def test_an_empty_output_may_be_handed_in() -> None:
    q, k, v = random_inputs(61, value_dim=0)
    out = np.broadcast_to(np.float32(0), at.attention(q, k, v).shape).copy()
    out = np.lib.stride_tricks.as_strided(out, out.shape, (0,) * out.ndim)
    assert at.attention(q, k, v, out=out) is out
    empty = np.empty((0, 5, 8), np.float32)
    assert at.attention(empty, empty, empty, out=np.empty((0, 5, 8), np.float32)).shape == (0, 5, 8)
