# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of the families: equal to materialised ones and to finite differences, and how far they reach."""

from __future__ import annotations

import numpy as np
import pytest
from attnscale import reference
from attnscale import variants as av
from cases import dtype_of, random_inputs
from linear_families import DIFFERENTIABLE, FAMILIES, MASKS, NAMES, close, four_arrays, twin, wide

pytestmark = pytest.mark.levels

SIZES = ((1, 1), (63, 63), (64, 65), (65, 64), (130, 20), (20, 130))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equal_the_gradients_of_the_matrix_of_weights(name, mask, size):
    family = FAMILIES[name]
    given = four_arrays(1, n_queries=size[0], n_keys=size[1], value_dim=5, dtype="float64")
    found = family.gradients(*given, **mask)
    close(found, family.twin_gradients(*given, **mask), 1e-12)
    assert found.log_decay is None
    assert found.feature_map is None


@pytest.mark.parametrize("name", ["scaling", "performer"])
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("dims", [(8, 1), (8, 16), (8, 17), (8, 40)], ids=str)
def test_float32(name, mask, dims):
    family = FAMILIES[name]
    given = four_arrays(2, n_queries=150, n_keys=140, head_dim=dims[0], value_dim=dims[1])
    found = family.gradients(*given, **mask)
    close(found, family.twin_gradients(*wide(*given), **mask), 2e-6)
    assert all(getattr(found, each).dtype == np.float32 for each in NAMES)


def absolute_terms(phi, value, grad, seen, kernel=1.0):
    """Sums of the sizes of what gradients by features, and by values, are sums of."""
    weights = np.where(seen, kernel * (phi[0] @ phi[1].swapaxes(-1, -2)), 0)
    total = weights.sum(-1, keepdims=True)
    p = weights / np.where(total == 0, 1, total)
    sizes = abs(grad) @ abs(value).swapaxes(-1, -2)
    sizes = (sizes + (p * sizes).sum(-1, keepdims=True)) / np.where(total == 0, np.inf, total)
    sizes = np.where(seen, sizes * kernel, 0)
    return sizes @ phi[1], sizes.swapaxes(-1, -2) @ phi[0], p.swapaxes(-1, -2) @ abs(grad)


@pytest.mark.parametrize("name", ["elu", "relu", "cosformer"])
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("dims", [(8, 1), (3, 16), (17, 5), (40, 40)], ids=str)
def test_float32_is_as_exact_as_its_terms(name, mask, dims):
    family = FAMILIES[name]
    given = four_arrays(2, n_queries=150, n_keys=140, head_dim=dims[0], value_dim=dims[1])
    found, rows = family.gradients(*given, **mask), wide(*given)
    expected = family.twin_gradients(*rows, **mask)
    phi = [np.where(x > 0, x + (name == "elu"), np.exp(x) * (name == "elu")) for x in rows[:2]]
    shift = -10 if "causal" in mask else 0
    distance = np.arange(150)[:, None] + shift - np.arange(140)
    kernel = np.cos(distance * np.pi / 1400) if name == "cosformer" else 1.0
    sizes = absolute_terms(phi, *rows[2:], reference.visible((150, 140), **mask), kernel)
    slopes = [np.minimum(x, 1) if name == "elu" else x > 0 for x in phi]
    for each, size, slope in zip(NAMES, sizes, (*slopes, 1.0), strict=True):
        error = abs(getattr(found, each) - expected[each])
        assert (error <= 8 * 2.0**-23 * size * slope).all(), each


@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("dims", [(8, 1), (3, 16), (17, 5), (40, 40)], ids=str)
def test_float32_of_efficient_attention_is_as_exact_as_its_terms(mask, dims):
    heads = four_arrays(2, n_queries=150, n_keys=140, head_dim=dims[0], value_dim=dims[1])
    given = [x[0] for x in heads]
    found = av.gradients("efficient_attention", *given, **mask)
    wq, wk, *rows = wide(*given)
    expected = twin("efficient_attention", wq, wk, *rows, **mask)
    maps = np.where(reference.visible((150, 140), **mask)[..., None], np.exp(wk), 0)
    maps /= np.maximum(maps.sum(-2, keepdims=True), 1e-300)
    shares = np.exp(wq) / np.exp(wq).sum(-1, keepdims=True)
    pairs = (abs(rows[1]) @ abs(rows[0]).T)[..., None]
    means = (maps * pairs).sum(-2)
    terms = maps * shares[:, None]
    sizes = {
        "query": shares * (means + (shares * means).sum(-1, keepdims=True)),
        "key": (terms * (pairs + means[:, None])).sum(0),
        "value": terms.sum(-1).T @ abs(rows[1]),
    }
    for each, size in sizes.items():
        assert (abs(getattr(found, each) - expected[each]) <= 8 * 2.0**-23 * size).all(), each


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_finite_differences(name, mask):
    q, k, v, g = four_arrays(3, heads=1, n_queries=12, n_keys=10, value_dim=3, dtype="float64")
    family = FAMILIES[name]
    found = family.gradients(q, k, v, g, **mask)
    arrays = dict(zip(NAMES, (q, k, v), strict=True))
    for name_of, array in arrays.items():
        for index in list(np.ndindex(array.shape))[:: max(array.size // 12, 1)]:
            sides = []
            for step in (1e-6, -1e-6):
                moved = array.copy()
                moved[index] += step
                sides.append((g * family.call(*{**arrays, name_of: moved}.values(), **mask)).sum())
            slope = (sides[0] - sides[1]) / 2e-6
            np.testing.assert_allclose(getattr(found, name_of)[index], slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_types_come_back(name, dtype):
    q, k, v, g = four_arrays(4, n_queries=100, n_keys=100, dtype=dtype)
    family = FAMILIES[name]
    found = family.gradients(q, k, v, g, is_causal=True)
    assert found.query.dtype == found.key.dtype == found.value.dtype == dtype_of(dtype)
    expected = family.twin_gradients(*wide(q, k, v, g), is_causal=True)
    close(found, expected, {"float16": 1e-3, "bfloat16": 1e-2}[dtype])
    mixed = family.gradients(q, k.astype(np.float32), v, g)
    assert [mixed.query.dtype, mixed.key.dtype] == [dtype_of(dtype), np.float32]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_shared_heads_are_summed(name, mask):
    q, k, v, g = four_arrays(5, batch=(3,), heads=4, kv_heads=2, n_queries=70, n_keys=70, dtype="float64")
    family = FAMILIES[name]
    whole = family.gradients(q, np.repeat(k, 2, 1), np.repeat(v, 2, 1), g, **mask)
    found = family.gradients(q, k, v, g, enable_gqa=True, **mask)
    np.testing.assert_array_equal(found.query, whole.query)
    for name_of in ("key", "value"):
        expected = getattr(whole, name_of).reshape(3, 2, 2, 70, 8).sum(2)
        np.testing.assert_allclose(getattr(found, name_of), expected, rtol=1e-12, atol=1e-12)
    swapped = family.gradients(
        *(np.swapaxes(x, 1, 2) for x in (q, k, v, g)), enable_gqa=True, layout="bshd", **mask
    )
    for name_of in NAMES:
        np.testing.assert_array_equal(np.swapaxes(getattr(swapped, name_of), 1, 2), getattr(found, name_of))
    one = family.gradients(q, k[:1, :1], v[:, :1], g, **mask)
    assert (one.key.shape, one.value.shape) == ((1, 1, 70, 8), (3, 1, 70, 8))
    wide_k, wide_v = np.broadcast_to(k[:1, :1], q.shape), np.broadcast_to(v[:, :1], q.shape)
    whole = family.gradients(q, wide_k, wide_v, g, **mask)
    np.testing.assert_allclose(one.key, whole.key.sum((0, 1), keepdims=True), rtol=1e-12, atol=1e-11)
    np.testing.assert_allclose(one.value, whole.value.sum(1, keepdims=True), rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("spread", [30.0, 1e3])
def test_large_logarithms(name, mask, spread):
    """Keys that exceed earlier ones by far, and features that leave the type."""
    q, k, v, g = four_arrays(6, n_queries=150, n_keys=150, dtype="float64")
    family, given = FAMILIES[name], (spread * q, spread * k, v, g)
    found = family.gradients(*given, **mask)
    close(found, family.twin_gradients(*given, **mask), 1e-9)
    narrow = family.gradients(*(x.astype(np.float32) for x in given), **mask)
    assert all(np.isfinite(getattr(narrow, each)).all() for each in NAMES)


@pytest.mark.parametrize("name", ["relu", "cosformer"])
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("sizes", [(1e-25, 1e-25, 1), (1, 1e-30, 1e-10), (1e19, 1e20, 1)])
def test_products_that_leave_float32(name, mask, sizes):
    q, k, v, g = four_arrays(7, heads=3, n_queries=70, n_keys=90, head_dim=4)
    q, k, v = (x * np.float32(size) for x, size in zip((q, k, v), sizes, strict=True))
    family = FAMILIES[name]
    found = family.gradients(q, k, v, g, **mask)
    close(found, family.twin_gradients(*wide(q, k, v, g), **mask), 4e-6)


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_rows_without_keys_have_no_gradient(name):
    q, k, v = random_inputs(8, n_queries=90, n_keys=70, head_dim=8)
    family = FAMILIES[name]
    found = family.gradients(q, k, v, np.ones_like(q), causal="bottom_right")
    assert not found.query[:, :20].any()
    assert found.query[:, 21:].any()
    found = family.gradients(q[:, :50], k, v, np.ones_like(q[:, :50]), is_causal=True)
    assert not found.key[:, 50:].any()
    assert not found.value[:, 50:].any()
    assert found.value[:, :50].any()


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_empty_extents(name):
    family = FAMILIES[name]
    for n, m, heads in ((0, 3, 2), (3, 0, 2), (0, 0, 2), (3, 4, 0)):
        for mask in MASKS:
            q, k, v, g = np.ones((heads, n, 8)), np.ones((heads, m, 8)), np.ones((heads, m, 4)), np.ones(4)
            found = family.gradients(q, k, v, g, **mask)
            assert [getattr(found, each).shape for each in NAMES] == [q.shape, k.shape, v.shape]
            assert not found.query.any()
            assert not found.key.any()
            assert not found.value.any() or (n and m)
    found = family.gradients(np.ones((3, 8)), np.ones((4, 8)), np.ones((4, 0)), 1.0)
    assert not found.query.any()
    assert not found.key.any()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_bad_value_reaches_the_rows_that_see_it(name, dtype):
    """The gradient of a value reads no value; that of a query those it saw."""
    q, k, v, g = four_arrays(9, n_queries=200, n_keys=200, dtype=dtype)
    family = FAMILIES[name]
    clean = family.gradients(q, k, v, g, is_causal=True)
    v[0, 130, 2] = np.nan
    found = family.gradients(q, k, v, g, is_causal=True)
    for each in NAMES:
        np.testing.assert_array_equal(getattr(found, each)[1], getattr(clean, each)[1])
    np.testing.assert_allclose(found.query[0, :130], clean.query[0, :130], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(found.value[0], clean.value[0], rtol=1e-3, atol=1e-4)
    if name != "relu":
        seen = found.query[0, 130:][q[0, 130:] > 0] if name == "cosformer" else found.query[0, 130:]
        assert np.isnan(seen).all()


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_bad_gradient_reaches_the_keys_of_its_row(name):
    q, k, v, g = four_arrays(9, n_queries=200, n_keys=200)
    family = FAMILIES[name]
    clean = family.gradients(q, k, v, g, is_causal=True)
    g[0, 130, 2] = np.nan
    found = family.gradients(q, k, v, g, is_causal=True)
    rows = np.arange(200) != 130
    np.testing.assert_allclose(found.query[0, rows], clean.query[0, rows], rtol=1e-3, atol=1e-4)
    for each in ("key", "value"):
        got, want = getattr(found, each)[0], getattr(clean, each)[0]
        np.testing.assert_allclose(got[131:], want[131:], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(
        np.delete(found.value[0], 2, 1), np.delete(clean.value[0], 2, 1), rtol=1e-3, atol=1e-4
    )
    assert np.isnan(found.value[0, :131, 2]).all() or name in ("relu", "cosformer")


def test_features_as_arrays():
    q, k, v, g = four_arrays(10, n_queries=20, n_keys=20, dtype="float64")
    pair = np.exp(q[..., :3]), np.exp(k[..., :3])
    found = av.gradients("linear_attention", q, k, v, g, feature_map=pair, is_causal=True)
    expected = twin("linear_attention", q, k, v, g, feature_map=pair, is_causal=True)
    assert found.query is None
    assert found.key is None
    for got, want in zip((*found.feature_map, found.value), expected.values(), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12 * abs(want).max())


def test_any_strides_and_no_input_is_written():
    q, k, v, g = four_arrays(11, n_queries=80, n_keys=80)
    expected = av.gradients("linear_attention", q, k, v, g, is_causal=True)
    turned = [np.asfortranarray(x)[:, ::-1][:, ::-1] for x in (q, k, v, g)]
    for array in turned:
        array.flags.writeable = False
    found = av.gradients(av.linear_attention, *turned, is_causal=True)
    close(found, {each: getattr(expected, each) for each in NAMES}, 1e-5)
    sums = av.gradients("linear_attention", q, k, v, np.float32(1))
    close(sums, vars(av.gradients("linear_attention", q, k, v, np.ones_like(g))), 0)
