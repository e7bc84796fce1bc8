# SPDX-License-Identifier: BSD-3-Clause
"""solve_perplexity: affinities of t-SNE from points, tables and graphs, beside scikit-learn's."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from attnscale.exact.perplexity_rows import _nearest, _others
from scipy.sparse import coo_array, csr_array
from scipy.spatial.distance import cdist, pdist

OFFSET = 1e4


def cloud(seed: int, n: int = 200, d: int = 6) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, d))


def squared_distances(points: np.ndarray) -> np.ndarray:
    return cdist(points, points, "sqeuclidean")


def nearest(points: np.ndarray, k: int) -> np.ndarray:
    squared = squared_distances(points)
    np.fill_diagonal(squared, np.inf)
    return np.argsort(squared, axis=1)[:, :k]


@pytest.mark.parametrize("perplexity", [2.5, 30.0, 180.0, np.linspace(2, 190, 200)], ids=str)
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8"])
def test_against_the_twin(dtype: str, perplexity: Any) -> None:
    points = (10 * cloud(1)).astype(dtype)
    found = at.solve_perplexity(points, perplexity, on_infeasible="nan")
    truth = reference.solve_perplexity(points, perplexity)
    sure = found.feasible  # integers have ties
    assert sure.mean() > 0.95
    np.testing.assert_allclose(found.beta[sure], truth.beta[sure], rtol=1e-7)
    np.testing.assert_allclose(found.affinities[sure], truth.affinities[sure], atol=1e-9)
    np.testing.assert_allclose(found.perplexity[sure], np.broadcast_to(perplexity, 200)[sure], rtol=2e-9)


def test_rows_are_distributions_without_the_point_itself() -> None:
    found = at.solve_perplexity(cloud(2), 20)
    assert (np.diag(found.affinities) == 0).all()
    np.testing.assert_allclose(found.affinities.sum(1), 1, atol=1e-14)
    logs = np.log(np.where(found.affinities > 0, found.affinities, 1))
    np.testing.assert_allclose(np.exp(-(found.affinities * logs).sum(1)), 20, rtol=1e-8)
    np.testing.assert_allclose(found.sigma, (2 * found.beta) ** -0.5, rtol=1e-15)
    assert repr(found).startswith("PerplexitySolution(affinities=<float64 (200, 200)>, beta=<float64 (200,)>")


@pytest.mark.parametrize("neighbors", [None, 60])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_offset_of_the_data_costs_no_digits(dtype: str, neighbors: int | None) -> None:
    """|x|^2 would be 6e8 in float32, to 32: more than all distances."""
    points = (cloud(3) + OFFSET).astype(dtype)
    found = at.solve_perplexity(points, 20, neighbors=neighbors)
    inner = at.solve_perplexity(points.astype(np.float64) - OFFSET, 20, neighbors=neighbors)
    np.testing.assert_allclose(found.beta, inner.beta, rtol=1e-8)
    gap = found.affinities - inner.affinities
    assert abs(gap).max() < 1e-9


def test_clusters_far_apart_are_searched_by_differences() -> None:
    """No centre is near both: products of norms of 1e14 would leave distances to 0.03."""
    near = cloud(4)
    points = np.concatenate([near, near + 1e7])
    found = at.solve_perplexity(points, 20)
    truth = at.solve_perplexity(squared_distances(points), 20, metric="precomputed")
    np.testing.assert_allclose(found.beta, truth.beta, rtol=1e-9)
    np.testing.assert_allclose(found.affinities, truth.affinities, atol=1e-12)


def test_ties_are_seen_through_rounding() -> None:
    """The corners of a cube have d nearest neighbours each; their centre is not an integer."""
    corners = np.indices((2,) * 5).reshape(5, -1).T
    points = np.concatenate([corners, [[9, 9, 9, 9, 9]]]) + 0.1
    found = at.solve_perplexity(points, 3, on_infeasible="nan")
    assert not found.feasible[:31].any()
    assert np.isnan(found.beta[:31]).all()
    np.testing.assert_allclose(found.perplexity[:31], 5, rtol=1e-12)
    np.testing.assert_array_equal(np.unique(found.affinities[0]), [0, 0.2])
    assert at.solve_perplexity(points, 6, on_infeasible="nan").feasible[:31].all()


def test_out_of_reach() -> None:
    message = "10 of 10 rows the perplexity: 30 in row 0, whose nearest is 9; beta is NaN there"
    with pytest.warns(UserWarning, match=message) as seen:
        few = at.solve_perplexity(cloud(5, n=10), 30)
    assert seen[0].filename == __file__
    same = at.solve_perplexity(np.ones((10, 3)), 3, on_infeasible="nan")
    for found in (few, same):
        assert not found.feasible.any()
        assert np.isnan(found.beta).all()
        np.testing.assert_allclose(found.perplexity, 9, rtol=1e-12)
        np.testing.assert_allclose(found.affinities, (1 - np.eye(10)) / 9, atol=1e-15)
    with pytest.raises(ValueError, match="no beta gives 10 of 10 rows the perplexity: 3 in row 0"):
        at.solve_perplexity(np.ones((10, 3)), 3, on_infeasible="raise")


def test_indices_and_counts_of_neighbours_agree() -> None:
    points = cloud(6)
    counted = at.solve_perplexity(points, 15, neighbors=45)
    given = at.solve_perplexity(points, 15, neighbors=nearest(points, 45))
    assert type(counted.affinities) is csr_array
    assert counted.affinities.has_sorted_indices
    assert counted.affinities.nnz == 200 * 45
    np.testing.assert_array_equal(counted.affinities.toarray(), given.affinities.toarray())
    table = np.take_along_axis(squared_distances(points), np.sort(nearest(points, 45), axis=1), axis=1)
    found = at.solve_perplexity(table, 15, metric="precomputed")
    np.testing.assert_allclose(found.affinities.ravel(), counted.affinities.data, rtol=1e-9)
    all_others = at.solve_perplexity(points, 15, neighbors=199)
    dense = at.solve_perplexity(points, 15)
    np.testing.assert_allclose(all_others.affinities.toarray(), dense.affinities, atol=1e-12)


@pytest.mark.parametrize(
    ("dtype", "units"),
    [("float32", [2.0**-126, 1e-30, 1e20, 2.0**117]), ("float64", [1e-300, 1e-160, 1e158, 1e300])],
)
def test_distances_in_any_unit(dtype: str, units: list[float]) -> None:
    squared = squared_distances(cloud(20, 60)).astype(dtype)
    table = np.take_along_axis(squared, nearest(cloud(20, 60), 30), axis=1)
    mixed = squared * np.resize(np.array([1.0, *units], dtype), 60)[:, None]
    truth = reference.solve_perplexity(cloud(20, 60), 10.0).beta
    for unit, given in [(np.array(each), squared * squared.dtype.type(each)) for each in units] + [
        (np.resize([1.0, *units], 60), mixed)
    ]:
        found = at.solve_perplexity(given, 10, metric="precomputed")
        assert found.converged.all()
        assert found.feasible.all()
        np.testing.assert_allclose(found.beta * unit, truth, rtol=1e-5 if dtype == "float32" else 1e-7)
        logs = np.log(np.where(found.affinities > 0, found.affinities, 1))
        np.testing.assert_allclose(np.exp(-(found.affinities * logs).sum(1)), 10, rtol=4e-6)
        graph = at.solve_perplexity(csr_array(given), 10, metric="precomputed")
        np.testing.assert_allclose(graph.affinities.toarray(), found.affinities, atol=1e-6)
    near = at.solve_perplexity(table * table.dtype.type(units[0]), 10, metric="precomputed")
    assert near.converged.all()


@pytest.mark.parametrize("neighbors", [None, 40])
def test_points_in_any_unit(neighbors: int | None) -> None:
    points = cloud(21, 80)
    plain = at.solve_perplexity(points, 10, neighbors=neighbors)
    for unit in (2.0**-500, 1e-80, 1e80, 2.0**500):
        found = at.solve_perplexity(points * unit, 10, neighbors=neighbors)
        assert found.converged.all()
        np.testing.assert_allclose(found.beta * unit * unit, plain.beta, rtol=1e-9)
        np.testing.assert_allclose(abs(found.affinities - plain.affinities).max(), 0, atol=1e-11)


@pytest.mark.parametrize("unit", [1e-160, 1e160])
def test_a_beta_beyond_float64_warns(unit: float) -> None:
    points = cloud(22, 40)
    with pytest.warns(UserWarning, match="beta of 40 of 40 rows is beyond the normal numbers of float64"):
        found = at.solve_perplexity(points * unit, 10)
    assert not found.converged.any()
    np.testing.assert_allclose(found.affinities, at.solve_perplexity(points, 10).affinities, atol=1e-11)


def test_neighbours_that_hold_the_point_itself() -> None:
    points = cloud(23)
    points[7] = points[3]  # of equal points, a search finds either first
    others = nearest(points, 45)
    own = np.column_stack([np.arange(200), others])
    own[7] = [3, *others[7]] if 3 not in others[7] else [*others[7], 150]  # without itself
    found = at.solve_perplexity(points, 15, neighbors=own, drop_self=True)
    counts = np.diff(found.affinities.indptr)
    assert counts[7] == 46
    assert (np.delete(counts, 7) == 45).all()
    assert (found.affinities.diagonal() == 0).all()
    truth = at.solve_perplexity(points, 15, neighbors=others)
    rest = np.delete(np.arange(200), 7)
    np.testing.assert_allclose(found.affinities[rest].toarray(), truth.affinities[rest].toarray(), atol=1e-14)
    same = at.solve_perplexity(points, 15, neighbors=others, drop_self=True)
    np.testing.assert_array_equal(same.affinities.toarray(), truth.affinities.toarray())
    with pytest.raises(ValueError, match="got the point itself in 199 of 200 rows; drop_self=True leaves"):
        at.solve_perplexity(points, 15, neighbors=own)


def test_graphs_of_different_degree() -> None:
    points = cloud(7, n=60)
    squared = squared_distances(points)
    near = squared < np.sort(squared, axis=1)[:, 20:40].mean(1, keepdims=True)  # the diagonal too
    graph = coo_array(np.where(near, squared + 1e-300, 0))
    found = at.solve_perplexity(graph, 5, metric="precomputed")
    for i in (0, 31, 59):
        others = np.flatnonzero(near[i] & (np.arange(60) != i))
        row = at.solve_perplexity(np.tile(squared[i, others], (60, 1)), 5, metric="precomputed")
        np.testing.assert_allclose(found.affinities[[i]].toarray()[0, others], row.affinities[0], rtol=1e-9)
        assert found.affinities[i, i] == 0
    np.testing.assert_allclose(found.affinities.sum(1), 1, atol=1e-14)
    empty = at.solve_perplexity(csr_array((3, 3)), 2, metric="precomputed", on_infeasible="nan")
    assert not empty.feasible.any()


def test_no_square_beside_the_result() -> None:
    """The affinities take 8 n^2 bytes; what is beside them is one block, not a matrix."""
    n = 3000
    points = cloud(8, n=n, d=4)
    at.solve_perplexity(points[:50], 10)  # imports
    tracemalloc.start()
    near = at.solve_perplexity(points, 10, neighbors=30)
    sparse_peak = tracemalloc.get_traced_memory()[1]
    assert near.feasible.all()
    del near
    tracemalloc.reset_peak()
    found = at.solve_perplexity(points, 10)
    dense_peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found.affinities.nbytes == 8 * n**2
    assert dense_peak < 12 * n**2
    assert sparse_peak < 6 * n**2


def test_the_mask_is_a_view_of_one_line() -> None:
    mask = _others(40)
    np.testing.assert_array_equal(mask, ~np.eye(40, dtype=bool))
    assert mask.base is not None
    assert sum(abs(stride) for stride in mask.strides) == 2


def test_neighbours_are_the_nearest() -> None:
    points = cloud(9, n=300)
    np.testing.assert_array_equal(_nearest(points, 12), np.sort(nearest(points, 12), axis=1))


# --- scikit-learn -----------------------------------------------------------------------------------------


@pytest.fixture
def tsne() -> Any:
    return pytest.importorskip("sklearn.manifold._t_sne")


@contextmanager
def plugged(tsne: Any, search: Callable[..., Any]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tsne._utils, "_binary_search_perplexity", search)
        yield


def ours(squared: np.ndarray, perplexity: float, verbose: int) -> np.ndarray:
    return at.solve_perplexity(squared, perplexity, metric="precomputed", on_infeasible="nan").affinities


def test_joint_probabilities_agree_with_scikit_learn(tsne: Any) -> None:
    """Theirs stop within 1e-5 nat; d p / p = (x - mean) d beta, a few times that."""
    points = cloud(10, n=300)
    squared = squared_distances(points).astype(np.float32)
    theirs = tsne._joint_probabilities(squared, 30.0, 0)
    with plugged(tsne, ours):
        mine = tsne._joint_probabilities(squared, 30.0, 0)
    np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-9)
    from_points = at.solve_perplexity(points, 30.0).affinities
    joint = (from_points + from_points.T) / (2 * 300)
    np.testing.assert_allclose(joint[np.triu_indices(300, 1)], theirs, rtol=1e-3, atol=1e-9)


def test_joint_probabilities_of_neighbours_agree_with_scikit_learn(tsne: Any) -> None:
    points = cloud(11, n=300)
    neighbors = pytest.importorskip("sklearn.neighbors")
    graph = neighbors.kneighbors_graph(points, 91, mode="distance")
    graph.data **= 2
    theirs = tsne._joint_probabilities_nn(graph.copy(), 30.0, 0)
    with plugged(tsne, ours):
        mine = tsne._joint_probabilities_nn(graph.copy(), 30.0, 0)
    np.testing.assert_allclose(mine.toarray(), theirs.toarray(), rtol=1e-3, atol=1e-9)
    found = at.solve_perplexity(points, 30.0, neighbors=91).affinities
    joint = (found + found.T) / (2 * 300)
    np.testing.assert_allclose(joint.toarray(), theirs.toarray(), rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("method", ["exact", "barnes_hut"])
def test_the_picture_agrees_with_scikit_learn(tsne: Any, method: str) -> None:
    """On a band, which has one good picture. Descent on other data multiplies any rounding of P."""
    threads = pytest.importorskip("threadpoolctl")
    rng = np.random.default_rng(12)
    angle = rng.uniform(0, 1.5 * np.pi, 150)
    points = np.column_stack([4 * np.cos(angle), 4 * np.sin(angle), rng.uniform(0, 2, 150)])

    def picture() -> Any:
        made = tsne.TSNE(init="pca", random_state=0, method=method, max_iter=500)
        with threads.threadpool_limits(1):
            return made.fit_transform(points.astype(np.float32)), made.kl_divergence_

    theirs, loss = picture()
    with plugged(tsne, ours):
        mine, our_loss = picture()
    assert our_loss == pytest.approx(loss, rel=0.05)
    assert np.corrcoef(pdist(mine), pdist(theirs))[0, 1] > 0.999


# --- mistakes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "kind", "message"),
    [
        ((np.ones(5),), {}, ValueError, r"points must be an array \(n, n_features\) of at least two points"),
        ((np.ones((1, 5)),), {}, ValueError, r"of at least two points, got shape \(1, 5\)"),
        (([["a", "b"]] * 3,), {}, TypeError, "points must be numbers, got <U1"),
        (([[0.0], [np.nan]],), {}, ValueError, "points must be finite, got NaN or infinity"),
        ((csr_array((3, 3)),), {}, TypeError, 'a sparse matrix of squared distances is metric="precomputed"'),
        ((np.ones((3, 4)),), {"metric": "precomputed"}, ValueError, r"at most n columns, got shape \(3, 4\)"),
        ((-np.ones((3, 3)),), {"metric": "precomputed"}, ValueError, "must be at least 0, got -1.0"),
        ((np.ones((3, 3)),), {"metric": "cosine"}, ValueError, "metric must be one of 'euclidean', 'precomp"),
        (
            (np.ones((3, 3)),),
            {"metric": "precomputed", "neighbors": 2},
            ValueError,
            "neighbors takes points; with",
        ),
        ((np.ones((3, 2)), 0.5), {}, ValueError, "perplexity must be finite and at least 1, got 0.5"),
        ((np.ones((3, 2)), "many"), {}, TypeError, "perplexity must be a number or an array of numbers"),
        ((np.ones((3, 2)), [2, 2]), {}, ValueError, r"perplexity must broadcast to \(n,\) = \(3,\), got"),
        ((np.ones((3, 2)),), {"on_infeasible": "inf"}, ValueError, "on_infeasible must be one of 'warn', "),
        ((np.ones((3, 2)),), {"tolerance": 0}, ValueError, "tolerance must be greater than 0, got 0"),
        ((np.ones((3, 2)),), {"num_threads": 0}, ValueError, "num_threads must be at least 1, got 0"),
        ((np.ones((3, 2)),), {"neighbors": 3}, ValueError, "less than the number of points, 3, got 3"),
        ((np.ones((3, 2)),), {"neighbors": 1.5}, TypeError, "neighbors must be an integer, got 1.5"),
        ((np.ones((3, 2)),), {"neighbors": [[1], [2], [3]]}, ValueError, "indices from 0 to 2, got 3"),
        ((np.ones((3, 2)),), {"neighbors": [[1], [1], [0]]}, ValueError, "the point itself in 1 of 3 rows"),
        ((np.ones((3, 2)),), {"neighbors": [[1, 1], [0, 2], [0, 1]]}, ValueError, "points, each once"),
        ((np.ones((3, 2)),), {"neighbors": 1, "drop_self": True}, ValueError, "goes with indices of neigh"),
        ((np.ones((3, 2)),), {"drop_self": 1}, TypeError, "drop_self must be True or False, got 1"),
        ((np.ones((3, 2)),), {"neighbors": [[1, 2]]}, ValueError, r"shape \(n, k\) with n = 3, got \(1, 2\)"),
        ((np.ones((3, 2)),), {"neighbors": [[0.5]] * 3}, TypeError, "an integer or an array of indices"),
    ],
)
def test_mistakes_are_explained(
    arguments: tuple[Any, ...], options: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        at.solve_perplexity(*arguments, **options)
