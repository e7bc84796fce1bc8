# SPDX-License-Identifier: BSD-3-Clause
"""What a random projection does to distances: Johnson and Lindenstrauss, measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from .. import _core
from .._checks import as_array, choose, positive_int
from ._axes import axis, fraction, integer_axis, product
from ._digest import describe_array
from ._experiment import Case, Experiment, Rows
from ._run import RunOptions, num_threads_of, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ._result import ExperimentResult
    from ._seeds import RNG

__all__ = ["KINDS", "jl_distortion"]

KINDS = ("gaussian", "sign", "sparse")
# Rows of the matrix of all pairs that are held at a time.
_ROWS_OF_PAIRS = 256
_QUANTITIES = {"distortion": "", "outside": "", "success": "", "mean_ratio": "", "ratio_std": ""}


def jl_distortion(
    points: Any = None,
    *,
    n: int | None = None,
    dim: int | None = None,
    k: int | Sequence[int],
    kind: str | Sequence[str] = "gaussian",
    eps: float | Sequence[float] = 0.5,
    samples: int | None = None,
    rng: RNG | None = None,
    **options: Unpack[RunOptions],
) -> ExperimentResult:
    """Distortion of all squared distances between points by a random projection to k dimensions.

    Parameters
    ----------
    points : array_like, shape (n, dim), optional
        At least two, no two of them equal; computed in float32.
    n, dim : int, optional
        Instead of points: so many of so many independent normal coordinates, other ones each time.
    k : int or sequence of int
        Dimensions to project to, at least 1.
    kind : {"gaussian", "sign", "sparse"} or sequence of them
        Entries of the matrix, of variance 1/k: normal; +-1/sqrt(k); or sqrt(3/k) times +1, 0, -1
        with probabilities 1/6, 2/3, 1/6 (Achlioptas 2003).
    eps : float or sequence of float
        A distance is kept if its square changes by a factor between 1 - eps and 1 + eps.
    samples : int, optional
        Projections for each k and kind; 10 by default.
    rng, **options
        As for :func:`entropy_vs_length`.

    Returns
    -------
    ExperimentResult
        Means over the projections: ``distortion`` (the largest relative change of a squared
        distance), ``outside`` (share of pairs that change by more than eps), ``success`` (share of
        projections that keep all pairs), ``mean_ratio`` and ``ratio_std`` of the squared distances
        after and before.

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of range.

    See Also
    --------
    attnscale.theory.jl_min_dim : the k that suffices.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.jl_distortion(n=100, dim=1000, k=[50, 400], rng=0)
    >>> bool(result.value[0] > result.value[1])
    True
    """
    threads = num_threads_of("jl_distortion", options)
    dims = integer_axis("k", k)
    kinds = axis("kind", kind, lambda name, value: choose(name, value, KINDS))
    tolerances = axis("eps", eps, fraction)
    make, shape, described = _source(points, n, dim, threads)
    bounds = np.array(tolerances.values)
    cases = tuple(
        Case(
            (*shape, size, KINDS.index(chosen)),
            _rows(make, size, chosen, bounds, threads),
            shape[0] * size * float(shape[1] + shape[0]),
        )
        for size, chosen in product(dims, kinds)
    )
    experiment = Experiment(
        name="jl_distortion",
        quantities=_QUANTITIES,
        outer=(dims, kinds),
        inner=(tolerances,),
        cases=cases,
        parameters={"k": dims.given, "kind": kinds.given, "eps": tolerances.given, **described},
        default_samples=10,
        columns=len(_QUANTITIES),
    )
    return run(experiment, samples, rng, options)


def _source(
    points: Any, n: Any, dim: Any, threads: int
) -> tuple[Callable[[int, int], NDArray[np.float32]], tuple[int, int], dict[str, Any]]:
    """A function of (key, stream) that gives the points, their shape, and what to call them."""
    if points is None:
        if n is None or dim is None:
            raise ValueError(f"points, or n and dim, must be given, got n={n!r} and dim={dim!r}")
        shape = (positive_int("n", n), positive_int("dim", dim))
        if shape[0] < 2:
            raise ValueError(f"n must be at least 2, got {n}")
        return (lambda key, stream: _normal_points(shape, key, stream, threads)), shape, {"n": n, "dim": dim}
    if n is not None or dim is not None:
        raise ValueError(f"points exclude n and dim, got n={n!r} and dim={dim!r}")
    given = as_array("points", points)
    if given.dtype.kind not in "f":
        raise TypeError(f"points must be floating point, got {given.dtype}")
    if given.ndim != 2 or given.shape[0] < 2 or given.shape[1] < 1:
        raise ValueError(f"points must have shape (n, dim) with n of at least 2, got {given.shape}")
    if not np.isfinite(given).all():
        raise ValueError("points must be finite, got an array with NaN or infinity")
    if len(np.unique(given, axis=0)) < len(given):
        raise ValueError("points must be distinct, got two equal ones, whose distance has no ratio")
    fixed = np.ascontiguousarray(given, np.float32)
    return (lambda key, stream: fixed), given.shape, {"points": describe_array(given)}


def _normal_points(shape: tuple[int, int], key: int, stream: int, threads: int) -> NDArray[np.float32]:
    points = np.empty(shape, np.float32)
    _core.mc_fill(points.reshape(-1), "normal", (0.0, 1.0), key, stream, 0, threads)
    return points


def _rows(
    make: Callable[[int, int], NDArray[np.float32]],
    k: int,
    kind: str,
    eps: NDArray[np.float64],
    threads: int,
) -> Rows:
    def one(key: int, index: int) -> NDArray[np.float64]:
        # Two streams a sample: the points and the matrix.
        points = make(key, 2 * index)
        projected = points @ _matrix((points.shape[1], k), kind, key, 2 * index + 1, threads)
        low, high, mean, variance, outside = _pair_ratios(points, projected, eps)
        pairs = len(points) * (len(points) - 1) / 2
        columns = [max(high - 1, 1 - low), outside / pairs, outside == 0, mean, np.sqrt(variance)]
        return np.stack(np.broadcast_arrays(*columns), axis=-1).astype(np.float64)

    def rows(key: int, first: int, count: int) -> NDArray[np.float64]:
        return np.stack([one(key, first + i) for i in range(count)])

    return rows


def _matrix(shape: tuple[int, int], kind: str, key: int, stream: int, threads: int) -> NDArray[np.float32]:
    """A random matrix with entries of variance 1/k."""
    entries = np.empty(shape, np.float32)
    gaussian = kind == "gaussian"
    name, parameters = ("normal", (0.0, 1.0)) if gaussian else ("uniform", (0.0, 1.0))
    _core.mc_fill(entries.reshape(-1), name, parameters, key, stream, 0, threads)
    if kind == "sign":
        entries = np.where(entries < 0.5, np.float32(-1), np.float32(1))
    if kind == "sparse":
        sign = (entries > 5 / 6).astype(np.float32) - (entries < 1 / 6)
        entries = np.float32(np.sqrt(3)) * sign
    return entries / np.float32(np.sqrt(shape[1]))


def _pair_ratios(
    points: NDArray[np.float32], projected: NDArray[np.float32], eps: NDArray[np.float64]
) -> tuple[float, float, float, float, NDArray[np.float64]]:
    """Least, largest, mean and variance of the ratio of squared distances; pairs outside each eps."""
    lows, highs, total, squares, outside = [], [], 0.0, 0.0, np.zeros(len(eps))
    # Around the mean, so that inner products are no larger than the distances made of them.
    before, after = (x - x.mean(axis=0, dtype=np.float64) for x in (points, projected))
    for start in range(0, len(points) - 1, _ROWS_OF_PAIRS):
        stop = min(start + _ROWS_OF_PAIRS, len(points) - 1)
        later = np.arange(start, len(points)) > np.arange(start, stop)[:, None]
        ratio = (_distances(after, start, stop) / np.where(later, _distances(before, start, stop), 1))[later]
        lows.append(ratio.min())
        highs.append(ratio.max())
        total += float((ratio - 1).sum())
        squares += float(((ratio - 1) ** 2).sum())
        outside += (np.abs(ratio - 1) > eps[:, None]).sum(axis=1)
    pairs = len(points) * (len(points) - 1) / 2
    mean = total / pairs
    return min(lows), max(highs), 1 + mean, max(squares / pairs - mean**2, 0.0), outside


def _distances(x: NDArray[np.float64], start: int, stop: int) -> NDArray[np.float64]:
    """Squared distances of points start ... stop - 1 to those from start on."""
    norms = (x[start:] ** 2).sum(axis=1)
    squares: NDArray[np.float64] = norms[: stop - start, None] + norms - 2 * x[start:stop] @ x[start:].T
    return squares
