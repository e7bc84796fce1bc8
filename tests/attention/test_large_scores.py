# SPDX-License-Identifier: BSD-3-Clause
"""Scores whose rounding alone is a large number: such rows are one-hot, other rows are unaffected."""

from __future__ import annotations

import itertools

import attnscale as at
import numpy as np
import pytest
from attnscale import normalizers as N
from cases import case, random_inputs, rows_are_lost

pytestmark = pytest.mark.levels

SIZES = [("float32", 1e9), ("float32", 1e20), ("float32", 1e34), ("float64", 1e18), ("float64", 1e200)]


@pytest.mark.parametrize("n_queries", [3, 70])
@pytest.mark.parametrize(("dtype", "size"), SIZES)
@pytest.mark.parametrize("normalizer", ["softmax", at.normalizers.Sink(0.0), "softpick"], ids=repr)
def test_rows_are_one_hot(normalizer: object, dtype: str, size: float, n_queries: int) -> None:
    q, k, v = random_inputs(11, n_queries=n_queries, n_keys=300, head_dim=16, value_dim=5, dtype=dtype)
    products = np.einsum("...id,...jd->...ij", q.astype(np.float64), k.astype(np.float64))
    for scale in (size, -size):
        best = (np.sign(scale) * products).argmax(-1)
        output = at.attention(q, k, v, scale=scale, normalizer=normalizer)
        np.testing.assert_array_equal(output, np.take_along_axis(v, best[..., None], -2))


FAR = [(1e20, 1e20, 1e-40), (1e-30, 1e-30, 1e60), (1e25, 1e12, 1e-37), (1e20, 1e20, -1e-40)]


@pytest.mark.parametrize("n_queries", [3, 70])
@pytest.mark.parametrize(("of_query", "of_key", "scale"), FAR)
@pytest.mark.parametrize("normalizer", ["softmax", "sparsemax", "sigmoid", "softpick", "top_k(k=3)"])
def test_products_beyond_the_type(
    normalizer: str, of_query: float, of_key: float, scale: float, n_queries: int
) -> None:
    # Products of query and key overflow or vanish; the scores agree with those of float64.
    q, k, v = random_inputs(15, n_queries=n_queries, n_keys=50, head_dim=4, value_dim=3)
    q, k = q * np.float32(of_query), k * np.float32(of_key)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    rows = {"scale": np.full(n_queries, scale), "normalizer": normalizer}
    for options in ({"normalizer": normalizer, "scale": scale}, rows | {"is_causal": True}):
        found, truth = at.attention(q, k, v, **options), at.attention(*wide, **options)
        np.testing.assert_allclose(found, truth, atol=2e-5)
        mine = at.attention_gradients(q, k, v, v[:, :1] + 0 * truth.astype(np.float32), **options)
        theirs = at.attention_gradients(*wide, wide[2][:, :1] + 0 * truth, **options)
        for name in ("query", "key", "value", "scale"):
            a, b = getattr(mine, name), getattr(theirs, name)
            np.testing.assert_allclose(a, b, atol=1e-4 * np.abs(b).max(), err_msg=name)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("of_query", "of_key", "scale"), FAR[:3])
def test_searches_and_curves_beyond_the_type(
    of_query: float, of_key: float, scale: float, reverse: bool
) -> None:
    q, k, _ = random_inputs(16, n_queries=30, n_keys=50, head_dim=4)
    q, k = q * np.float32(of_query), k * np.float32(of_key)
    wide = [x.astype(np.float64) for x in (q, k)]
    scales = [scale, 2 * scale][:: -1 if reverse else 1]
    found, truth = at.entropy_curve(q, k, scales), at.entropy_curve(*wide, scales)
    np.testing.assert_allclose(found.entropy, truth.entropy, atol=1e-5)
    np.testing.assert_allclose(found.lse, truth.lse, rtol=1e-5, atol=1e-5)
    solved, wanted = at.solve_scale(q, k, 2.5), at.solve_scale(*wide, 2.5)
    assert solved.converged.all()
    np.testing.assert_allclose(solved.scale, wanted.scale, rtol=1e-4)


@pytest.mark.parametrize("size", [1e-15, 1e-9, 1e9, 1e15])
def test_searches_at_any_size_of_products(size: float) -> None:
    # Squares of the products leave float32, the products do not.
    q, k, _ = random_inputs(17, n_queries=30, n_keys=50, head_dim=4)
    plain = at.solve_scale(q, k, 2.5)
    found = at.solve_scale(q * np.float32(size), k * np.float32(size), 2.5)
    assert found.converged.all()
    np.testing.assert_allclose(found.scale * size * size, plain.scale, rtol=1e-4)


@pytest.mark.parametrize(("dtype", "size"), SIZES)
def test_statistics_and_curve(dtype: str, size: float) -> None:
    q, k, _ = random_inputs(12, n_queries=70, n_keys=300, head_dim=16, dtype=dtype)
    products = np.einsum("...id,...jd->...ij", q.astype(np.float64), k.astype(np.float64))
    scales = [size, -size, size / 2]
    curve = at.entropy_curve(q, k, scales)
    for index, scale in enumerate(scales):
        top = (scale * products).max(-1)
        rows = at.attention_statistics(q, k, scale=scale, statistics=("lse", "entropy", "max_weight"))
        np.testing.assert_allclose(rows.lse, top, rtol=1e-5)
        np.testing.assert_allclose(curve.lse[..., index], top, rtol=1e-5)
        np.testing.assert_allclose(curve.mean[..., index], top / scale, rtol=1e-5)
        assert not rows.entropy.any()
        assert not curve.entropy[..., index].any()
        np.testing.assert_allclose(rows.max_weight, 1)


@pytest.mark.parametrize(("dtype", "size"), SIZES)
def test_neighbours_keep_their_bits(dtype: str, size: float) -> None:
    q, k, v = random_inputs(13, n_queries=70, n_keys=300, head_dim=16, dtype=dtype)
    scale = np.where(np.arange(70) % 3 == 1, size, 0.25)
    names = ("lse", "entropy")
    mixed = at.attention_statistics(q, k, v, scale=scale, statistics=names)
    alone = at.attention_statistics(q, k, v, scale=0.25, statistics=names)
    for name in ("output", *names):
        ordinary = np.arange(70) % 3 != 1
        np.testing.assert_array_equal(
            getattr(mixed, name)[:, ordinary], getattr(alone, name)[:, ordinary], err_msg=name
        )


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 1e4), ("float32", 1e6), ("float64", 1e12), ("float64", 1e13)]
)
def test_no_weight_is_above_one(dtype: str, size: float) -> None:
    # The largest score is rounded when it is subtracted, not when its weight is computed.
    for n_queries, n_keys in itertools.product((3, 70), (1, 5, 60)):
        q, k, _ = random_inputs(
            n_keys, n_queries=n_queries, n_keys=n_keys, head_dim=16, dtype=dtype, spread=size
        )
        for normalizer in ("softmax", "softpick", N.Softpick(0.5), N.ReLU("sum"), N.SquaredReLU("sum")):
            with case(n_queries, n_keys, normalizer):
                rows = at.attention_statistics(q, k, normalizer=normalizer, statistics=("max_weight",))
                assert rows.max_weight.max() <= 1
                if n_keys == 1:
                    assert rows.max_weight.max() > 0.999


POWERS = [N.ReLU("sum"), N.SquaredReLU("sum"), N.ReLU(), N.SquaredReLU()]


@pytest.mark.parametrize("n_queries", [3, 70])
@pytest.mark.parametrize("normalizer", POWERS, ids=repr)
@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("float32", 1e-30),
        ("float32", 1e-20),
        ("float32", 1e15),
        ("float32", 1e36),
        ("float64", 1e-250),
        ("float64", 1e250),
    ],
)
def test_relu_of_scores_of_any_size(dtype: str, size: float, normalizer: N.ReLU, n_queries: int) -> None:
    # Sums of the weights and of the weighted values may overflow the type though the output fits.
    q, k, v = random_inputs(14, n_queries=n_queries, n_keys=700, head_dim=16, value_dim=5, dtype="float64")
    power = 2 if isinstance(normalizer, N.SquaredReLU) else 1
    divided = normalizer.divide == "sum"
    most = 300 if dtype == "float64" else 36
    values = v if divided else v * 10.0 ** -np.clip(power * np.log10(size), -most, most)
    names = ("entropy", "concentration", "max_weight", "support") if divided else ("support",)
    seen = np.random.default_rng(15).random((n_queries, 700)) < 0.7
    for mask in (None, seen):
        rows = at.attention_statistics(
            *(each.astype(dtype) for each in (q, k, values)),
            scale=size,
            normalizer=normalizer,
            statistics=names,
            attn_mask=mask,
        )
        q_, k_ = q.astype(dtype).astype("f8"), k.astype(dtype).astype("f8")
        scores = np.maximum(q_ @ k_.swapaxes(-1, -2), 0) * (1 if mask is None else mask)
        weights = scores**power
        shares = weights / weights.sum(-1, keepdims=True)
        np.testing.assert_array_equal(rows.support, (weights > 0).sum(-1))
        if divided:
            wanted = shares @ v.astype(dtype)
            np.testing.assert_allclose(rows.output, wanted, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(rows.max_weight, shares.max(-1), rtol=1e-5)
            np.testing.assert_allclose(rows.concentration, (shares**2).sum(-1), rtol=1e-5)
            entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(-1)
            np.testing.assert_allclose(rows.entropy, entropy, rtol=1e-5)
        else:
            n = 700 if mask is None else mask.sum(-1)[:, None]
            factor = np.longdouble(size) ** power
            wanted = (weights / n).astype(np.longdouble) @ values.astype(dtype).astype(np.longdouble) * factor
            assert np.isfinite(np.asarray(wanted, dtype)).all()
            shrunk = [(x / np.abs(wanted).max()).astype("f8") for x in (rows.output, wanted)]
            np.testing.assert_allclose(*shrunk, atol=1e-5)


@pytest.mark.parametrize("normalizer", POWERS[:2], ids=repr)
def test_relu_rows_whose_tiles_differ_in_size(normalizer: N.ReLU) -> None:
    # The unit of a row follows its largest score from nothing to 1e30, and neighbouring rows differ.
    power = 2 if isinstance(normalizer, N.SquaredReLU) else 1
    rng = np.random.default_rng(16)
    sizes = np.repeat(10.0 ** np.array([-30, -3, 2, 12, 30.0]), 200)
    k = (rng.standard_normal(1000) * sizes)[:, None]
    k[:200] = -1  # nothing positive in the first tile
    q = np.array([1.0, -1e-3, 1e-8] * 25)[:, None]
    v = rng.standard_normal((1000, 3))
    for count in (1000, 700, 500, 300):
        rows = at.attention_statistics(
            *(q.astype("f4"), k[:count].astype("f4"), v[:count].astype("f4")),
            scale=1.0,
            normalizer=normalizer,
            statistics=("entropy", "max_weight"),
        )
        weights = np.maximum(q.astype("f4").astype("f8") @ k[:count].astype("f4").astype("f8").T, 0) ** power
        total = weights.sum(-1, keepdims=True)
        shares = weights / np.where(total == 0, 1, total)
        np.testing.assert_allclose(rows.output, shares @ v[:count].astype("f4"), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(rows.max_weight, shares.max(-1), rtol=1e-5)
        entropy = -(shares * np.log(np.where(shares > 0, shares, 1))).sum(-1)
        np.testing.assert_allclose(rows.entropy, entropy, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "size"), [("float32", 1.0), ("float64", 1.0), ("float32", 1e9), ("float64", 1e30)]
)
def test_equal_keys_share_the_row(dtype: str, size: float) -> None:
    """Equal keys have equal scores at any place: each is summed in the same order."""
    for n_queries, head_dim in itertools.product((1, 4, 8, 9, 70), (1, 12, 33, 64)):
        q, k, v = random_inputs(13, n_queries=n_queries, n_keys=31, head_dim=head_dim, dtype=dtype)
        k = np.repeat(k[:, :1], 31, axis=1)
        rows = at.attention_statistics(q, k, v, scale=size, statistics=("entropy", "argmax", "support"))
        with case(n_queries, head_dim):
            assert (rows.argmax == 0).all()
            np.testing.assert_allclose(rows.entropy, np.log(31), rtol=1e-6)
            mean = np.broadcast_to(v.mean(1, keepdims=True), rows.output.shape)
            np.testing.assert_allclose(rows.output, mean, atol=1e-6)


@rows_are_lost
@pytest.mark.parametrize("n_queries", [3, 70])
@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e30), ("float64", 1e300)])
@pytest.mark.parametrize("normalizer", ["softmax", "sparsemax", N.Entmax(1.5), N.TopK(1)], ids=repr)
def test_a_row_below_the_type_is_nan(normalizer: object, dtype: str, size: float, n_queries: int) -> None:
    """Products fit the type, scores do not: the row is NaN, not that of no keys; other rows are right."""
    q, k, v = random_inputs(16, n_queries=n_queries, n_keys=30, head_dim=8, dtype=dtype)
    k = np.abs(k) + 1
    q[:, 1] = -size
    scale = np.where(np.arange(n_queries) == 1, 1e12, 0.25)
    names = ("entropy", "mean_score", "score_variance", "concentration", "max_weight")
    rows = at.attention_statistics(q, k, v, scale=scale, statistics=names, normalizer=normalizer)
    alone = at.attention_statistics(q, k, v, scale=0.25, statistics=names, normalizer=normalizer)
    others = np.arange(n_queries) != 1
    for name in ("output", *names):
        found = getattr(rows, name)
        assert np.isnan(found[:, 1]).all(), name
        np.testing.assert_array_equal(found[:, others], getattr(alone, name)[:, others], err_msg=name)


_VERBS = {
    "attention": lambda q, k, v, **options: at.attention(q, k, v, **options),
    "attention_entropy": lambda q, k, v, **options: at.attention_entropy(q, k, **options),
    "attention_statistics": lambda q, k, v, **options: at.attention_statistics(q, k, **options).lse,
    "attention_state": lambda q, k, v, **options: at.attention_state(q, k, v, **options).output,
    "attention_weights": lambda q, k, v, **options: at.attention_weights(q, k, **options),
    "attention_received": lambda q, k, v, **options: at.attention_received(q, k, **options),
    "entropy_curve": lambda q, k, v, **options: at.entropy_curve(q, k, [1.0], **options).entropy,
}


@pytest.mark.parametrize("verb", _VERBS)
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"window": (2, 1)}], ids=repr)
def test_scores_beyond_the_type_are_told_once(verb: str, options: dict[str, object]) -> None:
    q, k, v = random_inputs(31, n_queries=5, n_keys=5, head_dim=4)
    with pytest.warns(UserWarning, match=r"exceed the largest number of float32, 3\.4e\+38") as told:
        assert np.isnan(_VERBS[verb](q * np.float32(1e30), k * np.float32(1e30), v, **options)).any()
    assert [each.filename for each in told] == [__file__]
    q[0, 0, 0] = np.nan  # a NaN that the caller gave: no warning
    assert np.isnan(_VERBS[verb](q, k, v, **options)).any()


@pytest.mark.parametrize("verb", _VERBS)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_mask_that_loses_rows_is_told(verb: str, bad: float) -> None:
    q, k, v = random_inputs(31, n_queries=5, n_keys=5, head_dim=4)
    mask = np.zeros((5, 5), np.float32)
    mask[1, 2] = bad
    with pytest.warns(UserWarning, match=r"attn_mask holds NaN or \+inf") as told:
        assert np.isnan(_VERBS[verb](q, k, v, attn_mask=mask)).any()
    assert len(told) == 1


@pytest.mark.parametrize("size", [8192.0, -8192.0, -110200.0])
def test_a_constant_in_all_scores_costs_a_weight_what_rounding_them_does(size: float) -> None:
    """Scores are exact, their multiples by log2(e) are rounded; the weights still sum to 1."""
    steps = np.round(np.random.default_rng(0).standard_normal(64) * 8) / 8
    q, k = np.ones((1, 2)), np.stack([np.full(64, size), steps], axis=-1)
    want = np.exp(steps - steps.max()) / np.exp(steps - steps.max()).sum()
    found = at.attention_weights(q.astype(np.float32), k.astype(np.float32), scale=1.0)[0].astype(np.float64)
    error = np.abs(found / want - 1).max()
    assert error <= np.finfo(np.float32).eps * abs(size)
    assert abs(size) != 8192 or error <= 4e-4
    np.testing.assert_allclose(found.sum(), 1, rtol=2e-7)
    np.testing.assert_allclose(at.attention_weights(q, k, scale=1.0)[0], want, rtol=3e-10)
    shifted = at.attention_weights(q[:, 1:].astype(np.float32), k[:, 1:].astype(np.float32), scale=1.0)[0]
    np.testing.assert_allclose(shifted, want, rtol=1e-6)
