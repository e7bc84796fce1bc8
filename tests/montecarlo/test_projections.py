# SPDX-License-Identifier: BSD-3-Clause
"""Sums of random products, random projections, and the distances of all pairs."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import scipy.stats
from cases import compiled as _core
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

KEY = 0x13198A2E03707344
NORMAL = ("normal", (0.0, 1.0))
KINDS = ["gaussian", "sign", "sparse"]


def power_sums(**options: Any) -> NDArray[np.float64]:
    arguments = {"head_dim": 64, "x": NORMAL, "y": NORMAL, "block": 10, "key": KEY, "count": 100, **options}
    return _core.mc_dot_products(**arguments)


def matrix(columns: int, dim: int, kind: str, **options: Any) -> NDArray[np.float64]:
    """The random matrix itself: the projection of the unit vectors."""
    unit = np.eye(dim, dtype=np.float32)
    return _core.mc_project(unit, columns, kind, KEY, **options).astype(float).T * np.sqrt(columns)


# ---- sums of products --------------------------------------------------------------------------


@pytest.mark.parametrize("head_dim", [1, 3, 4, 5, 16, 31, 32, 33, 100])
def test_products_of_the_documented_components(head_dim: int) -> None:
    """Sample 16 g + i has its components in lane i of ceil(d / 4) groups. Here y is 1, nearly."""
    count, groups = 48, -(-head_dim // 4)
    x = np.empty(count * groups * 4, np.float32)
    _core.mc_fill(x, *NORMAL, KEY)
    s = x.reshape(count // 16, groups * 4, 16)[:, :head_dim].astype(float).sum(axis=1).ravel()
    one = ("uniform", (1.0, 1.0 + 1e-6))
    found = power_sums(head_dim=head_dim, y=one, block=1, count=count)
    for column, power in enumerate((1, 2, 3, 4)):
        error = np.abs(found[:, column] - s**power)
        assert (error < 2e-6 * head_dim * power * (1 + np.abs(s)) ** power).all()


@pytest.mark.parametrize(
    ("x", "y", "variance"),
    [
        (NORMAL, NORMAL, 64.0),
        (("uniform", (-1.0, 1.0)), NORMAL, 64 / 3),
        (("laplace", (0.0, 1.0)), ("truncated_normal", (0.0, 1.0, -2.0, 2.0)), 64 * 2 * 0.7737413),
        (("normal", (1.0, 1.0)), ("normal", (0.5, 2.0)), 64 * (4 + 4 + 0.25)),
    ],
)
def test_moments_of_products(x: Any, y: Any, variance: float) -> None:
    n = 200_000
    sums = power_sums(x=x, y=y, block=1000, count=n)
    s = sums[:, :2].sum(axis=0) / n
    mean = 64 * 0.5 if x[1][0] == 1.0 else 0.0
    assert abs(s[0] - mean) < 5 * np.sqrt(variance / n)
    found = s[1] - s[0] ** 2
    # The spread of the blocks gives the standard error.
    by_block = sums[:, 1] / 1000 - (sums[:, 0] / 1000) ** 2
    assert abs(found - variance) < 5 * by_block.std() / np.sqrt(len(by_block)) + variance / 1000


def test_the_two_factors_are_independent() -> None:
    n = 100_000
    cubes = power_sums(head_dim=1, block=1000, count=n).sum(axis=0) / n
    # E s = E s^3 = 0, E s^2 = 1, E s^4 = 9 for the product of two independent standard normal numbers.
    for value, expected, variance in zip(cubes, (0, 1, 0, 9), (1, 8, 225, 105**2), strict=True):
        assert abs(value - expected) < 5 * np.sqrt(variance / n)


@pytest.mark.parametrize("block", [1, 7, 16, 1000, 4096, 5000, 20_000])
def test_sums_do_not_depend_on_threads_or_calls(block: int) -> None:
    count = 3 * block + block // 2
    whole = power_sums(block=block, count=count, first=2 * block, num_threads=1)
    assert whole.shape == (3 + (block > 1), 4)
    again = power_sums(block=block, count=count, first=2 * block, num_threads=3)
    np.testing.assert_array_equal(whole, again)
    tail = power_sums(block=block, count=count - block, first=3 * block)
    np.testing.assert_array_equal(whole[1:], tail)


# ---- projections -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("points", "dim", "columns"), [(1, 1, 1), (7, 5, 3), (13, 513, 65), (530, 130, 130)])
def test_projection_is_a_product_with_its_matrix(points: int, dim: int, columns: int, kind: str) -> None:
    x = np.random.default_rng(1).standard_normal((points, dim), dtype=np.float32)
    found = _core.mc_project(x, columns, kind, KEY, num_threads=2)
    np.testing.assert_array_equal(found, _core.mc_project(x, columns, kind, KEY, num_threads=1))
    r = matrix(columns, dim, kind)
    bound = 1e-6 * np.abs(x).astype(float) @ np.abs(r).T + 1e-6
    assert (np.abs(found * np.sqrt(columns) - x.astype(float) @ r.T) <= bound).all()


def test_entries_of_the_matrix() -> None:
    entries = matrix(300, 400, "gaussian").ravel()
    assert scipy.stats.kstest(entries, scipy.stats.norm.cdf).pvalue > 1e-4
    sign = np.round(matrix(300, 400, "sign"), 5)
    assert set(np.unique(sign)) == {-1.0, 1.0}
    assert abs(sign.mean()) < 5 / np.sqrt(sign.size)
    for density in (1 / 3, 0.1):
        sparse = matrix(300, 400, "sparse", density=density)
        share = np.mean(sparse != 0)
        assert abs(share - density) < 5 * np.sqrt(density * (1 - density) / sparse.size)
        np.testing.assert_allclose(np.abs(sparse[sparse != 0]), 1 / np.sqrt(density), rtol=1e-5)
        assert abs(np.sign(sparse).mean()) < 5 * np.sqrt(density / sparse.size)


def test_columns_and_rows_of_the_matrix_are_independent() -> None:
    r = matrix(200, 600, "gaussian")
    for correlation in (np.corrcoef(r), np.corrcoef(r.T)):
        others = correlation[np.triu_indices(len(correlation), 1)]
        n = r.size // len(correlation)
        assert np.abs(others).max() < 6 / np.sqrt(n)
        assert abs(others.std() * np.sqrt(n) - 1) < 0.05


def test_a_column_does_not_depend_on_how_many_there_are() -> None:
    np.testing.assert_allclose(matrix(70, 37, "gaussian")[:20], matrix(20, 37, "gaussian"), rtol=1e-6)


# ---- distances ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("points", "dim", "columns"), [(2, 1, 1), (17, 5, 3), (65, 600, 70), (1100, 40, 20)])
def test_ratios_of_all_pairs(points: int, dim: int, columns: int) -> None:
    rng = np.random.default_rng(2)
    # Far from the origin, where |x|^2 + |y|^2 - 2 x.y would lose every digit.
    x = (1000 + rng.standard_normal((points, dim))).astype(np.float32)
    y = (x[:, :1] + rng.standard_normal((points, columns))).astype(np.float32)
    ratio = pdist(y.astype(float), "sqeuclidean") / pdist(x.astype(float), "sqeuclidean")
    eps = np.quantile(np.abs(ratio - 1), [0.3, 0.9]) if len(ratio) > 1 else np.array([0.0, 1e30])
    eps *= 1 + 1e-4
    *values, outside = _core.pair_distances_ratio(x, y, eps)
    expected = [ratio.min(), ratio.max(), ratio.mean(), ratio.var()]
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-12)
    np.testing.assert_array_equal(outside, [np.sum(np.abs(ratio - 1) > bound) for bound in eps])
    *one, outside_one = _core.pair_distances_ratio(x, y, eps, num_threads=1)
    *three, outside_three = _core.pair_distances_ratio(x, y, eps, num_threads=3)
    assert one == three == values
    np.testing.assert_array_equal(outside_one, outside_three)


def test_equal_points() -> None:
    x = np.zeros((3, 4), np.float32)
    kept = _core.pair_distances_ratio(x, x[:, :2].copy(), [0.1])
    assert kept[:4] == (1.0, 1.0, 1.0, 0.0)
    torn = _core.pair_distances_ratio(x, np.eye(3, dtype=np.float32), [0.1])
    assert torn[1] == np.inf
    assert torn[4][0] == 3


def test_no_pair_and_nan() -> None:
    for points in (0, 1):
        x = np.ones((points, 4), np.float32)
        *values, outside = _core.pair_distances_ratio(x, x, [0.1])
        assert np.isnan(values).all()
        assert outside.tolist() == [0]
    x = np.random.default_rng(3).standard_normal((5, 4), dtype=np.float32)
    y = x.copy()
    y[2, 1] = np.nan
    assert np.isnan(_core.pair_distances_ratio(x, y, [])[:4]).all()


def test_projection_keeps_distances_as_the_theory_says() -> None:
    """|R x|^2 / |x|^2 is chi-squared over k: mean 1, variance 2 / k, for one pair at a time."""
    x = np.random.default_rng(4).standard_normal((400, 300), dtype=np.float32)
    for kind in KINDS:
        y = _core.mc_project(x, 200, kind, KEY)
        _, _, mean, variance, _ = _core.pair_distances_ratio(x, y, [])
        # The pairs share the points: about 200 of them are independent.
        assert abs(mean - 1) < 5 * np.sqrt(2 / 200 / 200)
        assert 0.6 < variance * 200 / 2 < 1.5


# ---- refusals of the core ----------------------------------------------------------------------


def test_refusals() -> None:
    x = np.ones((3, 4), np.float32)
    for call, message in [
        (lambda: _core.mc_project(x, 0, "sign", KEY), "k must be at least 1, got 0"),
        (lambda: _core.mc_project(x, 2, "dense", KEY), "there is no projection 'dense'"),
        (lambda: _core.mc_project(x[0], 2, "sign", KEY), "points must have 2 axes, got 1"),
        (lambda: _core.pair_distances_ratio(x, x[:2], [0.1]), "the same number of rows, got 3 and 2"),
        (lambda: power_sums(block=0), "block must be at least 1, got 0"),
        (lambda: power_sums(head_dim=0), "head_dim must be at least 1, got 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()


# ---- levels ------------------------------------------------------------------------------------


def digest() -> str:
    """A digest of sums and matrices; products of projections round by SIMD level."""
    state = hashlib.sha256()
    for head_dim in (1, 7, 33, 64):
        for name, parameters in (NORMAL, ("truncated_normal", (0.0, 1.0, -2.0, 2.0))):
            sums = power_sums(head_dim=head_dim, x=(name, parameters), block=13, count=50)
            state.update(sums.tobytes())
    for kind in KINDS:
        state.update(matrix(70, 9, kind).tobytes())
    return state.hexdigest()
