# SPDX-License-Identifier: BSD-3-Clause
"""Tokens of one pairwise cosine, attention at initialisation, and a scale that is folded into W_q."""

from __future__ import annotations

import attnscale as at
import numpy as np
import pytest
from attnscale import reference, theory


def test_the_transition_is_as_wide_as_one_over_ln_n():
    """A gamma of 2 / ((1 - rho) ln n) leads from sigma(-1) to sigma(1), up to the shift of ln(n - 1)."""
    rho = 0.4
    for n in (64.0, 4096.0, 1e12):
        width = 1 / ((1 - rho) * np.log(n))
        gamma = theory.critical_gamma(rho) + width * np.array([-1, 0, 1])
        weight = theory.self_weight(n, gamma=gamma, correlation=rho)
        np.testing.assert_allclose(weight, [0.2689, 0.5, 0.7311], atol=5e-3)
    assert 2 / ((1 - rho) * np.log(4096)) == pytest.approx(0.40, abs=5e-3)  # of a critical gamma of 1.67


def test_tokens_of_the_kernels_follow():
    n, d, rho, gamma = 40, 64, 0.5, 2.1
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((d, n + 1)))[0]
    x = (np.sqrt(1 - rho) * basis[:, :n] + np.sqrt(rho) * basis[:, n:]).T
    out = at.attention(x, x, x, scale=gamma * np.log(n))
    weight = at.attention_weights(x, x, scale=gamma * np.log(n))
    np.testing.assert_allclose(
        np.diag(weight), theory.self_weight(n, gamma=gamma, correlation=rho), rtol=1e-10
    )
    cosine = out[0] @ out[1] / np.linalg.norm(out[0]) / np.linalg.norm(out[1])
    assert cosine == pytest.approx(theory.token_correlation(n, gamma=gamma, correlation=rho), rel=1e-10)


def test_one_layer_below_and_above():
    found = theory.token_correlation([64, 4096, 1e9], gamma=1.2, correlation=0.5)
    assert (np.diff(1 - found) < 0).all()  # collapses, the more the longer
    kept = theory.token_correlation([64, 4096, 1e9], gamma=3.0, correlation=0.5)
    np.testing.assert_allclose(kept, 0.5, atol=0.07)
    assert (np.diff(kept) < 0).all()


@pytest.mark.parametrize(
    ("n", "beta", "rho"), [(64, 1.0, 0.0), (64, 1.0, 0.5), (300, 3.0, 0.9), (300, 7.0, 0.5), (5, 2.0, 0.3)]
)
def test_overlap_is_its_twin(n, beta, rho):
    found = theory.expected_overlap(n, beta, rho)
    twin = reference.expected_overlap(n, beta, rho, np.random.default_rng(5))
    assert found == pytest.approx(twin, rel=0.16)


def test_overlap_at_its_ends():
    beta = np.array([0.5, 2.0, 6.0])
    np.testing.assert_allclose(theory.expected_overlap(512, beta, 0), 1 / 512, rtol=1e-6)
    same = theory.expected_concentration(512, beta, model="gaussian")
    np.testing.assert_allclose(theory.expected_overlap(512, beta, 1), same, rtol=1e-12)
    np.testing.assert_allclose(theory.expected_overlap(512, beta, 0.9989), same, rtol=0.01)
    np.testing.assert_allclose(theory.expected_overlap(512, beta, 0.9995), same, rtol=0.01)
    assert theory.expected_overlap(1, 3, 0.5) == 1
    # While many keys share the weight, e^(beta^2 rho) / n.
    assert theory.expected_overlap(4096, 1, 0.6) == pytest.approx(np.exp(0.6) / 4096, rel=0.01)


@pytest.mark.parametrize("residual", [None, 0.8])
@pytest.mark.parametrize(("beta", "rho"), [(1.0, 0.3), (5.0, 0.3)])
def test_a_random_layer_does_what_is_expected(residual, beta, rho):
    found = theory.propagated_correlation(rho, n=200, beta=beta, residual=residual)
    rng = np.random.default_rng(6)
    runs = [
        reference.propagated_correlation(rho, n=200, beta=beta, residual=residual, rng=rng) for _ in range(6)
    ]
    assert found == pytest.approx(np.mean(runs), abs=0.06)


def test_where_finite_rows_leave_the_random_energy_model():
    """At a fifth above the freezing point the limit is 1/6; rows in use are still far from it."""
    n = np.array([64, 512, 4096])
    found = theory.expected_concentration(n, 1.2 * theory.critical_beta(n), model="gaussian")
    np.testing.assert_allclose(found, [0.392, 0.342, 0.313], atol=5e-4)
    assert theory.condensed_concentration(1 / 1.2) == pytest.approx(1 / 6)


def test_a_scale_a_head_is_folded_into_w_q():
    rng = np.random.default_rng(7)
    heads, d, width, n = 3, 8, 24, 20
    x = rng.standard_normal((n, width))
    w_q, w_k = rng.standard_normal((2, heads, d, width))
    beta = np.array([0.3, 1.0, 4.0])
    folded = theory.fold_scale(w_q, beta)
    np.testing.assert_array_equal(folded, reference.fold_scale(w_q, beta))
    key = x @ w_k.swapaxes(-1, -2)
    scaled = at.attention_entropy(x @ w_q.swapaxes(-1, -2), key, scale=beta[:, None] / np.sqrt(d))
    np.testing.assert_allclose(at.attention_entropy(x @ folded.swapaxes(-1, -2), key), scaled, rtol=1e-12)
    turned = at.variants.apply_rotary(x @ w_q.swapaxes(-1, -2))
    both = at.variants.apply_rotary(x @ folded.swapaxes(-1, -2))
    np.testing.assert_allclose(both, beta[:, None, None] * turned, rtol=1e-12)
    # Normalised queries lose it.
    one, other = (
        at.attention_entropy(x @ w.swapaxes(-1, -2), key, scale=1.0, qk_norm="l2") for w in (w_q, folded)
    )
    np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("rank", [0, 1, 4, 8])
def test_an_adapter_cannot_scale_a_matrix(rank):
    w = np.random.default_rng(8).standard_normal((8, 24))
    found = theory.scale_update_residual(w, 1.7, rank=rank)
    assert found == pytest.approx(reference.scale_update_residual(w, 1.7, rank=rank), abs=1e-12)
    assert theory.scale_update_residual(w, 1.0, rank=rank) == 0
    if rank == 0:
        assert found == pytest.approx(1)
    if rank == 8:
        assert found == pytest.approx(0, abs=1e-12)


def test_weight_decay_picks_a_scale():
    """Under decay of both a^2 - |W|^2 falls as e^(-2 c t), whatever the loss; of W alone the scale grows."""
    target, step, decay = np.array([[1.0, -0.5], [0.3, 2.0]]), 1e-3, 0.5
    for both in (True, False):
        a, w = 3.0, np.array([[0.4, 0.1], [-0.2, 0.3]])
        start = a * a - (w**2).sum()
        for _ in range(4000):
            slope = a * w - target  # of |a W - target|^2 / 2 by a W
            a, w = (a - step * ((slope * w).sum() + decay * both * a), w - step * (a * slope + decay * w))
        difference = a * a - (w**2).sum()
        if both:
            assert difference == pytest.approx(start * np.exp(-2 * decay * 4), rel=0.05)
        else:
            assert difference > start
