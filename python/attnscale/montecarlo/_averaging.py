# SPDX-License-Identifier: BSD-3-Clause
"""Error of an average over equally good keys, which sharp weights make larger."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from ._experiment import Declaration, Grid, Quantity
from ._parameters import LawAxis, integer_axis, law_axis
from ._run import RunOptions, num_threads_of, run
from ._scores import score_experiment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._base.seeds import RNG
    from ._result import ExperimentResult


def _exact(grid: Grid) -> dict[str, Any]:
    """The expectation of both quantities is the concentration of a row."""
    from .. import theory

    n, head_dim = grid.along("n"), grid.along("head_dim")
    concentration = theory.expected_concentration(n, grid.betas, head_dim=head_dim)
    return {"error_variance": concentration, "concentration": concentration}


_AVERAGING = Declaration(
    "variance of a mean of n independent values",
    quantities={
        "error_variance": Quantity("", "variance of the average"),
        "concentration": Quantity("", r"$\sum p^2$"),
    },
    samples=10_000,
    exact=_exact,
    known="yes",
)


@_AVERAGING.of
def averaging_error(
    n: int | Sequence[int] = (512, 4096),
    *,
    law: LawAxis = "standard",
    head_dim: int | Sequence[int] = 64,
    samples: int | None = None,
    rng: RNG | None = None,
    **options: Unpack[RunOptions],
) -> ExperimentResult:
    """Variance of attention's estimate of a mean from n independent values of variance 1.

    The values are independent of the keys (sphere model), so equal weights are best, with variance 1/n.
    Weights p give sum p^2 of the row: the cost of a law that sharpens.

    Parameters
    ----------
    n : int or sequence of int, default (512, 4096)
        Keys and values in a row, at least 1.
    law, head_dim, samples, rng, **options
        As for :func:`entropy_vs_length`; 10000 samples by default.

    Returns
    -------
    ExperimentResult
        Estimates of ``error_variance``, the mean of (sum_j p_j v_j)^2 with standard normal v; with
        ``concentration``, the mean of sum p^2, which has the same expectation and a smaller error.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.averaging_error(4096, law=["standard", "natural_log_n"], rng=0)
    >>> result["concentration"].value.round(2)
    array([0.  , 0.51])
    """
    experiment = score_experiment(
        _AVERAGING,
        lengths=integer_axis("n", n),
        dims=integer_axis("head_dim", head_dim, least=2),
        laws=law_axis("law", law),
        threads=num_threads_of(_AVERAGING, options),
    )
    return run(experiment, samples, rng, options)
