# SPDX-License-Identifier: BSD-3-Clause
"""Norms of the Jacobian of self-attention: written out, by differences and by autograd (T32)."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from attnscale import reference
from attnscale.variants import attention_jacobian_norms

RNG = np.random.default_rng(32)
N, E, D, F = 9, 6, 4, 5
X = RNG.standard_normal((N, E))
Q, K = RNG.standard_normal((2, D, E))
V = RNG.standard_normal((F, E))


def output(x, seen, scale):
    scores = np.where(seen, scale * (x @ Q.T) @ (x @ K.T).T, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ x @ V.T


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_against_every_derivative_written_out(is_causal, scale):
    seen = np.tri(N, dtype=bool) if is_causal else np.ones((N, N), bool)
    truth = reference.attention_jacobian_norms(X, Q, K, V, scale, seen)
    norms = attention_jacobian_norms(X, Q, K, V, scale=scale, is_causal=is_causal)
    np.testing.assert_allclose(norms, truth, rtol=1e-9, atol=1e-12)
    by_mask = attention_jacobian_norms(X, Q, K, V, scale=scale, attn_mask=seen)
    np.testing.assert_allclose(by_mask, norms, rtol=1e-12, atol=1e-14)
    for hiding in (-np.inf, np.float16(-65504), np.finfo(np.float64).min / 2):
        mask = np.where(seen, type(hiding)(0), hiding)
        far = attention_jacobian_norms(X, Q, K, V, scale=scale, attn_mask=mask)
        np.testing.assert_allclose(far, norms, rtol=1e-12, atol=1e-14)


def test_against_differences():
    seen, step = np.ones((N, N), bool), 1e-6
    jacobian = np.empty((N, F, N, E))
    for j in range(N):
        for c in range(E):
            moved = np.zeros_like(X)
            moved[j, c] = step
            jacobian[:, :, j, c] = (output(X + moved, seen, 0.7) - output(X - moved, seen, 0.7)) / (2 * step)
    truth = np.sqrt((jacobian**2).sum((1, 3)))
    np.testing.assert_allclose(attention_jacobian_norms(X, Q, K, V, scale=0.7), truth, rtol=1e-6, atol=1e-8)


@pytest.mark.torch
def test_against_automatic_differentiation():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.tensor(w) for w in (Q, K, V))

    def attend(x):
        return torch.softmax((x @ q.T) @ (x @ k.T).T * 0.7, -1) @ x @ v.T

    jacobian = torch.autograd.functional.jacobian(attend, torch.tensor(X)).numpy()  # (n, F, n, E)
    truth = np.sqrt((jacobian**2).sum((1, 3)))
    np.testing.assert_allclose(attention_jacobian_norms(X, Q, K, V, scale=0.7), truth, rtol=1e-10)


def test_batches_heads_blocks_and_rows():
    x = np.stack([X, -X, 2 * X])
    heads = attention_jacobian_norms(x, np.stack([Q, K]), np.stack([K, Q]), V)
    assert heads.shape == (3, 2, N, N)
    np.testing.assert_allclose(heads[2, 0], attention_jacobian_norms(2 * X, Q, K, V), rtol=1e-12)
    np.testing.assert_allclose(heads[1, 1], attention_jacobian_norms(-X, K, Q, V), rtol=1e-12)
    for block in (1, 2, 100):
        np.testing.assert_allclose(
            attention_jacobian_norms(X, Q, K, V, block=block),
            attention_jacobian_norms(X, Q, K, V),
            rtol=1e-12,
        )
    some = attention_jacobian_norms(X, Q, K, V, rows=[7, 0])
    np.testing.assert_allclose(some, attention_jacobian_norms(X, Q, K, V)[[7, 0]], rtol=1e-12)


def test_float32_is_computed_in_float64():
    norms = attention_jacobian_norms(X.astype(np.float32), Q, K)
    assert norms.dtype == np.float32
    same = attention_jacobian_norms(X.astype(np.float32).astype(np.float64), Q, K)
    np.testing.assert_allclose(norms, same, rtol=1e-6)


def test_a_common_offset_costs_few_digits():
    """u = x_j - xbar is small against x: products are taken after the offset is off."""
    offset = np.linalg.svd(np.concatenate([Q, K[:1]]))[2][-1] * 1e6  # seen by V, not by Q
    norms = attention_jacobian_norms(X + offset, Q, 0 * K, V, scale=0.7)
    np.testing.assert_allclose(norms, attention_jacobian_norms(X, Q, 0 * K, V, scale=0.7), rtol=1e-6)
    w = 1e-3 * np.ones((D, E))
    truth = reference.attention_jacobian_norms(X + 1e4, w, w, V, 0.1, np.ones((N, N), bool))
    np.testing.assert_allclose(attention_jacobian_norms(X + 1e4, w, w, V, scale=0.1), truth, rtol=1e-5)


def test_a_query_without_keys_has_no_derivative():
    mask = np.zeros((N, N), np.float16)
    mask[3] = -65504
    norms = attention_jacobian_norms(X, Q, K, V, attn_mask=mask)
    assert (norms[3] == 0).all()
    assert np.isfinite(norms).all()
    assert (norms[2] > 0).all()


def test_memory_is_a_few_blocks():
    x = RNG.standard_normal((4000, 8))
    tracemalloc.start()
    attention_jacobian_norms(x, np.eye(4, 8), np.eye(4, 8), rows=np.arange(1000), block=100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    block = 100 * 4000 * 8
    assert peak < 10 * block + 12 * block  # the result, and a dozen arrays of a block


def test_empty_inputs():
    assert attention_jacobian_norms(X[:0], Q, K, V).shape == (0, 0)
    assert attention_jacobian_norms(X, Q, K, V, rows=np.zeros(0, int)).shape == (0, N)
    one = attention_jacobian_norms(X[:1], Q, K, V)  # one key: y = V x
    np.testing.assert_allclose(one, [[np.linalg.norm(V)]])


def test_values_without_elements_do_not_move():
    x, q = np.ones((5, 4)), np.ones((4, 4))
    np.testing.assert_array_equal(attention_jacobian_norms(x, q, q, np.ones((0, 4))), np.zeros((5, 5)))
    heads = np.ones((2, 3, 4))
    norms = attention_jacobian_norms(x, heads, heads, np.ones((2, 0, 4)))
    np.testing.assert_array_equal(norms, np.zeros((2, 5, 5)))


def test_mistakes_are_explained():
    with pytest.raises(ValueError, match="v_weight must have as many heads"):
        attention_jacobian_norms(X, Q, K, np.stack([V, V]))
    with pytest.raises(ValueError, match="must have the same shape"):
        attention_jacobian_norms(X, Q, K[:2])
    with pytest.raises(TypeError, match="rows must be integers"):
        attention_jacobian_norms(X, Q, K, rows=[0.5])
    with pytest.raises(ValueError, match=r"rows must be a sequence of indices 0 \.\.\. 8"):
        attention_jacobian_norms(X, Q, K, rows=[9])
    with pytest.raises(ValueError, match="attn_mask must broadcast"):
        attention_jacobian_norms(X, Q, K, attn_mask=np.ones((2, N), bool))
    with pytest.raises(TypeError, match="attn_mask must be bool or float"):
        attention_jacobian_norms(X, Q, K, attn_mask=np.ones((N, N), int))
