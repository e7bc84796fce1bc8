# SPDX-License-Identifier: BSD-3-Clause
"""Rows that keep more keys than fit a short list, ties, and the entmax package."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import normalizers as N
from attnscale import reference
from cases import random_inputs
from test_normalizers import check

pytestmark = pytest.mark.levels


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n_queries", [1, 5, 70])
@pytest.mark.parametrize(
    "normalizer",
    [N.Sparsemax(), N.Entmax(1.5), N.Entmax(1.05), N.TopK(100), N.TopK(528), N.TopK(529), N.TopK(4000)],
    ids=repr,
)
def test_rows_with_many_keys(normalizer: N.Normalizer, n_queries: int, dtype: str) -> None:
    q, k, v = random_inputs(1, heads=1, n_queries=n_queries, n_keys=2100, dtype=dtype, spread=0.02)
    q[:, ::2] *= 100  # every second row is sparse
    rows = check(normalizer, q, k, v)
    check(normalizer, q, k, v, causal="bottom_right", window=(1500, None))
    assert rows.support is not None
    if isinstance(normalizer, N.TopK):
        assert (rows.support == min(normalizer.k, 2100)).all()


def test_growing_scores_fill_the_list_again_and_again() -> None:
    # Keys of a tile exceed all earlier ones, so every list is thrown away many times.
    k = np.arange(3000.0)[:, None] / 100
    q, v = np.ones((20, 1)), np.random.default_rng(0).standard_normal((3000, 4))
    for normalizer in (N.Sparsemax(), N.Entmax(1.5), N.Entmax(1.1), N.TopK(20)):
        check(normalizer, q, k, v, scale=1.0)
        check(normalizer, q, k, v, scale=-1.0)


@pytest.mark.parametrize("n_keys", [1, 5, 600, 1000, 2500])
def test_equal_scores(n_keys: int) -> None:
    q, k, v = random_inputs(2, n_queries=70, n_keys=n_keys)
    for normalizer in (N.Sparsemax(), N.Entmax(1.5), N.Entmax(1.3), N.Entmax(4)):
        rows = at.attention_statistics(
            q, k, v, scale=0.0, normalizer=normalizer, statistics=("support", "entropy", "argmax")
        )
        assert (rows.support == n_keys).all()
        assert (rows.argmax == 0).all()
        np.testing.assert_allclose(rows.entropy, np.log(n_keys), rtol=1e-6, atol=1e-7)
        mean = np.broadcast_to(v.mean(1, keepdims=True, dtype=np.float64), rows.output.shape)
        np.testing.assert_allclose(rows.output, mean, atol=3e-6)
    first = at.attention(q, k, v, scale=0.0, normalizer=N.TopK(3))
    wanted = np.broadcast_to(v[:, :3].mean(1, keepdims=True), first.shape)
    np.testing.assert_allclose(first, wanted, atol=1e-6)


def on_the_edge(alpha: float) -> list[tuple[list[float], list[float]]]:
    """Rows of scores times alpha - 1, and their weights: the last score is on the threshold."""
    rows = [([0.0, -1.0], [1.0, 0.0]), ([0.0, *[-1.0] * 2000], [1.0, *[0.0] * 2000])]
    rows.append(([3.0, 2.0, 2.0], [1.0, 0.0, 0.0]))
    rows.append(([0.0] * 4 + [-(0.25 ** (alpha - 1))] * 2, [0.25] * 4 + [0.0] * 2))
    if alpha == 2:
        rows.append(([1.0, 0.5, 0.25, 0.25], [0.75, 0.25, 0.0, 0.0]))
        rows.append(([0.0] * 128 + [-1 / 128] * 1500, [1 / 128] * 128 + [0.0] * 1500))
    return rows


@pytest.mark.parametrize("home", ["core", "torch", "reference"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("alpha", [1.5, 2.0, 3.0, 5.0])
def test_a_key_on_the_threshold_has_no_weight(alpha: float, dtype: str, home: str) -> None:
    # Sums of numbers that float32 holds: no rounding, and one more key would be an error.
    for x, wanted in on_the_edge(alpha):
        k = (np.array(x) / (alpha - 1)).astype(dtype)[:, None]
        for n_queries in (1, 5, 70):
            q = np.ones((n_queries, 1), dtype)
            for options in ({}, {"attn_mask": np.zeros((n_queries, len(x)), dtype)}):
                weights = _weights(home, q, k, normalizer=N.Entmax(alpha), **options)
                np.testing.assert_array_equal(weights > 0, np.broadcast_to(wanted, weights.shape) > 0)
                np.testing.assert_allclose(weights, np.broadcast_to(wanted, weights.shape), rtol=1e-6)


def _weights(home: str, q: np.ndarray, k: np.ndarray, **options: Any) -> np.ndarray:
    options |= {"scale": 1.0}
    if home == "reference":
        return reference.attention_weights(q, k, **options)
    if home == "core":
        rows = at.attention_statistics(q, k, statistics=("support", "entropy", "concentration"), **options)
        weights = at.attention_weights(q, k, **options)
        np.testing.assert_array_equal(rows.support, (weights > 0).sum(-1))
        np.testing.assert_allclose(rows.concentration, (weights**2).sum(-1), rtol=1e-6)
        assert (rows.entropy[rows.support == 1] == 0).all()
        return weights
    torch = pytest.importorskip("torch")
    options = {n: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for n, x in options.items()}
    eye = torch.eye(len(k), dtype=torch.from_numpy(k).dtype)
    return at.torch.attention(*map(torch.from_numpy, (q, k)), eye, backend="torch", **options).numpy()


@pytest.mark.parametrize("n_queries", [1, 20])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("alpha", [1.1, 1.7, 2.5, 4.0, 6.0, 50.0, 1000.0])
def test_any_alpha(alpha: float, dtype: str, n_queries: int) -> None:
    # Smallest weight by bisection in 60 digits. In float64 a tau has 16: a root of a few 1e-17.
    mpmath = pytest.importorskip("mpmath")
    rng = np.random.default_rng(int(alpha))
    for spread in (3, 1, 0.02):
        scores = (spread * rng.integers(-64, 1, 24) / 64 / (alpha - 1)).astype(dtype)
        with mpmath.workdps(60):
            wanted = _entmax(mpmath, [mpmath.mpf(float(s)) for s in scores], mpmath.mpf(alpha))
        q, k = np.ones((n_queries, 1), dtype), scores[:, None]
        found = at.attention_weights(q, k, scale=1.0, normalizer=N.Entmax(alpha))
        np.testing.assert_allclose(found[-1], wanted, atol=2e-7 if dtype == "float32" else 2e-14)
        rows = at.attention_statistics(
            q, k, scale=1.0, normalizer=N.Entmax(alpha), statistics=("support", "max_weight")
        )
        assert (rows.support == np.count_nonzero(wanted)).all()
        twin = reference.attention_weights(q[:1], k, scale=1.0, normalizer=N.Entmax(alpha))
        np.testing.assert_allclose(twin[0], wanted, atol=2e-14)


def _entmax(mpmath: Any, scores: list[Any], alpha: Any) -> np.ndarray:
    top, power = max(scores), 1 / (alpha - 1)
    x = [(alpha - 1) * (s - top) for s in scores]
    shared = {a: mpmath.fsum((b - a) ** power for b in x if b > a) for a in set(x)}
    edge = min(a for a in shared if shared[a] < 1 - mpmath.mpf(10) ** -40)
    distances = [a - edge for a in x]

    def weights(least: Any) -> list[Any]:
        return [(d + least ** (alpha - 1)) ** power if d > 0 else least if d == 0 else 0 for d in distances]

    low, high = mpmath.mpf(0), mpmath.mpf(1)
    for _ in range(150):
        middle = (low + high) / 2
        low, high = (low, middle) if mpmath.fsum(weights(middle)) >= 1 else (middle, high)
    return np.array([float(p) for p in weights(low)])


@pytest.mark.parametrize("alpha", [1.5, 2.0, 3.0, 8.0])
def test_gradients_are_those_of_the_support(alpha: float) -> None:
    # Three keys, the last on the edge: its value does not matter, and it gets no weight.
    x = np.array([0.0, 0.0, -(0.5 ** (alpha - 1))]) / (alpha - 1)
    v, g = np.array([[1.0], [-2.0], [100.0]]), np.ones((1, 1))
    found = at.attention_gradients(np.ones((1, 1)), x[:, None], v, g, scale=1.0, normalizer=N.Entmax(alpha))
    slope = 0.5 ** (2 - alpha)  # u of both, and u (v - mean)
    np.testing.assert_allclose(found.key[:, 0], [1.5 * slope, -1.5 * slope, 0], rtol=1e-12)
    np.testing.assert_allclose(found.value[:, 0], [0.5, 0.5, 0], rtol=1e-12)


def test_gradients_beside_a_tiny_weight() -> None:
    # u = p^(2 - alpha) of the least weight is 1e17 times the others': it may not swallow them.
    alpha, least = 8.0, 1e-3
    first = (1 - least) / 2
    x = np.array([first ** (alpha - 1), first ** (alpha - 1), least ** (alpha - 1)]) / (alpha - 1)
    v = np.array([[1.0], [-2.0], [0.5]])
    found = at.attention_gradients(
        np.ones((1, 1)), x[:, None], v, np.ones((1, 1)), scale=1.0, normalizer=N.Entmax(alpha)
    )
    u = first ** (2 - alpha)
    np.testing.assert_allclose(found.value[:, 0], [first, first, least], rtol=1e-9)
    np.testing.assert_allclose(found.key[:, 0], [u * 0.5, -u * 2.5, u * 2], rtol=1e-6)


def test_a_nan_survives_a_full_list() -> None:
    for normalizer in (N.Sparsemax(), N.TopK(5), N.Entmax(1.05)):
        q, k, v = random_inputs(3, n_queries=20, n_keys=2000)
        k[0, 100] = np.nan
        out = at.attention(q, k, v, normalizer=normalizer, scale=0.01)
        assert np.isnan(out[0]).all()
        assert np.isfinite(out[1]).all()


def test_weights_above_the_threshold_are_the_support() -> None:
    q, k, _ = random_inputs(4, n_queries=30, n_keys=200, dtype="float64")
    for alpha in (1.5, 2.0, 2.5):
        weights = at.attention(q, k, np.broadcast_to(np.eye(200), (2, 200, 200)), normalizer=N.Entmax(alpha))
        rows = at.attention_statistics(q, k, normalizer=N.Entmax(alpha), statistics=("support", "entropy"))
        np.testing.assert_array_equal((weights > 0).sum(-1), rows.support)
        np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-14)
        inside = np.where(weights > 0, weights, 1)
        np.testing.assert_allclose(rows.entropy, -(inside * np.log(inside)).sum(-1), rtol=1e-12)


@pytest.mark.torch
def test_the_entmax_package() -> None:
    torch, entmax = pytest.importorskip("torch"), pytest.importorskip("entmax")
    q, k, v = random_inputs(5, n_queries=100, n_keys=700, dtype="float64", spread=2)
    score = torch.from_numpy(q @ k.swapaxes(-1, -2) / 4)
    for normalizer, theirs in (
        (N.Sparsemax(), entmax.sparsemax(score, dim=-1)),
        (N.Entmax(1.5), entmax.entmax15(score, dim=-1)),
        (N.Entmax(1.3), entmax.entmax_bisect(score, alpha=1.3, dim=-1, n_iter=80)),
        (N.Entmax(3.0), entmax.entmax_bisect(score, alpha=3.0, dim=-1, n_iter=80)),
    ):
        ours = at.attention(q, k, v, normalizer=normalizer)
        np.testing.assert_allclose(
            ours, theirs.numpy() @ v, atol=1e-6 if normalizer == N.Entmax(3.0) else 1e-9
        )


def test_alpha_above_two_keeps_the_threshold_of_a_long_list() -> None:
    # Steps of the search may end above it: then a list that shrinks early loses keys.
    for seed in range(40):
        q, k, v = random_inputs(seed, n_queries=6, n_keys=1537, head_dim=3, value_dim=1)
        for alpha in (2.5, 3.0, 4.0):
            check(N.Entmax(alpha), q, k, v)


def test_support_leaves_out_keys_whose_weight_vanishes() -> None:
    # p = d^50 with d = 1e-7.
    q, k = np.ones((9, 1)), np.array([[0.0], [-49.999995]])
    for queries in (q, q[:1]):
        rows = at.attention_statistics(
            queries, k, scale=1.0, normalizer=N.Entmax(1.02), statistics=("support", "max_weight")
        )
        assert (rows.support == 1).all()
        assert (rows.max_weight == 1).all()


@pytest.mark.parametrize("n_queries", [3, 70])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softpick_gives_scores_of_zero_no_weight(n_queries: int, dtype: str) -> None:
    rng = np.random.default_rng(4)
    q, k = (rng.integers(-2, 3, (n, 4)).astype(dtype) for n in (n_queries, 300))
    seen = rng.random((n_queries, 300)) < 0.5
    for mask in (None, seen):
        rows = at.attention_statistics(
            q, k, scale=0.37, normalizer=N.Softpick(0), statistics=("support",), attn_mask=mask
        )
        positive = (q @ k.T > 0) & (True if mask is None else mask)
        np.testing.assert_array_equal(rows.support, positive.sum(-1))
        values = np.where(q @ k.T == 0, 1.0, 0.0)
        output = at.attention(
            q, k, values.T.astype(dtype), scale=0.37, normalizer=N.Softpick(0), attn_mask=mask
        )
        assert not np.diagonal(output).any()


@pytest.mark.parametrize("n_queries", [3, 70])
def test_softpick_counts_no_key_whose_weight_vanishes_beside_the_largest(n_queries: int) -> None:
    q, k = np.ones((n_queries, 1)), np.array([[1e6], [1e6 - 5], [10.0], [-1.0]])
    rows = at.attention_statistics(q, k, scale=1.0, normalizer="softpick", statistics=("support",))
    assert (rows.support == 2).all()
