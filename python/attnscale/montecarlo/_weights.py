# SPDX-License-Identifier: BSD-3-Clause
"""Experiments on how concentrated weights are: matrix rank, saturated rows, keys with a weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np
from numpy.typing import NDArray

from .. import normalizers
from .._base.checks import choose, shown
from .._core import mc_random_scores, mc_sphere
from ..exact.forward import attention_statistics
from ..normalizers._base import spelling_of
from ._experiment import Declaration, Draws, Prepared, Quantity, RowSource
from ._parameters import Axis, LawAxis, axis, beta_of, check_memory, distinct, integer_axis, law_axis, product
from ._run import RunOptions, num_threads_of, run
from ._scores import least_head_dim, score_experiment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._base.seeds import RNG
    from ._result import ExperimentResult

_Array = NDArray[np.float64]
_RANK = Declaration(
    "effective rank of an n x n matrix of weights",
    quantities={
        "effective_rank": Quantity("", "effective rank"),
        "stable_rank": Quantity(),
        "effective_keys": Quantity("", r"effective keys, $e^H$"),
        "concentration": Quantity("", r"$\sum p^2$"),
    },
    samples=8,
)


@_RANK.of
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

    Queries and keys are uniform on the sphere of radius sqrt(head_dim). The matrix is stored: memory grows as
    n^2 and time as n^3.

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
    threads = num_threads_of(_RANK, options)
    lengths, dims = integer_axis("n", n), integer_axis("head_dim", head_dim, least=2)
    laws = law_axis("law", law)
    cases = []
    for length, dim in product(lengths, dims):
        check_memory("n", length, 8.0 * length * (length + 2 * dim))
        scales = np.array([beta_of(each, length, dim) for each in laws.values]) / np.sqrt(dim)
        cases.append(Draws((length, dim), _matrices(length, dim, scales, threads), 10.0 * length**3))
    return run(Prepared(_RANK, (lengths, dims), cases, inner=(laws,)), samples, rng, options)


def _matrices(n: int, head_dim: int, scales: _Array, threads: int) -> RowSource:
    def one(key: int, index: int) -> _Array:
        # Each sample uses two streams: queries and keys.
        q, k = np.empty((2, n, head_dim))
        mc_sphere(q, np.sqrt(head_dim), key, 2 * index, 0, threads)
        mc_sphere(k, np.sqrt(head_dim), key, 2 * index + 1, 0, threads)
        products = q @ k.T
        return np.stack([_describe(scale * products) for scale in scales])

    def rows(*, key: int, first: int, count: int) -> _Array:
        return np.stack([one(key, first + i) for i in range(count)])

    return rows


def _describe(scores: _Array) -> _Array:
    """The quantities of a matrix of scores, in order."""
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    singular = np.linalg.svd(p, compute_uv=False)
    stable = (singular**2).sum() / singular[0] ** 2
    keys = np.exp(row_entropy(p)).mean()
    return np.array([effective_rank(singular), stable, keys, (p * p).sum(axis=-1).mean()])


_SATURATION = Declaration(
    "saturated rows and Jacobians, scaled and not",
    quantities={
        "saturated": Quantity("", "rows with a weight above 0.99"),
        "jacobian_trace": Quantity("", r"trace of the Jacobian, $1 - \sum p^2$"),
        "jacobian_norm": Quantity("", r"norm of the Jacobian, $\|J\|_F$"),
        "spectral_bound": Quantity(),
        "gradient_norm": Quantity(),
    },
    samples=1000,
    along=("head_dim", "n"),
    defaults={"law": "standard unscaled"},
    shares=("saturated",),
)


@_SATURATION.of
def softmax_saturation(
    *,
    head_dim: int | Sequence[int] = (4, 16, 64, 256),
    n: int | Sequence[int] = 512,
    law: LawAxis | None = None,
    scale: LawAxis | None = None,
    samples: int | None = None,
    rng: RNG | None = None,
    **options: Unpack[RunOptions],
) -> ExperimentResult:
    """Saturation of softmax rows of normal queries and keys, against head_dim, scaled and not.

    Parameters
    ----------
    head_dim : int or sequence of int, default (4, 16, 64, 256)
        Independent standard normal components of q and k, at least 1.
    n : int or sequence of int
        Keys in a row, at least 1; also the n of a law.
    law : str, float, Law or sequence of them, optional
        As for :func:`entropy_vs_length`; by default ``("standard", "unscaled")``: 1/sqrt(head_dim) and 1.
    scale : str, float, Law or sequence of them, optional
        Alias of ``law``, which then names the axis of the result.
    samples, rng, **options
        As for :func:`entropy_vs_length`.

    Returns
    -------
    ExperimentResult
        Means over the rows. With p the weights and J = diag(p) - p p^T the Jacobian of the softmax:

        - ``saturated``: share of rows whose largest weight exceeds 0.99;
        - ``jacobian_trace``: 1 - sum p^2;
        - ``jacobian_norm``: Frobenius norm of J, the root mean square norm of the gradient at the
          scores when that at the weights is standard normal;
        - ``spectral_bound``: min(1/2, 2 m (1 - m)), m the largest weight; J's largest eigenvalue
          lies between half of it and it;
        - ``gradient_norm``: scale times ``jacobian_norm``, the same gradient at q . k.

    Notes
    -----
    The squared norm is sum p^2 - 2 sum p^3 + (sum p^2)^2, and sum p^k = Z(k a) / Z(a)^k with the partition
    function Z at scale a. The eigenvalue: the diagonal of J bounds it from below, Gershgorin's
    circles from above.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.softmax_saturation(head_dim=[4, 64, 1024], rng=0)
    >>> result.axes["law"]
    ('standard', 'unscaled')
    >>> result.value.round(2)
    array([[0.  , 0.  ],
           [0.  , 0.12],
           [0.  , 0.62]])
    """
    if law is not None and scale is not None:
        raise ValueError(f"scale is another name of law: give one, got {shown(law)} and {shown(scale)}")
    name, given = ("law", law) if scale is None else ("scale", scale)
    experiment = score_experiment(
        _SATURATION,
        lengths=integer_axis("n", n),
        dims=integer_axis("head_dim", head_dim),
        laws=law_axis(name, ("standard", "unscaled") if given is None else given),
        threads=num_threads_of(_SATURATION, options),
        source="correlated",  # with correlation 0: normal q and keys
        looks=3,
    )
    return run(experiment, samples, rng, options)


_MODELS = ("gaussian", "sphere")
_SPARSITY = Declaration(
    "how many keys have a weight, under sparse normalizers",
    quantities={
        "support": Quantity("", "keys with a positive weight"),
        "entropy": Quantity("nat", "mean entropy"),
        "concentration": Quantity("", r"$\sum p^2$"),
        "max_weight": Quantity(),
    },
    samples=1000,
    choices={"model": _MODELS},
)
_STATISTICS = tuple(_SPARSITY.quantities)

#: A normalizer or its name.
NormalizerAxis: TypeAlias = "str | normalizers.Normalizer | Sequence[str | normalizers.Normalizer]"


@_SPARSITY.of
def sparsity(
    n: int | Sequence[int] = (64, 512, 4096),
    *,
    law: LawAxis = "standard",
    normalizer: NormalizerAxis = "sparsemax",
    head_dim: int | Sequence[int] = 64,
    model: str = "gaussian",
    samples: int | None = None,
    rng: RNG | None = None,
    **options: Unpack[RunOptions],
) -> ExperimentResult:
    """Keys with a positive weight in rows of n random keys, under scale laws and normalizers.

    Parameters
    ----------
    n : int or sequence of int, default (64, 512, 4096)
        Keys in a row, at least 1; also the n of the law.
    law, head_dim, rng, **options
        As for :func:`entropy_vs_length`.
    normalizer : str, Normalizer or sequence of them, default "sparsemax"
        Normalizers of :mod:`attnscale.normalizers` whose rows have a support and an entropy.
    model : {"gaussian", "sphere"}
        As for :func:`entropy_vs_length`; the default is the limit of the sphere for large head_dim.
    samples : int, optional
        Rows for each n and head_dim; 1000 by default. All laws and normalizers see the same rows.

    Returns
    -------
    ExperimentResult
        Estimates of ``support``, with ``entropy`` (nats), ``concentration`` (sum p^2) and ``max_weight``.

    Notes
    -----
    The rows are computed by :func:`attnscale.attention_statistics` as keys of one channel, in float64.

    Examples
    --------
    >>> import attnscale as at
    >>> laws = ["standard", "log_n", "natural_log_n"]
    >>> at.montecarlo.sparsity([64, 4096], law=laws, rng=0).value.round(1)
    array([[3.3, 4.2, 1.5],
           [4.6, 3.7, 1.4]])
    """
    threads = num_threads_of(_SPARSITY, options)
    choose("model", model, _MODELS)
    lengths, dims = integer_axis("n", n), integer_axis("head_dim", head_dim, least=least_head_dim(model))
    laws, rules = law_axis("law", law), _normalizer_axis(normalizer)
    cases, every_beta = [], []
    for length, dim in product(lengths, dims):
        check_memory("n", length, 8.0 * length * (dim if model == "sphere" else 1))
        betas = np.array([beta_of(each, length, dim) for each in laws.values])
        every_beta.append(np.broadcast_to(betas[:, None], (len(laws), len(rules))))
        rows = _rows(model, length, dim, betas, rules.values, threads)
        cost = length * (40.0 + dim * (model == "sphere") + 20.0 * len(laws) * len(rules))
        cases.append(Draws((length, dim), rows, cost))
    experiment = Prepared(
        _SPARSITY,
        (lengths, dims),
        cases,
        inner=(laws, rules),
        about={"model": model},
        betas=np.stack(every_beta),
    )
    return run(experiment, samples, rng, options)


def _rows(
    model: str, n: int, head_dim: int, betas: _Array, rules: tuple[Any, ...], threads: int
) -> RowSource:
    def rows(*, key: int, first: int, count: int) -> _Array:
        drawn = mc_random_scores(
            model=model, n=n, head_dim=head_dim, key=key, first=first, count=count, num_threads=threads
        )
        one = np.ones((count, len(betas), 1, 1))
        found = []
        for rule in rules:
            seen = attention_statistics(
                *(one, drawn[:, None, :, None]),
                scale=betas[:, None],
                normalizer=rule,
                statistics=_STATISTICS,
                num_threads=threads or None,
            )
            found.append(np.stack([getattr(seen, name)[..., 0] for name in _STATISTICS], axis=-1))
        return np.stack(found, axis=2)

    return rows


def _normalizer_axis(given: Any) -> Axis:
    """An axis of normalizers whose rows have a support and an entropy."""
    laid = axis("normalizer", given, _read_normalizer)
    return distinct(Axis("normalizer", laid.values, tuple(map(spelling_of, laid.values)), laid.scalar))


def _read_normalizer(name: str, value: Any) -> normalizers.Normalizer:
    rule = normalizers.get(value)
    missing = [each for each in _STATISTICS if each not in rule.statistics]
    if missing:
        raise ValueError(f"{name} must give its rows {', '.join(_STATISTICS)}; {rule!r} has no {missing[0]}")
    return rule


def row_entropy(p: _Array) -> Any:
    """-sum p ln p along the last axis, in nats; 0 ln 0 = 0."""
    return -(p * np.log(np.where(p > 0, p, 1))).sum(axis=-1)


def effective_rank(singular: _Array) -> Any:
    """exp of the entropy of singular values (..., n) divided by their sum (Roy and Vetterli 2007)."""
    return np.exp(row_entropy(singular / singular.sum(axis=-1, keepdims=True)))
