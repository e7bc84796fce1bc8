# SPDX-License-Identifier: BSD-3-Clause
"""The perplexity search of t-SNE: widths of Gaussians that give each point so many neighbours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from .._base.checks import (
    answer_infeasible,
    as_array,
    choose,
    fit_to,
    number,
    positive_int,
    read_on_infeasible,
    shown,
)
from .._base.hints import hinted
from .results import describe_arrays

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["PerplexitySolution", "solve_perplexity"]

_METRICS = ("euclidean", "precomputed")


@dataclass(frozen=True, eq=False, repr=False)
class PerplexitySolution:
    """Affinities of a wanted perplexity.

    Attributes
    ----------
    affinities : ndarray of float64, or scipy.sparse.csr_array
        Entry (i, j) is t-SNE's p of j given i; rows add up to 1. Dense of the shape (n, n) with a zero
        diagonal, or (n, k) for k precomputed distances a row; sparse for `neighbors` and for a
        sparse matrix of distances, with an entry for each neighbour.
    beta : ndarray of float64, shape (n,)
        1 / (2 sigma^2) of each row; NaN where no beta has the perplexity: it is more than the row has
        neighbours, or less than the number of its nearest neighbours that are equally near.
    perplexity : ndarray of float64, shape (n,)
        exp of the entropy of each row: the one asked for where ``feasible``, elsewhere the nearest
        possible, which is that of the affinities too.
    feasible, converged : ndarray of bool, shape (n,)
        Whether a beta exists, and whether the entropy is within the tolerance.
    """

    affinities: Any
    beta: NDArray[np.float64]
    perplexity: NDArray[np.float64]
    feasible: NDArray[np.bool_]
    converged: NDArray[np.bool_]

    def __repr__(self) -> str:
        return describe_arrays(self)

    @property
    def sigma(self) -> NDArray[np.float64]:
        """Standard deviation of each row's Gaussian."""
        return np.asarray(np.sqrt(0.5 / self.beta))


@hinted
def solve_perplexity(
    points: ArrayLike,
    perplexity: ArrayLike = 30.0,
    *,
    metric: Literal["euclidean", "precomputed"] = "euclidean",
    neighbors: int | ArrayLike | None = None,
    drop_self: bool = False,
    tolerance: float | None = None,
    on_infeasible: Literal["warn", "nan", "raise"] = "warn",
    num_threads: int | None = None,
) -> PerplexitySolution:
    """Conditional affinities of t-SNE: Gaussians of such widths that each row has this perplexity.

    Parameters
    ----------
    points : array_like, shape (n, n_features); or squared distances
        With ``metric="precomputed"`` squared distances instead: (n, n), whose diagonal is left out;
        (n, k) from each point to k others; or a sparse matrix (n, n), whose entries count, those of
        0 as well, but none on the diagonal.
    perplexity : float or array_like of shape (n,), default 30
        Effective number of neighbours, exp of the entropy; at least 1.
    metric : {"euclidean", "precomputed"}, default "euclidean"
        What ``points`` holds.
    neighbors : int or array_like of int, shape (n, k), optional
        So many nearest neighbours a row, found by comparing all pairs; or the indices of neighbours
        that another search has found. Default: all other points.
    drop_self : bool, default False
        Indices of `neighbors` may hold the point itself, as those of scikit-learn's ``kneighbors`` for the
        points that it was fitted on do: it is left out. Without it such indices are refused.
    tolerance : float, optional
        Largest distance of an entropy from ln(perplexity), in nats. Default: 1e-9, and 1e-6 for
        precomputed distances in float32.
    on_infeasible : {"warn", "nan", "raise"}, default "warn"
        Where no beta has the perplexity: NaN with a warning, NaN, or ValueError.
    num_threads : int, optional
        As for :func:`attnscale.attention`. Dense affinities and neighbours take products of NumPy, whose
        threads are those of its BLAS.

    Returns
    -------
    PerplexitySolution

    Raises
    ------
    TypeError, ValueError
        If an argument is of the wrong kind, shape or range; if a coordinate or a distance is NaN or
        infinite; where no beta has the perplexity, if ``on_infeasible`` says so.

    Warns
    -----
    UserWarning
        Where no beta has the perplexity, unless ``on_infeasible`` says otherwise; where the distances are so
        small or large that beta is beyond float64 (``converged`` is False there).

    See Also
    --------
    solve_scale : The same search for attention scores.

    Notes
    -----
    ``-|x - y|^2 = 2 x.y - |x|^2 - |y|^2``, and ``|x|^2`` is the same for a whole row, so it drops out of the
    weights: the search is that of :func:`attnscale.solve_scale` with the query (2 x, -1) and the key
    ``(y, |y|^2)``. Distances are never stored. Points are centred and products taken in float64, so an
    offset of the data costs no digits. Where rounding of ``|x|^2`` could still move an entropy by more than
    1e-7 (points far from the mean with near neighbours, neighbours that tie), the row is searched
    again with distances from differences. Points and rows of distances are multiplied by powers of two first,
    so that the answer is the same in any unit.

    Dense affinities take 8 n^2 bytes, and the search beside them O(n). With `neighbors` it is O(n k).

    scikit-learn's private ``_binary_search_perplexity`` takes squared distances (n, n) or (n, k) and
    returns the affinities; the how-to on perplexity puts this function in its place.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> points = np.random.default_rng(0).standard_normal((500, 8))
    >>> found = at.solve_perplexity(points, 30)
    >>> found.affinities.shape, found.perplexity.round(6).min()
    ((500, 500), np.float64(30.0))
    >>> near = at.solve_perplexity(points, 30, neighbors=91)
    >>> near.affinities.nnz, bool((near.beta < found.beta).all())
    (45500, True)
    """
    from .perplexity_rows import Search, of_graph, of_neighbors, of_points, of_table  # and with it scipy

    given: Any = points if _is_sparse(points) else as_array("points", points)
    precomputed = choose("metric", metric, _METRICS) == "precomputed"
    if precomputed and neighbors is not None:
        raise ValueError('neighbors takes points; with metric="precomputed" give distances to k others')
    form = "squared distances (n, n) or (n, k)" if precomputed else "an array (n, n_features)"
    _check_table(given, form, precomputed=precomputed)
    chosen = _read_neighbors(neighbors, given.shape[0], _read_drop_self(drop_self, neighbors))
    search = Search(_read_target(perplexity, given.shape[0]), _read_tolerance(tolerance), num_threads)
    read_on_infeasible(on_infeasible)
    if _is_sparse(given):
        found = of_graph(given, search)
    elif precomputed:
        found = of_table(given, search)
    elif chosen is None:
        found = of_points(given, search)
    else:
        found = of_neighbors(given, chosen, search)
    return _answer(PerplexitySolution(*found), np.exp(search.target), on_infeasible)


def _answer(found: PerplexitySolution, wanted: NDArray[np.float64], on_infeasible: str) -> PerplexitySolution:
    """NaN for the beta of rows that have none, which is said as was asked."""
    lost = ~found.feasible
    if not lost.any():
        return found
    first = int(np.flatnonzero(lost)[0])
    answer_infeasible(
        on_infeasible,
        f"no beta gives {lost.sum()} of {lost.size} rows the perplexity: {wanted[first]:.6g} in row {first}, "
        f"whose nearest is {found.perplexity[first]:.6g}",
        "beta",
    )
    return replace(found, beta=np.where(lost, np.nan, found.beta))


def _is_sparse(value: Any) -> bool:
    """Without an import of scipy: only who has imported it can have made one."""
    return type(value).__module__.startswith("scipy.sparse")


def _check_table(given: Any, form: str, *, precomputed: bool) -> None:
    """Two axes, at least two points, finite numbers; distances are not negative."""
    if _is_sparse(given) and not precomputed:
        raise TypeError(
            'points must be an array; a sparse matrix of squared distances is metric="precomputed"'
        )
    if len(given.shape) != 2 or given.shape[0] < 2 or given.shape[1] < 1:
        raise ValueError(f"points must be {form} of at least two points, got shape {given.shape}")
    n_rows, n_columns = given.shape
    if precomputed and (n_columns > n_rows or (_is_sparse(given) and n_columns != n_rows)):
        raise ValueError(f"points must be {form}, of at most n columns, got shape {given.shape}")
    if given.dtype.kind not in "iuf" and given.dtype.name != "bfloat16":
        raise TypeError(f"points must be numbers, got {given.dtype}")
    numbers = given.data if _is_sparse(given) else given
    if not np.isfinite(numbers).all():
        raise ValueError("points must be finite, got NaN or infinity")
    if precomputed and (numbers < 0).any():
        raise ValueError(f"squared distances must be at least 0, got {numbers.min()}")


def _read_target(perplexity: Any, n_rows: int) -> NDArray[np.float64]:
    """ln(perplexity) of each row."""
    array = as_array("perplexity", perplexity)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"perplexity must be a number or an array of numbers, got {shown(perplexity)}")
    wanted = np.broadcast_to(fit_to("perplexity", array, (n_rows,), "(n,)"), n_rows).astype(np.float64)
    bad = ~(np.isfinite(wanted) & (wanted >= 1))
    if bad.any():
        raise ValueError(f"perplexity must be finite and at least 1, got {wanted[bad][0]}")
    return np.log(wanted)


def _read_tolerance(tolerance: Any) -> float | None:
    if tolerance is not None and number("tolerance", tolerance) <= 0:
        raise ValueError(f"tolerance must be greater than 0, got {shown(tolerance)}")
    return None if tolerance is None else float(tolerance)


def _read_drop_self(drop_self: Any, neighbors: Any) -> bool:
    if not isinstance(drop_self, (bool, np.bool_)):
        raise TypeError(f"drop_self must be True or False, got {shown(drop_self)}")
    if drop_self and np.ndim(neighbors) == 0:
        raise ValueError("drop_self goes with indices of neighbors: all else leaves the point itself out")
    return bool(drop_self)


def _read_neighbors(neighbors: Any, n_rows: int, drop_self: bool) -> int | NDArray[np.int64] | None:
    """A number, or indices (n, k) of distinct other points; with drop_self also of the point itself."""
    if neighbors is None:
        return None
    if np.ndim(neighbors) == 0:
        count = positive_int("neighbors", neighbors)
        if count >= n_rows:
            raise ValueError(f"neighbors must be less than the number of points, {n_rows}, got {count}")
        return count
    indices = as_array("neighbors", neighbors)
    if indices.dtype.kind not in "iu":
        raise TypeError(f"neighbors must be an integer or an array of indices, got {shown(neighbors)}")
    if indices.ndim != 2 or indices.shape[0] != n_rows or indices.shape[1] < 1:
        raise ValueError(f"neighbors must have the shape (n, k) with n = {n_rows}, got {indices.shape}")
    if indices.min() < 0 or indices.max() >= n_rows:
        seen = indices.min() if indices.min() < 0 else indices.max()
        raise ValueError(f"neighbors must be indices from 0 to {n_rows - 1}, got {seen}")
    indices = np.sort(indices.astype(np.int64), axis=1)
    if (np.diff(indices, axis=1) == 0).any():
        raise ValueError("neighbors must be other points, each once a row")
    own = (indices == np.arange(n_rows)[:, None]).any(1)
    if own.any() and not drop_self:
        raise ValueError(
            f"neighbors must be other points, got the point itself in {own.sum()} of {n_rows} rows; "
            "drop_self=True leaves it out"
        )
    return indices
