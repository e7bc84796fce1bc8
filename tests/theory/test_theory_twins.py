# SPDX-License-Identifier: BSD-3-Clause
"""Every function of the theory that has a twin of its signature, and what the functions refuse."""

from __future__ import annotations

import numpy as np
import pytest
from attnscale import reference, theory

DIMS = (2, 3, 16, 64)
TWINS = [
    *[
        ("self_weight", (n,), {"gamma": gamma, "correlation": rho}, {})
        for n, gamma, rho in ((2, 1.0, 0.3), (50, 2.0, 0.5), (50, 0.0, 0.9), (50, 3.0, -0.01))
    ],
    *[("critical_gamma", (rho,), {}, {"rtol": 1e-14}) for rho in (0.3, 0.5, 0.9, -0.01)],
    *[
        (
            "token_correlation",
            (30,),
            {"gamma": g, "correlation": 0.45, "layers": n, "residual": r},
            {"rtol": 1e-9},
        )
        for g, r in ((0.5, 0.0), (2.0, 0.0), (2.2, 0.7), (4.0, 0.0))
        for n in (0, 1, 3)
    ],
    *[
        ("needle_weight_bound", (n,), {"gap": gap, "beta": beta}, {})
        for n, gap, beta in ((1, 2.0, 0.0), (64, 4.6, 2.0), (32768, 4.6, 4.6))
    ],
    *[
        ("averaging_excess_bound", (n, beta), {}, {"rtol": 1e-9})
        for n, beta in ((2, 0.0), (65, 1.0), (32769, 2.3))
    ],
    *[
        ("shared_excess_bound", (n,), {"gap": gap}, {"rtol": 1e-6})
        for n, gap in ((1, 2.0), (64, 4.6), (32768, 4.6))
    ],
    *[
        ("critical_limit_entropy", (t,), {"head_dim": d}, {"rtol": 0, "atol": 2e-5})
        for t, d in ((0.01, 2), (1.0, 4), (2.0, 8), (0.2, 3), (3.0, 5), (20.0, 64))
    ],
    *[
        ("critical_limit_beta", (n, t), {"head_dim": d}, {"rtol": 1e-6})
        for n, t, d in ((512, 1.0, 2), (20_000, 1.0, 4), (32768, 20.0, 64))
    ],
    *[
        ("expected_support", (n, beta), {"alpha": 2.0}, {"rtol": 2e-3})
        for n, beta in ((2, 0.7), (5, 1.0), (64, 1.0), (300, 2.5), (300, 0.3))
    ],
    *[
        ("expected_support", (n, beta), {"alpha": alpha}, {"rtol": 6e-3})
        for n, beta, alpha in (
            (64, 1.0, 1.5),
            (64, 1.0, 3.0),
            (300, 2.5, 1.25),
            (300, 0.6, 4.0),
            (2, 1.0, 1.5),
        )
    ],
    *[
        ("support_probabilities", (n, beta), {"alpha": alpha, "keys": 12}, {"rtol": 0, "atol": 2e-3})
        for n, beta, alpha in ((3, 1.0, 2.0), (64, 1.0, 2.0), (64, 1.0, 1.5), (300, 1.5, 3.0))
    ],
    *[
        ("support_distance_bound", point, {}, {"rtol": 1e-3})
        for point in ((3, 0.5), (1000, 3.09), (1e12, 1.2), (1e12, 30.0))
    ],
    *[
        ("support_limit", (ratio,), {"alpha": alpha}, {"rtol": 1e-2})
        for ratio, alpha in ((0.3, 1.5), (1.0, 1.25), (3.0, 1.5), (3.0, 2.0), (5.0, 3.0), (2.0, 7.0))
    ],
    *[
        ("score_cumulants", (np.random.default_rng(0).exponential(size=(3, 4, 50)),), {"order": n}, {})
        for n in (2, 3, 4)
    ],
    *[
        ("least_entropy", (n, spread), {}, {"rtol": 0})
        for n in (1, 2, 3, 100, 512)
        for spread in (0, 1e-9, 1e-4, 0.5, 3.0, 9.0, 100.0, 800.0)
    ],
    *[
        ("top_gap_probability", point, {}, {"rtol": 2e-3})
        for point in ((2, 0.5), (64, 0.1), (64, 2.0), (4000, 0.01))
    ],
    *[("expected_max_cosine", (100, d), {}, {"rtol": 0, "atol": 2e-5}) for d in DIMS],
    *[
        ("sphere_entropy_deficit", (scale, d), {}, {"rtol": 1e-6})
        for d in DIMS
        for scale in (0.01, 1 / np.sqrt(d), 1.0)
    ],
]


@pytest.mark.parametrize(("name", "arguments", "options", "tolerance"), TWINS)
def test_functions_are_their_twins(name, arguments, options, tolerance):
    found, twin = (getattr(room, name)(*arguments, **options) for room in (theory, reference))
    assert np.shape(found) == np.shape(twin)
    np.testing.assert_allclose(found, twin, **{"rtol": 1e-12, "atol": 1e-12, **tolerance})


@pytest.mark.parametrize("d", DIMS)
@pytest.mark.parametrize(
    ("n", "beta", "model"), [(2, 0.3, "sphere"), (512, 1.0, "sphere"), (512, 3.0, "gaussian")]
)
def test_expected_statistics_are_their_twins(d, n, beta, model):
    """The definitions on dense grids, without the arrangements that make the package's exact."""
    rows, twins = (room.expected_statistics(n, beta, head_dim=d, model=model) for room in (theory, reference))
    for name in ("entropy", "lse", "concentration"):
        assert getattr(rows, name) == pytest.approx(getattr(twins, name), abs=1e-6)


REFUSED = [
    (lambda: theory.jl_min_dim(512, eps=0), "eps must be in (0, 1), got 0"),
    (lambda: theory.jl_min_dim(512, eps=[0.5, 1.0]), "eps must be in (0, 1), got 1"),
    (lambda: theory.jl_min_dim(0, eps=0.5), "n must be at least 1, got 0"),
    (lambda: theory.jl_min_dim(5, eps=0.5, failure_probability=1.5), "failure_probability must be in (0, 1)"),
    (lambda: theory.jl_min_dim(5, eps=1e-12), "eps must give a dimension that fits int64"),
    (lambda: theory.jl_rule_of_thumb(512, 0), "constant must be greater than 0, got 0"),
    (lambda: theory.equivalent_head_dim(512, head_dim=64, n0=1), "n0 must be greater than 1, got 1"),
    (lambda: theory.expected_max_cosine(10, 1), "head_dim must be at least 2, got 1"),
    (lambda: theory.max_cosine(10, 1), "head_dim must be at least 2, got 1"),
    (lambda: theory.needle_weight(10, cosine=1.1, beta=1), "cosine must be in [-1, 1], got 1.1"),
    (lambda: theory.needle_beta(10, cosine=0.5, weight=1), "weight must be in (0, 1), got 1"),
    (lambda: theory.condensed_entropy(1), "m must be in [0, 1), got 1"),
    (lambda: theory.condensed_concentration(-0.1), "m must be in [0, 1), got -0.1"),
    (lambda: theory.critical_beta(0.9), "n must be at least 1, got 0.9"),
    (lambda: theory.annealed_entropy(5, 1, model=[1.0]), "model must be one of 'sphere', 'gaussian'"),
    (lambda: theory.dot_product_variance(64, key_variance=-1), "key_variance must be at least 0, got -1"),
    (lambda: theory.dot_product_kurtosis(0), "head_dim must be at least 1, got 0"),
    (lambda: theory.truncated_normal_variance(0), "cut must be at least 1e-100, got 0"),
    (lambda: theory.weight_bounds(5, -1), "spread must be at least 0, got -1"),
    (lambda: theory.spectral_entropy_bound(5, np.nan), "norm must be finite, got nan"),
    (lambda: theory.jacobian_norm([0.5, 0.6]), "weights must add up to 1 in each row"),
    (lambda: theory.jacobian_trace([1.5, -0.5]), "weights must be at least 0, got -0.5"),
    (lambda: theory.jacobian_trace(1.0), "weights must be rows of at least one weight, got shape ()"),
    (lambda: theory.smooth_maximum([], 1), "x must be rows of at least one number, got shape (0,)"),
    (lambda: theory.smooth_maximum([1.0], 0), "sharpness must be greater than 0, got 0"),
    (lambda: theory.score_cumulants([1.0], order=5), "order must be one of (2, 3, 4), got 5"),
    (lambda: theory.score_cumulants(3.0), "scores must be rows of at least one score"),
    (lambda: theory.cumulant_beta(9, n0=3, cumulants=[0.0]), "cumulants must begin with a variance"),
    (lambda: theory.cumulant_beta(9, n0=512, cumulants=[0.1], on_infeasible="raise"), "no beta gives these"),
    (lambda: theory.score_spectrum([1.0], [[1.0]]), "query must be (..., n, head_dim) and not empty"),
    (lambda: theory.score_spectrum([[1.0]], [[1.0, 2.0]]), "must have the same head_dim, got 1 and 2"),
    (lambda: theory.spectrum_entropy(9, spectrum=[-1.0]), "spectrum must be at least 0, got -1"),
    (lambda: theory.spectrum_entropy(9, spectrum=1.0), "spectrum must have at least one eigenvalue"),
    (lambda: theory.sink_entropy(1.5, 1.0), "weight must be in [0, 1], got 1.5"),
    (lambda: theory.sink_entropy(0.5, -1.0), "rest must be at least 0, got -1"),
    (lambda: theory.sink_entropy([0.5, 0.5], [1.0] * 3), "the shapes must broadcast, got weight"),
    (lambda: theory.sink_weight(0.5, n=1, n0=8), "n must be at least 2, got 1"),
    (lambda: theory.sink_weight(0.5, n=8, n0=1), "n0 must be at least 2, got 1"),
    (
        lambda: theory.softcap_for_entropy(9, entropy=9, on_infeasible="raise"),
        "no cap gives 9 keys an entropy",
    ),
    (lambda: theory.top_gap_probability(1, 1), "n must be at least 2, got 1"),
    (lambda: theory.critical_scale_tail(9, 0), "level must be in (0, inf), got 0"),
    (lambda: theory.expected_support(9, 1, alpha=1), "alpha must be in [1.1, 10], got 1"),
    (lambda: theory.support_probabilities(9, 0), "beta must be at least 0.05, got 0"),
    (lambda: theory.support_probabilities(9, 1, keys=0), "keys must be at least 1, got 0"),
    (lambda: theory.support_limit(0), "ratio must be in (0, 1000], got 0"),
    (lambda: theory.support_distance_bound(2, 1), "n must be at least 3, got 2"),
    (lambda: theory.support_invariant_beta(2), "n must be in (2, inf), got 2"),
    (lambda: theory.expected_support([1, 2], [1, 2, 3]), "the shapes must broadcast"),
    (lambda: theory.expected_support(9, 0.01), "beta must be at least 0.05, got 0.01"),
    (lambda: theory.sparsity_beta(2), "n must be more than 2 keys, got 2"),
    (lambda: theory.sparsity_beta(9, n0=6, keys=3), "n0 must be more than 2 keys, got 6"),
    (lambda: theory.sparsity_beta(9, keys=0), "keys must be in (0, inf), got 0"),
    (lambda: theory.self_weight(1, gamma=1, correlation=0), "n must be at least 2, got 1"),
    (lambda: theory.self_weight(9, gamma=1, correlation=1), "correlation must be in (-1, 1), got 1"),
    (
        lambda: theory.token_correlation(9, gamma=1, correlation=-0.5),
        "correlation must be at least -1/(n - 1), got -0.5 for n = 9",
    ),
    (
        lambda: theory.token_correlation(9, gamma=1, correlation=0, layers=-1),
        "layers must be a whole number of at least 0, got -1",
    ),
    (lambda: theory.expected_overlap(9, 21, 0.5), "beta must be in [0, 20], got 21"),
    (lambda: theory.propagated_correlation(0.5, n=9, beta=1, layers=0.5), "layers must be a whole number"),
    (lambda: theory.propagated_correlation(0.5, n=9, beta=1, layers=np.inf), "layers must be finite"),
    (lambda: theory.fold_scale([[1.0]], 2), "weight must be (heads, head_dim, model_dim), got shape"),
    (lambda: theory.fold_scale([[[1.0]]], [1, 2]), "beta must be a number or one for each of 1 heads"),
    (lambda: theory.scale_update_residual([[1.0]], 2, rank=-1), "rank must be a whole number of at least 0"),
    (lambda: theory.needle_weight_bound(0, gap=1, beta=1), "n must be at least 1, got 0"),
    (lambda: theory.needle_weight_bound(9, gap=0, beta=1), "gap must be in (0, inf), got 0"),
    (lambda: theory.averaging_excess_bound(1, 1), "n must be at least 2, got 1"),
    (lambda: theory.shared_excess_bound(9, gap=-1), "gap must be in (0, inf), got -1"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_bad_values_are_one_clear_error(call, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  # the message is compared as text
        call()
    assert message in str(caught.value)
