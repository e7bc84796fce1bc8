# SPDX-License-Identifier: BSD-3-Clause
"""Effect of more keys on a row: its entropy, and the weight of a key that matters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from .._base.checks import number, refusal, shown
from ._experiment import Declaration, Grid, Prepared, Quantity
from ._parameters import Axis, LawAxis, integer_axis, law_axis
from ._run import RunOptions, num_threads_of, run
from ._scores import MODELS, RealHeads, least_head_dim, read_correlation, read_model, score_experiment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._base.seeds import RNG
    from ._result import ExperimentResult


def _exact(grid: Grid) -> dict[str, Any]:
    """Expectations for random keys on a sphere, or for independent normal scores."""
    from .. import theory

    model = grid.parameters["model"]
    if model not in ("sphere", "gaussian"):
        return {}
    head_dim = grid.along("head_dim") if model == "sphere" else 64  # the Gaussian model has no head_dim
    row = theory.expected_statistics(grid.along("n"), grid.betas, head_dim=head_dim, model=model)
    names = ("entropy", "lse", "mean_score", "concentration")
    return {name: getattr(row, name) for name in names}


_ENTROPY = Declaration(
    "entropy of rows of n random keys under scale laws",
    quantities={
        "entropy": Quantity("nat", "mean entropy"),
        "lse": Quantity("nat"),
        "concentration": Quantity("", r"$\sum p^2$"),
        "max_weight": Quantity(),
        "mean_score": Quantity("nat"),
        "score_variance": Quantity(),
    },
    samples=1000,
    exact=_exact,
    known="entropy, lse, concentration, mean score; sphere and Gaussian model",
    defaults={"head_dim": "64"},
    choices={"model": MODELS},
    arrays=("model",),
)


@_ENTROPY.of
def entropy_vs_length(
    n: int | Sequence[int] = (512, 4096, 32768),
    *,
    law: LawAxis = "standard",
    head_dim: int | Sequence[int] | None = None,
    model: str | tuple[Any, Any] = "sphere",
    correlation: float | None = None,
    samples: int | None = None,
    rng: RNG | None = None,
    **options: Unpack[RunOptions],
) -> ExperimentResult:
    """Entropy of rows of n random keys under scale laws, for every n, head_dim and law.

    Parameters
    ----------
    n : int or sequence of int, default (512, 4096, 32768)
        Keys in a row, at least 1; also the n of the law. For real heads, at most their number of keys.
    law : str, Law, float or sequence of them
        A law, its name, or a number, the multiplier of q . k.
    head_dim : int or sequence of int, optional
        64 by default; that of the arrays for real heads.
    model : {"sphere", "gaussian", "correlated"} or (query, key)
        Distribution of the scores, before the law's factor beta:

        - sphere: q . k / sqrt(d) of vectors of norm sqrt(d), keys uniform on their sphere;
        - gaussian: independent standard normal numbers;
        - correlated: normal q, keys sqrt(c) m + sqrt(1 - c) e_j with a normal m that they share;
        - arrays of shape (..., heads, n_tokens, head_dim): a random query against n of its head's
          keys, drawn without replacement.
    correlation : float, optional
        The c of the correlated model, between 0 and 1; 0.5 by default.
    samples : int, optional
        Rows for each n and head_dim; 1000 by default. All laws see the same rows.
    rng : None, int, SeedSequence, BitGenerator or Generator, optional
        As in SPEC 7.
    **options
        target_error, max_samples, progress, on_interrupt, resume, num_threads: see :class:`RunOptions`.

    Returns
    -------
    ExperimentResult
        Estimates of ``entropy`` (nats), with ``lse``, ``concentration`` (sum p^2), ``max_weight``,
        ``mean_score`` and ``score_variance``. ``exact()`` is the theory of the first three for the
        sphere and the Gaussian model.

    See Also
    --------
    attnscale.theory.expected_entropy : the exact mean.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.entropy_vs_length([512, 4096], law=["standard", "log_n"], rng=0)
    >>> result.value.round(2)
    array([[5.75, 5.75],
           [7.83, 7.46]])
    """
    threads = num_threads_of(_ENTROPY, options)
    source = read_model(model)
    share = read_correlation(source if isinstance(source, str) else "(query, key)", correlation)
    lengths, dims = integer_axis("n", n), _dims(head_dim, source)
    if isinstance(source, RealHeads) and max(lengths.values) > source.n_keys:
        raise refusal(
            ValueError, "n", f"must be at most {source.n_keys}, the keys of a head, got {max(lengths.values)}"
        )
    experiment = score_experiment(
        _ENTROPY,
        lengths=lengths,
        dims=dims,
        laws=law_axis("law", law),
        threads=threads,
        source=source,
        correlation=share,
        about={
            "model": source if isinstance(source, str) else source.describe(),
            "correlation": share if source == "correlated" else None,
        },
    )
    return run(experiment, samples, rng, options)


def _dims(head_dim: Any, source: str | RealHeads) -> Axis:
    if isinstance(source, RealHeads):
        if head_dim not in (None, source.head_dim):
            rule = f"must be {source.head_dim}, that of the arrays, got {shown(head_dim)}"
            raise refusal(ValueError, "head_dim", rule)
        return integer_axis("head_dim", source.head_dim)
    return integer_axis("head_dim", 64 if head_dim is None else head_dim, least=least_head_dim(source))


def _exact_needle(grid: Grid) -> dict[str, Any]:
    return {"needle_weight": _exact_weight(grid), "needle_is_top": _chance_of_the_top(grid)}


def _exact_retrieval(grid: Grid) -> dict[str, Any]:
    return {"accuracy": _chance_of_the_top(grid), "needle_weight": _exact_weight(grid)}


def _exact_weight(grid: Grid) -> Any:
    from .. import theory

    options = {"head_dim": grid.along("head_dim"), "cosine": grid.parameters["cosine"]}
    return theory.needle_weight(grid.along("n"), beta=grid.betas, **options)


def _chance_of_the_top(grid: Grid) -> Any:
    """Probability that no key is nearer: F(cosine)^(n - 1), with F the distribution of a random cosine."""
    from scipy.special import betainc

    n, head_dim = grid.along("n"), grid.along("head_dim")
    cosine = grid.parameters["cosine"]
    # (1 + t) / 2 has the beta distribution with both parameters (head_dim - 1) / 2.
    below = betainc((head_dim - 1) / 2, (head_dim - 1) / 2, (1 + cosine) / 2)
    return below ** (n - 1.0)


_WEIGHT = Quantity("", "weight of the needle")
_DILUTION = Declaration(
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
_RETRIEVAL = Declaration(
    "how often the right key has the largest weight",
    quantities={"accuracy": Quantity("", "retrieval accuracy"), "needle_weight": _WEIGHT},
    samples=1000,
    along=("head_dim", "n"),
    exact=_exact_retrieval,
    known="yes",
    shares=("accuracy",),
)


@_DILUTION.of
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
        Keys in a row, including the needle.
    law, head_dim, samples, rng, **options
        As for :func:`entropy_vs_length`.
    cosine : float, default 0.5
        Cosine of the needle with the query, from -1 to 1. All norms are sqrt(head_dim).

    Returns
    -------
    ExperimentResult
        Estimates of ``needle_weight``, with ``needle_is_top`` (share of rows where no key has a larger
        weight) and ``entropy`` (nats).

    See Also
    --------
    attnscale.theory.needle_weight : the exact mean weight.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.needle_dilution([64, 1024], cosine=0.578386, samples=2000, rng=0)
    >>> result.value.round(1)
    array([0.5, 0.1])
    """
    experiment = _with_needle(_DILUTION, n, head_dim, law, cosine, options)
    return run(experiment, samples, rng, options)


@_RETRIEVAL.of
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
    """Share of rows where the right one of n keys has the largest weight, against head_dim.

    The right key has a given cosine to the query, the others are uniform on the sphere: retrieval succeeds if
    none of them is nearer. Success depends on head_dim, n and the cosine; the weight of the right key depends
    on the scale as well.

    Parameters
    ----------
    head_dim : int or sequence of int, default (8, 32, 128)
        At least 2.
    n : int or sequence of int
        Keys, including the right one; 512 by default.
    cosine : float, default 0.5
        Cosine of the right key with the query, from -1 to 1.
    law, samples, rng, **options
        As for :func:`entropy_vs_length`.

    Returns
    -------
    ExperimentResult
        Estimates of ``accuracy``, with ``needle_weight``.

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
    experiment = _with_needle(_RETRIEVAL, n, head_dim, law, cosine, options)
    return run(experiment, samples, rng, options)


def _with_needle(
    declared: Declaration, n: Any, head_dim: Any, law: Any, cosine: Any, options: RunOptions
) -> Prepared:
    """An experiment on rows of keys on a sphere, one of which has a given cosine with the query."""
    return score_experiment(
        declared,
        lengths=integer_axis("n", n),
        dims=integer_axis("head_dim", head_dim, least=2),
        laws=law_axis("law", law),
        threads=num_threads_of(declared, options),
        cosine=(needle := _cosine(cosine)),
        about={"cosine": needle},
    )


def _cosine(value: Any) -> float:
    cosine = number("cosine", value)
    if not -1 <= cosine <= 1:
        raise refusal(ValueError, "cosine", f"must be between -1 and 1, got {cosine:g}")
    return cosine
