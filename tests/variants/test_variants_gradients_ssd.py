# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of state-space duality, by its log-decays too."""

from __future__ import annotations

import numpy as np
import pytest
from attnscale import variants as av
from test_variants_gradients import twin

pytestmark = pytest.mark.levels

NAMES = ("query", "key", "value", "log_decay")


def inputs(n, heads=2, dims=(6, 5), dtype=np.float64, decay=0.3):
    rng = np.random.default_rng(n)
    q, k = rng.standard_normal((2, heads, n, dims[0])).astype(dtype)
    v, g = rng.standard_normal((2, heads, n, dims[1])).astype(dtype)
    return q, k, v, g, -decay * rng.exponential(size=(heads, n))


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 200])
@pytest.mark.parametrize("decay", [0.0, 0.02, 0.3, 30.0])
def test_equal_those_of_the_matrix_of_decays(n, decay):
    q, k, v, g, a = inputs(n, decay=decay)
    found = av.gradients("ssd", q, k, v, g, log_decay=a)
    expected = twin("ssd", q, k, v, g, log_decay=a)
    for name in NAMES:
        limit = 1e-12 * max(abs(expected[name]).max(), 1e-3)
        np.testing.assert_allclose(getattr(found, name), expected[name], rtol=0, atol=limit, err_msg=name)


def test_float32_is_as_exact_as_its_terms():
    q, k, v, g, a = inputs(300, dims=(20, 33), dtype=np.float32, decay=0.1)
    found = av.gradients("ssd", q, k, v, g, log_decay=a)
    wide = [x.astype(np.float64) for x in (q, k, v, g)]
    expected = twin("ssd", *wide, log_decay=a)
    sizes = twin("ssd", *(abs(x) for x in wide), log_decay=a)
    for name in NAMES:
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
    """As a difference of large sums it would be their rounding."""
    q, k, v, g, a = inputs(150, dtype=np.float32)
    a[:, [40, 64, 100]] = -60.0
    found = av.gradients("ssd", q, k, v, g, log_decay=a).log_decay
    assert abs(found[:, [40, 64, 100]]).max() < 1e-20


def test_shared_heads_and_decays():
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
def test_a_bad_value_reaches_what_saw_it(bad):
    q, k, v, g, a = inputs(200)
    clean = av.gradients("ssd", q, k, v, g, log_decay=a)
    v[0, 130, 2] = bad
    found = av.gradients("ssd", q, k, v, g, log_decay=a)
    for name in NAMES:
        np.testing.assert_array_equal(getattr(found, name)[1], getattr(clean, name)[1])
    np.testing.assert_array_equal(found.query[0, :130], clean.query[0, :130])
    np.testing.assert_array_equal(found.value, clean.value)
    np.testing.assert_array_equal(np.delete(found.key[0], 130, 0), np.delete(clean.key[0], 130, 0))
    np.testing.assert_array_equal(found.log_decay[0, :131], clean.log_decay[0, :131])
    assert not np.isfinite(found.query[0, 130:]).any()
    assert not np.isfinite(found.log_decay[0, 131:]).any()


def test_empty():
    none = np.ones((2, 0, 3))
    found = av.gradients("ssd", none, none, none, none, log_decay=-1.0)
    assert found.query.shape == (2, 0, 3)
    assert found.log_decay == 0
