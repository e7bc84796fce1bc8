# SPDX-License-Identifier: BSD-3-Clause
"""Promises of the backward pass for any numbers: threads, hidden keys, NaN, large scores."""

from __future__ import annotations

import threading
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from cases import SMOOTH, case, dtype_of, mask_cases, random_inputs, remembering, same_bits

pytestmark = pytest.mark.levels

ARRAYS = ("query", "key", "value")


def gradients(q: Any, k: Any, v: Any, seed: int = 0, **options: Any) -> at.AttentionGradients:
    """Gradients for random cotangents of output, lse and entropy."""
    rng = np.random.default_rng(seed)
    rows = at.attention_statistics(q, k, v, **options)
    assert rows.output is not None
    g, g_lse, g_h = (rng.standard_normal(x.shape) for x in (rows.output, rows.lse, rows.entropy))
    return at.attention_gradients(q, k, v, g, grad_lse=g_lse, grad_entropy=g_h, **options)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ({"heads": 1, "n_queries": 700, "n_keys": 900}, {}),
        ({"heads": 1, "n_queries": 700, "n_keys": 700}, {"is_causal": True, "scale": 0.2}),
        ({"heads": 6, "kv_heads": 2, "n_queries": 300, "n_keys": 500}, {"enable_gqa": True}),
        ({"heads": 5, "n_queries": 200, "n_keys": 300}, {"window": (90, 20)}),
        ({"heads": 3, "kv_heads": 1, "n_queries": 129, "n_keys": 100}, {"softcap": 2.0, "causal": 5}),
    ],
    ids=["one head", "causal", "groups", "window", "softcap"],
)
def test_the_same_bits_for_any_number_of_threads(shape: dict[str, int], options: dict[str, Any]) -> None:
    inputs = random_inputs(1, head_dim=24, **shape)
    one = gradients(*inputs, num_threads=1, **options)
    for threads in (2, 3, 7):
        for _ in range(2):
            same_bits(one, gradients(*inputs, num_threads=threads, **options))


def test_a_query_that_batches_share_has_the_same_bits() -> None:
    q, k, v = random_inputs(2, batch=(4,), heads=2, n_queries=200, n_keys=210)
    one = gradients(q[:1], k, v, num_threads=1)
    for threads in (2, 5):
        same_bits(one, gradients(q[:1], k, v, num_threads=threads))


def test_calls_at_the_same_time_do_not_meet() -> None:
    inputs = random_inputs(3, heads=3, n_queries=300, n_keys=300)
    wanted, found = gradients(*inputs), []
    threads = [threading.Thread(target=lambda: found.append(gradients(*inputs))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for each in found:
        same_bits(wanted, each)


@pytest.mark.parametrize("name", ["is_causal", "window", "boolean", "bias", "lengths", "softcap bias"])
def test_hidden_keys_and_rows_without_keys_get_zero(name: str) -> None:
    q, k, v = random_inputs(4, batch=(2,), n_queries=80, n_keys=90)
    options = dict(mask_cases(2, 2, 80, 90)[name])
    hidden = np.zeros((80, 90), bool)
    hidden[5], hidden[:, 7] = True, True
    if options.get("attn_mask") is None:
        options["attn_mask"] = ~hidden
    elif options["attn_mask"].dtype == bool:
        options["attn_mask"] = options["attn_mask"] & ~hidden
    else:
        options["attn_mask"] = np.where(hidden, -np.inf, options["attn_mask"])
    found = gradients(q, k, v, scale=np.full((2, 80), 0.25), **options)
    np.testing.assert_array_equal(found.query[..., 5, :], 0)
    np.testing.assert_array_equal(found.key[..., 7, :], 0)
    assert found.value is not None
    np.testing.assert_array_equal(found.value[..., 7, :], 0)
    assert found.scale is not None
    np.testing.assert_array_equal(found.scale[:, 5], 0)


@pytest.mark.parametrize("array", ["query", "key", "value", "grad_output"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_how_far_nan_reaches(array: str, bad: float) -> None:
    q, k, v = random_inputs(5, batch=(2,), n_queries=80, n_keys=100, head_dim=9, value_dim=5)
    grad = np.random.default_rng(0).standard_normal((2, 2, 80, 5)).astype(np.float32)
    arrays = {"query": q, "key": k, "value": v, "grad_output": grad}
    arrays[array][0, 1, 33, 2] = bad
    masks = mask_cases(2, 2, 80, 100)
    for name in ("none", "is_causal", "window", "boolean", "bias", "softcap"):
        found = at.attention_gradients(**arrays, grad_entropy=1.0, **masks[name])
        with remembering():
            truth = reference.attention_gradients(**arrays, grad_entropy=np.ones((2, 2, 80)), **masks[name])
        for each in ARRAYS:
            mine, wanted = getattr(found, each), getattr(truth, each)
            # A sum of NaN and infinity may be either.
            with case(name, each):
                np.testing.assert_array_equal(np.isfinite(mine), np.isfinite(wanted))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spread", [1e2, 1e4, 1e8, 1e12])
def test_large_scores(spread: float, dtype: str) -> None:
    """One key takes all, or some tie: the weights are those of the forward pass, not exp(score - lse)."""
    q, k, v = random_inputs(6, n_queries=73, n_keys=90, dtype=dtype, spread=spread)
    k[:, 40] = k[:, 3]  # a tie, also for the top
    q[:, 0] = spread * k[:, 3]
    g = np.random.default_rng(0).standard_normal(q.shape).astype(dtype)
    found = at.attention_gradients(q, k, v, g, is_causal=True)
    weights = at.attention_weights(q, k, is_causal=True).astype(np.float64)
    d_value = weights.swapaxes(-1, -2) @ g.astype(np.float64)
    assert found.value is not None
    # Up to this size, whether a score is rounded depends on whether its tile is masked.
    slack = 1e-4 + (16 * np.finfo(dtype).eps * spread if spread < 2**7 else 0)
    np.testing.assert_allclose(found.value, d_value, rtol=slack, atol=slack)
    for name in ("query", "key"):
        assert np.isfinite(getattr(found, name)).all()


ONE_HOT: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "mask": {"attn_mask": np.zeros((64, 64), np.float32)},
    "sink": {"normalizer": at.normalizers.Sink(0.0)},
    "relu": {"normalizer": "relu(divide='sum')", "scale": 1.0},
    "sparsemax": {"normalizer": "sparsemax"},
    "lse": {"grad_lse": np.zeros((2, 64))},
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("name", ONE_HOT)
def test_rows_that_one_key_has_send_no_rounding_back(name: str, dtype: str) -> None:
    # The gradient of that score is a difference of two equal products; times the scale, rounding would show.
    options = {"scale": 3e4} | ONE_HOT[name]
    q, k, v = random_inputs(5, heads=2, n_queries=64, n_keys=64, head_dim=64, dtype="float32")
    if name == "relu":  # one key with a positive score a row
        q, k = -np.abs(q), np.abs(k)
        k[:, 7] *= -1
    q, k, v = (x.astype(dtype_of(dtype)) for x in (q, k, v))
    g = random_inputs(6, heads=2, n_queries=64, n_keys=64, head_dim=64)[0].astype(q.dtype)
    found = at.attention_gradients(q, k, v, g, **options)
    wide = [x.astype(np.float64) for x in (q, k, v, g)]
    truth = at.attention_gradients(*wide, **options)
    # Products of bfloat16 round the weight before it is divided by itself: the output is within 2^-7.
    limit = 2**-7 if (name, dtype) == ("relu", "bfloat16") else 1e-9 if dtype == "float64" else 1e-6
    for array in ("query", "key"):
        assert np.abs(getattr(truth, array).astype(np.float64)).max() < 1e-3
        error = np.abs(getattr(found, array).astype(np.float64) - getattr(truth, array))
        assert error.max() < limit, (array, error.max())


@pytest.mark.parametrize("scale", [3.0, 300.0])
def test_rows_that_one_key_nearly_has(scale: float) -> None:
    # A second key has 1e-4 of the row: the difference is 1e-4 of either product.
    rng = np.random.default_rng(8)
    score = np.full(40, -50.0)
    score[[3, 30]] = [0.0, -9.0]
    k = np.zeros((40, 4), np.float32)
    k[:, 0] = 8 + score / scale
    q = np.zeros((20, 4), np.float32)
    q[:, 0] = 1
    v, g = (rng.standard_normal((n, 64)).astype(np.float32) for n in (40, 20))
    for options in ({}, {"attn_mask": np.zeros((20, 40), np.float32)}):
        found = at.attention_gradients(q, k, v, g, scale=scale, **options)
        s = scale * (q.astype(np.float64) @ k.T.astype(np.float64))
        p = np.exp(s - s.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        dp = g.astype(np.float64) @ v.T.astype(np.float64)
        ds = p * (dp - (p * dp).sum(-1, keepdims=True))
        wanted = scale * ds.T @ q
        error = np.abs(found.key - wanted).max() / np.abs(wanted).max()
        assert error < 2e-3, error


def test_masks_of_large_numbers() -> None:
    q, k, v = random_inputs(7, n_queries=70, n_keys=90)
    mask = np.zeros((70, 90), np.float32)
    mask[3] = np.finfo(np.float32).min / 4
    g = np.ones_like(q)
    found = at.attention_gradients(q, k, v, g, attn_mask=mask)
    truth = at.attention_weights(q, k, attn_mask=mask).swapaxes(-1, -2) @ g
    assert found.value is not None
    np.testing.assert_allclose(found.value, truth, rtol=1e-5, atol=1e-6)


def test_finite_differences() -> None:
    """Differences of the loss itself, without the twin."""
    q, k, v = random_inputs(8, heads=1, n_queries=9, n_keys=12, head_dim=4, dtype="float64")
    rng = np.random.default_rng(1)
    g, rows_of = rng.standard_normal((1, 9, 4)), {name: rng.standard_normal((1, 9)) for name in SMOOTH}
    options: dict[str, Any] = {"causal": "bottom_right", "softcap": 1.5, "scale": 0.7}

    def loss(q: Any, k: Any, v: Any) -> float:
        rows = at.attention_statistics(q, k, v, statistics=SMOOTH, **options)
        assert rows.output is not None
        return float((g * rows.output).sum() + sum((rows_of[x] * getattr(rows, x)).sum() for x in SMOOTH))

    given = {f"grad_{name}": x for name, x in rows_of.items()}
    found = at.attention_gradients(q, k, v, g, **given, **options)
    for i, name in enumerate(ARRAYS):
        arrays = [q, k, v]
        for at_entry in np.ndindex(arrays[i].shape):
            step = np.zeros(arrays[i].shape)
            step[at_entry] = 1e-5
            moved = [loss(*(x + s * step if j == i else x for j, x in enumerate(arrays))) for s in (1, -1)]
            slope = (moved[0] - moved[1]) / 2e-5
            np.testing.assert_allclose(getattr(found, name)[at_entry], slope, rtol=1e-6, atol=1e-8)


def test_sums_of_one_sign_over_many_keys() -> None:
    """Nothing cancels, so rounding errors of long sums would show."""
    n = 20_000
    q, k, v = random_inputs(9, heads=1, n_queries=n // 20, n_keys=n, head_dim=8, value_dim=4)
    g = np.ones((1, n // 20, 4), np.float32)
    found = at.attention_gradients(q, np.abs(k), v, g, grad_lse=3.0, scale=0.01)
    wide = [x.astype(np.float64) for x in (q, np.abs(k), v)]
    truth = at.attention_gradients(*wide, g.astype(np.float64), grad_lse=3.0, scale=0.01)
    for name in ARRAYS:
        wanted = getattr(truth, name)
        np.testing.assert_allclose(getattr(found, name), wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


def test_inputs_are_not_written() -> None:
    q, k, v = random_inputs(10)
    for array in (q, k, v):
        array.flags.writeable = False
    gradients(q, k, v)


@pytest.mark.parametrize("qk_norm", [None, "l2", "rms"])
def test_a_nan_that_nothing_sees_stays_where_it_is(qk_norm: Any) -> None:
    """A NaN in a query that sees no key, or in a hidden key, reaches no gradient, the scale's included."""
    q, k, v = random_inputs(7, heads=2, n_queries=20, n_keys=30, head_dim=8)
    q[0, 3, 1], k[1, 25, 2] = np.nan, np.nan
    mask = np.ones((2, 20, 30), bool)
    mask[0, 3] = False
    found = gradients(q, k, v, attn_mask=mask, key_lengths=25, qk_norm=qk_norm, scale=np.ones((2, 1)))
    assert np.isfinite(found.query).all()
    assert np.isfinite(found.key).all()
    assert found.scale is not None
    assert np.isfinite(found.scale).all()
    assert not found.query[0, 3].any()
    assert not found.key[:, 25:].any()
    wide = (x.astype(np.float64) for x in (q, k, v, v[:, :20]))
    twin = reference.attention_gradients(*wide, attn_mask=mask, key_lengths=25, qk_norm=qk_norm)
    assert np.isfinite(twin.query).all()


def test_gradients_beyond_16_bits_are_infinite_and_warn_of_nothing() -> None:
    q, k, v = (x.astype(np.float16) for x in random_inputs(8, heads=1, n_queries=9, n_keys=9, head_dim=8))
    found = at.attention_gradients(q, k, v, np.full(q.shape, 1e6))
    assert np.isinf(found.value).any()
    v[0, 2] = np.inf
    rule, law = at.normalizers.SquaredReLU(), at.laws.SSMax(s=0.5)
    found = at.attention_gradients(q, k, v, q, normalizer=rule, scale=law)  # inf - inf in sums
    assert found.law is not None
    assert np.isnan(found.law["s"])
