# SPDX-License-Identifier: BSD-3-Clause
"""Rotary positions against matrices of rotation, and what the score makes of a distance (T31)."""

from __future__ import annotations

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from attnscale.variants import apply_rotary, rotary_bound, rotary_decay, rotary_frequencies, rotary_score

RNG = np.random.default_rng(31)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_against_matrices(interleaved, base):
    x, positions = RNG.standard_normal((6, 8)), np.array([0, 1, -3, 7, 100, 2.5])
    options = {"interleaved": interleaved, "base": base}
    truth = reference.apply_rotary(x, positions, **options)
    np.testing.assert_allclose(apply_rotary(x, positions, **options), truth, atol=1e-14)
    q, k = RNG.standard_normal((2, 8))
    scores = reference.rotary_score(q, k, positions, **options)
    np.testing.assert_allclose(rotary_score(q, k, positions, **options), scores, atol=1e-13)


def test_types_and_shapes():
    x = RNG.standard_normal((2, 3, 5, 8))
    truth = apply_rotary(x)
    np.testing.assert_array_equal(truth[..., 0, :], x[..., 0, :])  # position 0 is where it was
    for dtype, limit in ((np.float32, 1e-6), (np.float16, 5e-3)):
        seen = apply_rotary(x.astype(dtype))
        assert seen.dtype == dtype
        np.testing.assert_allclose(seen.astype(np.float64), truth, atol=limit)
    own = apply_rotary(x, np.arange(10).reshape(2, 1, 5))
    np.testing.assert_allclose(own[1], apply_rotary(x[1], np.arange(5, 10)), atol=1e-15)
    assert apply_rotary(np.zeros((0, 4))).shape == (0, 4)


def test_some_channels_and_given_frequencies():
    x = RNG.standard_normal((5, 8))
    part = apply_rotary(x, rotary_dim=4)
    np.testing.assert_array_equal(part[:, 4:], x[:, 4:])
    np.testing.assert_allclose(part[:, :4], apply_rotary(x[:, :4]), atol=1e-15)
    theta = rotary_frequencies(8)
    np.testing.assert_array_equal(apply_rotary(x, frequencies=theta), apply_rotary(x))
    np.testing.assert_array_equal(apply_rotary(x, frequencies=np.zeros(4)), x)  # a head without positions
    q, k = x[:2]
    t = np.arange(-4, 5)
    whole = rotary_score(q[:4], k[:4], t) + q[4:] @ k[4:]
    np.testing.assert_allclose(rotary_score(q, k, t, rotary_dim=4), whole, atol=1e-13)


def test_scores_depend_on_the_difference_and_norms_stay():
    q, k = RNG.standard_normal((2, 200, 64))
    for start in (0, 1000, 10**6):
        turned = [apply_rotary(x, start + np.arange(200)) for x in (q, k)]
        np.testing.assert_allclose(np.linalg.norm(turned[0], axis=-1), np.linalg.norm(q, axis=-1), rtol=1e-12)
        scores = turned[0] @ turned[1].T
        if start == 0:
            first = scores
        np.testing.assert_allclose(scores, first, atol=1e-7)  # phases of 10^6 radians have 1e-10


def test_the_sphere_model_is_unchanged():
    """Uniform directions stay uniform: the entropy of random rows does not know of the rotation."""
    q, k = (apply_rotary(at.montecarlo.sphere((64, 512, 64), rng=seed)) for seed in (1, 2))
    entropy = at.attention_entropy(8 * q / np.linalg.norm(q, axis=-1, keepdims=True), 8 * k)
    spread = entropy.mean(-1).std(ddof=1) / 8  # queries of a set share its keys
    assert abs(entropy.mean() - at.theory.expected_entropy(512, 1)) < 5 * spread


def test_decay_is_the_mean_score_and_oscillates():
    t = np.array([0, 1, 5, 30, 200])
    x = RNG.standard_normal((20000, 64))
    noise = RNG.standard_normal(x.shape)
    y = 0.6 * x + 0.8 * noise  # E[x_c y_c] = 0.6
    scores = rotary_score(x, y, t)
    error = scores.std(0, ddof=1) / np.sqrt(len(x))
    assert (np.abs(scores.mean(0) - 0.6 * 64 * rotary_decay(t, 64)) < 5 * error).all()
    random = rotary_score(x, noise, t)
    assert (np.abs(random.mean(0)) < 5 * np.sqrt(64 / len(x))).all()
    # The fourth moment of one score is below 4 var^2: variance to 5 standard errors.
    assert (np.abs(random.var(0) / 64 - 1) < 5 * np.sqrt(3 / len(x))).all()
    curve = rotary_decay(np.arange(2000), 64)
    assert curve[0] == 1
    assert (np.diff(curve) > 0).mean() > 0.3  # it rises at a good part of the steps
    assert curve.min() < 0


def test_bound_holds():
    q, k = RNG.standard_normal((2, 50, 64))
    t = np.arange(0, 3000, 7)
    h = (q[:, :32] + 1j * q[:, 32:]) * (k[:, :32] - 1j * k[:, 32:])
    steps = np.abs(np.diff(h, append=0, axis=-1)).max(-1)
    limit = steps[:, None] * 32 * rotary_bound(t, 64)
    assert (np.abs(rotary_score(q, k, t)) <= limit * (1 + 1e-12)).all()
    assert rotary_bound([0], 64) == pytest.approx(16.5)


def test_first_to_the_right():
    """kattention finds the right neighbour whatever the contents; q = R_1 k for one content at a time."""
    n, d = 64, 32
    content = RNG.standard_normal((n, d))
    x = np.concatenate([content, np.arange(n)[:, None]], axis=-1)
    position = np.eye(1, d + 1, d)
    rows = at.variants.kattention_statistics(
        *(x @ position.T, x @ position.T), bias=np.ones(1), scale=20.0, statistics=("argmax", "max_weight")
    )
    np.testing.assert_array_equal(rows.argmax[:-1], np.arange(1, n))
    lattice = np.exp(-10.0 * np.arange(-60, 61) ** 2).sum()
    np.testing.assert_allclose(rows.max_weight[5:-6], 1 / lattice, rtol=1e-9)

    def accuracy(keys):
        queries = apply_rotary(keys, np.arange(n) + 1)  # R_m R_1 k
        top = at.attention_statistics(queries, apply_rotary(keys), scale=1.0, statistics=("argmax",)).argmax
        return (top[:-1] == np.arange(1, n)).mean()

    assert accuracy(np.broadcast_to(content[0], content.shape)) == 1
    assert accuracy(content) < 0.2


def test_mistakes_are_explained():
    x = np.zeros((3, 6))
    with pytest.raises(ValueError, match="rotary_dim must be even"):
        apply_rotary(np.zeros((3, 5)))
    with pytest.raises(ValueError, match="rotary_dim must be at most head_dim = 6, got 8"):
        apply_rotary(x, rotary_dim=8)
    message = r"positions must broadcast to \(\.\.\., n\) = \(3,\), got shape \(4,\)"
    with pytest.raises(ValueError, match=message):
        apply_rotary(x, np.arange(4))
    with pytest.raises(ValueError, match=r"frequencies must have shape \(rotary_dim / 2,\) = \(3,\)"):
        apply_rotary(x, frequencies=np.ones(2))
    with pytest.raises(ValueError, match="base must be greater than 0"):
        rotary_frequencies(4, base=0)
    with pytest.raises(TypeError, match="x must be float64"):
        apply_rotary(np.zeros((3, 6), int))
    with pytest.raises(ValueError, match="distances must have one axis"):
        rotary_decay(3, 64)
    with pytest.raises(ValueError, match="query and key must be"):
        rotary_score(np.zeros(4), np.zeros(6), [0])
    with pytest.raises(ValueError, match="positions must be finite"):
        apply_rotary(x, [0, np.nan, 1])
    with pytest.raises(TypeError, match="positions must be numbers"):
        apply_rotary(x, np.array(["a", "b", "c"]))
