# SPDX-License-Identifier: BSD-3-Clause
"""How many keys sparse weights use, as rows grow, under each law."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from .. import _core, attention_statistics, normalizers
from ._axes import LawAxis, beta_of, integer_axis, law_axis, product
from ._experiment import Case, Experiment, Rows
from ._run import RunOptions, num_threads_of, run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..normalizers import Normalizer
    from ._result import ExperimentResult
    from ._seeds import RNG

__all__ = ["sparsity"]

_Array = NDArray[np.float64]
_QUANTITIES = {"support": "keys", "entropy": "nat", "max_weight": "", "concentration": ""}


def sparsity(
    n: int | Sequence[int],
    *,
    law: LawAxis = "standard",
    normalizer: str | Normalizer = "sparsemax",
    head_dim: int | Sequence[int] = 64,
    samples: int | None = None,
    rng: RNG | None = None,
    **options: Unpack[RunOptions],
) -> ExperimentResult:
    """Keys with a positive weight in rows of n independent normal scores.

    The scores are beta z, with standard normal z and beta = scale * sqrt(head_dim) of the law: q . k of
    independent normal components for large head_dim.

    Parameters
    ----------
    n : int or sequence of int
        Keys in a row, at least 1.
    law, head_dim, samples, rng, **options
        As for :func:`entropy_vs_length`; 1000 samples by default.
    normalizer : str or Normalizer, default "sparsemax"
        One whose rows have an entropy, see :mod:`attnscale.normalizers`.

    Returns
    -------
    ExperimentResult
        Of ``support``, the number of keys with a positive weight; with ``entropy``, ``max_weight`` and
        ``concentration``, the mean of sum p^2.

    Raises
    ------
    TypeError, ValueError
        An argument is of the wrong kind or out of range.

    Examples
    --------
    >>> import attnscale as at
    >>> result = at.montecarlo.sparsity([64, 16384], samples=200, rng=0)
    >>> result.value.round()  # of 16384 keys hardly more than of 64
    array([3., 5.])
    """
    threads = num_threads_of("sparsity", options)
    rule = normalizers.get(normalizer)
    if "entropy" not in rule.statistics:
        raise ValueError(f"normalizer must give rows an entropy, got {rule!r}")
    lengths, dims = integer_axis("n", n), integer_axis("head_dim", head_dim)
    laws = law_axis("law", law)
    cases, every_beta = [], []
    for length, dim in product(lengths, dims):
        betas = np.array([beta_of(each, length, dim) for each in laws.values])
        every_beta.append(betas)
        cost = length * (8.0 + 16.0 * len(betas))
        cases.append(Case((length, dim), _rows(length, betas, rule, threads), cost))
    experiment = Experiment(
        name="sparsity",
        quantities=_QUANTITIES,
        outer=(lengths, dims),
        inner=(laws,),
        cases=tuple(cases),
        parameters={
            "n": lengths.given,
            "head_dim": dims.given,
            "law": laws.given,
            "normalizer": repr(rule),
        },
        default_samples=1000,
        columns=len(_QUANTITIES),
        betas=np.stack(every_beta),
    )
    return run(experiment, samples, rng, options)


def _rows(n: int, betas: _Array, rule: Normalizer, threads: int) -> Rows:
    def rows(key: int, first: int, count: int) -> _Array:
        scores = np.empty((count, n))
        for i in range(count):  # a stream a row, whatever is cut into pieces
            _core.mc_fill(scores[i], "normal", (0.0, 1.0), key, first + i, 0, threads)
        return np.stack([_describe(beta, scores, rule, threads) for beta in betas], axis=1)

    return rows


def _describe(beta: float, scores: _Array, rule: Normalizer, threads: int) -> _Array:
    """The columns of _QUANTITIES of each row: a query of one component that is 1."""
    query = np.ones((1, 1))
    options: Any = {"scale": float(beta), "normalizer": rule, "num_threads": threads or None}
    found = attention_statistics(query, scores[..., None], statistics=tuple(_QUANTITIES), **options)
    return np.stack([getattr(found, name)[..., 0] for name in _QUANTITIES], axis=-1)
