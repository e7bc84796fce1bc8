# SPDX-License-Identifier: BSD-3-Clause
"""One key that matters among n: what weight it keeps, and whether it is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from .._checks import number
from ._axes import LawAxis, integer_axis, law_axis
from ._declaration import Grid, Quantity, declare
from ._run import RunOptions, num_threads_of, run
from ._score_experiment import score_experiment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._seeds import RNG
    from ._result import ExperimentResult


def _exact_needle(grid: Grid) -> dict[str, Any]:
    return {"needle_weight": _exact_weight(grid), "needle_is_top": _chance_of_the_top(grid)}


def _exact_retrieval(grid: Grid) -> dict[str, Any]:
    return {"accuracy": _chance_of_the_top(grid), "needle_weight": _exact_weight(grid)}


def _exact_weight(grid: Grid) -> Any:
    from .. import theory

    options = {"head_dim": grid.along("head_dim"), "cosine": grid.parameters["cosine"]}
    return theory.needle_weight(grid.along("n"), beta=grid.betas, **options)


def _chance_of_the_top(grid: Grid) -> Any:
    """The chance of no nearer key: F(cosine)^(n - 1), F the distribution function of a random cosine."""
    from scipy.special import betainc

    n, head_dim = grid.along("n"), grid.along("head_dim")
    cosine = grid.parameters["cosine"]
    # (1 + t) / 2 has the beta distribution with both parameters (head_dim - 1) / 2.
    below = betainc((head_dim - 1) / 2, (head_dim - 1) / 2, (1 + cosine) / 2)
    return below ** (n - 1.0)


_WEIGHT = Quantity("", "weight of the needle")
_DILUTION = declare(
    "needle_dilution",
    "weight of one key with a given cosine to the query",
    quantities={
        "needle_weight": _WEIGHT,
        "needle_is_top": Quantity("", "needle has the largest weight"),
        "entropy": Quantity("nat", "mean entropy"),
    },
    samples=1000,
    exact=_exact_needle,
    known="weight and share",
    shares=("needle_is_top",),
)
_RETRIEVAL = declare(
    "head_dimension",
    "how often the right key has the largest weight",
    quantities={"accuracy": Quantity("", "retrieval accuracy"), "needle_weight": _WEIGHT},
    samples=1000,
    along=("head_dim", "n"),
    exact=_exact_retrieval,
    known="yes",
    shares=("accuracy",),
)


def needle_dilution(
    n: int | Sequence[int] = (512, 4096),
    *,
    law: LawAxis = "standard",
    head_dim: int | Sequence[int] = 64,
    cosine: float = 0.5,
    samples: int | None = None,
    rng: RNG | None = None,
    **options: Unpack[RunOptions],
) -> ExperimentResult:
    """Weight of one key with a given cosine to the query, among n keys of the sphere model.

    Parameters
    ----------
    n : int or sequence of int, default (512, 4096)
        Keys in a row, the needle among them.
    law, head_dim, samples, rng, **options
        As for :func:`entropy_vs_length`.
    cosine : float, default 0.5
        Cosine of the needle with the query, from -1 to 1. All norms are sqrt(head_dim).

    Returns
    -------
    ExperimentResult
        Estimates of ``needle_weight``, with ``needle_is_top`` (share of rows where no key has a
        larger weight) and ``entropy`` (nats).

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of range.

    See Also
    --------
    attnscale.theory.needle_weight : what the mean weight tends to.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.needle_dilution([64, 1024], cosine=0.578386, samples=2000, rng=0)
    >>> result.value.round(1)
    array([0.5, 0.1])
    """
    experiment = score_experiment(
        _DILUTION,
        lengths=integer_axis("n", n),
        dims=integer_axis("head_dim", head_dim, least=2),
        laws=law_axis("law", law),
        threads=num_threads_of(_DILUTION, options),
        cosine=(needle := _cosine(cosine)),
        parameters={"cosine": needle},
    )
    return run(experiment, samples, rng, options)


def head_dimension(
    head_dim: int | Sequence[int] = (8, 32, 128),
    *,
    n: int | Sequence[int] = 512,
    cosine: float = 0.5,
    law: LawAxis = "standard",
    samples: int | None = None,
    rng: RNG | None = None,
    **options: Unpack[RunOptions],
) -> ExperimentResult:
    """How often the right one of n keys has the largest weight, against the size of a head.

    The right key has a given cosine to the query, the others are uniform on the sphere: retrieval
    succeeds if none of them is nearer. Success depends on head_dim, n and the cosine, not on the scale;
    the weight that the right key gets depends on the scale too.

    Parameters
    ----------
    head_dim : int or sequence of int, default (8, 32, 128)
        At least 2.
    n : int or sequence of int
        Keys, the right one among them; 512 by default.
    cosine : float, default 0.5
        Cosine of the right key with the query, from -1 to 1.
    law, samples, rng, **options
        As for :func:`entropy_vs_length`.

    Returns
    -------
    ExperimentResult
        Estimates of ``accuracy``, with ``needle_weight``.

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of range.

    Notes
    -----
    With F the distribution function of the cosine of two random directions, the accuracy is
    F(cosine)^(n - 1): the order statistic of independent keys.

    Examples
    --------
    >>> import attnscale as at
    >>> at.montecarlo.head_dimension([8, 32, 128], rng=0).value.round(1)
    array([0. , 0.5, 1. ])
    """
    experiment = score_experiment(
        _RETRIEVAL,
        lengths=integer_axis("n", n),
        dims=integer_axis("head_dim", head_dim, least=2),
        laws=law_axis("law", law),
        threads=num_threads_of(_RETRIEVAL, options),
        cosine=(needle := _cosine(cosine)),
        parameters={"cosine": needle},
    )
    return run(experiment, samples, rng, options)


def _cosine(value: Any) -> float:
    cosine = number("cosine", value)
    if not -1 <= cosine <= 1:
        raise ValueError(f"cosine must be between -1 and 1, got {cosine:g}")
    return cosine
