# SPDX-License-Identifier: BSD-3-Clause
"""Arrays of random numbers from the generator of the experiments."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .._call.call import read_num_threads
from .._checks import number, shown
from .._core import mc_fill, mc_sphere
from .._seeds import philox_key, seed_sequence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._seeds import RNG

__all__ = ["laplace", "normal", "sphere", "truncated_normal", "uniform"]


def normal(
    shape: int | Sequence[int],
    *,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: DTypeLike = np.float64,
    rng: RNG | None = None,
    num_threads: int | None = None,
) -> NDArray[Any]:
    """Independent normal numbers.

    Element i of the array, in C order, is a function of the seed and of i alone: it does not depend
    on the number of threads, on the SIMD level, or on the length of the array.

    Parameters
    ----------
    shape : int or sequence of int
    mean, std : float
        ``std`` at least 0.
    dtype : float64 or float32
    rng : None, int, SeedSequence, BitGenerator or Generator, optional
        As in SPEC 7: the same integer gives the same numbers; a Generator moves on.
    num_threads : int, optional
        At least 1; by default that of :func:`attnscale.get_num_threads`.

    Returns
    -------
    ndarray of ``dtype``

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of range.

    Examples
    --------
    >>> import attnscale as at
    >>> x = at.montecarlo.normal((2, 3), rng=7)
    >>> bool((x.ravel()[:4] == at.montecarlo.normal(4, rng=7)).all())
    True
    """
    parameters = (number("mean", mean), _at_least_zero("std", std))
    return _fill("normal", parameters, shape, dtype, rng, num_threads)


def uniform(
    shape: int | Sequence[int],
    *,
    low: float = 0.0,
    high: float = 1.0,
    dtype: DTypeLike = np.float64,
    rng: RNG | None = None,
    num_threads: int | None = None,
) -> NDArray[Any]:
    """Independent numbers, uniform from ``low`` to ``high``.

    Parameters
    ----------
    shape, dtype, rng, num_threads
        As for :func:`normal`.
    low, high : float
        ``low <= high``; ``high`` itself does not occur, but for rounding.

    Returns
    -------
    ndarray of ``dtype``

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of range.

    Examples
    --------
    >>> import attnscale as at
    >>> x = at.montecarlo.uniform(1000, low=-1, high=1, rng=7)
    >>> bool((-1 <= x).all() and (x <= 1).all())
    True
    """
    first, last = number("low", low), number("high", high)
    if first > last:
        raise ValueError(f"low must not be above high, got {first:g} and {last:g}")
    return _fill("uniform", (first, last), shape, dtype, rng, num_threads)


def truncated_normal(
    shape: int | Sequence[int],
    *,
    mean: float = 0.0,
    std: float = 1.0,
    low: float = -2.0,
    high: float = 2.0,
    dtype: DTypeLike = np.float64,
    rng: RNG | None = None,
    num_threads: int | None = None,
) -> NDArray[Any]:
    """Independent normal numbers, given that they lie between two bounds.

    The result is not rescaled: cut at 2 standard deviations, as in BERT's initialisation, its
    variance is 0.773741 std^2.

    Parameters
    ----------
    shape, dtype, rng, num_threads
        As for :func:`normal`.
    mean, std : float
        Mean and standard deviation of the normal distribution before the cut.
    low, high : float
        Bounds in standard deviations from the mean, ``low < high``.

    Returns
    -------
    ndarray of ``dtype``

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of range.

    Examples
    --------
    >>> import attnscale as at
    >>> x = at.montecarlo.truncated_normal(1000, std=0.02, rng=7)
    >>> bool((abs(x) <= 0.04).all())
    True
    """
    first, last = number("low", low), number("high", high)
    if first >= last:
        raise ValueError(f"low must be below high, got {first:g} and {last:g}")
    parameters = (number("mean", mean), _at_least_zero("std", std), first, last)
    return _fill("truncated_normal", parameters, shape, dtype, rng, num_threads)


def laplace(
    shape: int | Sequence[int],
    *,
    mean: float = 0.0,
    scale: float = 1.0,
    dtype: DTypeLike = np.float64,
    rng: RNG | None = None,
    num_threads: int | None = None,
) -> NDArray[Any]:
    """Independent Laplace (two-sided exponential) numbers.

    Parameters
    ----------
    shape, dtype, rng, num_threads
        As for :func:`normal`.
    mean, scale : float
        The variance is 2 scale^2.

    Returns
    -------
    ndarray of ``dtype``

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of range.

    Examples
    --------
    >>> import attnscale as at
    >>> at.montecarlo.laplace((2, 3), dtype="float32", rng=7).dtype
    dtype('float32')
    """
    parameters = (number("mean", mean), _at_least_zero("scale", scale))
    return _fill("laplace", parameters, shape, dtype, rng, num_threads)


def sphere(
    shape: Sequence[int],
    *,
    radius: float = 1.0,
    dtype: DTypeLike = np.float64,
    rng: RNG | None = None,
    num_threads: int | None = None,
) -> NDArray[Any]:
    """Independent points, uniform on a sphere.

    Parameters
    ----------
    shape : sequence of int
        The last axis holds the coordinates.
    radius : float
        Norm of every point.
    dtype, rng, num_threads
        As for :func:`normal`.

    Returns
    -------
    ndarray of ``dtype``

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of range.

    Examples
    --------
    >>> import attnscale as at
    >>> keys = at.montecarlo.sphere((5, 64), radius=8, rng=7)
    >>> (keys**2).sum(axis=-1).round(6)
    array([64., 64., 64., 64., 64.])
    """
    extents = _read_shape(shape)
    if not extents or extents[-1] < 1:
        raise ValueError(f"shape must end in a number of coordinates of at least 1, got {shown(shape)}")
    length = _at_least_zero("radius", radius)
    out = np.empty(extents, _read_dtype(dtype))
    key, threads = philox_key(seed_sequence(rng)), read_num_threads(num_threads)
    mc_sphere(out.reshape(-1, extents[-1]), length, key, 0, 0, threads)
    return out


def _fill(
    distribution: str,
    parameters: tuple[float, ...],
    shape: Any,
    dtype: Any,
    rng: Any,
    num_threads: int | None,
) -> NDArray[Any]:
    out = np.empty(_read_shape(shape), _read_dtype(dtype))
    key, threads = philox_key(seed_sequence(rng)), read_num_threads(num_threads)
    mc_fill(out.reshape(-1), distribution, parameters, key, 0, 0, threads)
    return out


def _read_shape(shape: Any) -> tuple[int, ...]:
    try:
        extents = (operator.index(shape),) if not np.iterable(shape) else tuple(map(operator.index, shape))
    except TypeError:
        raise TypeError(f"shape must be an integer or a sequence of them, got {shown(shape)}") from None
    if any(extent < 0 for extent in extents):
        raise ValueError(f"shape must not have a negative extent, got {shown(shape)}")
    if math.prod(extents) >= 2**63:
        raise MemoryError(f"shape {shape!r} has more elements than fit into memory")
    return extents


def _read_dtype(dtype: Any) -> np.dtype[Any]:
    try:
        wanted: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        raise TypeError(f"dtype must be float64 or float32, got {shown(dtype)}") from None
    if wanted not in (np.float64, np.float32):
        raise TypeError(f"dtype must be float64 or float32, got {wanted}")
    return wanted


def _at_least_zero(name: str, value: Any) -> float:
    converted = number(name, value)
    if converted < 0:
        raise ValueError(f"{name} must be at least 0, got {converted:g}")
    return converted
