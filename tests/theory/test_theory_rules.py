# SPDX-License-Identifier: BSD-3-Clause
"""Johnson-Lindenstrauss, largest cosines, needles, moments of dot products, bounds, softmax."""

from __future__ import annotations

import subprocess
import sys

import mpmath as mp
import numpy as np
import pytest
from attnscale import theory
from scipy.special import expit


def test_t1_numbers():
    assert theory.dot_product_variance(64) == 64
    rng = np.random.default_rng(0)
    x, y = 0.5 + 2 * rng.standard_normal((20_000, 16)), 3 + rng.standard_normal((20_000, 16))
    expected = theory.dot_product_variance(16, query_variance=4, query_mean=0.5, key_mean=3)
    assert expected == 16 * (4 + 4 * 9 + 0.25)
    products = (x * y).sum(1)
    spread = np.sqrt(((products - products.mean()) ** 2).var() / 20_000)
    assert abs(products.var() - expected) < 5 * spread
    variance = theory.truncated_normal_variance(2)
    assert variance == pytest.approx(0.773741, abs=5e-7)
    scores = theory.dot_product_variance(64, query_variance=variance, key_variance=variance) / 64
    assert scores == pytest.approx(0.598676, abs=5e-7)


def test_truncated_normal_variance_at_every_cut():
    with mp.workdps(60):
        for cut in (1e-9, 0.01, 1.0, 5.0, 40.0):
            c = mp.mpf(cut)
            expected = 1 - 2 * c * mp.npdf(c) / mp.erf(c / mp.sqrt(2))
            assert abs(theory.truncated_normal_variance(cut) / expected - 1) < 1e-12


def test_kurtosis():
    rng = np.random.default_rng(1)
    x, y = rng.uniform(-1, 1, (400_000, 3)), rng.laplace(size=(400_000, 3))
    z = (x * y).sum(1)
    z /= z.std()
    fourth = z**4
    expected = theory.dot_product_kurtosis(3, query_kurtosis=1.8, key_kurtosis=6)
    assert expected == pytest.approx(3 + 7.8 / 3)
    assert abs(fourth.mean() - expected) < 5 * fourth.std() / np.sqrt(z.size)
    assert theory.dot_product_kurtosis(64) == 3 + 6 / 64


@pytest.mark.parametrize("eps", [0.2, 0.6])
def test_jl_with_a_failure_probability_is_the_tight_union_bound(eps):
    """The failure probability of k is the union bound's, and one dimension less is not enough."""
    rate = eps**2 / 2 - eps**3 / 3
    for n, delta in ((2, 0.5), (100, 0.01), (1e9, 1e-12)):
        k = theory.jl_min_dim(n, eps=eps, failure_probability=delta)
        union = [n * (n - 1) * np.exp(-each * rate / 2) for each in (k, k - 1)]
        assert union[0] <= delta < union[1]


def test_jl_with_the_exponent_of_chi_square():
    """Fewer dimensions than the relaxed bound, and a projection to one less fails more often than allowed."""
    n, delta = 200, 0.01
    for eps in (0.1, 0.5, 0.9):
        rate = eps - np.log1p(eps)
        exact = theory.jl_min_dim(n, eps=eps, tail="chi_square")
        assert exact == np.ceil(4 * np.log(n) / rate) <= theory.jl_min_dim(n, eps=eps)
        k = theory.jl_min_dim(n, eps=eps, failure_probability=delta, tail="chi_square")
        union = [n * (n - 1) * np.exp(-each * rate / 2) for each in (k, k - 1)]
        assert union[0] <= delta < union[1]
    assert theory.jl_min_dim(512, eps=1 - 1e-12, tail="chi_square") == np.ceil(
        4 / (1 - np.log(2)) * np.log(512)
    )
    with pytest.raises(ValueError, match="tail must be one of 'relaxed', 'chi_square'"):
        theory.jl_min_dim(512, eps=0.5, tail="chi")


def test_expected_max_cosine_in_closed_form():
    """n = 2: E|t1 - t2| / 2. On the circle also n = 3; d = 3 is a uniform cosine: (n - 1)/(n + 1)."""
    n = np.array([2, 3, 10, 1e6, 1e15])
    np.testing.assert_allclose(theory.expected_max_cosine(n, 3), (n - 1) / (n + 1), rtol=1e-8)
    assert theory.expected_max_cosine(2, 2) == pytest.approx(4 / np.pi**2, rel=1e-8)
    assert theory.expected_max_cosine(3, 2) == pytest.approx(6 / np.pi**2, rel=1e-8)
    for d in (2, 3, 64, 100_000):
        assert theory.expected_max_cosine(1, d) == 0
    assert theory.expected_max_cosine(2, 100_000) * np.sqrt(1e5) == pytest.approx(
        1 / np.sqrt(np.pi), rel=1e-5
    )


@pytest.mark.parametrize(("n", "d"), [(5, 3), (1000, 64), (1e15, 64), (1e15, 100_000)])
def test_expected_max_cosine_from_the_summed_density(n, d):
    """1 - F by summing the density from the top, and E max as the integral of 1 - F^n - (1 - F)^n."""
    t = np.linspace(0, min(1, 16 / np.sqrt(d)), 400_001)
    density = (1 - t * t) ** ((d - 3) / 2)
    density /= 2 * ((density[1:] + density[:-1]) / 2).sum() * t[1]
    steps = (density[1:] + density[:-1]) / 2 * t[1]
    tail = np.append(np.cumsum(steps[::-1])[::-1], 0.0)
    integrand = -np.expm1(n * np.log1p(-tail)) - tail**n
    expected = ((integrand[1:] + integrand[:-1]) / 2).sum() * t[1]
    assert theory.expected_max_cosine(n, d) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("d", [2, 5, 64])
def test_needle_weight_against_monte_carlo(d):
    rng = np.random.default_rng(d)
    n, beta, cosine, rows = 40, 3.0, 0.6, 20_000
    score = beta * np.sqrt(d) * (2 * rng.beta((d - 1) / 2, (d - 1) / 2, (rows, n - 1)) - 1)
    own = np.exp(beta * np.sqrt(d) * cosine)
    weight = own / (own + np.exp(score).sum(1))
    exact = theory.needle_weight(n, head_dim=d, cosine=cosine, beta=beta)
    assert abs(weight.mean() - exact) < 5 * weight.std() / np.sqrt(rows)


def test_needle_limits():
    weight = theory.needle_weight
    assert weight([1, 10], cosine=0.3, beta=0).tolist() == [1.0, 0.1]
    # At a large beta it wins if no other cosine is above: F(c)^(n-1), with F = (1 + c)/2 for d = 3.
    for beta in (1e6, 1e12):
        assert weight(20, head_dim=3, cosine=0.8, beta=beta) == pytest.approx(0.9**19, abs=1e-4)
    assert weight(20, head_dim=2, cosine=1, beta=1e12) == pytest.approx(1, abs=1e-4)
    assert weight(20, head_dim=64, cosine=-1, beta=5) < 1e-10
    # Two keys with one cosine of the other given: half and half on average at d = 2 and cosine 0.
    assert weight(2, head_dim=2, cosine=0, beta=7) == pytest.approx(0.5, abs=1e-9)
    assert theory.needle_beta(10, cosine=0.5, weight=0.1) == 0
    with pytest.warns(UserWarning, match="no beta gives a key with cosine 0.1 the weight 0.5"):
        assert np.isnan(theory.needle_beta(10**6, cosine=0.1))
    message = r"no beta gives a key with cosine 0.1 the weight 0.5 among 1e\+06 keys"
    with pytest.raises(ValueError, match=message):
        theory.needle_beta(10**6, cosine=0.1, on_infeasible="raise")
    beta = theory.needle_beta(100, head_dim=2, cosine=1, weight=0.9)
    assert weight(100, head_dim=2, cosine=1, beta=beta) == pytest.approx(0.9, abs=1e-7)


@pytest.mark.parametrize("cosine", [1, 1 - 1e-14, 0.9, -1])
@pytest.mark.parametrize("d", [2, 64])
def test_needle_weight_between_two_keys(cosine, d):
    """The weight is then an average over one cosine, of density sin^(d-2) of its angle."""
    nodes, share = np.polynomial.legendre.leggauss(2000)
    angle = np.pi * (nodes + 1) / 2
    share = share * np.sin(angle) ** (d - 2)
    for beta in (0.6, 2.0, 50.0):
        weight = share @ expit(beta * np.sqrt(d) * (cosine - np.cos(angle))) / share.sum()
        found = theory.needle_weight(2, head_dim=d, cosine=cosine, beta=beta)
        assert found == pytest.approx(weight, rel=1e-7, abs=1e-10)


def test_bounds_hold_and_are_reached():
    rng = np.random.default_rng(4)
    for n, spread in ((2, 0.3), (16, 3.0), (500, 9.0)):
        score = rng.uniform(0, spread, (200, n))
        score[:, 0], score[:, 1] = 0, spread
        p = np.exp(score) / np.exp(score).sum(1, keepdims=True)
        entropy = -(p * np.log(p)).sum(1)
        low, high = theory.weight_bounds(n, spread)
        assert (p >= low - 1e-15).all()
        assert (p <= high + 1e-15).all()
        assert low >= 1 / (n * np.exp(spread))  # Velickovic's
        assert (entropy >= theory.entropy_lower_bound(n, spread)).all()
        norm = np.linalg.norm(score, axis=1)
        assert (entropy >= theory.spectral_entropy_bound(n, norm) - 1e-12).all()
        one = np.zeros(n)
        one[0] = spread
        weights = np.exp(one) / np.exp(one).sum()
        assert weights[0] == pytest.approx(high)
        centred = one - one.mean()
        reached = -(weights * np.log(weights)).sum()
        assert theory.spectral_entropy_bound(n, np.linalg.norm(centred)) == pytest.approx(reached)
    assert theory.spectral_entropy_bound(16, 3) == pytest.approx(1.7675259, abs=5e-8)
    ratio = (np.log(512) - theory.entropy_lower_bound(512, 0.01)) / (0.01**2 / 8)
    half = np.repeat([0.0, 0.01], 256)
    p = np.exp(half) / np.exp(half).sum()
    assert (np.log(512) + (p * np.log(p)).sum()) / (0.01**2 / 8) == pytest.approx(ratio, rel=1e-4)


def test_bounds_at_the_ends():
    assert theory.weight_bounds(1, 5) == theory.weight_bounds(1, 800) == (1, 1)
    low, high = theory.weight_bounds([3, 1000], 2000)
    assert (low == 0).all()
    assert (high == 1).all()
    assert theory.spectral_entropy_bound([1, 5], [3, 0]).tolist() == [0, pytest.approx(np.log(5))]
    assert theory.spectral_entropy_bound(100, 1e5) == 0
    assert theory.entropy_lower_bound(10, 100) == 0


def test_t2_jacobian():
    rng = np.random.default_rng(5)
    score = rng.standard_normal((3, 50, 20)) * np.array([0.1, 2.0, 30.0])[:, None, None]
    p = np.exp(score - score.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    jacobian = np.einsum("...i,ij->...ij", p, np.eye(20)) - p[..., :, None] * p[..., None, :]
    np.testing.assert_allclose(theory.jacobian_trace(p), np.trace(jacobian, axis1=-2, axis2=-1), atol=1e-15)
    norm = theory.jacobian_norm(p)
    np.testing.assert_allclose(norm, np.linalg.eigvalsh(jacobian)[..., -1], atol=1e-14)
    assert (norm <= 0.5).all()
    for row, expected in (
        ([1.0], 0),
        ([1, 0, 0], 0),
        ([0.5, 0.5, 0], 0.5),
        ([0.25] * 4, 0.25),
        ([0.4, 0.4, 0.2], 0.4),
    ):
        assert theory.jacobian_norm(row) == pytest.approx(expected, abs=1e-15)


def test_t3_smooth_maximum():
    rng = np.random.default_rng(6)
    x, a = rng.standard_normal((5, 30)), np.geomspace(1e-6, 1e6, 13)[:, None]
    value = theory.smooth_maximum(x, a)
    low, high = theory.smooth_maximum_bounds(x, a)
    assert value.shape == low.shape == high.shape == (13, 5)
    assert (low <= value + 1e-12).all()
    assert (value <= high + 1e-9 * np.abs(high)).all()
    np.testing.assert_allclose(value[-1], x.max(-1), atol=1e-5)
    np.testing.assert_allclose(value[0] * a[0] - np.log(30), x.mean(-1) * a[0], atol=1e-9)
    assert theory.smooth_maximum([1e300, -1e300], 1.0) == 1e300


def test_import_does_not_load_scipy():
    code = "import sys, attnscale; attnscale.theory.expected_entropy(8, 1); print('scipy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
