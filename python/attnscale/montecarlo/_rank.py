# SPDX-License-Identifier: BSD-3-Clause
"""Sparse is not low rank: the rank of a matrix of weights against how many keys a row uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

import numpy as np
from numpy.typing import NDArray

from .._core import mc_sphere
from .._weights import effective_rank, row_entropy
from ._axes import LawAxis, beta_of, integer_axis, law_axis, product
from ._declaration import Quantity, declare
from ._experiment import Draws, Prepared, RowSource
from ._limits import check_memory
from ._run import RunOptions, num_threads_of, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._seeds import RNG
    from ._result import ExperimentResult

_Array = NDArray[np.float64]
_DECLARED = declare(
    "rank_and_sparsity",
    "effective rank of an n x n matrix of weights",
    quantities={
        "effective_rank": Quantity("", "effective rank"),
        "stable_rank": Quantity(),
        "effective_keys": Quantity("", r"effective keys, $e^H$"),
        "concentration": Quantity("", r"$\sum p^2$"),
    },
    samples=8,
)


def rank_and_sparsity(
    n: int | Sequence[int] = (32, 128),
    *,
    law: LawAxis = "standard",
    head_dim: int | Sequence[int] = 64,
    samples: int | None = None,
    rng: RNG | None = None,
    **options: Unpack[RunOptions],
) -> ExperimentResult:
    """Effective rank of an n x n matrix of weights, beside the effective keys of its rows.

    Queries and keys are uniform on the sphere of radius sqrt(head_dim). The matrix is written out:
    memory grows as n^2 and time as n^3.

    Parameters
    ----------
    n : int or sequence of int, default (32, 128)
        Queries and keys, at least 1.
    law, head_dim, rng, **options
        As for :func:`entropy_vs_length`.
    samples : int, optional
        Matrices; 8 by default.

    Returns
    -------
    ExperimentResult
        Estimates of ``effective_rank``, exp of the entropy of the singular values divided by their sum (Roy
        and Vetterli 2007); with ``stable_rank``, the squares of all singular values over the largest square;
        ``effective_keys``, the mean of exp(H) over the rows; and ``concentration``, the mean of sum p^2.

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of range.

    Notes
    -----
    The singular values come from LAPACK: their last bits may depend on its threads.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.rank_and_sparsity(64, law=1.0, samples=2, rng=0)
    >>> bool(result["effective_keys"].value < 3), bool(result.value > 30)  # sparse, of high rank
    (True, True)
    """
    threads = num_threads_of(_DECLARED, options)
    lengths, dims = integer_axis("n", n), integer_axis("head_dim", head_dim, least=2)
    laws = law_axis("law", law)
    cases = []
    for length, dim in product(lengths, dims):
        check_memory("n", length, 8.0 * length * (length + 2 * dim))
        scales = np.array([beta_of(each, length, dim) for each in laws.values]) / np.sqrt(dim)
        cases.append(Draws((length, dim), _rows(length, dim, scales, threads), 10.0 * length**3))
    experiment = Prepared(
        _DECLARED,
        outer=(lengths, dims),
        inner=(laws,),
        cases=tuple(cases),
        parameters={"n": lengths.given, "head_dim": dims.given, "law": laws.given},
    )
    return run(experiment, samples, rng, options)


def _rows(n: int, head_dim: int, scales: _Array, threads: int) -> RowSource:
    def one(key: int, index: int) -> _Array:
        # Each sample takes two streams: queries and keys.
        q, k = np.empty((2, n, head_dim))
        mc_sphere(q, np.sqrt(head_dim), key, 2 * index, 0, threads)
        mc_sphere(k, np.sqrt(head_dim), key, 2 * index + 1, 0, threads)
        products = q @ k.T
        return np.stack([_describe(scale * products) for scale in scales])

    def rows(key: int, first: int, count: int) -> _Array:
        return np.stack([one(key, first + i) for i in range(count)])

    return rows


def _describe(scores: _Array) -> _Array:
    """The quantities of one matrix of scores, in their order."""
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    singular = np.linalg.svd(p, compute_uv=False)
    stable = (singular**2).sum() / singular[0] ** 2
    keys = np.exp(row_entropy(p)).mean()
    return np.array([effective_rank(singular), stable, keys, (p * p).sum(axis=-1).mean()])
