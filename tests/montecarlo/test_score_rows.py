# SPDX-License-Identifier: BSD-3-Clause
"""Simulated rows of attention: against the same scores in NumPy, and against exact distributions."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import scipy.stats
from cases import compiled as _core
from numpy.typing import NDArray
from scipy.special import logsumexp

KEY = 0x243F6A8885A308D3
NONE = float("nan")
MULTIPLIERS = np.array([0.0, 0.01, 1.0, 5.0, 60.0, -2.0])
COLUMNS = (
    "entropy",
    "lse",
    "concentration",
    "max_weight",
    "mean_score",
    "score_variance",
    "needle_weight",
    "needle_is_top",
    "weighted_value",
)
Array = NDArray[np.float64]


def rows(multipliers: Any = MULTIPLIERS, **options: Any) -> dict[str, Array]:
    arguments = {
        "model": "sphere",
        "n": 100,
        "head_dim": 64,
        "correlation": 0.0,
        "needle_cosine": NONE,
        "key": KEY,
        "count": 10,
        **options,
    }
    table = _core.mc_score_rows(multipliers=multipliers, **arguments)
    assert table.shape == (arguments["count"], len(multipliers), len(COLUMNS))
    return dict(zip(COLUMNS, np.moveaxis(table, -1, 0), strict=True))


def gaussian_scores(n: int, count: int, first: int = 0) -> Array:
    """The normal numbers that the rows of the Gaussian model are made of."""
    step = -(-n // 64) * 64
    out = np.empty(count * step, np.float32)
    _core.mc_fill(out, "normal", (0.0, 1.0), KEY, 0, first * step)
    return out.reshape(count, step)[:, :n].astype(np.float64)


def statistics(scores: Array, multipliers: Array) -> dict[str, Array]:
    t = scores[:, None, :] * multipliers[:, None]
    lse = logsumexp(t, axis=-1)
    p = np.exp(t - lse[..., None])
    mean = np.sum(p * t, axis=-1)
    return {
        "entropy": lse - mean,
        "lse": lse,
        "concentration": np.sum(p**2, axis=-1),
        "max_weight": p.max(axis=-1),
        "mean_score": mean,
        "score_variance": np.sum(p * (t - mean[..., None]) ** 2, axis=-1),
    }


def assert_statistics(found: dict[str, Array], expected: dict[str, Array], multipliers: Array) -> None:
    # A score of 6 has rounding errors of 6 * 2^-24, which the multiplier enlarges.
    size = 1 + np.abs(multipliers)
    for name, want in expected.items():
        atol = 1e-12 * size if name == "score_variance" else 4e-7 * size
        error = np.abs(found[name] - want)
        bound = atol + 2e-6 * size * np.abs(want)
        assert (error <= bound).all(), (name, (error / bound).max())


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 64, 100, 511, 512, 513, 3000])
def test_rows_are_the_softmax_of_their_scores(n: int) -> None:
    found = rows(model="gaussian", n=n, first=3)
    assert_statistics(found, statistics(gaussian_scores(n, 10, 3), MULTIPLIERS), MULTIPLIERS)
    assert np.isnan(found["needle_weight"]).all()
    assert np.isnan(found["needle_is_top"]).all()


def test_a_long_row_is_merged_from_its_ranges() -> None:
    n = (1 << 18) * 2 + 777
    found = rows(model="gaussian", n=n, count=2, first=1)
    assert_statistics(found, statistics(gaussian_scores(n, 2, 1), MULTIPLIERS), MULTIPLIERS)


@pytest.mark.parametrize("model", ["sphere", "gaussian", "correlated"])
@pytest.mark.parametrize(("n", "count"), [(1, 5000), (37, 2000), (600_000, 3)])
def test_rows_do_not_depend_on_threads_or_calls(model: str, n: int, count: int) -> None:
    options: dict[str, Any] = {"model": model, "n": n, "needle_cosine": 0.4}
    options["correlation"] = 0.3 if model == "correlated" else 0.0
    whole = rows([1.0, 3.0], count=count, first=10, num_threads=1, **options)
    again = rows([1.0, 3.0], count=count, first=10, num_threads=3, **options)
    tail = rows([3.0], count=count - count // 3, first=10 + count // 3, **options)
    for name in COLUMNS:
        np.testing.assert_array_equal(whole[name], again[name])
        np.testing.assert_array_equal(whole[name][count // 3 :, 1:], tail[name])


def test_rows_are_different() -> None:
    entropy = np.concatenate(
        [
            rows([1.0], n=50, count=100, **where)["entropy"].ravel()
            for where in ({}, {"first": 100}, {"stream": 1})
        ]
    )
    assert len(np.unique(entropy)) == 300


def one_score(head_dim: int, count: int = 200_000, **options: Any) -> Array:
    """A row of one key: its log-sum-exp is the score."""
    return rows([1.0], n=1, head_dim=head_dim, count=count, **options)["lse"].ravel()


@pytest.mark.parametrize("head_dim", [2, 3, 4, 5, 64, 1000, 100_000])
def test_sphere_scores_have_the_exact_distribution(head_dim: int) -> None:
    """s / sqrt(d) is a coordinate of a uniform unit vector: (1 + it) / 2 is Beta((d-1)/2, (d-1)/2)."""
    root = np.sqrt(head_dim)
    exact = scipy.stats.beta((head_dim - 1) / 2, (head_dim - 1) / 2, loc=-root, scale=2 * root)
    s = one_score(head_dim)
    assert scipy.stats.kstest(s, exact.cdf).pvalue > 1e-4
    for probability in (1e-3, 1e-2):
        for count in (np.sum(s < exact.ppf(probability)), np.sum(s > exact.isf(probability))):
            assert abs(count - len(s) * probability) < 5 * np.sqrt(len(s) * probability)


def test_sphere_of_one_dimension() -> None:
    s = one_score(1)
    assert set(np.round(s, 6)) == {-1.0, 1.0}
    assert abs(s.mean()) < 5 / np.sqrt(len(s))


def test_sphere_scores_of_a_row_are_independent() -> None:
    """The two keys of a Philox block, and neighbours: the mean of n scores has variance 1 / n."""
    n, count = 64, 50_000
    mean = rows([1e-4], n=n, count=count)["mean_score"].ravel() / 1e-4
    assert abs(mean.var() * n - 1) < 5 * np.sqrt(2 / count)


@pytest.mark.parametrize(("correlation", "head_dim"), [(0.0, 3), (0.4, 5), (1.0, 16)])
def test_correlated_scores_agree_with_explicit_keys(correlation: float, head_dim: int) -> None:
    rng = np.random.default_rng(1)
    n, count = 6, 40_000
    q, common = rng.standard_normal((2, count, head_dim))
    own = rng.standard_normal((count, n, head_dim))
    k = np.sqrt(correlation) * common[:, None, :] + np.sqrt(1 - correlation) * own
    expected = statistics(np.einsum("rd,rnd->rn", q, k) / np.sqrt(head_dim), np.array([1.5]))
    found = rows([1.5], model="correlated", n=n, head_dim=head_dim, correlation=correlation, count=count)
    for name in ("lse", "mean_score", "entropy"):
        if correlation < 1 or name != "entropy":  # all keys equal: both are ln n up to rounding
            assert scipy.stats.ks_2samp(found[name].ravel(), expected[name].ravel()).pvalue > 1e-4


@pytest.mark.parametrize("n", [1, 2, 40, 513])
@pytest.mark.parametrize("multiplier", [2.0, 0.0, -2.0])
def test_needle(n: int, multiplier: float) -> None:
    cosine, head_dim, count = 0.3, 64, 50
    scores = gaussian_scores(n, count)
    scores[:, 0] = np.float32(np.sqrt(head_dim) * cosine)
    found = rows([multiplier], model="gaussian", n=n, count=count, needle_cosine=cosine)
    assert_statistics(found, statistics(scores, np.array([multiplier])), np.array([multiplier]))
    t = multiplier * scores
    p = np.exp(t - logsumexp(t, axis=1, keepdims=True))
    np.testing.assert_allclose(found["needle_weight"].ravel(), p[:, 0], rtol=2e-6)
    np.testing.assert_array_equal(found["needle_is_top"].ravel(), t[:, 0] >= t.max(axis=1))


def test_needle_of_correlated_keys_depends_on_the_query() -> None:
    options: dict[str, Any] = {"model": "correlated", "n": 1, "needle_cosine": 0.5, "count": 100_000}
    norms = rows([1.0], head_dim=9, **options)["lse"].ravel() / 0.5
    assert scipy.stats.kstest(norms**2, scipy.stats.chi2(9).cdf).pvalue > 1e-4


def test_values_are_averaged_by_the_weights() -> None:
    """Given the weights, sum p v is normal with variance sum p^2."""
    found = rows([0.0, 1.0, 6.0], n=200, count=20_000)
    z = found["weighted_value"] / np.sqrt(found["concentration"])
    for column in z.T:
        assert scipy.stats.kstest(column, scipy.stats.norm.cdf).pvalue > 1e-4
    by_score = np.corrcoef(found["weighted_value"][:, 2], found["mean_score"][:, 2])[0, 1]
    assert abs(by_score) < 5 / np.sqrt(20_000)


@pytest.mark.parametrize(("n", "head_dim"), [(1, 8), (50, 2), (50, 3), (200, 16)])
def test_largest_cosine(n: int, head_dim: int) -> None:
    """P(max <= t) = F(t)^n."""
    found = _core.mc_max_cosine(n=n, head_dim=head_dim, key=KEY, count=50_000)
    half = (head_dim - 1) / 2
    beta = scipy.stats.beta(half, half, loc=-1, scale=2)
    assert scipy.stats.kstest(found, lambda t: beta.cdf(t) ** n).pvalue > 1e-4
    part = _core.mc_max_cosine(n=n, head_dim=head_dim, key=KEY, first=20, count=30, num_threads=1)
    np.testing.assert_array_equal(part, found[20:50])


def test_nothing_to_do() -> None:
    assert rows(count=0)["lse"].shape == (0, len(MULTIPLIERS))
    assert rows([], count=3)["lse"].shape == (3, 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "cube"}, "there is no model 'cube'"),
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"head_dim": 0}, "head_dim must be at least 1, got 0"),
        ({"count": -1}, "count must be at least 0, got -1"),
    ],
)
def test_the_core_refuses(options: dict[str, Any], message: str) -> None:
    arguments = {"model": "sphere", "n": 4, "head_dim": 4, "count": 1, **options}
    with pytest.raises(ValueError, match=message):
        _core.mc_score_rows(correlation=0.0, multipliers=[1.0], needle_cosine=NONE, key=KEY, **arguments)


def digest() -> str:
    """A digest of rows of every kind, with partial tiles and ranges."""
    state = hashlib.sha256()
    for model in ("sphere", "gaussian", "correlated"):
        for n in (1, 17, 700):
            for head_dim in (1, 2, 64):
                for cosine in (NONE, 0.5):
                    options = {"n": n, "head_dim": head_dim, "needle_cosine": cosine}
                    options["correlation"] = 0.2 if model == "correlated" else 0.0
                    found = rows(model=model, count=4, **options)
                    state.update(np.stack(list(found.values())).tobytes())
    return state.hexdigest()
