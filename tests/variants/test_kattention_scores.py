# SPDX-License-Identifier: BSD-3-Clause
"""The score functions f1 ... f6 and where each is largest (T28)."""

from __future__ import annotations

import numpy as np
import pytest
from attnscale import reference
from attnscale.variants import score_functions as sf

RNG = np.random.default_rng(28)
X, Y = RNG.standard_normal((7, 6)), RNG.standard_normal((9, 6))
Q, K = RNG.standard_normal((2, 4, 6))
B, C = RNG.standard_normal((2, 4))
ARGUMENTS = {"f1": (Q, K), "f2": (Q, K), "f3": (Q, K), "f4": (Q, K, B), "f5": (K, B), "f6": (Q, K, B, C)}


@pytest.mark.parametrize("name", sf.NAMES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_against_the_definition(name, dtype):
    q = K if name == "f5" else Q
    truth = reference.kattention_scores(name, X, Y, q, K, B if name > "f3" else 0.0, C)
    given = [each.astype(dtype) for each in (X, Y, *ARGUMENTS[name])]
    seen = getattr(sf, name)(*given)
    assert seen.dtype == dtype
    np.testing.assert_allclose(seen, truth, atol=1e-12 if dtype == np.float64 else 2e-4)
    batched = getattr(sf, name)(np.stack([X, -X]), Y, *ARGUMENTS[name])
    np.testing.assert_allclose(batched[0], truth, atol=1e-12)


def test_f1_is_linear_and_the_others_are_not():
    np.testing.assert_allclose(sf.f1(X, 3 * Y, Q, K), 3 * sf.f1(X, Y, Q, K), atol=1e-12)
    for name in sf.NAMES[1:]:
        score = getattr(sf, name)
        there, farther = score(X, 30 * Y, *ARGUMENTS[name]), score(X, 300 * Y, *ARGUMENTS[name])
        assert (farther < there).all(), name
    np.testing.assert_allclose(sf.f1(X, Y, Q, K, divisor=2.0), sf.f1(X, Y, Q, K) / 2)


@pytest.mark.parametrize("name", sf.NAMES[1:])
def test_the_peak_is_the_largest_value(name):
    """No step away from it gains anything, and a step along no kernel loses."""
    score, q = getattr(sf, name), K if name == "f5" else Q
    y = sf.peak(name, X, q, K, B if name in ("f4", "f5", "f6") else None)
    top = np.diagonal(score(X, y, *ARGUMENTS[name]))
    for size in (1e-3, 1.0):
        away = y + size * RNG.standard_normal(y.shape)
        assert (np.diagonal(score(X, away, *ARGUMENTS[name])) < top).all()
    if name == "f2":
        np.testing.assert_allclose(y, X @ Q.T @ K, atol=1e-12)
    else:
        target = X @ q.T + (0 if name == "f3" else B)
        np.testing.assert_allclose(y @ K.T, target, atol=1e-12)


def test_the_peak_where_k_is_not_onto():
    """Three channels, a key space of four dimensions: the nearest point of the range."""
    narrow = K[:, :3] @ np.eye(3, 6)
    y = sf.peak("f4", X, Q, narrow, B)
    top = np.diagonal(sf.f4(X, y, Q, narrow, B))
    assert (np.diagonal(sf.f4(X, y + 0.1 * RNG.standard_normal(y.shape), Q, narrow, B)) < top).all()
    assert np.abs(y @ narrow.T - X @ Q.T - B).max() > 0.1


def test_f3_is_free_along_the_kernel_and_f2_is_not():
    kernel = np.linalg.svd(K)[2][4:]  # of K, which maps 6 channels to 4
    moved = Y + 5 * RNG.standard_normal((9, 2)) @ kernel
    for name in ("f3", "f4", "f5", "f6"):
        score = getattr(sf, name)
        np.testing.assert_allclose(
            score(X, moved, *ARGUMENTS[name]), score(X, Y, *ARGUMENTS[name]), atol=1e-11
        )
    assert np.abs(sf.f2(X, moved, Q, K) - sf.f2(X, Y, Q, K)).min() > 0.1


def test_f3_is_f1_for_keys_of_one_length():
    u = RNG.standard_normal((9, 4))
    y = 2 * u / np.linalg.norm(u, axis=-1, keepdims=True) @ np.linalg.pinv(K).T
    np.testing.assert_allclose(sf.f3(X, y, Q, K), sf.f1(X, y, Q, K) - 2, atol=1e-12)


def test_f6_treats_both_sides_alike():
    np.testing.assert_allclose(sf.f6(X, Y, Q, K, B, C), sf.f6(Y, X, K, Q, C, B).T, atol=1e-12)
    assert np.abs(sf.f5(X, X, K, B) - sf.f5(X, X, K, B).T).max() > 0.1  # f5 does not
    shift = sf.f6(X, Y, Q, K, B, C) - sf.f4(X, Y, Q, K, B)
    np.testing.assert_allclose(shift, np.broadcast_to(shift[:, :1], shift.shape), atol=1e-12)


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="f1 grows without bound"):
        sf.peak("f1", X, Q, K)
    with pytest.raises(ValueError, match="bias goes with f4, f5 and f6"):
        sf.peak("f3", X, Q, K, B)
    with pytest.raises(ValueError, match="name must be one of 'f1'"):
        sf.peak("f7", X, Q, K)
    with pytest.raises(ValueError, match="divisor must not be 0"):
        sf.f1(X, Y, Q, K, divisor=0)
    with pytest.raises(ValueError, match=r"bias must have shape \(head_dim,\) = \(4,\), got \(3,\)"):
        sf.f4(X, Y, Q, K, B[:3])
    with pytest.raises(ValueError, match="same head_dim, got 4 and 3"):
        sf.f1(X, Y, Q, K[:3])
    with pytest.raises(ValueError, match="same embed_dim, got 6 and 5"):
        sf.f1(X, Y[:, :5], Q, K)
    with pytest.raises(TypeError, match=r"x must be float64.*use x.astype"):
        sf.f1(X.astype(int), Y, Q, K)
