# SPDX-License-Identifier: BSD-3-Clause
"""The nearest of n random keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from .._core import mc_max_cosine
from ._axes import integer_axis, product
from ._declaration import Grid, Quantity, declare
from ._experiment import Draws, Prepared, RowSource
from ._limits import STREAMED, check_memory
from ._run import RunOptions, num_threads_of, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._seeds import RNG
    from ._result import ExperimentResult


def _exact(grid: Grid) -> dict[str, Any]:
    """The expected largest cosine: the order statistic of n cosines."""
    from .. import theory

    return {"max_cosine": theory.expected_max_cosine(grid.along("n"), grid.along("head_dim"))}


_DECLARED = declare(
    "max_cosine",
    "largest cosine of a query with n random keys",
    quantities={"max_cosine": Quantity("", "largest cosine")},
    samples=1000,
    exact=_exact,
    known="yes",
)


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

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of range.

    See Also
    --------
    attnscale.theory.expected_max_cosine : the mean, from the order statistic.

    Examples
    --------
    >>> import attnscale as at
    >>> at.montecarlo.max_cosine([512, 32768], 64, rng=0).value.round(2)
    array([0.37, 0.49])
    """
    threads = num_threads_of(_DECLARED, options)
    lengths, dims = integer_axis("n", n), integer_axis("head_dim", head_dim, least=2)
    check_memory("n", max(lengths.values), STREAMED * max(lengths.values))
    check_memory("head_dim", max(dims.values), 4.0 * max(dims.values))
    cases = tuple(
        Draws((length, dim), _rows(length, dim, threads), float(length * dim))
        for length, dim in product(lengths, dims)
    )
    experiment = Prepared(
        _DECLARED,
        outer=(lengths, dims),
        inner=(),
        cases=cases,
        parameters={"n": lengths.given, "head_dim": dims.given},
    )
    return run(experiment, samples, rng, options)


def _rows(n: int, head_dim: int, threads: int) -> RowSource:
    def rows(key: int, first: int, count: int) -> NDArray[np.float64]:
        found = mc_max_cosine(
            n=n, head_dim=head_dim, key=key, stream=0, first=first, count=count, num_threads=threads
        )
        return found[:, None]

    return rows
