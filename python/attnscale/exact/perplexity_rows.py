# SPDX-License-Identifier: BSD-3-Clause
"""Perplexity search on points, on tables of squared distances and on sparse graphs of them.

Everything ends in the search of `solve_scale`: points as queries and keys, whose products the core
computes; given distances as one query of -1 a row and keys of one channel.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist

from .._call.call import Call
from .results import ScaleSolution

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

_BLOCK = 2**20  # numbers in a block of rows: 8 MiB
_ROUNDING = 1e-7  # nats that rounding of |x|^2 may cost an entropy


class Found(NamedTuple):
    """The fields of PerplexitySolution."""

    affinities: Any
    beta: NDArray[np.float64]
    perplexity: NDArray[np.float64]
    feasible: NDArray[np.bool_]
    converged: NDArray[np.bool_]


class Search(NamedTuple):
    """Target and settings of a search."""

    target: Array  # ln(perplexity) of each row
    tolerance: float | None
    num_threads: int | None

    def of(self, rows: Array) -> Search:
        """The search for these rows alone."""
        return self._replace(target=self.target[rows])

    def run(self, query: Array, key: Array, seen: Array | None) -> ScaleSolution:
        """The least scale of each row, as the core answers: 0 or inf where there is none."""
        call = Call(query, key, None, {"attn_mask": seen, "num_threads": self.num_threads}).read()
        default = 1e-9 if query.dtype == np.float64 else 1e-6
        target = self.target.reshape(call.row_shape)
        return ScaleSolution(*call.core.solve(target, self.tolerance or default))


def of_points(points: Array, search: Search) -> Found:
    """All other points are neighbours."""
    exact, exponent = _near_one(points)
    centred = exact - exact.mean(0)
    norm = (centred**2).sum(1)
    query, key = np.column_stack([2 * centred, -np.ones(len(norm))]), np.column_stack([centred, norm])
    others = _others(len(norm))
    found = _found(np.empty(others.shape), search.run(query, key, others))
    for rows in _blocks(*others.shape):
        scores = np.matmul(query[rows], key.T, out=found.affinities[rows])
        _weigh(scores, found.beta[rows], ~others[rows])
    with np.errstate(over="ignore", invalid="ignore"):  # beta may be inf, and all points the same one
        error = found.beta * (4 * np.finfo(np.float64).eps * norm.max())  # of two norms, a product, a sum
    again = np.flatnonzero(~(error <= _ROUNDING))
    for block in _blocks(len(again), len(exact)):
        chosen = again[block]
        squared = cdist(exact[chosen], exact, "sqeuclidean")
        for field, part in zip(found, _search(squared, others[chosen], search.of(chosen)), strict=True):
            field[chosen] = part
    return _in_units(found, 2 * exponent)


def of_table(squared: Array, search: Search) -> Found:
    """Squared distances (n, n), or (n, k) to k neighbours."""
    seen = _others(len(squared)) if squared.shape[0] == squared.shape[1] else None
    return _search(_floating(squared), seen, search)


def of_neighbors(points: Array, chosen: int | Array, search: Search) -> Found:
    """So many nearest points, or those of the indices (n, k), of which a point itself does not count."""
    exact, exponent = _near_one(points)
    near = _nearest(exact - exact.mean(0), chosen) if isinstance(chosen, int) else chosen
    squared = np.empty(near.shape)
    for rows in _blocks(len(near), near.shape[1] * exact.shape[1]):
        squared[rows] = ((exact[near[rows]] - exact[rows, None]) ** 2).sum(-1)
    others = near != np.arange(len(near))[:, None]
    found = _search(squared, None if others.all() else others, search)
    ends = np.concatenate(([0], np.cumsum(others.sum(1))))
    graph = csr_array((found.affinities[others], near[others], ends), shape=(len(near), len(near)))
    return _in_units(found._replace(affinities=graph), 2 * exponent)


def of_graph(graph: Any, search: Search) -> Found:
    """Squared distances in a sparse matrix; rows may have different numbers of neighbours."""
    distances = csr_array(graph, copy=True)
    distances.sum_duplicates()
    counts = np.diff(distances.indptr)
    row = np.repeat(np.arange(len(counts)), counts)
    place = np.arange(len(row)) - distances.indptr[:-1][row]
    data = _floating(distances.data)
    squared = np.zeros((len(counts), max(counts.max(initial=0), 1)), data.dtype)
    seen = np.zeros(squared.shape, np.bool_)
    squared[row, place] = data
    seen[row, place] = distances.indices != row
    found = _search(squared, seen, search)
    distances.data = found.affinities[row, place]
    return found._replace(affinities=distances)


def _search(squared: Array, seen: Array | None, search: Search) -> Found:
    """One query of one channel a row: its score is minus the distance, not rounded again."""
    squared, exponent = _rows_near_one(squared, seen)
    query = np.full((len(squared), 1, 1), -1, squared.dtype)
    mask = None if seen is None else seen[:, None]
    found = _found(np.empty(squared.shape), search.run(query, squared[:, :, None], mask))
    for rows in _blocks(*squared.shape):
        scores = np.negative(squared[rows], out=found.affinities[rows])
        _weigh(scores, found.beta[rows], None if seen is None else ~seen[rows])
    return _in_units(found, exponent)


def _near_one(points: Array) -> tuple[Array, int]:
    """The points in float64, times a power of two that makes the largest coordinate less than 1.

    So squares keep within the type in any unit. No digit changes. The exponent is that of the unit.
    """
    exact = points.astype(np.float64)
    exponent = int(np.frexp(np.abs(exact).max())[1])
    return np.ldexp(exact, -exponent), exponent


def _rows_near_one(squared: Array, seen: Array | None) -> tuple[Array, Array]:
    """Rows of distances scaled by powers of two; rows near 1 unchanged."""
    most = squared.max(1, initial=0, where=True if seen is None else seen)
    exponent = np.frexp(most)[1]
    exponent[np.abs(exponent) <= (20 if squared.dtype == np.float32 else 200)] = 0
    if exponent.any():
        with np.errstate(over="ignore"):  # of hidden distances
            squared = np.ldexp(squared, -exponent[:, None])
    return squared, exponent


def _in_units(found: Found, exponent: Any) -> Found:
    """Found for distances that were divided by a power of two: a beta that float64 cannot hold is said."""
    with np.errstate(over="ignore", under="ignore"):
        beta = np.ldexp(found.beta, -exponent)
    had = (found.beta > 0) & np.isfinite(found.beta)
    lost = had & ~((beta >= np.finfo(np.float64).tiny) & np.isfinite(beta))
    if lost.any():
        warnings.warn(
            f"beta of {lost.sum()} of {lost.size} rows is beyond the normal numbers of float64: give "
            "distances in another unit; the affinities are right",
            stacklevel=4,
        )
    return found._replace(beta=beta, converged=found.converged & ~lost)


def _found(affinities: Array, solved: ScaleSolution) -> Found:
    reached = np.exp(solved.entropy.ravel().astype(np.float64))
    rows = (solved.scale.ravel(), reached, solved.feasible.ravel(), solved.converged.ravel())
    return Found(affinities, *rows)


def _weigh(scores: Array, beta: Array, hidden: Array | None) -> None:
    """Softmax of beta times the scores, in place. beta = inf leaves the largest scores."""
    if hidden is not None:
        scores[hidden] = -np.inf
    top = scores.max(-1, keepdims=True)
    scores -= np.where(np.isfinite(top), top, 0)
    hard = np.isinf(beta)
    scores[hard] = np.where(scores[hard] < 0, -np.inf, 0)
    with np.errstate(invalid="ignore"):  # -inf * 0: beta is 0 and the key hidden
        scores *= np.where(hard, 1.0, beta)[:, None]
    if hidden is not None:
        scores[hidden] = -np.inf
    np.exp(scores, out=scores)
    total = scores.sum(-1, keepdims=True)
    scores /= np.where(total > 0, total, 1)


def _nearest(centred: Array, count: int) -> Array:
    """Indices (n, count) of the nearest other points, in the order of the indices."""
    n = len(centred)
    half_norm = (centred**2).sum(1) / 2
    near = np.empty((n, count), np.int64)
    for rows in _blocks(n, n):
        scores = centred[rows] @ centred.T
        scores -= half_norm
        scores[~_others(n)[rows]] = -np.inf
        near[rows] = np.argpartition(scores, n - count, axis=1)[:, n - count :]
    near.sort(axis=1)
    return near


def _others(n: int) -> Array:
    """Boolean (n, n), False on the diagonal, in 2n bytes: each row is a window of one array."""
    line = np.ones(2 * n - 1, np.bool_)
    line[n - 1] = False
    return np.lib.stride_tricks.sliding_window_view(line, n)[::-1]


def _blocks(n_rows: int, width: int) -> Iterator[slice]:
    step = max(_BLOCK // max(width, 1), 1)
    return (slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step))


def _floating(array: Array) -> Array:
    """float32 stays; float64 for the rest."""
    return array if array.dtype == np.float32 else array.astype(np.float64, copy=False)
