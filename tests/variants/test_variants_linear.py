# SPDX-License-Identifier: BSD-3-Clause
"""Linear-time families: equal to their matrices of weights, causal to masked, decoding to both."""

from __future__ import annotations

import warnings
from functools import partial

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from attnscale import variants as av
from cases import compiled as _core
from cases import dtype_of, random_inputs
from linear_families import FAMILIES, MASKS, wide

pytestmark = pytest.mark.levels

# Below, at and above a block of 64, of 512, and both alignments with more queries and more keys.
SIZES = ((1, 1), (63, 63), (64, 65), (65, 64), (130, 20), (20, 130), (600, 600))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_its_matrix_of_weights(name, mask, size):
    q, k, v = random_inputs(1, n_queries=size[0], n_keys=size[1], head_dim=8, value_dim=5, dtype="float64")
    expected = FAMILIES[name].twin(q, k, v, **mask)
    np.testing.assert_allclose(FAMILIES[name].call(q, k, v, **mask), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_types_come_back(name, dtype):
    """float32 to its rounding; 16 bits are storage."""
    q, k, v = random_inputs(2, n_queries=300, n_keys=300, head_dim=8, dtype=dtype)
    found = FAMILIES[name].call(q, k, v, is_causal=True)
    assert found.dtype == dtype_of(dtype)
    expected = FAMILIES[name].twin(*wide(q, k, v), is_causal=True)
    eps = {"float32": 2**-23, "float16": 2**-10, "bfloat16": 2**-7}[dtype]
    np.testing.assert_allclose(wide(found)[0], expected, rtol=eps, atol=32 * 2**-23 + eps)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("spread", [30.0, 1e4])
def test_large_scores_do_not_overflow(name, mask, spread):
    q, k, v = random_inputs(3, n_queries=150, n_keys=150, head_dim=8, dtype="float64")
    found = FAMILIES[name].call(spread * q, spread * k, v, **mask)
    expected = FAMILIES[name].twin(spread * q, spread * k, v, **mask)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * abs(expected).max())
    narrow = FAMILIES[name].call(*(x.astype(np.float32) for x in (spread * q, spread * k, v)), **mask)
    assert np.isfinite(narrow).all()


@pytest.mark.parametrize("name", FAMILIES)
def test_layouts_of_grouped_heads_and_shared_batches(name):
    q, k, v = random_inputs(4, batch=(3,), heads=4, kv_heads=2, n_queries=70, n_keys=70, head_dim=8)
    call = partial(FAMILIES[name].call, is_causal=True)
    swapped = call(*(np.swapaxes(x, 1, 2) for x in (q, k, v)), enable_gqa=True, layout="bshd")
    np.testing.assert_array_equal(np.swapaxes(swapped, 1, 2), call(q, k, v, enable_gqa=True))
    shared = call(q, k[:1, :1], v[:, :1])
    np.testing.assert_allclose(shared[2, 3], call(q[2, 3], k[0, 0], v[2, 0]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_state_decodes_the_causal_form(name):
    q, k, v = random_inputs(5, heads=4, kv_heads=2, n_queries=40, n_keys=40, head_dim=8, dtype="float64")
    state = FAMILIES[name].state(enable_gqa=True)
    rows = [state.update(k[:, [i]], v[:, [i]]).read(q[:, [i]]) for i in range(40)]
    assert state.n_keys == 40
    expected = FAMILIES[name].call(q, k, v, is_causal=True, enable_gqa=True)
    np.testing.assert_allclose(np.concatenate(rows, axis=1), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", FAMILIES)
def test_states_merge_to_the_whole(name):
    q, k, v = random_inputs(6, n_queries=10, n_keys=90, head_dim=8, dtype="float64", spread=20)
    make = FAMILIES[name].state
    parts = [make().update(k[:, a:b], v[:, a:b]) for a, b in ((0, 50), (50, 90))]
    merged = parts[0].merge(parts[1]).merge(make())
    whole = make().update(k, v)  # a query of cosFormer has the position of the last key
    np.testing.assert_allclose(merged.read(q), whole.read(q), rtol=1e-10, atol=1e-11)
    first = make().update(k[:, :50], v[:, :50])
    parts[0].merge(make()).update(k[:, 50:], v[:, 50:])  # leaves the part alone
    np.testing.assert_array_equal(parts[0].read(q), first.read(q))
    if name != "cosformer":
        np.testing.assert_allclose(merged.read(q), FAMILIES[name].call(q, k, v), rtol=1e-10, atol=1e-11)


def test_states_of_cosformer_count_their_keys():
    _, k, v = random_inputs(6, n_keys=9, head_dim=8)
    state = av.CosformerState(max_length=9).update(k, v)
    with pytest.raises(ValueError, match="max_length must be at least the number of positions, 10, got 9"):
        state.update(k[:, :1], v[:, :1])
    with pytest.raises(ValueError, match="positions, 18, got 9"):
        state.merge(state)
    with pytest.raises(ValueError, match="positions, 10, got 9"):  # the last beside the last key
        state.read(np.ones((*k.shape[:-2], 10, 8), np.float32))
    with pytest.raises(ValueError, match="the states must have the same max_length, got 9 and 10"):
        state.merge(av.CosformerState(max_length=10))
    assert state.n_keys == 9


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_state_without_keys_or_rows(name, dtype):
    """Rows that see no key are 0."""
    state = FAMILIES[name].state()
    none = np.ones((2, 0, 8), dtype_of(dtype))
    assert state.update(none, none).n_keys == 0
    assert not state.read(np.ones((2, 3, 8), dtype_of(dtype))).any()
    assert state.read(none).shape == (2, 0, 8)
    assert not state.merge(FAMILIES[name].state()).read(np.ones((2, 3, 8))).any()
    q, k, v = random_inputs(11, n_queries=1, n_keys=5, head_dim=8)
    expected = FAMILIES[name].state().update(k, v).read(q)
    np.testing.assert_array_equal(state.update(k.astype(dtype_of("float32")), v).read(q), expected)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "performer"])
def test_a_state_with_head_dim_0(name):
    for n in (5, 241):
        state = FAMILIES[name].state().update(np.ones((2, n, 0)), np.ones((2, n, 3)))
        np.testing.assert_array_equal(state.read(np.ones((2, 4, 0))), np.zeros((2, 4, 3)))


def test_performer_with_head_dim_0_is_the_mean():
    """Softmax attention, which performer estimates, has scores of 0 there."""
    q, k, v = np.ones((3, 0)), np.ones((5, 0)), np.random.default_rng(0).standard_normal((5, 2))
    mean = np.tile(v.mean(0), (3, 1))
    np.testing.assert_allclose(at.attention(q, k, v), mean, rtol=1e-14)
    np.testing.assert_allclose(av.performer_attention(q, k, v, rng=0), mean, rtol=1e-14)
    state = av.PerformerState(np.ones((4, 0))).update(k, v)
    np.testing.assert_allclose(state.read(q), mean, rtol=1e-14)


@pytest.mark.parametrize("name", ["relu", "squares", "cosformer"])
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize(
    "sizes", [(1e-25, 1e-25, 1), (1e-38, 1, 1), (1, 1e-30, 1e-10), (1e25, 1e25, 1), (1e-12, 1e-12, 1e-12)]
)
def test_weights_that_leave_float32(name, mask, sizes):
    """Products of features that vanish or overflow in 32 bits; only ratios of weights count."""
    q, k, v = random_inputs(12, heads=3, n_queries=70, n_keys=90, head_dim=4)
    q, k, v = (x * np.float32(size) for x, size in zip((q, k, v), sizes, strict=True))
    if name == "squares":
        q, k = (np.sign(x) * np.sqrt(abs(x)) for x in (q, k))
    expected = FAMILIES[name].twin(*wide(q, k, v), **mask)
    found = FAMILIES[name].call(q, k, v, **mask)
    size = abs(v).max()
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6 * size)
    if not mask:
        state = FAMILIES[name].state().update(k, v)
        whole = FAMILIES[name].call(q[:, -1:], k, v, causal="bottom_right")
        np.testing.assert_allclose(state.read(q[:, -1:]), whole, rtol=2e-6, atol=2e-6 * size)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_bad_key_reaches_the_rows_that_see_it(name, bad, dtype):
    q, k, v = random_inputs(13, heads=1, n_queries=100, n_keys=100, head_dim=8, dtype=dtype)
    clean = FAMILIES[name].call(q, k, v, is_causal=True)
    k[0, 75, 2] = bad
    found = FAMILIES[name].call(q, k, v, is_causal=True)
    np.testing.assert_allclose(found[0, :75], clean[0, :75], rtol=1e-5, atol=1e-6)
    if np.isnan(bad) and name not in ("relu", "cosformer"):
        assert np.isnan(found[0, 75:]).all()


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_value_reaches_the_rows_that_see_it(name, bad):
    q, k, v = random_inputs(7, n_queries=100, n_keys=100, head_dim=8)
    clean = FAMILIES[name].call(q, k, v, is_causal=True)
    v[0, 30, 2] = bad
    found = FAMILIES[name].call(q, k, v, is_causal=True)
    np.testing.assert_allclose(found[0, :30], clean[0, :30], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found[1], clean[1])
    assert not np.isfinite(found[0, 30:, 2]).any() or name == "relu"
    np.testing.assert_allclose(found[0, 30:, :2], clean[0, 30:, :2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", FAMILIES)
def test_empty_extents(name):
    call = FAMILIES[name].call
    for n, m, d in ((0, 3, 8), (3, 0, 8), (0, 0, 8)):
        for mask in MASKS:
            out = call(np.ones((2, n, d)), np.ones((2, m, d)), np.ones((2, m, 4)), **mask)
            assert out.shape == (2, n, 4)
            assert not out.any() or m
    if name != "performer":
        assert not call(np.ones((3, 0)), np.ones((3, 0)), np.ones((3, 2))).any()


def test_long_causal_sums_keep_float32():
    """The error of 20000 keys comes from their rounding, not from their sum."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 20_000, 8), np.float32)
    for name in ("efficient", "elu", "performer"):
        exact = FAMILIES[name].call(*wide(q, k, v), is_causal=True)
        assert abs(FAMILIES[name].call(q, k, v, is_causal=True) - exact).max() < 1e-5, name


@pytest.mark.parametrize("size", [1, 63, 64, 65, 200])
def test_ssd_forms_are_equal(size):
    """Blocks, recurrence and masked matrix."""
    rng = np.random.default_rng(size)
    q, k, v = rng.standard_normal((3, 2, size, 6))
    decay = -rng.exponential(0.3, (2, size))
    expected = reference.ssd(q, k, v, decay)
    np.testing.assert_allclose(av.ssd(q, k, v, decay), expected, rtol=1e-10, atol=1e-11)
    state = av.SsdState()
    rows = [state.update(*(x[:, [i]] for x in (k, v, decay))).read(q[:, [i]]) for i in range(size)]
    np.testing.assert_allclose(np.concatenate(rows, 1), expected, rtol=1e-10, atol=1e-11)
    whole = av.SsdState().update(k, v, decay).read(q[:, -1:])
    np.testing.assert_allclose(whole, expected[:, -1:], rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_bad_value_of_ssd_reaches_the_rows_that_see_it(dtype, bad):
    rng = np.random.default_rng(2)
    q, k, v = rng.standard_normal((3, 2, 96, 7)).astype(dtype)
    decay = -rng.exponential(0.3, (2, 96))
    clean = av.ssd(q, k, v, decay)
    v[0, 70, 2], v[0, 75, 2], v[1, 20, 0] = bad, bad, bad
    found = av.ssd(q, k, v, decay)
    np.testing.assert_array_equal(found[0, :70], clean[0, :70])
    np.testing.assert_array_equal(found[1, :20], clean[1, :20])
    assert not np.isfinite(found[0, 70:, 2]).any()
    assert not np.isfinite(found[1, 20:, 0]).any()
    np.testing.assert_array_equal(np.delete(found[0], 2, axis=1), np.delete(clean[0], 2, axis=1))


def test_a_state_of_ssd_keeps_its_shape():
    k, v = np.ones((2, 3, 4)), np.ones((2, 3, 5))
    state = av.SsdState().update(k, v, -1.0)
    with pytest.raises(ValueError, match=r"of the first update, .* = \(2, 4, 5\), got \(4, 5\)"):
        state.update(k[0], v[0], -1.0)
    with pytest.raises(ValueError, match="query must have the keys' head_dim, 4, got 3"):
        state.read(np.ones((2, 1, 3)))
    np.testing.assert_array_equal(state.read(k[:1]), state.read(k))  # a query that all heads share


def test_ssd_shares_key_heads_and_forgets():
    rng = np.random.default_rng(1)
    q, k, v = rng.standard_normal((4, 90, 6)), *rng.standard_normal((2, 2, 90, 6))
    decay = -rng.exponential(0.3, (4, 90))
    expected = reference.ssd(q, np.repeat(k, 2, 0), np.repeat(v, 2, 0), decay)
    np.testing.assert_allclose(av.ssd(q, k, v, decay, enable_gqa=True), expected, rtol=1e-10, atol=1e-11)
    swapped = av.ssd(*(np.swapaxes(x, 0, 1) for x in (q, k, v)), decay, enable_gqa=True, layout="bshd")
    np.testing.assert_allclose(np.swapaxes(swapped, 0, 1), expected, rtol=1e-10, atol=1e-11)
    alone = av.ssd(q[:2], k, v, np.full(90, -1e4))  # only the key itself is left
    np.testing.assert_allclose(alone, (q[:2] * k).sum(-1, keepdims=True) * v, rtol=1e-10, atol=1e-12)


def test_a_hybrid_is_its_heads():
    q, k, v = random_inputs(10, heads=4, kv_heads=2, n_queries=50, n_keys=50, head_dim=8)
    wide_k, wide_v = np.repeat(k, 2, 0), np.repeat(v, 2, 0)
    kinds = ["efficient", at.attention, "linear", "efficient"]
    found = av.hybrid(q, k, v, kinds, is_causal=True, enable_gqa=True)
    calls = [av.efficient_attention, at.attention, av.linear_attention, av.efficient_attention]
    for head, call in enumerate(calls):
        expected = call(q[head], wide_k[head], wide_v[head], is_causal=True)
        np.testing.assert_allclose(found[head], expected, rtol=1e-5, atol=1e-6)
    swapped = av.hybrid(
        *(np.swapaxes(x, 0, 1) for x in (q, k, v)), kinds, is_causal=True, enable_gqa=True, layout="bshd"
    )
    np.testing.assert_array_equal(np.swapaxes(swapped, 0, 1), found)


def test_linformer():
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 2, 60, 8))
    e, f = rng.standard_normal((2, 7, 60)) / 8
    np.testing.assert_allclose(
        av.linformer_attention(q, k, v, e, f), reference.linformer_attention(q, k, v, e, f)
    )
    own = np.stack([e, f])  # a projection of each head
    expected = reference.linformer_attention(q, k, v, own)
    np.testing.assert_allclose(av.linformer_attention(q, k, v, own), expected)
    swapped = av.linformer_attention(*(np.swapaxes(x, 0, 1) for x in (q, k, v)), own, layout="bshd")
    np.testing.assert_allclose(np.swapaxes(swapped, 0, 1), expected)
    one = np.eye(60)  # no projection at all is exact attention
    np.testing.assert_allclose(av.linformer_attention(q, k, v, one), at.attention(q, k, v))


def call(**given):
    """A call of the core, with its form's fields beside its own."""
    form = {name: given.pop(name) for name in ("map", "norm", "projection") if name in given}
    records = av._linear_form
    _core.linear(records.LinearCall(records.LinearForm(**{"map": "given", **form}), **given))


def test_the_binding_refuses_unreadable_arrays():
    rows, sums = np.ones((4, 3)), (np.zeros((1, 3)), np.zeros((1, 3)), np.zeros((3, 2)))
    good = {"query": rows, "key": rows, "value": np.ones((4, 2)), "out": np.ones((4, 2))}
    call(**good)
    frozen = np.ones((4, 2))
    frozen.flags.writeable = False
    for wrong, message in (
        ({"query": np.ones((4, 2))}, "must fit each other"),
        ({"query": np.ones((2, 4, 3))}, "leading axes must fit"),
        ({"value": np.ones((3, 2))}, "must fit each other"),
        ({"out": np.ones((5, 2))}, "must fit each other"),
        ({"query": np.ones((4, 3), int)}, "does not read"),
        ({"out": frozen}, "out must be writable"),
        ({"out": None}, "query goes with out"),
        ({"query": None}, "query goes with out"),
        ({"sums": sums}, "query goes with out"),
        ({"map": "eighth"}, "there is no map eighth"),
        ({"norm": "Count"}, "there is no norm Count"),
        ({"decay": np.zeros(4)}, "decay goes with norm none"),
        ({"decay": np.zeros(3), "norm": "none"}, "of shape"),
        ({"decay": np.zeros(8)[::2], "norm": "none"}, "contiguous rows"),
        ({"decay": np.zeros((2, 4)), "norm": "none"}, "leading axes must fit"),
        ({"norm": "channels"}, "goes with exponentials"),
        ({"map": "turned"}, "turns go with turned"),
        ({"map": "turned", "query_turn": np.ones((4, 2)), "key_turn": np.ones((3, 2))}, "turns must be"),
        ({"map": "projected"}, "projection goes with"),
        ({"map": "projected", "projection": np.ones((2, 5))}, "projection must be"),
    ):
        with pytest.raises(ValueError, match=message):
            call(**{**good, **wrong})
    for wrong in (sums[:2], (sums[0], sums[1], np.zeros((3, 3))), (*sums[:2], np.zeros((3, 2), np.float32))):
        with pytest.raises(ValueError, match=r"sums must be|must fit"):
            call(query=rows, out=good["out"], sums=wrong, n_summed=1)


@pytest.mark.parametrize("is_causal", [False, True])
def test_without_features_no_value_counts(is_causal):
    value = np.full((2, 3), np.nan)
    output = at.variants.efficient_attention(np.zeros((5, 0)), np.zeros((2, 0)), value, is_causal=is_causal)
    np.testing.assert_array_equal(output, np.zeros((5, 3)))


def test_merged_sums_beyond_the_type_are_infinite_without_a_warning():
    key, value = np.ones((1, 2, 3)), np.full((1, 2, 3), 1.2e308)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = [av.EfficientState().update(key[:, i : i + 1], value[:, i : i + 1]) for i in (0, 1)]
        merged = parts[0].merge(parts[1])
        assert not np.isfinite(merged.read(key)).all()
