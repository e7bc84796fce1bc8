# SPDX-License-Identifier: BSD-3-Clause
"""Experiments against their plain NumPy twins, and refusals."""

from __future__ import annotations

import attnscale as at
import numpy as np
import pytest
from attnscale import montecarlo as mc
from attnscale import reference
from scipy import special

HEADS = tuple(np.random.default_rng(11).standard_normal((4, 24, 8)).astype(np.float32))


@pytest.fixture
def plain_rng():
    """The numbers of the twin: the same for a test whichever tests run beside it."""
    return np.random.default_rng(11)


def assert_within(result, expected, quantity=None, *, sigmas=5.0, bias=0.0):
    """The estimate is within its error of the expectation."""
    estimate = result[quantity or result.quantity]
    distance = np.abs(estimate.value - np.asarray(expected))
    bound = sigmas * np.asarray(estimate.standard_error) + bias
    assert (distance <= bound).all(), (estimate.value, expected, estimate.standard_error)
    assert np.all(np.asarray(estimate.standard_error) < 0.2 * np.abs(np.asarray(expected)) + 0.05)


def assert_agree(estimate, values, index=()):
    """Two independent estimates, each with its error; `index`: of one case."""
    value, spread = (np.asarray(x)[index] for x in (estimate.value, estimate.standard_error))
    error = values.std(ddof=1) / np.sqrt(len(values))
    assert abs(value - values.mean()) <= 5 * np.hypot(spread, error)


# ---- entropy_vs_length ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "correlation"), [("sphere", None), ("gaussian", None), ("correlated", 0.6), ("correlated", 0.0)]
)
def test_rows_agree_with_written_out_keys(model, correlation, plain_rng):
    n, d, beta = 50, 16, 2.5
    options = {} if correlation is None else {"correlation": correlation}
    result = mc.entropy_vs_length(
        n, head_dim=d, model=model, law=beta / np.sqrt(d), samples=4000, rng=1, **options
    )
    plain = reference.random_rows(model, n, d, beta, 4000, plain_rng, **options)
    for name in ("entropy", "concentration", "max_weight"):
        assert_agree(result[name], getattr(plain, name))


def test_a_shared_part_of_keys_moves_no_weight():
    """The common part of the keys adds the same to all scores: they spread as sqrt(1 - c)."""
    options = {"head_dim": 16, "model": "correlated", "samples": 4000}
    shared = mc.entropy_vs_length(50, law=2.0, correlation=0.75, rng=1, **options)
    alone = mc.entropy_vs_length(50, law=1.0, correlation=0.0, rng=2, **options)
    error = np.hypot(shared.standard_error, alone.standard_error)
    assert abs(shared.value - alone.value) < 5 * error


def test_real_heads_with_all_keys_are_attention_itself():
    q, k = HEADS[:2], HEADS[2:]
    q, k = np.stack(q), np.stack(k)
    result = mc.entropy_vs_length(24, model=(q, k), law=["standard", 0.9], samples=3000, rng=0)
    for index, scale in enumerate((None, 0.9)):
        expected = at.attention_entropy(q, k, scale=scale).mean()
        assert abs(result.value[index] - expected) < 5 * result.standard_error[index]
    assert result.parameters["head_dim"] == 8


def test_real_heads_of_fewer_keys(plain_rng):
    """n of 24 keys without replacement, against NumPy's choice of them."""
    q, k = np.stack(HEADS[:2]), np.stack(HEADS[2:])
    result = mc.entropy_vs_length(6, model=(q, k), samples=3000, rng=0)
    values = []
    for _ in range(3000):
        head, token = plain_rng.integers(2), plain_rng.integers(24)
        keys = k[head, plain_rng.choice(24, 6, replace=False)]
        values.append(at.attention_entropy(q[head, token][None], keys)[0])
    assert_agree(result["entropy"], np.array(values, np.float64))


def test_grouped_heads_share_keys():
    q, k = np.stack(HEADS), np.stack(HEADS[:2])
    grouped = mc.entropy_vs_length(10, model=(q, k), samples=50, rng=0)
    repeated = mc.entropy_vs_length(10, model=(q, k.repeat(2, axis=0)), samples=50, rng=0)
    assert grouped.value == repeated.value


def test_a_number_is_the_scale_itself_and_laws_take_the_n_of_the_experiment():
    laws = ["log_n", at.laws.LogN(base=64), float(np.log(40) / np.log(512) / np.sqrt(8))]
    result = mc.entropy_vs_length(40, head_dim=8, law=[laws[1], laws[2]], samples=10, rng=0)
    assert result.axes["law"][0] == "log_n(base=64)"
    no_floor = mc.entropy_vs_length(1024, head_dim=8, law=["log_n", 1.0 / np.sqrt(8)], samples=10, rng=0)
    # ln 1024 / ln 512 = 10/9, so beta = 1 is flatter.
    assert (no_floor.value[1] > no_floor.value[0]).all()
    same = mc.entropy_vs_length(1024, head_dim=8, law=[10 / 9 / np.sqrt(8)], samples=10, rng=0)
    np.testing.assert_allclose(same.value[0], no_floor.value[0], rtol=1e-12)


def test_laws_of_positions_take_the_last_query():
    """n keys are seen by the query at position n - 1."""
    law = at.laws.get("llama4_temperature")
    beta = law.multiplier(np.nan, 64, position=20_000 - 1)
    assert beta > 1
    result = mc.entropy_vs_length(20_000, law=[law, beta / 8], samples=3, rng=0)
    assert result.value[0] == pytest.approx(result.value[1], rel=1e-12)


def test_one_key():
    result = mc.entropy_vs_length(1, law=["standard", "unscaled"], samples=5, rng=0)
    # The weights are exponentials in float32.
    np.testing.assert_allclose(result.value, 0, atol=1e-7)
    np.testing.assert_allclose(result["max_weight"].value, 1, atol=1e-7)


# ---- saturation -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "factor"), [("standard", 0.25), ("unscaled", 1.0), (0.5, 0.5)])
def test_saturation_agrees_with_written_out_jacobians(scale, factor, plain_rng):
    n, d, rows = 30, 16, 3000
    result = mc.softmax_saturation(head_dim=d, n=n, scale=scale, samples=rows, rng=3)
    plain = reference.random_rows("correlated", n, d, factor * np.sqrt(d), rows, plain_rng)
    assert_agree(result["saturated"], (plain.max_weight > 0.99).astype(float))
    assert_agree(result["jacobian_trace"], 1 - plain.concentration)
    assert_agree(result["jacobian_norm"], plain.jacobian_norm)
    assert_agree(result["gradient_norm"], factor * plain.jacobian_norm)
    bound = np.minimum(0.5, 2 * plain.max_weight * (1 - plain.max_weight))
    assert_agree(result["spectral_bound"], bound)
    assert (plain.jacobian_top <= bound + 1e-12).all()
    assert (plain.jacobian_top >= bound / 2 - 1e-12).all()


@pytest.mark.parametrize(("d", "n"), [(4096, 64), (65536, 8), (4, 1)])
def test_norms_of_rows_that_are_nearly_one_hot(d, n):
    """The rest of the norm beside one key with all weight is not rounding."""
    rows = 20_000
    result = mc.softmax_saturation(head_dim=d, n=n, law="unscaled", samples=rows, rng=3)
    found = result["jacobian_norm"]
    rng = np.random.default_rng(1)
    weights = special.softmax(np.sqrt(rng.chisquare(d, (rows, 1))) * rng.standard_normal((rows, n)), axis=-1)
    squares, cubes = (weights**2).sum(-1), (weights**3).sum(-1)
    norm = np.sqrt(np.maximum(squares - 2 * cubes + squares**2, 0))
    error = np.hypot(found.standard_error, norm.std() / np.sqrt(rows))
    assert abs(found.value - norm.mean()) < 5 * error + 1e-7


# ---- needle, averages, cosine ---------------------------------------------------------------------


def test_needle_agrees_with_written_out_keys(plain_rng):
    n, d, cosine = 60, 16, 0.6
    result = mc.needle_dilution(n, head_dim=d, cosine=cosine, law=0.7, samples=4000, rng=2)
    plain = reference.random_rows("sphere", n, d, 0.7 * np.sqrt(d), 4000, plain_rng, cosine=cosine)
    for name in ("needle_weight", "needle_is_top", "entropy"):
        assert_agree(result[name], getattr(plain, name).astype(float))
    retrieval = mc.head_dimension(d, n=n, cosine=cosine, law=0.7, samples=4000, rng=2)
    assert_agree(retrieval["accuracy"], plain.needle_is_top.astype(float))


def test_retrieval_from_one_and_from_two_keys():
    result = mc.head_dimension(8, n=[1, 2], cosine=0.0, samples=2000, rng=1)
    np.testing.assert_allclose(result.exact()["accuracy"], [1, 0.5], rtol=1e-12)
    assert result.value[0] == 1
    assert abs(result.value[1] - 0.5) < 5 * result.standard_error[1]


def test_largest_cosine_agrees_with_written_out_keys(plain_rng):
    result = mc.max_cosine(60, 16, samples=4000, rng=2)
    assert_agree(result["max_cosine"], reference.random_cosines(60, 16, 4000, plain_rng))


def test_averaging_error_is_the_concentration(plain_rng):
    result = mc.averaging_error(50, head_dim=16, law=["standard", "natural_log_n"], samples=20000, rng=1)
    gap = np.abs(result.value - result["concentration"].value)
    assert (gap < 5 * result.standard_error).all()
    plain = reference.random_rows("sphere", 50, 16, 1.0, 4000, plain_rng)
    assert_agree(result["error_variance"], plain.average**2, 0)
    # Equal weights give 1 / n.
    flat = mc.averaging_error(50, head_dim=16, law=0.0, samples=20000, rng=1)
    assert flat["concentration"].value == pytest.approx(1 / 50, rel=1e-9)
    assert_within(flat, 1 / 50)


def test_rank_of_written_out_matrices(plain_rng):
    result = mc.rank_and_sparsity(20, law=[1.5, 0.0], head_dim=4, samples=400, rng=1)
    plain = []
    for _ in range(400):
        q, k = plain_rng.standard_normal((2, 20, 4))
        q, k = (2 * each / np.linalg.norm(each, axis=1, keepdims=True) for each in (q, k))
        plain.append(reference.weight_ranks(q, k, 1.5))
    for name in ("effective_rank", "stable_rank", "effective_keys", "concentration"):
        assert_agree(result[name], np.array([getattr(each, name) for each in plain]), 0)
    # Equal weights: one singular value.
    assert result["effective_rank"].value[1] == pytest.approx(1, abs=1e-9)
    assert result["effective_keys"].value[1] == pytest.approx(20)


# ---- dot products and projections -----------------------------------------------------------------


def test_dot_products_of_arrays_agree_with_all_pairs():
    q, k = np.stack(HEADS[:2]), np.stack(HEADS[2:])
    result = mc.dot_product_variance(query=q, key=k, samples=60_000, rng=0)
    assert result.axes == {"head": (0, 1)}
    pairs = np.einsum("hid,hjd->hij", q, k).reshape(2, -1).astype(np.float64)
    assert_within(result, pairs.var(axis=1))
    assert_within(result, pairs.var(axis=1) / 8, "scaled_variance")
    assert (np.abs(result["mean"].value - pairs.mean(axis=1)) < 5 * result["mean"].standard_error).all()
    centred = pairs - pairs.mean(axis=1, keepdims=True)
    kurtosis = (centred**4).mean(axis=1) / pairs.var(axis=1) ** 2
    assert_within(result, kurtosis, "kurtosis")
    one = mc.dot_product_variance(query=q[0], key=k[0], samples=640, rng=0)
    assert type(one.value) is float


def test_a_constant_dot_product_has_no_variance():
    ones = np.ones((5, 4))
    result = mc.dot_product_variance(query=ones, key=ones, samples=640, rng=0)
    assert result.value == 0
    assert result["mean"].value == 4
    assert np.isnan(result["kurtosis"].value)


def test_moments_of_arrays_far_from_zero_are_right_or_nan(plain_rng):
    spread = plain_rng.standard_normal((2, 400, 16))
    for offset in (0.0, 1e2, 1e4, 1e8):
        query, key = spread + offset
        result = mc.dot_product_variance(query=query, key=key, samples=6400, rng=0)
        truth = np.var(spread[0] @ key.T + (offset * (key - offset)).sum(axis=-1))
        assert np.isnan(result.value) or abs(result.value / truth - 1) < 0.1
        assert np.isnan(result.value) == (offset > 1e4)
        assert np.isnan(result.standard_error) == (offset > 1e2)


def test_distortion_agrees_with_all_pairs(plain_rng):
    kinds = ["gaussian", "sign", "sparse"]
    result = mc.jl_distortion(n=30, dim=200, k=40, kind=kinds, samples=60, rng=0)
    for index, kind in enumerate(kinds):
        ratios = np.array(
            [
                reference.projection_ratios(plain_rng.standard_normal((30, 200)), 40, kind, plain_rng)
                for _ in range(60)
            ]
        )
        change = np.abs(ratios - 1)
        plain = {
            "distortion": change.max(axis=1),
            "outside": (change > 0.5).mean(axis=1),
            "success": (change <= 0.5).all(axis=1).astype(float),
            "mean_ratio": ratios.mean(axis=1),
            "ratio_std": ratios.std(axis=1),
        }
        for name, values in plain.items():
            assert_agree(result[name], values, index)
    # The variance of the ratio of one pair is 2/k for normal entries.
    assert abs(result["ratio_std"].value[0] - np.sqrt(2 / 40)) < 0.02


@pytest.mark.parametrize(("unit", "offset"), [(1, 1e6), (1, -1e8), (1e20, 0), (1e-25, 0), (1e300, 1e303)])
def test_distortion_of_points_has_no_unit_and_no_origin(plain_rng, unit, offset):
    points = plain_rng.standard_normal((30, 50))
    wanted, found = (mc.jl_distortion(x, k=20, samples=3, rng=0) for x in (points, points * unit + offset))
    assert wanted.value > 0.5
    for name in ("distortion", "outside", "success", "mean_ratio", "ratio_std"):
        np.testing.assert_allclose(found[name].value, wanted[name].value, rtol=1e-5)


def test_given_points_and_tolerances(plain_rng):
    points = plain_rng.standard_normal((12, 50))
    result = mc.jl_distortion(points, k=[10, 1000], eps=[0.1, 0.9], samples=5, rng=0)
    assert result.axes == {"k": (10, 1000), "eps": (0.1, 0.9)}
    np.testing.assert_array_equal(result.value[:, 0], result.value[:, 1])
    assert (result["outside"].value[:, 0] >= result["outside"].value[:, 1]).all()
    np.testing.assert_array_equal(result["success"].value[1, 1], 1)
    assert result["success"].value[0, 0] == 0


def test_an_experiment_needs_no_argument():
    assert mc.entropy_vs_length(samples=1, rng=0).axes == {"n": (512, 4096, 32768)}
    assert mc.dot_product_variance(samples=64, rng=0).axes == {"head_dim": (16, 64, 256)}
    assert mc.jl_distortion(n=4, k=2, samples=1, rng=0).parameters["dim"] == 1000


# ---- sparsity --------------------------------------------------------------------------------------


def support_of(scores, normalizer):
    keys = np.eye(scores.shape[-1])
    p = reference.attention_weights(scores, keys, scale=1.0, normalizer=normalizer)
    return (p > 1e-12).sum(-1), -(p * np.log(np.where(p > 0, p, 1))).sum(-1)


@pytest.mark.parametrize("model", ["sphere", "gaussian"])
@pytest.mark.parametrize("normalizer", ["sparsemax", "entmax15"])
def test_sparse_rows_agree_with_written_out_keys(model, normalizer):
    options = {"law": 1.3 / 4, "normalizer": normalizer, "head_dim": 16, "model": model}
    result = mc.sparsity(50, **options, samples=4000, rng=1)
    scores = 1.3 * reference.random_scores(model, 50, 16, 4000, np.random.default_rng(2))
    for name, values in zip(("support", "entropy"), support_of(scores, normalizer), strict=True):
        assert_agree(result[name], values)


def test_all_normalizers_see_the_same_rows():
    """Two names of one normalizer; and a softmax uses every key."""
    rules = ["sparsemax", at.normalizers.Entmax(2.0), "softmax", at.normalizers.TopK(3)]
    result = mc.sparsity(20, normalizer=rules, samples=30, rng=0)
    assert result.axes["normalizer"] == ("sparsemax", "Entmax(alpha=2.0)", "softmax", "TopK(k=3)")
    assert result.value[0] == result.value[1]
    assert result.value[2:].tolist() == [20, 3]
    alone = mc.sparsity(20, normalizer="softmax", samples=30, rng=0)
    assert alone["entropy"].value == result["entropy"].value[2]
    assert result["max_weight"].value[0] > result["max_weight"].value[2]


def test_each_law_has_its_own_scale():
    """A law gives the same numbers alone and beside others."""
    laws = ["unscaled", "standard", 0.0]
    result = mc.sparsity(20, law=laws, samples=30, rng=0)
    for law, value in zip(laws, result.value, strict=True):
        assert mc.sparsity(20, law=law, samples=30, rng=0).value == value
    assert result.value[0] < result.value[1] < result.value[2] == 20


def test_a_sparse_row_of_one_key():
    result = mc.sparsity(1, law=["standard", "unscaled"], samples=5, rng=0)
    np.testing.assert_array_equal(result.value, 1)
    np.testing.assert_array_equal(result["max_weight"].value, 1)
