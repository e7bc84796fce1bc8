# SPDX-License-Identifier: BSD-3-Clause
"""The closed forms of the sphere model against mpmath, from head_dim 2 to 100,000."""

from __future__ import annotations

import attnscale as at
import mpmath as mp
import numpy as np
import pytest
from attnscale import theory

DIMS = (2, 3, 4, 16, 64, 128, 612, 1000, 10_000, 100_000)
KAPPAS = (1e-8, 1e-3, 0.5, 1.0, 7.3, 30.0, 1e3, 1e5, 1e7)


def by_quadrature(d, kappa):
    """(ln M, A) from the integral over the angle to the query, around its peak."""
    d, kappa = mp.mpf(d), mp.mpf(kappa)
    angle = mp.acos(2 * kappa / (d + mp.sqrt(d * d + 4 * kappa * kappa)))
    width = 1 / mp.sqrt(d + kappa)
    cuts = sorted({min(max(angle + i * width, mp.mpf(0)), mp.pi) for i in range(-12, 13, 4)})

    def integral(power):
        def integrand(x):
            return (
                mp.exp(kappa * (mp.cos(x) - mp.cos(angle)))
                * (mp.sin(x) / mp.sin(angle)) ** (d - 2)
                * mp.cos(x) ** power
            )

        return mp.quad(integrand, cuts)

    norm = mp.loggamma(d / 2) - mp.loggamma((d - 1) / 2) - mp.log(mp.pi) / 2
    total = integral(0)
    return kappa * mp.cos(angle) + mp.log(total) + (d - 2) * mp.log(mp.sin(angle)) + norm, integral(1) / total


def oracle(d, kappa):
    """(deficit, ln M, A) with 40 digits."""
    with mp.workdps(40):
        nu, k = mp.mpf(d) / 2 - 1, mp.mpf(kappa)
        if kappa < 50 or (d > 500 and kappa < 2e3):
            zero, one = mp.hyp0f1(nu + 1, k * k / 4), mp.hyp0f1(nu + 2, k * k / 4)
            log_m, ratio = mp.log(zero), k / (2 * (nu + 1)) * one / zero
        elif kappa > 100 * d * d:
            bessel = mp.besseli(nu, k)
            ratio = mp.besseli(nu + 1, k) / bessel
            log_m = mp.loggamma(nu + 1) + nu * mp.log(2 / k) + mp.log(bessel)
        else:
            log_m, ratio = by_quadrature(d, kappa)
        return k * ratio - log_m, log_m, ratio


@pytest.mark.parametrize("d", DIMS)
def test_relative_error_is_below_1e_10(d):
    """1e-13, in fact: any digit lost to cancellation shows."""
    for kappa in KAPPAS:
        deficit, log_m, ratio = oracle(d, kappa)
        scale = kappa / d
        assert abs(theory.sphere_entropy_deficit(scale, d) / deficit - 1) < 1e-13
        assert abs(theory.sphere_log_mgf(scale, d) / log_m - 1) < 1e-13
        assert abs(theory.sphere_mean_cosine(scale, d) / ratio - 1) < 1e-13


def test_the_oracles_agree_with_each_other():
    """Bessel functions and the integral over the angle, where both can be had."""
    with mp.workdps(40):
        nu, kappa = mp.mpf(31), mp.mpf(64)
        bessel = mp.besseli(nu, kappa)
        log_m = mp.loggamma(32) + nu * mp.log(2 / kappa) + mp.log(bessel)
        quadrature = by_quadrature(64, 64)
        assert abs(quadrature[0] - log_m) < 1e-22
        assert abs(quadrature[1] - mp.besseli(32, kappa) / bessel) < 1e-22


def test_where_plain_bessel_functions_underflow():
    """The sizes of T7: scipy's ive is 0 there."""
    from scipy.special import ive

    d = np.array([612.0, 2000.0])
    assert (ive(d / 2 - 1, np.sqrt(d)) == 0).all()
    deficit = theory.sphere_entropy_deficit(1 / np.sqrt(d), d)
    np.testing.assert_allclose(deficit, 0.5 - 0.75 / d, atol=2e-4)
    tiny = theory.sphere_entropy_deficit(1e-8 / 68, 68)
    assert tiny == pytest.approx(1e-16 / (2 * 68), rel=1e-12)


def test_limits():
    assert theory.sphere_entropy_deficit(0, 64) == 0
    assert theory.sphere_mean_cosine(0, 64) == 0
    # On the circle the weights tend to a normal distribution of the angle, variance 1/kappa.
    kappa = 2e290
    expected = np.log(2 * np.pi) - 0.5 * (1 + np.log(2 * np.pi)) + 0.5 * np.log(kappa)
    assert theory.sphere_entropy_deficit(kappa / 2, 2) == pytest.approx(expected, rel=1e-13)
    assert theory.sphere_mean_cosine(1e290, 2) == 1


def test_broadcasting_and_types():
    result = theory.sphere_entropy_deficit([[0.125], [1.0]], [64, 128, 256])
    assert result.shape == (2, 3)
    assert result.dtype == np.float64
    assert result[1, 0] == theory.sphere_entropy_deficit(1.0, 64)
    assert type(theory.sphere_entropy_deficit(np.float32(0.125), 64)) is float
    assert theory.sphere_entropy_deficit(np.empty(0), 64).shape == (0,)


def test_the_deficit_is_the_integral_of_the_variance():
    """T6 in this model: dD/dscale = scale Var(q . k), and the variance is dA/dscale * d."""
    scale, h = np.linspace(0.01, 3, 50), 1e-5
    slope = (theory.sphere_entropy_deficit(scale + h, 64) - theory.sphere_entropy_deficit(scale - h, 64)) / (
        2 * h
    )
    rise = (theory.sphere_mean_cosine(scale + h, 64) - theory.sphere_mean_cosine(scale - h, 64)) / (2 * h)
    np.testing.assert_allclose(slope, 64 * scale * rise, rtol=1e-7)


def test_t7_numbers():
    deficit = theory.sphere_entropy_deficit
    assert deficit(1 / 8, 64) == pytest.approx(0.48899425984578, abs=5e-15)
    assert deficit(1, 64) == pytest.approx(15.473400160234, abs=5e-13)
    assert deficit(1, 128) == pytest.approx(30.87183383, abs=5e-9)


def test_t8_the_golden_ratio():
    golden = (1 + 5**0.5) / 2
    assert pytest.approx(np.log(golden) / 2, rel=1e-15) == theory.GOLDEN_DEFICIT
    assert round(theory.GOLDEN_DEFICIT, 8) == 0.24060591
    assert round(theory.GOLDEN_DIMENSION, 8) == 8.31234768
    assert theory.sphere_entropy_deficit_rate(1) == pytest.approx(theory.GOLDEN_DEFICIT, rel=1e-15)
    scales = np.array([1e-9, 0.1, 1, 10, 1e9])
    np.testing.assert_allclose(
        theory.sphere_entropy_deficit(scales, 100_000) / 1e5,
        theory.sphere_entropy_deficit_rate(scales),
        rtol=2e-4,
    )
    r = 2 * scales[1:4] / (1 + np.sqrt(1 + 4 * scales[1:4] ** 2))
    np.testing.assert_allclose(
        theory.sphere_entropy_deficit_rate(scales[1:4]), -0.5 * np.log(1 - r * r), rtol=1e-13
    )


def test_t9_the_deficit_is_not_linear():
    """The line 0.24 scale d meets the deficit at 1 and 1.742, and misses it 4-fold at 1/sqrt(d)."""
    rate, line = theory.sphere_entropy_deficit_rate, theory.GOLDEN_DEFICIT
    assert rate(1.7418097) == pytest.approx(line * 1.7418097, rel=1e-7)
    near = np.linspace(0.9, 2, 1001)
    worst = np.abs(line * near / rate(near) - 1).max()
    assert 0.0225 < worst < 0.0235
    assert np.abs(line * np.array([0.5, 3.0]) / rate([0.5, 3.0]) - 1).min() > 0.1
    slope = (rate(1 + 1e-6) - rate(1 - 1e-6)) / 2e-6
    assert slope == pytest.approx(0.276, abs=5e-4)
    assert 0.24 * 8 / at.theory.sphere_entropy_deficit(1 / 8, 64) == pytest.approx(1.92 / 0.489, rel=1e-3)


@pytest.mark.parametrize(
    "call", [theory.sphere_entropy_deficit, theory.sphere_mean_cosine, theory.sphere_log_mgf]
)
@pytest.mark.parametrize(
    ("scale", "d", "error", "message"),
    [
        (-0.1, 64, ValueError, "scale must be at least 0, got -0.1"),
        (np.nan, 64, ValueError, "scale must be finite, got nan"),
        (1.0, 1, ValueError, "head_dim must be at least 2, got 1"),
        (1.0, 2.5, ValueError, "head_dim must be whole numbers, got 2.5"),
        ("1", 64, TypeError, "scale must be real numbers"),
        (True, 64, TypeError, "scale must be real numbers"),
        (1e308, 64, ValueError, "scale \\* head_dim must be finite"),
    ],
)
def test_bad_input(call, scale, d, error, message):
    with pytest.raises(error, match=message):
        call(scale, d)
