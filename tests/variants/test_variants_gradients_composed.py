# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of relay nodes and differential attention by softmax attention, and of ssd by its decays."""

from __future__ import annotations

import numpy as np
import pytest
from attnscale import variants as av
from cases import dtype_of
from linear_families import NAMES, four_arrays, gradient_of, twin

RNG = np.random.default_rng(12)
OF_SSD = (*NAMES, "log_decay")


def same(found, expected, relative=1e-12):
    for name, want in expected.items():
        got = getattr(found, name)
        if want is None:
            assert got is None
            continue
        for one, two in zip(*((x if isinstance(x, tuple) else (x,)) for x in (got, want)), strict=True):
            np.testing.assert_allclose(one, two, rtol=0, atol=relative * abs(two).max(), err_msg=name)


@pytest.mark.parametrize("with_value", [False, True])
def test_relay_nodes(with_value):
    x, centres = RNG.standard_normal((2, 90, 8)), RNG.standard_normal((2, 5, 8))
    value = RNG.standard_normal((2, 90, 6)) if with_value else None
    grad = gradient_of((2, 5, 6 if with_value else 8))
    found = av.gradients(av.relay_attention, x, centres, value, grad)
    same(found, twin("relay_attention", x, centres, value, grad))
    moved = x + 1e-6 * found.query
    change = [(grad * av.relay_attention(at, centres, value).output).sum() for at in (moved, x)]
    np.testing.assert_allclose((change[0] - change[1]) / 1e-6, np.square(found.query).sum(), rtol=1e-4)


def test_relay_nodes_that_batches_share():
    x, centres = RNG.standard_normal((3, 40, 8)).astype(np.float32), RNG.standard_normal((5, 8))
    found = av.gradients("relay_attention", x, centres.astype(np.float32), None, np.float32(1))
    assert (found.query.shape, found.key.shape, found.query.dtype) == ((3, 40, 8), (5, 8), np.float32)
    wide = np.broadcast_to(centres, (3, 5, 8))
    expected = twin("relay_attention", x.astype(np.float64), wide, None, np.ones((3, 5, 8)))
    np.testing.assert_allclose(found.key, expected["key"].sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3, "window": (5, 5)}], ids=str)
def test_differential_attention(options):
    queries, keys = RNG.standard_normal((2, 2, 3, 50, 8))
    value, lam = RNG.standard_normal((3, 50, 6)), RNG.random((3, 1))
    grad = gradient_of((3, 50, 6))
    pairs = (queries[0], queries[1]), (keys[0], keys[1])
    found = av.gradients("differential_attention", *pairs, value, grad, lam=lam, **options)
    expected = twin(
        "differential_attention", *pairs, value, grad, lam=np.broadcast_to(lam, (3, 50)), **options
    )
    expected["lam"] = expected["lam"].sum(-1, keepdims=True)
    same(found, expected)

    def loss(share):
        made = av.differential_attention(
            pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1], value, lam=share, **options
        )
        return (grad * made).sum()

    slope = (loss(lam + 1e-6) - loss(lam - 1e-6)) / 2e-6
    np.testing.assert_allclose(found.lam.sum(), slope, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_differential_attention_in_layouts_and_types(dtype):
    q, k, v, g = four_arrays(13, batch=(2,), heads=4, kv_heads=2, n_queries=20, n_keys=20, dtype=dtype)
    options = {"lam": 0.7, "enable_gqa": True, "is_causal": True}
    found = av.gradients("differential_attention", (q, q[..., ::-1]), (k, k), v, g, **options)
    assert found.value.dtype == found.query[1].dtype == dtype_of(dtype)
    assert found.key[0].shape == found.value.shape == v.shape
    assert found.lam.shape == ()
    swapped = [np.swapaxes(x, 1, 2) for x in (q, k, v, g)]
    other = av.gradients(
        "differential_attention",
        (swapped[0], swapped[0][..., ::-1]),
        (swapped[1],) * 2,
        *swapped[2:],
        layout="bshd",
        **options,
    )
    np.testing.assert_array_equal(np.swapaxes(other.value, 1, 2), found.value)
    np.testing.assert_allclose(other.lam, found.lam, rtol=1e-5)


def inputs(n, heads=2, dims=(6, 5), dtype=np.float64, decay=0.3):
    rng = np.random.default_rng(n)
    q, k = rng.standard_normal((2, heads, n, dims[0])).astype(dtype)
    v, g = rng.standard_normal((2, heads, n, dims[1])).astype(dtype)
    return q, k, v, g, -decay * rng.exponential(size=(heads, n))


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("decay", [0.0, 0.02, 0.3, 30.0])
def test_of_ssd_equal_those_of_the_matrix_of_decays(n, decay):
    q, k, v, g, a = inputs(n, decay=decay)
    found = av.gradients("ssd", q, k, v, g, log_decay=a)
    expected = twin("ssd", q, k, v, g, log_decay=a)
    for name in OF_SSD:
        limit = 1e-12 * max(abs(expected[name]).max(), 1e-3)
        np.testing.assert_allclose(getattr(found, name), expected[name], rtol=0, atol=limit, err_msg=name)


def test_float32_of_ssd_is_as_exact_as_its_terms():
    q, k, v, g, a = inputs(300, dims=(20, 33), dtype=np.float32, decay=0.1)
    found = av.gradients("ssd", q, k, v, g, log_decay=a)
    wide = [x.astype(np.float64) for x in (q, k, v, g)]
    expected = twin("ssd", *wide, log_decay=a)
    sizes = twin("ssd", *(abs(x) for x in wide), log_decay=a)
    for name in OF_SSD:
        error = abs(getattr(found, name) - expected[name])
        assert (error <= 8 * 2.0**-23 * sizes[name]).all(), name


def test_finite_differences_of_log_decays():
    q, k, v, g, a = inputs(100, heads=1)
    a -= 0.1
    found = av.gradients("ssd", q, k, v, g, log_decay=a).log_decay
    assert found[0, 0] == 0  # nothing is there before the first key
    for i in (1, 5, 63, 64, 65, 99):
        sides = []
        for step in (1e-6, -1e-6):
            moved = a.copy()
            moved[0, i] += step
            sides.append((g * av.ssd(q, k, v, moved)).sum())
        np.testing.assert_allclose(found[0, i], (sides[0] - sides[1]) / 2e-6, rtol=1e-6, atol=1e-8)


def test_where_little_passes_a_decay_its_gradient_is_little():
    """A difference of large sums would be their rounding."""
    q, k, v, g, a = inputs(150, dtype=np.float32)
    a[:, [40, 64, 100]] = -60.0
    found = av.gradients("ssd", q, k, v, g, log_decay=a).log_decay
    assert abs(found[:, [40, 64, 100]]).max() < 1e-20


def test_ssd_shares_heads_and_decays():
    q, _, _, g, a = inputs(90, heads=4)
    k, v = (x[:2] for x in inputs(90, heads=4)[1:3])
    k_of_all, v_of_all = np.repeat(k, 2, 0), np.repeat(v, 2, 0)
    found = av.gradients("ssd", q, k, v, g, log_decay=a, enable_gqa=True)
    expected = twin("ssd", q, k_of_all, v_of_all, g, log_decay=a)
    np.testing.assert_allclose(found.query, expected["query"], atol=1e-11)
    np.testing.assert_allclose(found.key, expected["key"].reshape(2, 2, 90, 6).sum(1), atol=1e-11)
    np.testing.assert_allclose(found.value, expected["value"].reshape(2, 2, 90, 5).sum(1), atol=1e-11)
    np.testing.assert_allclose(found.log_decay, expected["log_decay"], atol=1e-10)
    for shape, axes in (((90,), 0), ((4, 1), 1), ((), (0, 1)), ((1, 1, 90), 0)):
        one = np.full(shape, -0.2)
        found = av.gradients("ssd", q, k_of_all, v_of_all, g, log_decay=one)
        full = twin("ssd", q, k_of_all, v_of_all, g, log_decay=np.broadcast_to(-0.2, (4, 90)))
        want = full["log_decay"].sum(axes).reshape(shape)
        np.testing.assert_allclose(found.log_decay, want, rtol=1e-11, atol=1e-10)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_value_of_ssd_reaches_the_rows_that_see_it(bad):
    q, k, v, g, a = inputs(200)
    clean = av.gradients("ssd", q, k, v, g, log_decay=a)
    v[0, 130, 2] = bad
    found = av.gradients("ssd", q, k, v, g, log_decay=a)
    for name in OF_SSD:
        np.testing.assert_array_equal(getattr(found, name)[1], getattr(clean, name)[1])
    np.testing.assert_array_equal(found.query[0, :130], clean.query[0, :130])
    np.testing.assert_array_equal(found.value, clean.value)
    np.testing.assert_array_equal(np.delete(found.key[0], 130, 0), np.delete(clean.key[0], 130, 0))
    np.testing.assert_array_equal(found.log_decay[0, :131], clean.log_decay[0, :131])
    assert not np.isfinite(found.query[0, 130:]).any()
    assert not np.isfinite(found.log_decay[0, 131:]).any()


def test_ssd_of_no_rows():
    none = np.ones((2, 0, 3))
    found = av.gradients("ssd", none, none, none, none, log_decay=-1.0)
    assert found.query.shape == (2, 0, 3)
    assert found.log_decay == 0
