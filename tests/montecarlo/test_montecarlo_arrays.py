# SPDX-License-Identifier: BSD-3-Clause
"""Arrays of random numbers: shapes, moments, refusals."""

from __future__ import annotations

import numpy as np
import pytest
from attnscale import montecarlo as mc

# Mean and variance of each with these options.
CASES = {
    "normal": (mc.normal, {"mean": 2.0, "std": 3.0}, 2.0, 9.0),
    "uniform": (mc.uniform, {"low": -1.0, "high": 3.0}, 1.0, 16 / 12),
    "truncated_normal": (mc.truncated_normal, {"mean": 1.0, "std": 2.0}, 1.0, 4 * 0.7737413),
    "laplace": (mc.laplace, {"mean": -1.0, "scale": 2.0}, -1.0, 8.0),
}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", CASES)
def test_moments(name, dtype):
    function, options, mean, variance = CASES[name]
    x = function(200_000, dtype=dtype, rng=4, **options)
    assert x.dtype == dtype
    x = x.astype(np.float64)
    assert abs(x.mean() - mean) < 5 * np.sqrt(variance / x.size)
    spread = np.sqrt((((x - mean) ** 2).var()) / x.size)
    assert abs(((x - mean) ** 2).mean() - variance) < 5 * spread


@pytest.mark.parametrize("name", CASES)
def test_elements_depend_on_their_index_alone(name):
    function, options, *_ = CASES[name]
    long = function((7, 11), rng=9, **options)
    np.testing.assert_array_equal(function(30, rng=9, num_threads=2, **options), long.ravel()[:30])
    assert len(np.unique(long)) == long.size


@pytest.mark.parametrize("shape", [(), 0, (0, 3), (3, 0)])
def test_small_shapes(shape):
    assert mc.normal(shape, rng=0).shape == ((shape,) if isinstance(shape, int) else shape)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("dim", [1, 2, 3, 64])
def test_sphere(dim, dtype):
    points = mc.sphere((4, 500, dim), radius=3.0, dtype=dtype, rng=1)
    assert points.shape == (4, 500, dim)
    assert points.dtype == dtype
    np.testing.assert_allclose(
        np.linalg.norm(points, axis=-1), 3.0, rtol=1e-5 if dtype == np.float32 else 1e-12
    )
    flat = points.reshape(-1, dim).astype(np.float64)
    # No direction is preferred: mean 0, covariance radius^2 / dim.
    assert (np.abs(flat.mean(axis=0)) < 5 * 3 / np.sqrt(dim * len(flat))).all()
    covariance = flat.T @ flat / len(flat)
    assert (np.abs(covariance - 9 / dim * np.eye(dim)) < 5 * 9 / np.sqrt(len(flat))).all()
    np.testing.assert_array_equal(mc.sphere((7, dim), radius=3.0, dtype=dtype, rng=1), points[0, :7])


FUNCTIONS = {**{name: case[:2] for name, case in CASES.items()}, "sphere": (mc.sphere, {"radius": 3.0})}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_output_array_gets_the_numbers_of_a_new_one(name, dtype):
    function, options = FUNCTIONS[name]
    expected = function((3, 50), dtype=dtype, rng=5, **options)
    around = np.full((5, 50), np.nan, dtype)
    out = around[1:4]
    assert function(rng=5, out=out, **options) is out
    np.testing.assert_array_equal(out, expected)
    assert np.isnan(around[[0, 4]]).all()
    out[:] = 0
    assert function((3, 50), dtype=dtype, rng=5, out=out, num_threads=2, **options) is out
    np.testing.assert_array_equal(out, expected)


def test_an_output_array_of_a_subclass_or_without_axes_or_elements_is_filled():
    one = np.zeros(())
    assert mc.normal(rng=5, out=one) is one
    assert one == mc.normal((), rng=5)
    assert mc.normal(rng=5, out=np.zeros((2, 0))).shape == (2, 0)
    masked = np.ma.zeros((2, 3))
    assert mc.normal(rng=5, out=masked) is masked
    np.testing.assert_array_equal(masked.data, mc.normal((2, 3), rng=5))


def test_a_refused_output_array_does_not_move_the_generator_on():
    rng, twin = np.random.default_rng(3), np.random.default_rng(3)
    with pytest.raises(ValueError, match="out must be in C order"):
        mc.normal(rng=rng, out=np.zeros((4, 4)).T)
    assert (mc.normal(5, rng=rng) == mc.normal(5, rng=twin)).all()


def test_integers_of_other_seeds_differ():
    assert not np.isin(mc.normal(1000, rng=1), mc.normal(1000, rng=2)).any()
