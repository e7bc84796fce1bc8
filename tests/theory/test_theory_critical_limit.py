# SPDX-License-Identifier: BSD-3-Clause
"""Keys on a sphere at the critical scale of arXiv 2605.08505: its limit, and rows far from it."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest
from attnscale import theory
from attnscale.theory import _phases


@pytest.mark.parametrize(("d", "u"), [(2, -3.0), (2, 1.5), (3, 2.0), (4, 0.5), (64, 3.0), (64, -5.0)])
def test_the_exponent_against_its_series(d, u):
    """F(u) = Gamma(a + 1) sum of (-1)^(k+1) e^(k u) / (k! k^a)."""
    with mp.workdps(40):
        a = mp.mpf(d - 1) / 2
        terms = mp.fsum((-1) ** (k + 1) * mp.e ** (k * u) / (mp.factorial(k) * k**a) for k in range(1, 120))
        expected = float(mp.log(mp.gamma(a + 1) * terms))
    assert _phases._moments(np.array([u]), d).log_f[0] == pytest.approx(expected, abs=1e-12)


def arrivals_entropy(t, d, rng, rows=1000, arrivals=4000):
    """Mean entropy of the weights of drawn arrivals, and its standard error."""
    x = t * rng.exponential(size=(rows, arrivals)).cumsum(-1) ** (2 / (d - 1))
    p = np.exp(x[:, :1] - x)
    p /= p.sum(-1, keepdims=True)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(-1)
    return entropy.mean(), entropy.std() / rows**0.5


@pytest.mark.parametrize(("t", "d"), [(1.0, 2), (1.0, 4), (4.0, 8)])
def test_drawn_arrivals_have_it(t, d):
    mean, error = arrivals_entropy(t, d, np.random.default_rng(d))
    assert abs(mean - theory.critical_limit_entropy(t, head_dim=d)) < 4.5 * error


def test_drawn_keys_on_the_sphere_have_it_in_four_dimensions():
    n, d, rows, rng = 20_000, 4, 300, np.random.default_rng(8)
    score = (
        theory.critical_limit_beta(n, 1.0, head_dim=d) * np.sqrt(d) * (2 * rng.beta(1.5, 1.5, (rows, n)) - 1)
    )
    p = np.exp(score - score.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(-1)
    limit = theory.critical_limit_entropy(1.0, head_dim=d)
    assert abs(entropy.mean() - limit) < 4.5 * entropy.std() / rows**0.5 < 0.2


@pytest.mark.parametrize(("t", "d"), [(1.0, 4), (2.0, 8)])
def test_finite_rows_come_near_like_the_distance_of_the_nearest_key(t, d):
    """1 - cosine of the nearest is of the order n^(-2/(d-1)), and so is the error."""
    n = np.array([1e4, 1e7])
    finite = theory.expected_entropy(n, theory.critical_limit_beta(n, t, head_dim=d), head_dim=d)
    error = theory.critical_limit_entropy(t, head_dim=d) - finite
    assert error[0] / error[1] == pytest.approx(1e3 ** (2 / (d - 1)), rel=0.04)


def test_numbers():
    t, d = np.array([1.0, 2.0, 20.0]), np.array([4, 8, 64])
    limit = theory.critical_limit_entropy(t, head_dim=d)
    np.testing.assert_allclose(limit, [1.885303, 3.627708, 16.961578], atol=1e-6)
    n = np.array([512, 32768, 1e6, 1e9, 1e15])[:, None]
    finite = theory.expected_entropy(n, theory.critical_limit_beta(n, t, head_dim=d), head_dim=d)
    expected = [
        [1.869, 2.988, 1.446],
        [1.884, 3.439, 2.378],
        [1.885, 3.557, 3.199],
        [1.885, 3.618, 4.989],
        [1.885, 3.628, 8.562],
    ]
    np.testing.assert_allclose(finite, expected, atol=5e-4)


@pytest.mark.parametrize("d", [2, 4, 64, 1000])
def test_from_many_keys_to_one(d):
    entropy = theory.critical_limit_entropy([1e-2, 1.0, 30.0, 1e7], head_dim=d)
    assert (np.diff(entropy) < 0).all()
    assert entropy[-1] < 0.01
    # x has a Gamma distribution where all points share the weight.
    a, t = (d - 1) / 2, 1e-6
    shared = float(mp.loggamma(a + 1)) + a * (1 - np.log(t))
    assert theory.critical_limit_entropy(t, head_dim=d) == pytest.approx(shared, abs=1e-3)
    assert theory.critical_limit_entropy(1e300, head_dim=d) == pytest.approx(0, abs=1e-12)


def test_refusals():
    for call in (lambda t: theory.critical_limit_entropy(t), lambda t: theory.critical_limit_beta(9, t)):
        with pytest.raises(ValueError, match=r"t must be in \(0, inf\), got 0"):
            call([1.0, 0.0])
    with pytest.raises(ValueError, match=r"the shapes must broadcast, got t \(2,\), head_dim \(3,\)"):
        theory.critical_limit_entropy([1, 2], head_dim=[2, 3, 4])
    with pytest.raises(ValueError, match="head_dim must be at least 2, got 1"):
        theory.critical_limit_beta(9, 1, head_dim=1)
