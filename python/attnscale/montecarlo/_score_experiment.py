# SPDX-License-Identifier: BSD-3-Clause
"""Experiments on rows of attention: they differ in what they make of the columns of a row."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ._axes import Axis, beta_of, product
from ._experiment import Case, Experiment, RowSource
from ._limits import STREAMED, check_memory
from ._scores import COLUMNS, RealHeads, model_rows

__all__ = ["Transform", "pick", "score_experiment"]

_Array = NDArray[np.float64]

#: From (count, laws, factors, columns) and the scales (laws,) to (count, laws, quantities).
Transform: TypeAlias = Callable[[_Array, _Array], _Array]


def pick(*names: str) -> Transform:
    """The columns of these names, at the law's own scale."""
    indices = [COLUMNS.index(name) for name in names]

    def transform(rows: _Array, scales: _Array) -> _Array:
        del scales
        return rows[:, :, 0, indices]

    return transform


def score_experiment(
    name: str,
    quantities: dict[str, str],
    transform: Transform,
    *,
    lengths: Axis,
    dims: Axis,
    laws: Axis,
    threads: int,
    default_samples: int,
    source: str | RealHeads = "sphere",
    factors: tuple[float, ...] = (1.0,),
    correlation: float = 0.0,
    cosine: float = math.nan,
    parameters: dict[str, Any] | None = None,
    shares: tuple[str, ...] = (),
) -> Experiment:
    """An experiment on rows of n keys: outer axes n and head_dim, inner axis the laws.

    `factors` are multiples of the law's scale at which each row is looked at as well.
    """
    cases, every_beta = [], []
    for n, dim in product(lengths, dims):
        check_memory("n", n, STREAMED * n)
        check_memory("head_dim", dim, 4.0 * dim)
        betas = np.array([beta_of(law, n, dim) for law in laws.values])
        every_beta.append(betas)
        every = np.outer(betas, factors).ravel().tolist()
        if isinstance(source, RealHeads):
            rows, cost = source.rows(n, every, threads), 1e5 * len(every)
        else:
            rows = model_rows(source, n, dim, every, threads, correlation=correlation, cosine=cosine)
            cost = n * (dim + 8.0 * len(every))
        cases.append(Case((n, dim), _transformed(rows, transform, betas, dim, len(factors)), cost))
    found = {lengths.name: lengths.given, dims.name: dims.given, laws.name: laws.given}
    return Experiment(
        name=name,
        quantities=quantities,
        outer=(lengths, dims),
        inner=(laws,),
        cases=tuple(cases),
        parameters=found | (parameters or {}),
        default_samples=default_samples,
        columns=len(quantities),
        betas=np.stack(every_beta),
        shares=shares,
    )


def _transformed(rows: RowSource, transform: Transform, betas: _Array, dim: int, n_factors: int) -> RowSource:
    scales = betas / math.sqrt(dim)

    def transformed(key: int, first: int, count: int) -> _Array:
        columns = rows(key, first, count)
        return transform(columns.reshape(count, len(betas), n_factors, -1), scales)

    return transformed
