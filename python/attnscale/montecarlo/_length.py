# SPDX-License-Identifier: BSD-3-Clause
"""Entropy of attention rows against the number of keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from .._checks import shown
from ._axes import Axis, LawAxis, integer_axis, law_axis
from ._declaration import Grid, Quantity, declare
from ._run import RunOptions, num_threads_of, run
from ._score_experiment import score_experiment
from ._scores import MODELS, RealHeads, least_head_dim, read_correlation, read_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._seeds import RNG
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


_DECLARED = declare(
    "entropy_vs_length",
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
        Keys in a row, at least 1; also the n of the law. Of real heads at most the keys that they have.
    law : str, Law, float or sequence of them
        A law, its name, or a number, which is the multiplier of q . k.
    head_dim : int or sequence of int, optional
        64 by default; that of the arrays for real heads.
    model : {"sphere", "gaussian", "correlated"} or (query, key)
        Where the scores come from, before the law's factor beta:

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
        target_error, max_samples, progress, on_interrupt, resume, num_threads: see
        :class:`RunOptions`.

    Returns
    -------
    ExperimentResult
        Estimates of ``entropy`` (nats), with ``lse``, ``concentration`` (sum p^2), ``max_weight``,
        ``mean_score`` and ``score_variance``. ``exact()`` is the theory of the first three for the
        sphere and the Gaussian model.

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of range.

    See Also
    --------
    attnscale.theory.expected_entropy : what the mean tends to.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.entropy_vs_length([512, 4096], law=["standard", "log_n"], rng=0)
    >>> result.value.round(2)
    array([[5.75, 5.75],
           [7.83, 7.46]])
    """
    threads = num_threads_of(_DECLARED, options)
    source = read_model(model)
    share = read_correlation(source if isinstance(source, str) else "(query, key)", correlation)
    lengths, dims = integer_axis("n", n), _dims(head_dim, source)
    if isinstance(source, RealHeads) and max(lengths.values) > source.n_keys:
        raise ValueError(f"n must be at most {source.n_keys}, the keys of a head, got {max(lengths.values)}")
    experiment = score_experiment(
        _DECLARED,
        lengths=lengths,
        dims=dims,
        laws=law_axis("law", law),
        threads=threads,
        source=source,
        correlation=share,
        parameters={
            "model": source if isinstance(source, str) else source.describe(),
            "correlation": share if source == "correlated" else None,
        },
    )
    return run(experiment, samples, rng, options)


def _dims(head_dim: Any, source: str | RealHeads) -> Axis:
    if isinstance(source, RealHeads):
        if head_dim not in (None, source.head_dim):
            raise ValueError(f"head_dim must be {source.head_dim}, that of the arrays, got {shown(head_dim)}")
        return integer_axis("head_dim", source.head_dim)
    return integer_axis("head_dim", 64 if head_dim is None else head_dim, least=least_head_dim(source))
