# SPDX-License-Identifier: BSD-3-Clause
"""One key that matters among n: what weight it keeps, and whether it is found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from .._checks import number
from ._axes import LawAxis, integer_axis, law_axis
from ._run import RunOptions, num_threads_of, run
from ._score_experiment import score_experiment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._seeds import RNG
    from ._result import ExperimentResult

__all__ = ["head_dimension", "needle_dilution"]


def needle_dilution(
    n: int | Sequence[int],
    *,
    law: LawAxis = "standard",
    head_dim: int | Sequence[int] = 64,
    cosine: float,
    samples: int | None = None,
    rng: RNG | None = None,
    **options: Unpack[RunOptions],
) -> ExperimentResult:
    """Weight of one key with a given cosine to the query, among n keys of the sphere model.

    Parameters
    ----------
    n : int or sequence of int
        Keys in a row, the needle among them.
    law, head_dim, samples, rng, **options
        As for :func:`entropy_vs_length`.
    cosine : float
        Of the needle with the query, from -1 to 1. All norms are sqrt(head_dim).

    Returns
    -------
    ExperimentResult
        Of ``needle_weight``, with ``needle_is_top`` (share of rows where no key has a larger
        weight) and ``entropy`` (nats).

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
        "needle_dilution",
        {"needle_weight": "", "needle_is_top": "", "entropy": "nat"},
        lengths=integer_axis("n", n),
        dims=integer_axis("head_dim", head_dim, least=2),
        laws=law_axis("law", law),
        threads=num_threads_of("needle_dilution", options),
        default_samples=1000,
        cosine=(needle := _cosine(cosine)),
        parameters={"cosine": needle},
        shares=("needle_is_top",),
    )
    return run(experiment, samples, rng, options)


def head_dimension(
    head_dim: int | Sequence[int],
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
    succeeds if none of them is nearer. It depends on head_dim, n and the cosine, not on the scale;
    the weight that the right key gets does.

    Parameters
    ----------
    head_dim : int or sequence of int
        At least 2.
    n : int or sequence of int
        Keys, the right one among them; 512 by default.
    cosine : float, default 0.5
        Of the right key with the query, from -1 to 1.
    law, samples, rng, **options
        As for :func:`entropy_vs_length`.

    Returns
    -------
    ExperimentResult
        Of ``accuracy``, with ``needle_weight``.

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
        "head_dimension",
        {"accuracy": "", "needle_weight": ""},
        lengths=integer_axis("n", n),
        dims=integer_axis("head_dim", head_dim, least=2),
        laws=law_axis("law", law),
        threads=num_threads_of("head_dimension", options),
        default_samples=1000,
        cosine=(needle := _cosine(cosine)),
        parameters={"cosine": needle},
        shares=("accuracy",),
    )
    return run(experiment, samples, rng, options)


def _cosine(value: Any) -> float:
    cosine = number("cosine", value)
    if not -1 <= cosine <= 1:
        raise ValueError(f"cosine must be between -1 and 1, got {cosine:g}")
    return cosine
