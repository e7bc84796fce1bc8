# SPDX-License-Identifier: BSD-3-Clause
"""Laws that keep another target than the entropy of random keys: their number, the output, one key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .._spelling import as_number
from ._closed_form import ClosedForm
from ._meaning import NMeans
from ._parameters import at_least, finite, greater_than
from ._registry import built_in

if TYPE_CHECKING:
    from numpy.typing import NDArray


@built_in
@dataclass(frozen=True)
class SparsityInvariant(ClosedForm):
    """isf(keys / n) / isf(keys / n0) / sqrt(head_dim), isf the upper quantile of the normal distribution.

    Parameters
    ----------
    n0 : float, default 512
        The length at which the scale is the standard one; more than 2 keys.
    keys : float, default 1
        The rank among the scores whose typical value is divided out: 1 for sparsemax, 3 for
        entmax-1.5; greater than 0.
    least : float, default 0
        The multiplier is never below this; >= 0. At 2 keys or fewer the quantile is 0 and less.

    Examples
    --------
    >>> SparsityInvariant().multiplier([64, 512, 32768], 64).round(4)
    array([0.7464, 1.    , 1.3892])
    """

    n0: float = 512.0
    keys: float = 1.0
    least: float = 0.0
    name: ClassVar[str] = "sparsity_invariant"
    n_means: ClassVar[NMeans] = "visible keys"
    length_parameter: ClassVar[str | None] = "n0"
    formula: ClassVar[str] = (
        "max(least, isf(keys / n) / isf(keys / n0)) / sqrt(head_dim); isf(p) = -Phi^-1(p)"
    )
    source: ClassVar[str] = (
        "attnscale.theory.sparsity_beta: the gaps of the top scores of n independent normal ones, held fixed"
    )
    used_by: ClassVar[str] = "this package, with sparsemax and entmax; grows like sqrt(ln n)"
    remark: ClassVar[str] = (
        "independent normal scores have 3.94, 3.93, 3.92 keys under sparsemax at n = 64, 512, 16384; under "
        "1/sqrt(d) 3.24, 3.93, 4.86"
    )

    def __post_init__(self) -> None:
        greater_than(self, "keys", 0)
        greater_than(self, "n0", 2 * self.keys)
        at_least(self, "least", 0)


@built_in
@dataclass(frozen=True)
class VarianceInvariant(ClosedForm):
    """sqrt(1 + ln(n / n0)) / sqrt(head_dim): keeps the variance of the output over independent values.

    Parameters
    ----------
    n0 : float, default 512
        The length at which the scale is the standard one; >= 1.
    least : float, default 0
        The multiplier is never below this; >= 0. Rows shorter than n0 / e have a larger variance even with
        equal weights, which they get at 0.

    Examples
    --------
    >>> VarianceInvariant().multiplier([100, 512, 4096, 32768], 64).round(4)
    array([0.    , 1.    , 1.7548, 2.2713])
    """

    n0: float = 512.0
    least: float = 0.0
    name: ClassVar[str] = "variance_invariant"
    n_means: ClassVar[NMeans] = "visible keys"
    length_parameter: ClassVar[str | None] = "n0"
    formula: ClassVar[str] = "max(least, sqrt(max(0, 1 + ln(n / n0)))) / sqrt(head_dim)"
    source: ClassVar[str] = "annealed sum p^2 = e^(beta^2) / n of independent normal scores, held fixed"
    used_by: ClassVar[str] = "this package; the variance that falls is that of arXiv 2504.02827"
    remark: ClassVar[str] = (
        "exact for normal scores, n0 = 512: 1.7887, 2.3570, 3.1308 at n = 4096, 32768, 2^20 "
        "(theory.variance_invariant_beta), 2 to 6 % above; keeping the entropy takes annealed"
    )

    def __post_init__(self) -> None:
        at_least(self, "n0", 1)
        at_least(self, "least", 0)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        beta = self._beta(n, head_dim)
        moves = beta > self.least
        return {"n0": np.where(moves, -0.5 / (self.n0 * np.where(moves, beta, 1)), 0.0)}


@built_in
@dataclass(frozen=True)
class Retrieval(ClosedForm):
    """(a - sqrt(a^2 - 2 ln n)) / sqrt(head_dim): the least scale at which a key of gap a has half the weight.

    Parameters
    ----------
    gap : float
        a: how far the score of the key to find lies above the mean of the others, in their standard
        deviations at the standard scale; greater than 0.
    weight : float, default 0.5
        The weight that the key is to have, in (0, 1).
    least : float, default 0
        The multiplier is never below this; >= 0.

    Notes
    -----
    No scale finds the key among more than exp(a^2 / 2) others (:func:`attnscale.theory.retrieval_length`).
    From there on the multiplier is a, at which the key's weight is largest in the model.

    Examples
    --------
    >>> Retrieval(gap=4.624).multiplier([512, 4096, 32768, 2**20], 64).round(3)
    array([1.64 , 2.446, 3.858, 4.624])
    """

    gap: float
    weight: float = 0.5
    least: float = 0.0
    name: ClassVar[str] = "retrieval"
    n_means: ClassVar[NMeans] = "visible keys"
    formula: ClassVar[str] = (
        "max(least, gap - sqrt(max(0, gap^2 - 2 ln(n w / (1 - w))))) / sqrt(head_dim), w = weight"
    )
    source: ClassVar[str] = (
        "attnscale.theory.retrieval_beta: beta gap = ln n + beta^2 / 2, one key against n independent normal "
        "scores"
    )
    used_by: ClassVar[str] = "this package: the least that a law has to give for retrieval"
    remark: ClassVar[str] = (
        "possible for n < exp(gap^2 / 2); a cosine c on a sphere is a gap of c sqrt(head_dim), and the exact "
        "multiple (theory.needle_beta) is lower by 1, 2, 12 % at n = 512, 4096, 32768, gap 4.624, head_dim 64"
    )

    def __post_init__(self) -> None:
        greater_than(self, "gap", 0)
        share = finite(self, "weight")
        if not 0 < share < 1:
            raise ValueError(f"weight must be in (0, 1), got {as_number(share)}")
        at_least(self, "least", 0)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        noise = np.log(n) + math.log(self.weight / (1 - self.weight))
        root = np.sqrt(np.maximum(self.gap**2 - 2 * noise, 0.0))
        inner = np.where(root > 0, 1 - self.gap / np.where(root > 0, root, 1), 1.0)
        return {"gap": np.where(self._beta(n, head_dim) > self.least, inner, 0.0)}
