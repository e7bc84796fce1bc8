# SPDX-License-Identifier: BSD-3-Clause
"""Two fixed scales, one for a needle and one for an average, against one scale for both."""

from __future__ import annotations

import numpy as np
import pytest
from attnscale import theory

LENGTHS = np.array([64, 512, 4096, 32768])
GAP = 4.624
NORMAL = 100_000  # dimensions of a sphere on which scores are normal


def needle(n, beta):
    """Exact expected weight of the key among n others."""
    return theory.needle_weight(n + 1, head_dim=NORMAL, cosine=GAP / NORMAL**0.5, beta=beta)


def excess(n, beta):
    return n * theory.expected_concentration(n, beta, model="gaussian")


def test_two_fixed_scales_serve_both():
    """At every length up to exp(a^2 / 2)."""
    longest = theory.retrieval_length(GAP)
    assert longest == pytest.approx(43944.7, abs=0.1)
    n = np.array([*LENGTHS, 43944])
    bound = theory.needle_weight_bound(n, gap=GAP, beta=GAP)
    np.testing.assert_allclose(bound, [0.9985, 0.9885, 0.9147, 0.5728, 0.5], atol=5e-5)
    weight = needle(n, GAP)
    assert (weight > bound).all()
    np.testing.assert_allclose(weight, [0.9993, 0.9942, 0.9552, 0.7191, 0.6531], atol=5e-5)
    np.testing.assert_allclose(excess(n, 0), 1, rtol=1e-12)
    # A head with any other fixed scale averages, too.
    for beta in (0.5, 1.0):
        found, most = excess(n, beta), theory.averaging_excess_bound(n, beta)
        assert (found < most).all()
        np.testing.assert_allclose(found[2:], np.exp(beta**2), rtol=2e-3)


def test_one_scale_for_both_costs_the_average():
    """The exact cost of half of the weight, and its bound."""
    least = theory.shared_excess_bound(LENGTHS, gap=GAP)
    np.testing.assert_allclose(least, [0.281, 0.772, 3.178, 19.618], atol=5e-4)
    half = theory.needle_beta(LENGTHS + 1, head_dim=NORMAL, cosine=GAP / NORMAL**0.5)
    assert (half > np.log(LENGTHS) / GAP).all()
    paid = excess(LENGTHS, half)
    assert (paid > least).all()
    np.testing.assert_allclose(paid, [2.51, 11.07, 118.8, 2838], rtol=2e-3)
    assert np.isnan(theory.shared_excess_bound(1e7, gap=GAP))


@pytest.mark.parametrize("beta", [0.3, 1.0, 2.0, 4.0])
def test_the_lower_bound_of_the_average_on_its_way(beta):
    """n E[sum p^2] >= e^(beta^2) Phi(ln(n) / beta - 3 beta / 2) / 4, a step of the proof."""
    from scipy.special import ndtr

    n = np.array([2, 64, 4096, 10**6])
    assert (excess(n, beta) > np.exp(beta**2) * ndtr(np.log(n) / beta - 1.5 * beta) / 4).all()
