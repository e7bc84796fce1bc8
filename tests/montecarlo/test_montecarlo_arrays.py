# SPDX-License-Identifier: BSD-3-Clause
"""Arrays of random numbers: their shapes, their moments, and what is refused."""

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


def test_integers_of_other_seeds_differ():
    assert not np.isin(mc.normal(1000, rng=1), mc.normal(1000, rng=2)).any()


WRONG = [
    (TypeError, "shape must be an integer or a sequence of them, got 'a'", lambda: mc.normal("a")),
    (TypeError, r"shape must be an integer or a sequence of them, got 1\.5", lambda: mc.normal(1.5)),
    (ValueError, "shape must not have a negative extent, got -1", lambda: mc.normal(-1)),
    (MemoryError, "more elements than fit", lambda: mc.normal((2**40, 2**40))),
    (TypeError, "dtype must be float64 or float32, got int64", lambda: mc.normal(3, dtype=np.int64)),
    (TypeError, "dtype must be float64 or float32, got 'f9'", lambda: mc.normal(3, dtype="f9")),
    (ValueError, "std must be at least 0, got -1", lambda: mc.normal(3, std=-1)),
    (ValueError, "mean must be finite, got nan", lambda: mc.normal(3, mean=float("nan"))),
    (ValueError, "low must not be above high, got 2 and 1", lambda: mc.uniform(3, low=2, high=1)),
    (ValueError, "low must be below high, got 1 and 1", lambda: mc.truncated_normal(3, low=1, high=1)),
    (ValueError, "scale must be at least 0", lambda: mc.laplace(3, scale=-1)),
    (ValueError, "shape must end in a number of coordinates", lambda: mc.sphere((3, 0))),
    (ValueError, "radius must be at least 0", lambda: mc.sphere((3, 2), radius=-1)),
    (ValueError, "num_threads must be at least 1", lambda: mc.normal(3, num_threads=0)),
]


@pytest.mark.parametrize(("kind", "message", "call"), WRONG, ids=[row[1][:40] for row in WRONG])
def test_wrong_arguments(kind, message, call):
    with pytest.raises(kind, match=message):
        call()
