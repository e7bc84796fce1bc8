# SPDX-License-Identifier: BSD-3-Clause
"""Every normalizer against its twin: masks, laws, layouts, types, and properties for any data."""

from __future__ import annotations

from itertools import product
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import normalizers as N
from attnscale import reference
from cases import case, dtype_of, mask_cases, random_inputs, weight_rounding

EVERY = (
    N.Softmax(),
    N.SoftmaxN(1),
    N.SoftmaxN(0.25),
    N.Sink([1.0, -2.0]),
    N.Sink(3.0),
    N.Sigmoid(),
    N.Sigmoid(-1.5),
    N.ReLU(),
    N.ReLU("sum"),
    N.SquaredReLU(),
    N.SquaredReLU("sum"),
    N.Softpick(),
    N.Sparsemax(),
    N.Entmax(1.5),
    N.Entmax(1.2),
    N.Entmax(3),
    N.TopK(1),
    N.TopK(7),
)
MASKS = mask_cases(2, 2, 21, 37)

# A weight may change by about as much as the scores are rounded; above alpha = 2 by a root of that.
TOLERANCE = {"float64": 2e-12, "float32": 2e-5, "float16": 5e-3, "bfloat16": 4e-2}


def tolerance(normalizer: N.Normalizer, dtype: str) -> float:
    steep = isinstance(normalizer, N.Entmax) and normalizer.alpha > 2
    return TOLERANCE[dtype] ** (0.5 if steep else 1)


def check(
    normalizer: Any, q: Any, k: Any, v: Any, *, slack: float = 1, **options: Any
) -> at.AttentionStatistics:
    """Output and every statistic that the rows have; returns them."""
    rule = N.get(normalizer)
    dtype = np.result_type(*{x.dtype for x in (q, k, v)}).name
    limit = slack * tolerance(rule, dtype)
    truth = reference.attention_statistics(q, k, v, normalizer=rule, **options)
    rows = at.attention_statistics(q, k, v, normalizer=normalizer, statistics=rule.statistics, **options)
    alone = at.attention_statistics(q, k, normalizer=normalizer, statistics=rule.statistics, **options)
    for name in ("output", *rule.statistics):
        for seen in (rows, alone):
            found, wanted = getattr(seen, name), getattr(truth, name)
            if found is None:
                assert name == "output"
                continue
            exact = name in ("n_visible", "argmax") or (name == "support" and dtype == "float64")
            bound = 0 if exact else 1 if name == "support" else limit * (1 + np.abs(_finite(wanted)))
            error = np.where(found == wanted, 0, np.abs(found - _finite(wanted)))
            error = np.where(np.isnan(wanted), np.where(np.isnan(found), 0, np.inf), error)
            assert (error <= bound).all(), (name, error.max())
    np.testing.assert_array_equal(rows.output, at.attention(q, k, v, normalizer=normalizer, **options))
    return rows


def _finite(x: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(x), x, 0)


@pytest.mark.parametrize("normalizer", EVERY, ids=repr)
def test_every_mask(normalizer: N.Normalizer) -> None:
    q, k, v = random_inputs(1, batch=(2,), n_queries=21, n_keys=37, dtype="float64", spread=3)
    for mask, options in MASKS.items():
        with case(mask):  # the law of `everything` makes the scores larger
            check(normalizer, q / 3 if mask == "everything" else q, k, v, **options)


@pytest.mark.parametrize("normalizer", EVERY, ids=repr)
def test_sizes_around_lanes_blocks_and_tiles(normalizer: N.Normalizer) -> None:
    for n_queries, n_keys in ((1, 1), (1, 300), (3, 241), (9, 193), (17, 600), (65, 430), (0, 5), (5, 0)):
        for dtype in ("float32", "float64"):
            q, k, v = random_inputs(
                n_keys, n_queries=n_queries, n_keys=n_keys, head_dim=9, value_dim=21, dtype=dtype, spread=2
            )
            check(normalizer, q, k, v)
            check(normalizer, q, k, v, is_causal=True, scale=-0.4)


@pytest.mark.parametrize("normalizer", EVERY, ids=repr)
def test_options_of_a_call(normalizer: N.Normalizer) -> None:
    q, k, v = random_inputs(3, batch=(2,), heads=4, kv_heads=2, n_queries=40, n_keys=40)
    if not isinstance(normalizer, N.Sink):  # its logits are of two heads
        check(normalizer, q, k, v, enable_gqa=True, is_causal=True)
    q, k, v = random_inputs(4, batch=(2,), n_queries=40, n_keys=40)
    bshd = [x.swapaxes(-3, -2) for x in (q, k, v)]
    swapped = check(normalizer, q, k, v).output.swapaxes(-3, -2)
    np.testing.assert_array_equal(at.attention(*bshd, layout="bshd", normalizer=normalizer), swapped)
    slopes = -np.array([0.5, 0.1])[:, None] * np.arange(40)
    check(normalizer, q, k, v, distance_bias=slopes, is_causal=True)
    check(normalizer, q, k, v, scale="log_n", is_causal=True)
    check(normalizer, q, k, v, qk_norm="l2", scale=5.0)
    ids = np.repeat([0, 1, 2], [10, 1, 29])
    check(normalizer, q, k, v, document_ids=ids, is_causal=True)
    check(normalizer, q, k, v, document_ids=np.stack([ids, ids[::-1]]), scale="log_n")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("normalizer", EVERY, ids=repr)
def test_16_bit_storage(normalizer: N.Normalizer, dtype: str) -> None:
    q, k, v = random_inputs(5, n_queries=20, n_keys=250, dtype=dtype)
    got = at.attention(q, k, v, normalizer=normalizer)
    assert got.dtype == dtype_of(dtype)
    wide = [x.astype(np.float32) for x in (q, k, v)]
    wanted = at.attention(*wide, normalizer=normalizer).astype(dtype_of(dtype))
    if weight_rounding(q, k, v) and normalizer.name not in ("sparsemax", "entmax", "top_k"):
        size = at.attention(*wide[:2], np.abs(wide[2]), normalizer=normalizer)
        limit = weight_rounding(q, k, v) * (size + 2 * np.abs(wanted.astype(np.float32)))
        assert (np.abs(got.astype(np.float32) - wanted.astype(np.float32)) <= limit).all()
    else:
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("normalizer", EVERY, ids=repr)
def test_threads_do_not_matter(normalizer: N.Normalizer) -> None:
    q, k, v = random_inputs(6, n_queries=150, n_keys=500)
    one, two = (at.attention(q, k, v, normalizer=normalizer, num_threads=n) for n in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("normalizer", EVERY, ids=repr)
def test_bad_numbers_reach_the_rows_that_see_them(normalizer: N.Normalizer) -> None:
    statistic = normalizer.statistics[-2] if "entropy" not in normalizer.statistics else "entropy"
    places = (("query", 1), ("key", 260), ("value", 261))
    for n_queries, bad, options, (broken, at_row) in product(
        (3, 20), (np.nan, np.inf, -np.inf), ({}, {"causal": "bottom_right"}), places
    ):
        inputs = random_inputs(7, n_queries=n_queries, n_keys=262)
        arrays = dict(zip(("query", "key", "value"), inputs, strict=True))
        arrays[broken][0, at_row, 3] = bad
        with np.errstate(all="ignore"):
            truth = reference.attention_statistics(**arrays, normalizer=normalizer, **options)
        rows = at.attention_statistics(
            **arrays, normalizer=normalizer, statistics=normalizer.statistics, **options
        )
        with case(n_queries, bad, options, broken):
            np.testing.assert_array_equal(np.isfinite(rows.output), np.isfinite(truth.output))
            if broken != "value" and statistic in ("entropy", "max_weight"):
                np.testing.assert_array_equal(
                    np.isnan(getattr(rows, statistic)), np.isnan(getattr(truth, statistic))
                )


@pytest.mark.parametrize("size", [1e4, 1e8])
def test_large_scores(size: float) -> None:
    q, k, v = random_inputs(9, n_queries=12, n_keys=40, dtype="float64")
    for normalizer in EVERY:
        if isinstance(normalizer, N.ReLU):
            continue  # its weights grow with the scores
        check(normalizer, q, k, v, scale=size, slack=size / 100)
        check(normalizer, q, k, v, scale=-size, slack=size / 100)


def test_known_answers() -> None:
    # Martins & Astudillo 2016 and Peters et al. 2019 on z = [-2, 0, 0.5].
    q, k = np.ones((1, 1)), np.array([[-2.0], [0.0], [0.5]])
    for name, wanted in {
        "softmax": [0.0486, 0.3592, 0.5922],
        "sparsemax": [0, 0.25, 0.75],
        "entmax15": [0, 0.3260073637, 0.6739926363],
    }.items():
        got = at.attention(q, k, np.eye(3), normalizer=name)
        np.testing.assert_allclose(got, [wanted], atol=5e-5 if name == "softmax" else 1e-10)


@pytest.mark.parametrize(("dtype", "scale"), [("float32", 1e-40), ("float64", 1e-312), ("float16", 1e-42)])
@pytest.mark.parametrize("n_queries", [1, 40])  # few queries have their own kernel
@pytest.mark.parametrize(
    "form", [{}, {"softcap": 0.5}, {"mask": True}, {"softcap": 0.5, "mask": True}], ids=str
)
def test_softpick_of_scores_below_the_normal_numbers(
    dtype: str, scale: float, n_queries: int, form: dict[str, Any]
) -> None:
    """Their sum has no inverse in the type; the weights, shares of it, are of any size."""
    rng = np.random.default_rng(8)
    q = np.ones((2, n_queries, 4), dtype)
    k, v = rng.standard_normal((2, 2, 9, 4)).astype(dtype)
    more = {**form, "attn_mask": rng.random((n_queries, 9)) < 0.8} if form.get("mask") else dict(form)
    more.pop("mask", None)
    options: dict[str, Any] = {"scale": scale, "normalizer": at.normalizers.Softpick(eps=0), **more}
    want = at.reference.attention(*(x.astype(np.float64) for x in (q, k, v)), **options)
    assert np.isfinite(want).all()
    # The scores themselves have few digits there.
    np.testing.assert_allclose(at.attention(q, k, v, **options), want, rtol=0, atol=5e-3)
    weights = at.attention_weights(q, k, **options)
    rows = at.attention_statistics(q, k, statistics=("max_weight",), **options)
    np.testing.assert_allclose(rows.max_weight, weights.max(-1), rtol=0, atol=5e-3)


@pytest.mark.parametrize("scale", [1e-6, 1e-12, 1e-20, 1e-30])
def test_the_largest_weight_of_small_scores(scale: float) -> None:
    """2^s - 1 cancelled: the largest weight was 0 for scores below 1e-16."""
    rng = np.random.default_rng(9)
    q, k = np.ones((1, 3, 4)), rng.standard_normal((1, 9, 4))
    options: dict[str, Any] = {"scale": scale, "normalizer": at.normalizers.Softpick(eps=0)}
    rows = at.attention_statistics(q, k, statistics=("max_weight",), **options)
    weights = at.attention_weights(q, k, **options)
    np.testing.assert_allclose(rows.max_weight, weights.max(-1), rtol=1e-12)
