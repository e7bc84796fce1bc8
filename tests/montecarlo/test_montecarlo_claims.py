# SPDX-License-Identifier: BSD-3-Clause
"""Claims that the experiments show, and no notebook: within 5 standard errors of the exact theory."""

from __future__ import annotations

import numpy as np
import pytest
from attnscale import laws, theory
from attnscale import montecarlo as mc

# A law of no table: it keeps the weight of a needle.
LOG_64 = laws.LogN(base=64)
LAWS = ["standard", "log_n", "natural_log_n"]


def sigmas(result, quantity=None):
    """Distance of the estimate from the exact value, in standard errors."""
    name = quantity or result.quantity
    return (result[name].value - result.exact()[name]) / result[name].standard_error


def assert_exact(result, *quantities):
    for quantity in quantities or (result.quantity,):
        distance = sigmas(result, quantity)
        assert (np.abs(distance) < 5).all(), (quantity, distance)


# ---- T1: variance of a dot product ----------------------------------------------------------------


def test_t1_variance_of_the_dot_product():
    result = mc.dot_product_variance(
        head_dim=[2, 64],
        distribution=["normal", "uniform", "truncated_normal", "laplace"],
        samples=400_000,
        rng=1,
    )
    assert_exact(result, "variance", "scaled_variance", "mean", "kurtosis")
    # q.k / sqrt(d) has variance 1, and 0.598676 with BERT's initialiser.
    np.testing.assert_allclose(result.exact()["scaled_variance"][1], [1, 1, 0.598676, 1], rtol=2e-6)
    assert (result["scaled_variance"].standard_error < 0.01 * result["scaled_variance"].value).all()


def test_t1_truncated_normal_has_variance_0_773741():
    x = mc.truncated_normal(2_000_000, rng=2)
    error = np.std(x**2) / np.sqrt(x.size)
    assert abs(np.mean(x**2) - 0.773741) < 5 * error
    assert error < 0.001


@pytest.mark.parametrize("mean", [0.5, (0.5, -1.0)])
def test_t1_means_add_to_the_variance(mean):
    result = mc.dot_product_variance(head_dim=16, mean=mean, std=0.5, samples=200_000, rng=3)
    assert_exact(result, "variance", "mean")


# ---- T10, T11: entropy against n ------------------------------------------------------------------


def test_t10_log_n_slows_the_growth_and_does_not_stop_it():
    """The table of the sphere model, d = 64."""
    table = [[5.7523, 5.7523, 1.2367], [7.8292, 7.4642, 1.1723], [9.9083, 9.0894, 1.1232]]
    result = mc.entropy_vs_length([512, 4096, 32768], law=LAWS, samples=500, rng=1)
    assert_exact(result, "entropy", "lse", "mean_score", "concentration")
    np.testing.assert_allclose(result.exact()["entropy"], table, atol=5e-5)
    assert (np.abs(result.value - table) < 5 * result.standard_error + 6e-5).all()
    standard, log_n, _ = result.value.T
    assert (np.diff(log_n) > 1).all()
    assert (np.diff(log_n) < np.diff(standard)).all()


def test_t10_the_gaussian_model():
    table = [[5.7419, 5.7419, 1.1315], [7.8182, 7.4308, 1.0050], [9.8973, 9.0094, 0.9009]]
    result = mc.entropy_vs_length([512, 4096, 32768], law=LAWS, model="gaussian", samples=2000, rng=1)
    assert_exact(result, "entropy", "lse", "mean_score", "concentration")
    np.testing.assert_allclose(result.exact()["entropy"], table, atol=5e-5)


@pytest.mark.parametrize("model", ["sphere", "gaussian"])
def test_t11_theory_and_monte_carlo_agree_over_n_d_and_beta(model):
    for head_dim in (2, 3, 16, 128):
        scales = [beta / np.sqrt(head_dim) for beta in (0.1, 1.0, 3.0, 10.0)]
        result = mc.entropy_vs_length(
            [1, 2, 3, 17, 300], law=scales, head_dim=head_dim, model=model, samples=4000, rng=head_dim
        )
        for quantity in ("entropy", "lse", "mean_score", "concentration"):
            gap = np.abs(result[quantity].value - result.exact()[quantity])
            # Rounding, where nothing varies.
            assert (gap < 5 * result[quantity].standard_error + 1e-6).all(), (head_dim, quantity)


# ---- T14: natural-log scaling ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "table"), [("gaussian", [0.4719, 0.4279, 0.3930]), ("sphere", [0.5059, 0.4802, 0.4625])]
)
def test_t14_the_jacobian_decays_slowly_under_natural_log_scaling(model, table):
    n = [512, 4096, 32768]
    result = mc.entropy_vs_length(n, law="natural_log_n", model=model, samples=1500, rng=2)
    trace, error = 1 - result["concentration"].value, result["concentration"].standard_error
    assert (np.abs(trace - table) < 5 * error + 6e-5).all()
    assert_exact(result, "concentration")


# ---- T16: a needle --------------------------------------------------------------------------------


def test_t16_dilution_of_a_needle():
    n = [64, 128, 256, 512, 1024]
    result = mc.needle_dilution(n, law=["standard", LOG_64], cosine=0.578386, samples=3000, rng=1)
    standard, log_64 = result.value.T
    bound = 5 * result.standard_error + 6e-4
    assert (np.abs(standard - [0.500, 0.331, 0.197, 0.109, 0.057]) < bound[:, 0]).all()
    assert (np.abs(log_64 - [0.5000, 0.4727, 0.4402, 0.4025, 0.3604]) < bound[:, 1]).all()
    assert_exact(result, "needle_weight")
    found = np.abs(result["needle_is_top"].value - result.exact()["needle_is_top"])
    assert (found < 5 * result["needle_is_top"].standard_error + 1e-3).all()


def test_t16_the_invariant_law_keeps_the_needle():
    n = 1024
    beta = theory.invariant_beta(n, n0=64, head_dim=64)
    result = mc.needle_dilution(n, law=beta / 8, cosine=0.578386, samples=3000, rng=1)
    assert abs(result.value - 0.936) < 5 * result.standard_error + 6e-4
    assert theory.needle_weight(n, cosine=0.578386, beta=beta) == pytest.approx(0.936, abs=5e-4)


# ---- T17: averages --------------------------------------------------------------------------------


def test_t17_sharper_weights_average_worse():
    result = mc.averaging_error([512, 4096], law=LAWS, samples=10_000, rng=1)
    assert_exact(result, "error_variance", "concentration")
    standard, log_n, natural = result["concentration"].value.T
    # Under 1/sqrt(d) the variance goes as 1/n, under natural-log scaling it does not fall.
    assert standard[1] / standard[0] == pytest.approx(1 / 8, rel=0.05)
    assert log_n[1] > standard[1]
    assert natural[1] > 0.4


# ---- T20: projections -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gaussian", "sign", "sparse"])
def test_t20_distortion_falls_as_one_over_sqrt_k_and_keeps_to_the_bound(kind):
    k = [128, 512, 2048]
    result = mc.jl_distortion(n=100, dim=1000, k=k, kind=kind, samples=10, rng=1)
    ratios = result.value[:-1] / result.value[1:]
    assert ((ratios > 1.6) & (ratios < 2.4)).all()
    assert (np.abs(result["mean_ratio"].value - 1) < 5 * result["mean_ratio"].standard_error + 1e-6).all()
    bound = int(np.ceil(theory.jl_min_dim(100, eps=0.5, failure_probability=0.01)))
    kept = mc.jl_distortion(n=100, dim=1000, k=bound, kind=kind, eps=0.5, samples=20, rng=2)
    assert kept["success"].value == 1


# ---- T24: sparse is not low rank ------------------------------------------------------------------


def test_t24_sparse_is_not_low_rank():
    """Rows with one effective key make a matrix of high rank, rows with all keys one of low rank."""
    betas = [0.125, 0.5, 1, 2, 4, 16]
    result = mc.rank_and_sparsity(256, law=[beta / 8 for beta in betas], samples=3, rng=1)
    rank, keys = result["effective_rank"].value, result["effective_keys"].value
    assert (np.diff(keys) < 0).all()
    assert keys[0] > 250
    assert rank[0] < 50
    assert keys[-1] < 2
    assert rank[-1] > 100
    # The rank rises while rows sharpen, and falls a little where queries share their one key.
    assert rank.argmax() in (2, 3, 4)
