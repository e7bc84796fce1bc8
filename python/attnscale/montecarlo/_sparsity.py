# SPDX-License-Identifier: BSD-3-Clause
"""How many keys have a weight, under normalizers that give some of them none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import numpy as np
from numpy.typing import NDArray

from .. import normalizers
from .._checks import choose
from .._core import mc_random_scores
from ..attention import attention_statistics
from ..normalizers._registry import spelling_of
from ._axes import Axis, LawAxis, axis, beta_of, distinct, integer_axis, law_axis, product
from ._declaration import Quantity, declare
from ._experiment import Draws, Prepared, RowSource
from ._limits import check_memory
from ._run import RunOptions, num_threads_of, run
from ._scores import least_head_dim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .._seeds import RNG
    from ._result import ExperimentResult

_Array = NDArray[np.float64]
_MODELS = ("gaussian", "sphere")
_DECLARED = declare(
    "sparsity",
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
_STATISTICS = tuple(_DECLARED.quantities)

#: A normalizer or its name.
NormalizerAxis: TypeAlias = "str | normalizers.Normalizer | Sequence[str | normalizers.Normalizer]"


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

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of range.

    Notes
    -----
    The rows go through :func:`attnscale.attention_statistics` as keys of one channel, in float64.

    Examples
    --------
    >>> import attnscale as at
    >>> laws = ["standard", "log_n", "natural_log_n"]
    >>> at.montecarlo.sparsity([64, 4096], law=laws, rng=0).value.round(1)
    array([[3.3, 4.2, 1.5],
           [4.6, 3.7, 1.4]])
    """
    threads = num_threads_of(_DECLARED, options)
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
    found = {each.name: each.given for each in (lengths, dims, laws, rules)}
    experiment = Prepared(
        _DECLARED,
        outer=(lengths, dims),
        inner=(laws, rules),
        cases=tuple(cases),
        parameters=found | {"model": model},
        betas=np.stack(every_beta),
    )
    return run(experiment, samples, rng, options)


def _rows(
    model: str, n: int, head_dim: int, betas: _Array, rules: tuple[Any, ...], threads: int
) -> RowSource:
    def rows(key: int, first: int, count: int) -> _Array:
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
    """An axis of normalizers that give each row a support and an entropy."""
    laid = axis("normalizer", given, _read_normalizer)
    return distinct(Axis("normalizer", laid.values, tuple(map(spelling_of, laid.values)), laid.scalar))


def _read_normalizer(name: str, value: Any) -> normalizers.Normalizer:
    rule = normalizers.get(value)
    missing = [each for each in _STATISTICS if each not in rule.statistics]
    if missing:
        raise ValueError(f"{name} must give its rows {', '.join(_STATISTICS)}; {rule!r} has no {missing[0]}")
    return rule
