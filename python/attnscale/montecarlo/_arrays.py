# SPDX-License-Identifier: BSD-3-Clause
"""Arrays of random numbers from the experiments' generator."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .._base.checks import check_writable, number, shown
from .._base.seeds import philox_key, seed_sequence
from .._call.plan import read_num_threads
from .._core import mc_fill, mc_sphere

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._base.seeds import RNG


def normal(
    shape: int | Sequence[int] | None = None,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    dtype: DTypeLike | None = None,
    rng: RNG | None = None,
    num_threads: int | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Independent normal numbers.

    Element i of the array, in C order, depends on the seed and i alone: not on the number of threads, the
    SIMD level or the length of the array.

    Parameters
    ----------
    shape : int or sequence of int, optional
        That of ``out`` by default.
    mean, std : float
        ``std`` at least 0.
    dtype : float64 or float32, optional
        That of ``out`` by default, or float64.
    rng : None, int, SeedSequence, BitGenerator or Generator, optional
        As in SPEC 7: the same integer gives the same numbers; a Generator advances.
    num_threads : int, optional
        At least 1; :func:`attnscale.get_num_threads` by default.
    out : ndarray of float64 or float32, optional
        A writable array in C order for the numbers, as in NumPy's generators; ``shape`` and ``dtype``, if
        given, must match. The numbers are the same as without it; only the allocation is saved.

    Returns
    -------
    ndarray of ``dtype``
        ``out`` itself if it is given.

    Examples
    --------
    >>> import attnscale as at
    >>> x = at.montecarlo.normal((2, 3), rng=7)
    >>> bool((x.ravel()[:4] == at.montecarlo.normal(4, rng=7)).all())
    True
    >>> at.montecarlo.normal(rng=7, out=x) is x
    True
    """
    parameters = (number("mean", mean), _at_least_zero("std", std))
    return _fill("normal", parameters, shape, dtype, rng, num_threads, out)


def uniform(
    shape: int | Sequence[int] | None = None,
    *,
    low: float = 0.0,
    high: float = 1.0,
    dtype: DTypeLike | None = None,
    rng: RNG | None = None,
    num_threads: int | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Independent uniform numbers from ``low`` to ``high``.

    Parameters
    ----------
    shape, dtype, rng, num_threads, out
        As for :func:`normal`.
    low, high : float
        ``low <= high``; ``high`` itself occurs only by rounding.

    Returns
    -------
    ndarray of ``dtype``

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
    return _fill("uniform", (first, last), shape, dtype, rng, num_threads, out)


def truncated_normal(
    shape: int | Sequence[int] | None = None,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    low: float = -2.0,
    high: float = 2.0,
    dtype: DTypeLike | None = None,
    rng: RNG | None = None,
    num_threads: int | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Independent normal numbers, conditioned to lie between two bounds.

    The result is not rescaled: cut at 2 standard deviations, as in BERT's initialisation, its variance is
    0.773741 std^2.

    Parameters
    ----------
    shape, dtype, rng, num_threads, out
        As for :func:`normal`.
    mean, std : float
        Mean and standard deviation of the normal distribution before the cut.
    low, high : float
        Bounds in standard deviations from the mean, ``low < high``.

    Returns
    -------
    ndarray of ``dtype``

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
    return _fill("truncated_normal", parameters, shape, dtype, rng, num_threads, out)


def laplace(
    shape: int | Sequence[int] | None = None,
    *,
    mean: float = 0.0,
    scale: float = 1.0,
    dtype: DTypeLike | None = None,
    rng: RNG | None = None,
    num_threads: int | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Independent Laplace (two-sided exponential) numbers.

    Parameters
    ----------
    shape, dtype, rng, num_threads, out
        As for :func:`normal`.
    mean, scale : float
        The variance is 2 scale^2.

    Returns
    -------
    ndarray of ``dtype``

    Examples
    --------
    >>> import attnscale as at
    >>> at.montecarlo.laplace((2, 3), dtype="float32", rng=7).dtype
    dtype('float32')
    """
    parameters = (number("mean", mean), _at_least_zero("scale", scale))
    return _fill("laplace", parameters, shape, dtype, rng, num_threads, out)


def sphere(
    shape: Sequence[int] | None = None,
    *,
    radius: float = 1.0,
    dtype: DTypeLike | None = None,
    rng: RNG | None = None,
    num_threads: int | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Independent points, uniform on a sphere.

    Parameters
    ----------
    shape : sequence of int, optional
        The last axis holds the coordinates. That of ``out`` by default.
    radius : float
        Norm of every point.
    dtype, rng, num_threads, out
        As for :func:`normal`.

    Returns
    -------
    ndarray of ``dtype``

    Examples
    --------
    >>> import attnscale as at
    >>> keys = at.montecarlo.sphere((5, 64), radius=8, rng=7)
    >>> (keys**2).sum(axis=-1).round(6)
    array([64., 64., 64., 64., 64.])
    """
    length = _at_least_zero("radius", radius)
    points = _output(shape, dtype, out)
    if not points.ndim or points.shape[-1] < 1:
        whose, seen = ("the shape of out", points.shape) if shape is None else ("shape", shape)
        raise ValueError(f"{whose} must end in a number of coordinates of at least 1, got {shown(seen)}")
    key, threads = philox_key(seed_sequence(rng)), read_num_threads(num_threads)
    mc_sphere(_as_rows(points, points.shape[-1]), length, key, 0, 0, threads)
    return points


def _fill(
    distribution: str,
    parameters: tuple[float, ...],
    shape: Any,
    dtype: Any,
    rng: Any,
    num_threads: int | None,
    out: Any,
) -> NDArray[Any]:
    numbers = _output(shape, dtype, out)
    key, threads = philox_key(seed_sequence(rng)), read_num_threads(num_threads)
    mc_fill(_as_rows(numbers), distribution, parameters, key, 0, 0, threads)
    return numbers


def _as_rows(array: NDArray[Any], *columns: int) -> NDArray[Any]:
    """A view of an array in C order, also for a subclass that would keep its axes."""
    return np.asarray(array).reshape(-1, *columns)


def _output(shape: Any, dtype: Any, out: Any) -> NDArray[Any]:
    """The array to fill: `out`, or a new one."""
    if out is None:
        if shape is None:
            raise TypeError("shape must be given where out is not")
        return np.empty(_read_shape(shape), _read_dtype(dtype))
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array, got {type(out).__name__}")
    if out.dtype not in (np.float64, np.float32):
        raise TypeError(f"out must be float64 or float32, got {out.dtype}")
    if shape is not None and out.shape != (wanted := _read_shape(shape)):
        raise ValueError(f"out must have the given shape, {wanted}, got {out.shape}")
    if dtype is not None and out.dtype != (kind := _read_dtype(dtype)):
        raise TypeError(f"out must have the given dtype, {kind}, got {out.dtype}")
    check_writable("out", out)
    if not out.flags.c_contiguous:
        raise ValueError(f"out must be in C order, got strides {out.strides} for the shape {out.shape}")
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
