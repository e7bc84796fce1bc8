# SPDX-License-Identifier: BSD-3-Clause
"""The random numbers of the core: known answers, distributions, independence of how they are made."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import scipy.stats
from cases import compiled as _core
from numpy.typing import NDArray
from scipy.special import ndtr

KEY = 0x9E3779B97F4A7C15
DTYPES = [np.float32, np.float64]

DISTRIBUTIONS: dict[str, tuple[str, tuple[float, ...], Any]] = {
    "uniform": ("uniform", (-1.0, 2.0), scipy.stats.uniform(-1, 3)),
    "normal": ("normal", (0.5, 2.0), scipy.stats.norm(0.5, 2)),
    "laplace": ("laplace", (1.0, 0.5), scipy.stats.laplace(1, 0.5)),
    "truncated": ("truncated_normal", (0.0, 0.02, -2.0, 2.0), scipy.stats.truncnorm(-2, 2, 0, 0.02)),
    "tail": ("truncated_normal", (1.0, 2.0, 6.0, np.inf), scipy.stats.truncnorm(6, np.inf, 1, 2)),
    "far": ("truncated_normal", (0.0, 1.0, -31.0, -30.0), scipy.stats.truncnorm(-31, -30)),
}


def draw(count: int, name: str, dtype: Any = np.float64, *, stream: int = 0, first: int = 0) -> NDArray[Any]:
    out = np.empty(count, dtype)
    kind, parameters, _ = DISTRIBUTIONS[name]
    _core.mc_fill(out, kind, parameters, KEY, stream, first)
    return out


def test_known_answers() -> None:
    assert _core.philox4x32_10((0,) * 4, (0,) * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = 0xFFFFFFFF
    assert _core.philox4x32_10((ones,) * 4, (ones,) * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def cdf(name: str, x: NDArray[Any]) -> NDArray[Any]:
    """Distribution function; of truncated normals from the tail without cancellation, faster than scipy."""
    kind, parameters, expected = DISTRIBUTIONS[name]
    if kind != "truncated_normal":
        return expected.cdf(x)
    mean, deviation, low, high = parameters
    sign = -1 if low > 0 else 1
    below, up_to = ndtr(sign * low), ndtr(sign * high)
    return (ndtr(sign * (x - mean) / deviation) - below) / (up_to - below)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_quick_cdf_agrees_with_scipy(name: str) -> None:
    expected = DISTRIBUTIONS[name][2]
    x = expected.ppf(np.linspace(0, 1, 99)[1:-1])
    np.testing.assert_allclose(cdf(name, x), expected.cdf(x), rtol=1e-9)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution(name: str, dtype: Any) -> None:
    """Kolmogorov and Smirnov's distance, and the tails that it cannot see."""
    n = 1 << 20
    expected = DISTRIBUTIONS[name][2]
    x = draw(n, name, dtype).astype(np.float64)
    assert scipy.stats.kstest(x, lambda x: cdf(name, x)).pvalue > 1e-4
    for probability in (1e-4, 1e-3, 1e-2):
        for count in (np.sum(x < expected.ppf(probability)), np.sum(x > expected.isf(probability))):
            assert abs(count - n * probability) < 5 * np.sqrt(n * probability)


@pytest.mark.parametrize("dtype", DTYPES)
def test_normal_moments(dtype: Any) -> None:
    n = 1 << 22
    x = np.empty(n, dtype)
    _core.mc_fill(x, "normal", (0.0, 1.0), KEY, 7, 0)
    # E z^k and the variance of z^k, from the moments 1, 3, 15, 105, 945, 10395 of even order.
    moments = {0: 1, 2: 1, 4: 3, 6: 15, 8: 105, 10: 945, 12: 10395}
    power = np.ones(n)
    for k in range(1, 7):
        power *= x
        expected, second = moments.get(k, 0), moments[2 * k]
        assert abs(power.mean() - expected) < 5 * np.sqrt((second - expected**2) / n)
    assert 4.5 < x.max() < 6.77
    assert -6.77 < x.min() < -4.5


def test_normal_anderson_darling() -> None:
    x = np.sort(draw(1 << 20, "normal"))
    u = scipy.stats.norm(0.5, 2)
    n, i = len(x), np.arange(1, len(x) + 1)
    statistic = -n - np.mean((2 * i - 1) * (u.logcdf(x) + u.logsf(x)[::-1]))
    assert statistic < 6.0  # the level 0.1 % of a known distribution (Stephens 1974)


def test_float32_has_the_digits_of_its_tails() -> None:
    """Beyond 4 sigma there are as many different values as numbers, up to a few coincidences."""
    x = np.empty(1 << 24, np.float32)
    _core.mc_fill(x, "normal", (0.0, 1.0), KEY, 0, 0)
    tail = x[np.abs(x) > 4]
    assert len(tail) > 900
    assert len(np.unique(tail)) > 0.999 * len(tail)
    assert np.count_nonzero(x == 0) == 0


def test_pairs_are_independent() -> None:
    """Numbers that share a block, a pair or a lane: correlations of values, squares and signs."""
    n = 1 << 22
    x = draw(n, "normal", np.float32).astype(np.float64) - 0.5
    bound = 5 / np.sqrt(n)
    for part in (x, x**2, np.sign(x), np.sin(5 * x)):
        part = (part - part.mean()) / part.std()
        for lag in (1, 15, 16, 17, 32, 48, 64, 1024):
            assert abs(part[:-lag] @ part[lag:]) / (n - lag) < bound


def test_keys_and_streams_are_independent() -> None:
    n = 1 << 20
    first = draw(n, "normal", stream=0)
    others = [draw(n, "normal", stream=stream) for stream in (1, 2, 2**32, 2**63 - 1)]
    for key in (KEY + 1, KEY ^ (1 << 63), 0):
        other = np.empty(n)
        _core.mc_fill(other, "normal", (0.5, 2.0), key, 0, 0)
        others.append(other)
    for other in others:
        assert abs(np.corrcoef(first, other)[0, 1]) < 5 / np.sqrt(n)
        assert abs(np.corrcoef(first**2, other**2)[0, 1]) < 5 / np.sqrt(n)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_elements_do_not_depend_on_the_call(name: str, dtype: Any) -> None:
    kind, parameters, _ = DISTRIBUTIONS[name]
    whole = draw(300_000, name, dtype, first=5)
    for threads in (1, 2, 3):
        again = np.empty_like(whole)
        _core.mc_fill(again, kind, parameters, KEY, 0, 5, num_threads=threads)
        np.testing.assert_array_equal(again, whole)
    cuts = [0, 33, 70_033, 300_000]
    pieces = [draw(end - start, name, dtype, first=5 + start) for start, end in pairwise(cuts)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 2, 3, 64, 100])
def test_sphere(dim: int, dtype: Any) -> None:
    n = 1 << 16
    x = np.empty((n, dim), dtype)
    _core.mc_sphere(x, np.sqrt(dim), KEY, 3, 10)
    np.testing.assert_allclose((x.astype(float) ** 2).sum(axis=1), dim, rtol=4 * np.finfo(dtype).eps * 10)
    assert np.abs(x.mean(axis=0)).max() < 5 / np.sqrt(n)
    if dim > 1:
        cosine = x[:, 0].astype(float) / np.sqrt(dim)
        beta = scipy.stats.beta((dim - 1) / 2, (dim - 1) / 2, loc=-1, scale=2)
        assert scipy.stats.kstest(cosine, beta.cdf).pvalue > 1e-4
    part = np.empty((5, dim), dtype)
    _core.mc_sphere(part, np.sqrt(dim), KEY, 3, 10 + 1000)
    np.testing.assert_array_equal(part, x[1000:1005])


def digest() -> str:
    """A digest of numbers of every kind."""
    state = hashlib.sha256()
    for dtype in DTYPES:
        for name in DISTRIBUTIONS:
            state.update(draw(5000, name, dtype, first=77).tobytes())
        points = np.empty((50, 7), dtype)
        _core.mc_sphere(points, 1.0, KEY, 0, 3)
        state.update(points.tobytes())
    return state.hexdigest()


@pytest.mark.parametrize(
    ("out", "name", "parameters", "message"),
    [
        (np.empty(4, np.int64), "normal", (0, 1), "the core does not read arrays of this type"),
        (np.empty(4, np.float16), "normal", (0, 1), "out must be a writable C-contiguous"),
        (np.empty((2, 2)), "normal", (0, 1), "of 1 axes"),
        (np.empty(8)[::2], "normal", (0, 1), "C-contiguous"),
        (np.empty(4), "cauchy", (0, 1), "there is no distribution 'cauchy'"),
        (np.empty(4), "normal", (0,), "normal takes 2 parameters, got 1"),
        (np.empty(4), "truncated_normal", (0, 1), "truncated_normal takes 4 parameters, got 2"),
    ],
)
def test_the_core_refuses_arrays_it_cannot_write(
    out: NDArray[Any], name: str, parameters: tuple[float, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _core.mc_fill(out, name, parameters, KEY, 0, 0)


def test_a_read_only_array_stays_as_it_is() -> None:
    out = np.zeros(4)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="writable"):
        _core.mc_fill(out, "normal", (0.0, 1.0), KEY, 0, 0)
    assert not out.any()
