# SPDX-License-Identifier: BSD-3-Clause
"""Linear-time families and their gradients: the same bits, however many threads share the work."""

from __future__ import annotations

import numpy as np
import pytest
from attnscale import reference
from attnscale import variants as av
from cases import random_inputs
from linear_families import (
    DIFFERENTIABLE,
    DIRECTIONS,
    FAMILIES,
    LONG,
    MASKS,
    NAMES,
    close,
    four_arrays,
    same_bits,
    twin,
)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("size", [(5200, 5200), (3100, 7000), (7000, 3100)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_same_bits_on_any_number_of_threads(name, mask, size, dtype):
    """Heads of several chunks; one thread takes a head after the other, more than heads divide them."""
    q, k, v = random_inputs(
        1, heads=2, n_queries=size[0], n_keys=size[1], head_dim=8, value_dim=5, dtype=dtype, spread=3
    )
    one = LONG[name].call(q, k, v, **mask, num_threads=1)
    for threads in (2, 3, 8):
        np.testing.assert_array_equal(LONG[name].call(q, k, v, **mask, num_threads=threads), one)
    if dtype == "float32":
        exact = LONG[name].call(*(x.astype(np.float64) for x in (q, k, v)), **mask)
        np.testing.assert_allclose(one, exact, atol=2e-5 * abs(exact).max())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_row_of_a_long_head_sees_the_keys_up_to_its_own(name):
    q, k, v = random_inputs(2, heads=1, n_queries=5200, n_keys=5200, head_dim=8, dtype="float64")
    found = LONG[name].call(q, k, v, is_causal=True, num_threads=3)
    for i in (0, 63, 64, 1023, 1024, 2048, 3000, 4096, 5199):
        alone = LONG[name].call(q[:, : i + 1], k[:, : i + 1], v[:, : i + 1])[:, i]
        np.testing.assert_allclose(found[:, i], alone, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("n_keys", [230, 4500])
def test_heads_that_share_keys(name, mask, n_keys):
    q, k, v = random_inputs(4, batch=(2,), heads=4, kv_heads=2, n_queries=200, n_keys=n_keys, head_dim=8)
    repeated = LONG[name].call(q, np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1), **mask)
    for threads in (1, 3, 8):
        found = LONG[name].call(q, k, v, **mask, enable_gqa=True, num_threads=threads)
        np.testing.assert_array_equal(found, repeated)
    one_key = LONG[name].call(q, k[:1, :1], v[:1, :1], **mask)
    np.testing.assert_array_equal(one_key[1, 3], LONG[name].call(q[1, 3], k[0, 0], v[0, 0], **mask))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_the_same_bits_with_a_bad_value(name, bad):
    """3e38: sums that leave the type are taken once more in a wider one."""
    q, k, v = random_inputs(2, heads=1, n_queries=4500, n_keys=4500, head_dim=8)
    v[0, 2130, 2:4] = bad
    one, two = (LONG[name].call(q, k, v, is_causal=True, num_threads=t) for t in (1, 3))
    np.testing.assert_array_equal(one, two)
    assert np.isfinite(one[0, :2130]).all()
    assert np.isfinite(one).all() or not np.isfinite(bad)


def test_a_feature_map_is_called_once_for_queries_and_once_for_keys():
    shapes = []

    def squares(x):
        shapes.append(x.shape)
        return x**2

    q, k, v = random_inputs(5, heads=4, kv_heads=2, n_queries=9, n_keys=4000, head_dim=6)
    av.linear_attention(q, k, v, feature_map=squares, enable_gqa=True, num_threads=4)
    assert shapes == [(4, 9, 6), (2, 4000, 6)]


@pytest.mark.parametrize("shape", [(1, 9000, 8), (40, 90, 8)])
def test_states_are_the_same_on_any_number_of_threads(shape):
    import attnscale as at

    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    found = []
    for threads in (1, 3):
        before = at.get_num_threads()
        at.set_num_threads(threads)
        try:
            states = (av.LinearState(), av.EfficientState(), av.PerformerState(DIRECTIONS))
            found.append([state.update(x, x).read(x[:, :70]) for state in states])
        finally:
            at.set_num_threads(before)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_ssd_has_the_same_bits_on_any_number_of_threads(dtype):
    q, k, v = random_inputs(
        3, heads=2, kv_heads=1, n_queries=5200, n_keys=5200, head_dim=8, value_dim=5, dtype=dtype
    )
    decay = -np.random.default_rng(0).exponential(0.01, (2, 5200))
    decay[:, ::500] *= 1e5
    one, *others = (av.ssd(q, k, v, decay, enable_gqa=True, num_threads=t) for t in (1, 2, 3, 8))
    for other in others:
        np.testing.assert_array_equal(other, one)
    exact = reference.ssd(*(x.astype(np.float64) for x in (q, k, v)), decay)
    eps = {"float64": 1e-11, "float32": 1e-6, "float16": 1e-3}[dtype]
    np.testing.assert_allclose(one, exact, rtol=eps, atol=eps * abs(exact).max())


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("size", [(3300, 3300), (2100, 4200), (4200, 2100)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_gradients_have_the_same_bits_on_any_number_of_threads(name, mask, size, dtype):
    inputs = four_arrays(1, n_queries=size[0], n_keys=size[1], value_dim=5, dtype=dtype, spread=2.0)
    family = LONG[name]
    one, *others = (family.gradients(*inputs, **mask, num_threads=threads) for threads in (1, 2, 3, 8))
    for other in others:
        same_bits(other, one)
    if dtype == "float32":
        exact = family.gradients(*(x.astype(np.float64) for x in inputs), **mask)
        for each in NAMES:
            want = getattr(exact, each)
            np.testing.assert_allclose(getattr(one, each), want, rtol=0, atol=2e-4 * abs(want).max())


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_chunks_of_gradients_are_joined(name, mask):
    """More rows than a chunk has, whose keys grow now and then."""
    shapes = {"heads": 1, "n_queries": 1080, "n_keys": 1050, "value_dim": 5}
    given = four_arrays(1, dtype="float64", spread=20.0, **shapes)
    given[1][:, ::400] += 60
    family = LONG[name]
    close(family.gradients(*given, **mask), family.twin_gradients(*given, **mask), 1e-11)


def test_chunks_of_gradients_of_ssd_are_joined_on_any_number_of_threads():
    given = four_arrays(1, heads=1, n_queries=1100, n_keys=1100, value_dim=5, dtype="float64")
    a = -np.random.default_rng(3).exponential(0.01, (1, 1100))
    a[:, ::300] = -3.0
    one, *others = (av.gradients("ssd", *given, log_decay=a, num_threads=t) for t in (1, 2, 3, 8))
    names = (*NAMES, "log_decay")
    for other in others:
        same_bits(other, one, names)
    expected = twin("ssd", *given, log_decay=a)
    for each in names:
        want = expected[each]
        np.testing.assert_allclose(getattr(one, each), want, rtol=0, atol=1e-12 * abs(want).max())


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients_have_the_same_bits_for_one_head_as_for_many(name):
    inputs = four_arrays(1, heads=40, n_queries=150, n_keys=150, value_dim=5)
    family = LONG[name]
    whole = family.gradients(*inputs, is_causal=True, num_threads=3)
    for head in (0, 17, 39):
        alone = family.gradients(*(x[head] for x in inputs), is_causal=True)
        for each in NAMES:
            np.testing.assert_array_equal(getattr(whole, each)[head], getattr(alone, each))
