# SPDX-License-Identifier: BSD-3-Clause
"""Dot products of random vectors: the largest cosine, and the variance behind the scale."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from .._base.checks import choose, number, refusal, shown
from .._core import mc_dot_product_moments, mc_dot_product_rows, mc_fill, mc_max_cosine, mc_pairs_of_row
from ._experiment import Declaration, Draws, Grid, Prepared, Quantity, RowSource
from ._parameters import STREAMED, Axis, axis, check_memory, integer_axis, product
from ._run import RunOptions, num_threads_of, run
from ._scores import RealHeads, read_heads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._base.seeds import RNG
    from ._result import ExperimentResult

_Array = NDArray[np.float64]


def _exact_cosine(grid: Grid) -> dict[str, Any]:
    """The expected largest cosine: the order statistic of n cosines."""
    from .. import theory

    return {"max_cosine": theory.expected_max_cosine(grid.along("n"), grid.along("head_dim"))}


_COSINE = Declaration(
    "largest cosine of a query with n random keys",
    quantities={"max_cosine": Quantity("", "largest cosine")},
    samples=1000,
    exact=_exact_cosine,
    known="yes",
)


@_COSINE.of
def max_cosine(
    n: int | Sequence[int] = (512, 4096, 32768),
    head_dim: int | Sequence[int] = 64,
    *,
    samples: int | None = None,
    rng: RNG | None = None,
    **options: Unpack[RunOptions],
) -> ExperimentResult:
    """Largest cosine of one query with n keys, uniform on a sphere.

    Parameters
    ----------
    n : int or sequence of int, default (512, 4096, 32768)
        Keys, at least 1.
    head_dim : int or sequence of int
        At least 2.
    samples, rng, **options
        As for :func:`entropy_vs_length`.

    Returns
    -------
    ExperimentResult
        Estimates of ``max_cosine``.

    See Also
    --------
    attnscale.theory.expected_max_cosine : the exact mean, from the order statistic.

    Examples
    --------
    >>> import attnscale as at
    >>> at.montecarlo.max_cosine([512, 32768], 64, rng=0).value.round(2)
    array([0.37, 0.49])
    """
    threads = num_threads_of(_COSINE, options)
    lengths, dims = integer_axis("n", n), integer_axis("head_dim", head_dim, least=2)
    check_memory("n", max(lengths.values), STREAMED * max(lengths.values))
    check_memory("head_dim", max(dims.values), 4.0 * max(dims.values))
    cases = [
        Draws((length, dim), _cosine_rows(length, dim, threads), float(length * dim))
        for length, dim in product(lengths, dims)
    ]
    return run(Prepared(_COSINE, (lengths, dims), cases), samples, rng, options)


def _cosine_rows(n: int, head_dim: int, threads: int) -> RowSource:
    def rows(*, key: int, first: int, count: int) -> _Array:
        found = mc_max_cosine(n=n, head_dim=head_dim, key=key, first=first, count=count, num_threads=threads)
        return found[:, None]

    return rows


DISTRIBUTIONS = ("normal", "uniform", "truncated_normal", "laplace")
# Number of pairs whose sums of powers form a row.
_BLOCK = mc_pairs_of_row


def _exact_moments(grid: Grid) -> dict[str, Any]:
    """Expectations for independent components; a model's own vectors have none."""
    from .. import theory

    if "query" in grid.parameters:
        return {}
    dim, std = grid.along("head_dim"), grid.parameters["std"]
    query_mean, key_mean = grid.parameters["mean"]
    cut = theory.truncated_normal_variance(2.0)
    # Variance and kurtosis of the components at unit std. E x^4 = 3 v - c^2 (1 - v) if cut at c.
    shapes = {"normal": (1.0, 3.0), "uniform": (1.0, 1.8), "laplace": (1.0, 6.0)}
    shapes["truncated_normal"] = (cut, (3 * cut - 4 * (1 - cut)) / cut**2)
    kinds = np.asarray(grid.along("distribution"))
    variance, kurtosis = (
        np.vectorize(lambda kind, i=i: shapes[kind][i], otypes=[float])(kinds) for i in (0, 1)
    )
    total = theory.dot_product_variance(
        dim,
        query_variance=variance * std**2,
        key_variance=variance * std**2,
        query_mean=query_mean,
        key_mean=key_mean,
    )
    found = {"variance": total, "scaled_variance": total / dim, "mean": dim * query_mean * key_mean}
    if query_mean == key_mean == 0:
        found["kurtosis"] = theory.dot_product_kurtosis(dim, query_kurtosis=kurtosis, key_kurtosis=kurtosis)
    return found


_VARIANCE = Declaration(
    "variance of q . k, of random components or of a model's vectors",
    quantities={
        "variance": Quantity("", r"variance of $q \cdot k$"),
        "scaled_variance": Quantity("", r"variance of $q \cdot k / \sqrt{d}$"),
        "mean": Quantity(),
        "kurtosis": Quantity(),
    },
    samples=1600 * _BLOCK,
    defaults={"head_dim": "16 64 256"},
    along=("head_dim",),
    exact=_exact_moments,
    known="independent components",
    choices={"distribution": DISTRIBUTIONS},
    arrays=("query", "key"),
    block=_BLOCK,
)


@_VARIANCE.of
def dot_product_variance(
    *,
    head_dim: int | Sequence[int] | None = None,
    distribution: str | Sequence[str] = "normal",
    mean: float | tuple[float, float] = 0.0,
    std: float = 1.0,
    query: Any = None,
    key: Any = None,
    samples: int | None = None,
    rng: RNG | None = None,
    **options: Unpack[RunOptions],
) -> ExperimentResult:
    """Variance of q . k over random pairs, of independent components or a model's own vectors.

    Parameters
    ----------
    head_dim : int or sequence of int, optional
        Components of q and k; 16, 64 and 256 by default, unless query and key are given.
    distribution : {"normal", "uniform", "truncated_normal", "laplace"} or sequence of them
        Distribution of each component. The truncated normal is cut at 2 ``std`` and not rescaled, as in
        BERT's initialisation: its own variance is 0.773741 std^2.
    mean : float or pair of float
        Mean of the components; a pair is (of q, of k).
    std : float
        Standard deviation of the components, before the cut of a truncated normal; from 1e-12 to 1e12. Means
        are at most 1e12, and 1e6 times the standard deviation, in size.
    query, key : array_like, shape (..., heads, n, head_dim) or (n, head_dim), optional
        In place of a distribution: pairs of a random query and a random key of the same head.
    samples : int, optional
        Pairs, rounded up to a multiple of 64; 102400 by default.
    rng, **options
        As for :func:`entropy_vs_length`.

    Returns
    -------
    ExperimentResult
        Estimates of ``variance`` (of q . k), with ``scaled_variance`` (variance / head_dim, that of
        q . k / sqrt(head_dim)), ``mean`` and ``kurtosis`` (fourth central moment over squared
        variance, 3 for a normal). For arrays of several heads the axis is ``head``.

    Notes
    -----
    For independent components Var(q . k) = d (v_q v_k + v_q m_k^2 + v_k m_q^2). With N samples the standard
    error of the variance is sqrt((mu_4 - mu_2^2 (N - 3) / (N - 1)) / N); that of the kurtosis follows from
    the covariance of the four power sums (delta method). The sums are of powers about 0, which lose digits
    far from 0: the kurtosis and the errors are NaN beyond a mean of 1e3 standard deviations of q . k, the
    variance beyond 1e5.

    See Also
    --------
    attnscale.theory.dot_product_variance

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.dot_product_variance(head_dim=[16, 64], rng=0)
    >>> result["scaled_variance"].value.round(1)
    array([1., 1.])
    """
    threads = num_threads_of(_VARIANCE, options)
    if query is not None or key is not None:
        experiment = _of_arrays(head_dim, query, key, threads)
    else:
        experiment = _of_components(head_dim, distribution, mean, std, threads)
    return run(experiment, samples, rng, options)


def _of_components(head_dim: Any, distribution: Any, mean: Any, std: Any, threads: int) -> Prepared:
    dims = integer_axis("head_dim", (16, 64, 256) if head_dim is None else head_dim)
    check_memory("head_dim", max(dims.values), 4.0 * max(dims.values))
    kinds = axis("distribution", distribution, lambda name, value: choose(name, value, DISTRIBUTIONS))
    means = mean if isinstance(mean, tuple) and len(mean) == 2 else (mean, mean)
    means = (number("mean", means[0]), number("mean", means[1]))
    spread = number("std", std)
    if spread <= 0:
        raise refusal(ValueError, "std", f"must be greater than 0, got {spread:g}")
    shared: dict[str, Any] = {
        "query_mean": means[0],
        "key_mean": means[1],
        "std": spread,
        "num_threads": threads,
    }
    cases = [
        _case(
            dim,
            DISTRIBUTIONS.index(kind),
            partial(mc_dot_product_rows, head_dim=dim, distribution=kind, **shared),
        )
        for dim, kind in product(dims, kinds)
    ]
    return Prepared(_VARIANCE, (dims, kinds), cases, about={"mean": list(means), "std": spread})


def _of_arrays(head_dim: Any, query: Any, key: Any, threads: int) -> Prepared:
    if query is None or key is None:
        raise ValueError("query and key must be given together")
    heads = read_heads(query, key)
    if head_dim not in (None, heads.head_dim):
        raise refusal(
            ValueError, "head_dim", f"must be {heads.head_dim}, that of the arrays, got {shown(head_dim)}"
        )
    n_heads = len(heads.query)
    labels = tuple(range(n_heads))
    cases = [_case(heads.head_dim, head, _array_pairs(heads, head, threads)) for head in labels]
    axes = (
        Axis("head_dim", (heads.head_dim,), (heads.head_dim,), scalar=True),
        Axis("head", labels, labels, scalar=np.ndim(query) == 2),
    )
    names = dict(zip(("query", "key"), heads.describe(), strict=True))
    return Prepared(_VARIANCE, axes, cases, about=names)


def _case(head_dim: int, number: int, rows: RowSource) -> Draws:
    """A case whose values and standard errors follow from the mean powers of blocks."""
    estimate = partial(mc_dot_product_moments, head_dim=head_dim)
    return Draws((head_dim, number), rows, 8.0 * head_dim * _BLOCK, estimate)


def _array_pairs(heads: RealHeads, head: int, threads: int) -> RowSource:
    query = heads.query[head]
    keys = heads.key[head * len(heads.key) // len(heads.query)]

    def rows(*, key: int, first: int, count: int) -> _Array:
        u = np.empty(2 * count * _BLOCK)
        mc_fill(u, "uniform", (0.0, 1.0), key, 0, 2 * first * _BLOCK, threads)
        i, j = (
            np.minimum((u[side::2] * len(array)).astype(np.int64), len(array) - 1)
            for side, array in enumerate((query, keys))
        )
        s = (query[i].astype(np.float64) * keys[j].astype(np.float64)).sum(axis=-1).reshape(count, _BLOCK)
        return np.stack([(s**power).mean(axis=-1) for power in (1, 2, 3, 4)], axis=-1)

    return rows
