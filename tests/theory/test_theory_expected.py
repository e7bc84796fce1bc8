# SPDX-License-Identifier: BSD-3-Clause
"""Finite rows: exact expectations against closed forms, mpmath, Monte Carlo and the published numbers."""

from __future__ import annotations

import functools
import sys
import tracemalloc

import mpmath as mp
import numpy as np
import pytest
from attnscale import theory
from scipy.special import exp1

LENGTHS = np.array([512, 4096, 32768])


def uniform_scores(n, beta):
    """(E lse, E H, E sum p^2) for uniform scores of variance 1 (the sphere with d = 3), by mpmath.

    f and its derivative in beta are closed there, and E H = E lse - beta d(E lse)/d beta.
    """
    half = beta * mp.sqrt(3)

    @functools.cache  # the three integrals are over the same points
    def parts(u):
        low, high = mp.e ** (u - half), mp.e ** (u + half)
        f = (mp.e1(low) - mp.e1(high)) / (2 * half)
        slope = (mp.exp(-low) + mp.exp(-high)) / 2 - f
        square = ((1 + low) * mp.exp(-low) - (1 + high) * mp.exp(-high)) / (2 * half)
        return f, n * slope * f ** (n - 1), n * square * f ** (n - 1)

    cuts = [-half - mp.log(n) - 45, -half - mp.log(n) - 5, -half, half * mp.mpf("-0.5"), half, half + 5]
    cuts = sorted({*cuts, *(-half + i for i in (-8, -4, 4, 8) if abs(i) < 2 * half)})
    lse = mp.quad(lambda u: mp.exp(-mp.exp(u)) - parts(u)[0] ** n, [*cuts, half + 40])
    mean_score = -mp.quad(lambda u: parts(u)[1], cuts)
    return lse, lse - mean_score, mp.quad(lambda u: parts(u)[2], cuts)


@pytest.mark.parametrize(("n", "beta"), [(2, 0.3), (2, 8), (10, 1), (512, 1), (512, 12), (10**15, 2)])
def test_uniform_scores_against_mpmath(n, beta):
    with mp.workdps(25 + len(str(n))):
        expected = [float(x) for x in uniform_scores(n, mp.mpf(beta))]
    row = theory.expected_statistics(n, beta, head_dim=3)
    np.testing.assert_allclose([row.lse, row.entropy, row.concentration], expected, atol=1e-8)


@pytest.mark.parametrize("beta", [1e-3, 0.2, 1.0, 6.0, 100.0, 1e5])
def test_two_gaussian_scores_against_mpmath(beta):
    """Their difference is normal with variance 2 beta^2."""
    sigma = mp.sqrt(2) * beta

    def average(value):
        scale = min(sigma, 1)
        cuts = [0, scale, 4 * scale, 16 * scale, *(x * sigma for x in (2, 8)), 12 * sigma]
        density = mp.sqrt(2 / mp.pi) / sigma
        return mp.quad(lambda x: value(x) * density * mp.exp(-((x / sigma) ** 2) / 2), sorted(set(cuts)))

    def entropy(x):
        p = 1 / (1 + mp.exp(x))
        return mp.log1p(mp.exp(-x)) + p * x

    with mp.workdps(20):
        row = theory.expected_statistics(2, beta, model="gaussian")
        assert row.entropy == pytest.approx(float(average(entropy)), abs=1e-9)
        lse = average(lambda x: x / 2 + mp.log1p(mp.exp(-x)))
        assert row.lse == pytest.approx(float(lse), rel=1e-8)
        squares = average(lambda x: (1 + mp.tanh(x / 2) ** 2) / 2)
        assert row.concentration == pytest.approx(float(squares), abs=1e-9)


@pytest.mark.parametrize("n", [2, 100, 10**6, 10**15])
@pytest.mark.parametrize("beta", [0.01, 1.0, 10.0, 200.0])
def test_the_circle_against_the_trapezoidal_rule(n, beta):
    """d = 2: the angle is uniform and periodic, so equidistant angles integrate exactly."""
    kappa = beta * np.sqrt(2)
    angle = np.linspace(0, np.pi, 4001)
    weights = np.full(angle.size, 1 / 4000)
    weights[[0, -1]] /= 2
    below = kappa * (np.cos(angle) - 1)
    u = np.arange(-np.log(n) - 40, 2 * kappa + 5, 0.3)  # u + kappa
    moments = np.zeros((4, u.size))
    for i, each in enumerate(u):
        x = each + below
        e = np.exp(np.minimum(x, 40))
        kept = np.exp(-e) * weights
        moments[:, i] = (
            (-np.expm1(-e) * weights).sum(),
            (e * kept).sum(),
            (x * e * kept).sum(),
            (e * e * kept).sum(),
        )
    scaled = 0.3 * n * np.exp((n - 1) * np.log1p(-np.minimum(moments[0], 1 - 1e-16)))
    row = theory.expected_statistics(n, beta, head_dim=2)
    lse = kappa - np.euler_gamma - (scaled * moments[1] * u).sum()
    assert row.lse == pytest.approx(lse, rel=1e-7)
    assert row.entropy == pytest.approx(-np.euler_gamma - (scaled * moments[2]).sum(), abs=1e-7)
    assert row.concentration == pytest.approx((scaled * moments[3]).sum(), abs=1e-6)


@pytest.mark.parametrize(("model", "d"), [("sphere", 64), ("sphere", 5), ("gaussian", 64)])
@pytest.mark.parametrize(("n", "beta"), [(7, 0.5), (64, 3.0), (1000, 2.0)])
def test_monte_carlo_agrees(model, d, n, beta):
    """T11 and the formula for the sum of squares, within 5 standard errors."""
    rng = np.random.default_rng([n, d])
    rows = 4000
    if model == "gaussian":
        score = rng.standard_normal((rows, n))
    else:
        score = np.sqrt(d) * (2 * rng.beta((d - 1) / 2, (d - 1) / 2, (rows, n)) - 1)
    score *= beta
    top = score.max(1)
    lse = top + np.log(np.exp(score - top[:, None]).sum(1))
    p = np.exp(score - lse[:, None])
    entropy = lse - (p * score).sum(1)
    exact = theory.expected_statistics(n, beta, head_dim=d, model=model)
    for expected, values in (
        (exact.lse, lse),
        (exact.entropy, entropy),
        (exact.concentration, (p * p).sum(1)),
    ):
        assert abs(values.mean() - expected) < 5 * values.std() / np.sqrt(rows)


def test_t10_numbers():
    """log_512 n slows the growth of entropy, ln n does not keep it either, 1/sqrt(d) least of all."""
    betas = [np.ones(3), np.log(LENGTHS) / np.log(512), np.log(LENGTHS)]
    sphere = [[5.7523, 7.8292, 9.9083], [5.7523, 7.4642, 9.0894], [1.2367, 1.1723, 1.1232]]
    gaussian = [[5.7419, 7.8182, 9.8973], [5.7419, 7.4308, 9.0094], [1.1315, 1.0050, 0.9009]]
    np.testing.assert_allclose(theory.expected_entropy(LENGTHS, betas), sphere, atol=5e-5)
    np.testing.assert_allclose(theory.expected_entropy(LENGTHS, betas, model="gaussian"), gaussian, atol=5e-5)


def test_t12_numbers():
    n = np.array([1024, 4096, 32768, 2**20])
    np.testing.assert_allclose(theory.invariant_beta(n), [1.58696, 2.43330, 3.47118, 5.0405], atol=5e-5)
    np.testing.assert_allclose(
        theory.invariant_beta(n, head_dim=128), [1.571, 2.373, 3.315, 4.642], atol=5e-4
    )
    np.testing.assert_allclose(
        theory.invariant_beta(n, model="gaussian"), [1.554, 2.314, 3.168, 4.287], atol=5e-4
    )
    assert theory.annealed_beta(2**20) / theory.invariant_beta(2**20) == pytest.approx(0.80, abs=5e-3)
    kept = theory.expected_entropy(n, theory.invariant_beta(n))
    np.testing.assert_allclose(kept, theory.expected_entropy(512, 1), atol=1e-9)


def test_limits():
    n = np.array([1, 2, 512, 1e15])
    row = theory.expected_statistics(n, 0)
    assert (row.entropy == np.log(n)).all()
    assert (row.concentration == 1 / n).all()
    one = theory.expected_statistics(1, [0.0, 1.0, 1e300])
    assert (one.entropy == 0).all()
    assert (one.lse == 0).all()
    assert (one.concentration == 1).all()
    far = theory.expected_statistics([2, 1e15], 1e300, head_dim=[[2], [64], [100_000]])
    assert (far.entropy < 1e-9).all()
    assert (far.concentration > 1 - 1e-9).all()
    assert np.isfinite(far.lse).all()
    # Many keys at a small scale: annealed. On a large sphere: Gaussian.
    annealed = np.log(1e15) - theory.sphere_entropy_deficit(1 / 8, 64)
    assert theory.expected_entropy(1e15, 1) == pytest.approx(annealed, abs=1e-8)
    both = [
        theory.expected_entropy(4096, 2, head_dim=100_000),
        theory.expected_entropy(4096, 2, model="gaussian"),
    ]
    assert both[0] == pytest.approx(both[1], abs=1e-3)


@pytest.mark.parametrize("d", [2, 7, 64, 100_000])
@pytest.mark.parametrize("n", [2, 1000, 1e15])
def test_entropy_falls_from_ln_n_to_0(n, d):
    beta = np.geomspace(1e-6, 1e12, 61)
    row = theory.expected_statistics(n, beta, head_dim=d)
    assert (np.diff(row.entropy) <= 1e-7).all()
    assert (np.diff(row.concentration) >= -1e-7).all()
    assert row.entropy[0] == pytest.approx(np.log(n), abs=1e-7)
    assert (row.lse >= np.log(n) - 1e-7).all()
    np.testing.assert_allclose(row.lse, row.entropy + row.mean_score)
    assert (row.concentration >= np.exp(-row.entropy) * (1 - 1e-6)).all()  # Jensen, twice


def test_slope_is_minus_beta_times_a_variance():
    """d E[lse] / d beta = E[mean score] / beta, a check across two of the integrals."""
    beta, h = np.array([0.3, 1.0, 4.0, 20.0]), 1e-4
    for model in ("sphere", "gaussian"):
        ends = [theory.expected_lse(512, beta + sign * h, model=model) for sign in (1, -1)]
        mean = theory.expected_statistics(512, beta, model=model).mean_score / beta
        np.testing.assert_allclose((ends[0] - ends[1]) / (2 * h), mean, rtol=2e-5)


@pytest.mark.parametrize("beta", [1e-3, 1.0, 6.0, 1e4])
def test_densities_as_functions(beta):
    def normal(s):
        return np.exp(-s * s / 2) / np.sqrt(2 * np.pi)

    def box(s):
        return np.full_like(s, 1 / np.sqrt(12))

    named = theory.expected_statistics(512, beta, model="gaussian")
    given = theory.expected_statistics(512, beta, model=normal)
    assert given.entropy == pytest.approx(named.entropy, abs=1e-7)
    assert given.lse == pytest.approx(named.lse, rel=1e-7)
    d3 = theory.expected_entropy(512, beta, head_dim=3)
    assert theory.expected_entropy(512, beta, model=box, support=(-(3**0.5), 3**0.5)) == pytest.approx(
        d3, abs=1e-7
    )


@pytest.mark.parametrize(("side", "beta"), [(1, 1.0), (1, 0.5), (1, 0.25), (-1, 0.3), (-1, 1.0), (-1, 5.0)])
def test_half_lines(side, beta):
    """Exponential scores, above 0 and below: f(u) is an incomplete gamma function of z = e^u."""
    from scipy import stats
    from scipy.special import expn, gamma, gammainc

    n, u = 50, np.arange(-60.0, 40 * beta + 6, 0.01)
    z = np.exp(u)
    with np.errstate(under="ignore"):
        if side > 0:  # the integral of t^(-1/beta - 1) e^(-z t) / beta from 1 on
            f, model, support = expn(round(1 + 1 / beta), z) / beta, stats.expon(), None
        else:  # the integral of t^(1/beta - 1) e^(-z t) / beta from 0 to 1
            f = gammainc(1 / beta, z) * gamma(1 + 1 / beta) * z ** (-1 / beta)
            model, support = (lambda s: np.exp(np.minimum(s, 0))), (-np.inf, 0.0)
        lse = (np.exp(-z) - np.minimum(f, 1) ** n).sum() * 0.01
    result = theory.expected_lse(n, beta, model=model, support=support)
    assert result == pytest.approx(lse, rel=1e-6)


def test_samples_are_drawn_with_replacement():
    rng = np.random.default_rng(3)
    atoms = np.array([0.0, 0.0, 1.0])
    # Three draws from {0, 0, 1} at a large beta: the entropy is ln of the number that tie for the top.
    ties = sum(c * np.log(t) for c, t in ((8, 3), (12, 1), (6, 2), (1, 3))) / 27
    assert theory.expected_entropy(3, 1e12, model=atoms) == pytest.approx(ties, abs=1e-9)
    scores = rng.standard_normal((4, 500))
    n, beta, rows = 64, 2.5, 20_000
    drawn = beta * rng.choice(scores.ravel(), (rows, n))
    lse = np.log(np.exp(drawn).sum(1))
    p = np.exp(drawn - lse[:, None])
    exact = theory.expected_statistics(n, beta, model=scores)
    entropy = lse - (p * drawn).sum(1)
    for expected, values in (
        (exact.lse, lse),
        (exact.entropy, entropy),
        (exact.concentration, (p * p).sum(1)),
    ):
        assert abs(values.mean() - expected) < 5 * values.std() / np.sqrt(rows)
    assert theory.expected_lse(1, 2, model=[1.0, 2.0]) == pytest.approx(3)
    assert theory.expected_entropy(512, 3, model=[0.25]) == pytest.approx(np.log(512), abs=1e-9)


def test_many_samples_are_as_good_as_their_density():
    quantiles = np.sqrt(3) * (2 * (np.arange(5000) + 0.5) / 5000 - 1)  # of uniform scores
    for beta in (0.5, 3.0):
        exact = theory.expected_entropy(512, beta, head_dim=3)
        assert theory.expected_entropy(512, beta, model=quantiles) == pytest.approx(exact, abs=1e-5)


def test_closed_form_of_f_for_uniform_scores():
    """The oracle of the first test, at one u, against an integral of exp(-e^x)."""
    x = np.linspace(-1, 1, 200_001)
    values = np.exp(-np.exp(0.3 + 2 * x))
    mean = (values.sum() - values[[0, -1]].sum() / 2) * (x[1] - x[0]) / 2
    assert (exp1(np.exp(-1.7)) - exp1(np.exp(2.3))) / 4 == pytest.approx(mean, rel=1e-9)


def test_broadcasting():
    row = theory.expected_statistics([[64], [512]], 1.0, head_dim=[16, 64, 128])
    assert row.entropy.shape == row.lse.shape == row.concentration.shape == (2, 3)
    assert row.entropy[1, 1] == theory.expected_entropy(512, 1)
    assert type(theory.expected_entropy(512, 1)) is float
    assert theory.expected_entropy(np.empty((0, 2)), 1).shape == (0, 2)
    assert theory.invariant_beta([[1024], [4096]], head_dim=[64, 128]).shape == (2, 2)


def test_infeasible_targets():
    with pytest.warns(UserWarning, match="no beta gives 64 keys .*; the result is NaN there") as seen:
        assert np.isnan(theory.invariant_beta(64))
    assert seen[0].filename == __file__
    with pytest.warns(UserWarning, match="no beta gives 100 keys"):
        assert np.isnan(theory.annealed_beta(100))
    assert np.isnan(theory.annealed_beta(100, on_infeasible="nan"))
    assert theory.invariant_beta(512) == pytest.approx(1, abs=1e-9)
    assert theory.invariant_beta(512, target_entropy=np.log(512)) == 0
    found = theory.invariant_beta([300, 400, 600], target_entropy=[5.0, 6.5, 2.0], on_infeasible="nan")
    assert np.isnan(found).tolist() == [False, True, False]
    np.testing.assert_allclose(theory.expected_entropy([300, 600], found[[0, 2]]), [5.0, 2.0], atol=1e-9)
    message = "no beta gives 64 keys an expected entropy of 5.75233 nats: they have at most ln n = 4.15888"
    with pytest.raises(ValueError, match=message):
        theory.invariant_beta([1024, 64], on_infeasible="raise")
    with pytest.raises(ValueError, match="no beta gives 100 keys"):
        theory.annealed_beta(100, on_infeasible="raise")
    assert np.isnan(
        theory.invariant_beta(8, target_entropy=0.01, model=[0.0, 0.0, 1.0], on_infeasible="nan")
    )  # ties
    with pytest.raises(ValueError, match="on_infeasible must be one of 'warn', 'nan', 'raise', got 'flag'"):
        theory.invariant_beta(512, on_infeasible="flag")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n": 0.5}, ValueError, "n must be at least 1, got 0.5"),
        ({"n": np.inf}, ValueError, "n must be finite, got inf"),
        ({"beta": -1}, ValueError, "beta must be at least 0, got -1"),
        ({"beta": "1"}, TypeError, "beta must be real numbers"),
        ({"head_dim": 1}, ValueError, "head_dim must be at least 2, got 1"),
        ({"model": "plane"}, ValueError, "model must be one of 'sphere', 'gaussian', got 'plane'"),
        ({"model": [1.0, np.nan]}, ValueError, "model must be finite, got nan"),
        ({"model": []}, ValueError, "model must be at least one score"),
        ({"model": None}, TypeError, "model must be real numbers"),
        ({"model": lambda s: np.exp(-np.abs(s))}, ValueError, "model must be a density that integrates to 1"),
        ({"model": lambda s: -np.ones_like(s)}, ValueError, "one density >= 0 for each score"),
        ({"model": lambda s: 1.0}, ValueError, "one density >= 0 for each score"),
        ({"model": lambda s: np.zeros_like(s)}, ValueError, "got 0 everywhere"),
        ({"support": (0, 1)}, TypeError, "support needs a model that is a function"),
        ({"model": np.cosh, "support": (1, 0)}, ValueError, "support must be \\(low, high\\)"),
        ({"model": np.cosh, "support": 3}, TypeError, "support must be a pair of numbers"),
    ],
)
def test_bad_input(arguments, error, message):
    call = {"n": 512, "beta": 1, **arguments}
    with pytest.raises(error, match=message):
        theory.expected_entropy(call.pop("n"), call.pop("beta"), **call)


@pytest.mark.parametrize("n", [512, 4096, 10**6])
def test_work_does_not_grow_with_n(n):
    """1300 calls of functions and 280 kB here, 2 ms: an integral of fixed size, and no array of n numbers."""
    theory.expected_entropy(n, 1.5)
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        theory.expected_entropy(n, 1.25)
    finally:
        sys.setprofile(None)
    assert calls < 4000
    tracemalloc.start()
    theory.expected_entropy(n, 1.125)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1e6
