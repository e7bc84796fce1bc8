# SPDX-License-Identifier: BSD-3-Clause
"""Laws that depend on the row's own scores, from a first pass at the standard scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .._base.checks import refuse_masked
from ._base import ClosedForm, Law
from ._meaning import NMeans
from ._parameters import finite, greater_than, several
from ._registry import built_in

_HIDE = "fill it: a key that is hidden has the score -inf"

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@built_in
@dataclass(frozen=True)
class AdaptiveTemperature(Law):
    """max(1, P(H)) / sqrt(head_dim) where the row's entropy H is above a threshold, else the standard scale.

    Parameters
    ----------
    coefficients : sequence of float
        Coefficients of the polynomial P, highest power first.
    threshold : float, default 0.5
        In nats.

    Examples
    --------
    >>> AdaptiveTemperature().multiplier([0.4, 3.0, 8.0], 64)  # no correction of long diffuse rows
    array([1.  , 2.25, 1.  ])
    """

    coefficients: tuple[float, ...] | Sequence[float] = (-0.037, 0.481, -2.3, 4.917, -1.791)
    threshold: float = 0.5
    name: ClassVar[str] = "adaptive_temperature"
    n_means: ClassVar[NMeans] = "row entropy"
    formula: ClassVar[str] = (
        "max(1, P(n)) / sqrt(head_dim) if n > 0.5, else 1 / sqrt(head_dim); "
        "P(n) = -0.037 n^4 + 0.481 n^3 - 2.3 n^2 + 4.917 n - 1.791"
    )
    source: ClassVar[str] = "Velickovic et al. 2024, softmax is not enough, arXiv 2410.01104"
    used_by: ClassVar[str] = "its authors, at inference"
    remark: ClassVar[str] = (
        "P is below 1 beyond 5.9445 nats (382 effective keys): longer diffuse rows get no correction. A port "
        "that reads the coefficients lowest power first corrects rows of 0.92 to 2.15 nats only"
    )

    def _check(self) -> None:
        several(self, "coefficients")
        finite(self, "threshold")

    def _beta(self, n: NDArray[np.float64], head_dim: int) -> Any:
        polynomial = np.polyval(np.asarray(self.coefficients), n)
        return np.where(n > self.threshold, np.maximum(polynomial, 1.0), 1.0)


@built_in
@dataclass(frozen=True)
class CriticalScale(ClosedForm):
    """Lambda / sqrt(head_dim): the critical inverse temperature of the row's own gaps.

    Notes
    -----
    With the gaps Delta_j = max s - s_j of the row's scores at the standard scale and N(t) = #{Delta_j <= t},
    Lambda = sup over t > 0 of ln N(t) / t. Far below it a row attends to everything, far above it to its
    top key. The supremum is reached at a gap: Lambda = max over k >= 2 of ln(k) / Delta_(k), sorted.

    A row of one key has Lambda = 0. If two keys tie for the top, it is infinite, and the row NaN.

    Do not average Lambda: for independent continuous scores its mean is infinite, since it is at least
    ln 2 / Delta, Delta the smallest gap, and Delta has a positive density at 0. Take its median. N(t) counts
    the top key.

    Examples
    --------
    >>> round(float(CriticalScale.measure([3.0, 1.0, 1.0])), 6)  # ln(3) / 2
    0.549306
    """

    name: ClassVar[str] = "critical_scale"
    n_means: ClassVar[NMeans] = "row gaps"
    formula: ClassVar[str] = "n / sqrt(head_dim)"
    source: ClassVar[str] = "Hayase & Karakida 2026, arXiv 2605.12697"
    used_by: ClassVar[str] = "a diagnostic; no model is known to use it"
    remark: ClassVar[str] = (
        "its mean over rows of independent continuous scores is infinite (ln 2 / the smallest gap has no "
        "mean): take the median. Two keys that tie for the top make it infinite"
    )

    @staticmethod
    def measure(scores: ArrayLike) -> Any:
        """Lambda of each row of scores at the standard scale.

        Parameters
        ----------
        scores : array_like, shape (..., n)
            -inf for hidden keys.

        Returns
        -------
        float or ndarray, shape (...)
            inf where two keys tie for the top; NaN where a score is NaN or +inf.
        """
        refuse_masked("scores", scores, _HIDE)
        s = np.sort(-np.asarray(scores, np.float64), axis=-1)  # the largest score is the first, negated
        if s.shape[-1] < 2:
            return np.zeros(s.shape[:-1])[()]
        hidden = np.isposinf(s[..., 1:])
        rates = s[..., 1:]
        with np.errstate(invalid="ignore", divide="ignore"):
            rates -= s[..., :1]
            np.divide(np.log(np.arange(2, s.shape[-1] + 1)), rates, out=rates)
        # Hidden keys come last; their gap is infinite and their rate 0, or NaN if all are hidden.
        rates[hidden] = 0.0
        return rates.max(axis=-1)[()]


@built_in
@dataclass(frozen=True)
class NormSoftmax(ClosedForm):
    """gamma / (spread sqrt(head_dim)): scores of standard deviation gamma in every row.

    Parameters
    ----------
    gamma : float, default 1
        The standard deviation of every row under the law.
    least : float, default 1e-6
        Lower bound of the spread; > 0. Rows whose keys all tie have the spread 0.

    Examples
    --------
    >>> NormSoftmax().multiplier([0.5, 2.0], 64)
    array([2. , 0.5])
    >>> float(NormSoftmax.measure([1.0, 3.0, -np.inf]))
    1.0
    """

    gamma: float = 1.0
    least: float = 1e-6
    name: ClassVar[str] = "norm_softmax"
    n_means: ClassVar[NMeans] = "row spread"
    formula: ClassVar[str] = "gamma / max(n, least) / sqrt(head_dim)"
    source: ClassVar[str] = "Jiang et al. 2023, NormSoftmax, openreview.net/forum?id=4g7nCbpjNwd"
    used_by: ClassVar[str] = "its authors"
    remark: ClassVar[str] = "what q or k is multiplied by changes nothing: the sharpness is gamma alone"

    def _check(self) -> None:
        finite(self, "gamma")
        greater_than(self, "least", 0)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"gamma": 1 / np.maximum(n, self.least)}

    @staticmethod
    def measure(scores: ArrayLike) -> Any:
        """Standard deviation (divided by the number of keys) of each row of scores.

        Parameters
        ----------
        scores : array_like, shape (..., n)
            -inf for hidden keys.

        Returns
        -------
        float or ndarray, shape (...)
            0 for a row without keys; NaN where a score is NaN or +inf.
        """
        refuse_masked("scores", scores, _HIDE)
        s = np.asarray(scores, np.float64)
        seen = ~np.isneginf(s)
        count = np.maximum(seen.sum(axis=-1, keepdims=True), 1)
        with np.errstate(invalid="ignore"):
            shifted = np.where(seen, s - np.where(seen, s, 0).sum(axis=-1, keepdims=True) / count, 0.0)
        return np.sqrt((shifted**2).sum(axis=-1) / count[..., 0])[()]
