# SPDX-License-Identifier: BSD-3-Clause
"""Claims of the families: worked examples, unbiased estimates, relay nodes, patterns; bad input."""

from __future__ import annotations

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from attnscale import variants as av
from cases import random_inputs

RNG = np.random.default_rng(11)
Q, K, V = RNG.standard_normal((3, 2, 40, 8))


def test_efficient_weights_are_mixtures_of_head_dim_maps_t25():
    weights = av.efficient_attention_weights(Q, K)
    np.testing.assert_allclose(weights.sum(-1), 1)
    np.testing.assert_allclose(weights @ V, av.efficient_attention(Q, K, V), atol=1e-12)
    assert np.linalg.matrix_rank(weights).tolist() == [8, 8]
    found = av.global_maps(Q, K, V)
    np.testing.assert_allclose(found.maps.sum(-1), 1)
    np.testing.assert_allclose(found.coefficients.sum(-1), 1)
    np.testing.assert_allclose(found.coefficients @ found.values, weights @ V, atol=1e-12)
    for array, twin in zip(
        (found.maps, found.values, found.coefficients), reference.global_maps(Q, K, V), strict=True
    ):
        np.testing.assert_allclose(array, twin, atol=1e-12)


def test_a_selective_scan_with_one_decay_is_state_space_duality():
    rng = np.random.default_rng(12)
    x, (b, c) = rng.standard_normal((2, 30, 3)), rng.standard_normal((2, 2, 30, 5))
    step = rng.uniform(0.1, 1, (2, 30, 1))
    rates = np.full((3, 5), -0.7)
    scanned = reference.selective_scan(x, np.repeat(step, 3, -1), rates, b, c)
    np.testing.assert_allclose(scanned, av.ssd(c, b, step * x, -0.7 * step[..., 0]), atol=1e-12)
    # Channels with their own rates are heads of one channel each.
    rates = -rng.uniform(0.1, 2, (3, 1)) * np.ones((3, 5))
    scanned = reference.selective_scan(x, np.repeat(step, 3, -1), rates, b, c)
    for channel in range(3):
        alone = av.ssd(c, b, (step * x)[..., channel, None], rates[channel, 0] * step[..., 0])
        np.testing.assert_allclose(scanned[..., channel, None], alone, atol=1e-12)


@pytest.mark.parametrize("orthogonal", [True, False])
def test_positive_features_are_unbiased(orthogonal):
    """The mean of independent estimates of exp(q . k) within 5 standard errors."""
    rng = np.random.default_rng(0)
    q, k = 0.2 * rng.standard_normal((2, 5, 8))
    estimates = []
    for _ in range(4000):
        w = av.performer_projection(8, 8, orthogonal=orthogonal, rng=rng)
        estimates.append(av.positive_features(q, w, scale=1.0) @ av.positive_features(k, w, scale=1.0).T)
    error = np.std(estimates, axis=0) / np.sqrt(len(estimates))
    assert (abs(np.mean(estimates, axis=0) - np.exp(q @ k.T)) < 5 * error).all()
    assert (error < 0.05 * np.exp(q @ k.T)).all()


def test_orthogonal_directions_vary_less():
    rng = np.random.default_rng(1)
    q, k = 0.2 * rng.standard_normal((2, 20, 8))
    spread = {}
    for orthogonal in (True, False):
        found = []
        for _ in range(1000):
            w = av.performer_projection(8, 8, orthogonal=orthogonal, rng=rng)
            found.append(av.positive_features(q, w, scale=1.0) @ av.positive_features(k, w, scale=1.0).T)
        spread[orthogonal] = np.var(found, axis=0).mean()
    assert spread[True] < spread[False]


def test_performer_s_error_falls_as_one_over_the_root_of_features():
    """Root mean square over 40 draws: 16 times the features, a quarter of the error."""
    q, k, v = 0.4 * np.random.default_rng(2).standard_normal((3, 100, 16))
    exact = at.attention(q, k, v)
    errors = []
    for features in (64, 1024):
        found = [av.performer_attention(q, k, v, features=features, rng=seed) - exact for seed in range(40)]
        errors.append(np.sqrt(np.mean(np.square(found))))
    assert 3.3 < errors[0] / errors[1] < 4.7


def test_performer_draws_from_rng():
    one, two, other = (av.performer_attention(Q, K, V, features=9, rng=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, two)
    assert abs(one - other).max() > 1e-3


def test_relay_nodes_are_the_key_half_of_efficient_attention_t33():
    x, centres = RNG.standard_normal((2, 50, 6)), RNG.standard_normal((4, 6))
    state = av.relay_attention(x, centres)
    keys = x @ centres.T
    np.testing.assert_allclose(state.output, av.global_maps(keys, keys, x).values, atol=1e-12)
    np.testing.assert_allclose(state.output, reference.relay_attention(x, centres), atol=1e-12)
    parts = [av.RelayState(centres).update(x[:, a:b]) for a, b in ((0, 20), (20, 50))]
    np.testing.assert_allclose(parts[0].merge(parts[1]).read(), state.output, atol=1e-12)
    np.testing.assert_allclose(parts[0].update(x[:, 20:]).read(), state.output, atol=1e-12)


@pytest.mark.parametrize("kind", ["bilinear", "residual", "ked"])
def test_relay_messages_are_gradients_t33(kind):
    """Against central differences of the energy; "ked" where L^T R is symmetric."""
    x, centres, w = RNG.standard_normal((7, 3)), RNG.standard_normal((4, 3)), RNG.standard_normal((4, 4))
    factor = RNG.standard_normal((2, 4))
    weight = (factor, factor) if kind == "ked" else w

    def energy(rows):
        nodes = av.relay_attention(rows, centres).output
        if kind == "ked":
            return av.relay_energy(nodes, factor.T @ factor) / 2
        return av.relay_energy(nodes, w, kind=kind)

    nodes = av.relay_attention(x, centres).output
    found = av.relay_message(x, centres, av.relay_energy_gradient(nodes, weight, kind=kind))
    step = 1e-5
    for i, c in np.ndindex(x.shape):
        move = np.zeros_like(x)
        move[i, c] = step
        slope = (energy(x + move) - energy(x - move)) / (2 * step)
        np.testing.assert_allclose(found[i, c], slope, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("global_tokens", [0, 1, 5, 40])
@pytest.mark.parametrize("radius", [0, 3, 100])
def test_local_and_global_is_a_mask(radius, global_tokens, is_causal):
    options = {"radius": radius, "global_tokens": global_tokens, "is_causal": is_causal}
    expected = reference.local_global_attention(Q, K, V, **options)
    np.testing.assert_allclose(av.local_global_attention(Q, K, V, **options), expected, atol=1e-12)
    q, k, v = random_inputs(3, heads=4, kv_heads=2, n_queries=40, n_keys=40)
    swapped = av.local_global_attention(
        *(np.swapaxes(x, 0, 1) for x in (q, k, v)), enable_gqa=True, layout="bshd", **options
    )
    whole = reference.local_global_attention(q, np.repeat(k, 2, 0), np.repeat(v, 2, 0), **options)
    np.testing.assert_allclose(np.swapaxes(swapped, 0, 1), whole, atol=2e-6)
