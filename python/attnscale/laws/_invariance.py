# SPDX-License-Identifier: BSD-3-Clause
"""Laws that preserve a property of n0 keys: entropy, variance, number of keys, weight of one key."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .._base.checks import choose, refuse_masked
from .._base.spelling import as_number
from ._base import USE_DATA, ClosedForm, Law, head_parameter
from ._meaning import NMeans
from ._parameters import OneOrPerHead, at_least, finite, greater_than, one_or_per_head
from ._registry import built_in

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


@built_in
@dataclass(frozen=True)
class InfoScale(ClosedForm):
    """sqrt(1 - n^(-2/d)) / sqrt(1 - n0^(-2/d)) / sqrt(d), d = head_dim.

    Parameters
    ----------
    train_length : float
        n0, in tokens; > 1.

    Notes
    -----
    sqrt(1 - n^(-2/d)) is roughly the largest cosine of a query with n random keys. One of the authors' two
    programs takes d = head_dim, the other d = heads * head_dim; this is the first.

    Examples
    --------
    >>> InfoScale(512).multiplier([512, 32768], 64).round(4)
    array([1.    , 1.2515])
    """

    train_length: float
    name: ClassVar[str] = "info_scale"
    n_means: ClassVar[NMeans] = "visible keys"
    length_parameter: ClassVar[str | None] = "train_length"
    formula: ClassVar[str] = "sqrt((1 - n^(-2/d)) / (1 - train_length^(-2/d))) / sqrt(d), d = head_dim"
    source: ClassVar[str] = "Information Entropy Invariance, 2025, arXiv 2501.08570, InfoScale"
    used_by: ClassVar[str] = "the authors' GAU-alpha and T5"
    remark: ClassVar[str] = (
        "bounded: below 2.38 at every n for head_dim 64 and train_length 512. The authors' T5 program takes "
        "d = heads * head_dim and never goes below 1"
    )

    def _check(self) -> None:
        greater_than(self, "train_length", 1)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        # The derivative of 1 - L^(-2/d) by L, over 1 - L^(-2/d) itself, is 2 / (d L (L^(2/d) - 1)).
        relative = 1 / (head_dim * self.train_length * math.expm1(2 / head_dim * math.log(self.train_length)))
        return {"train_length": -self._beta(n, head_dim) * relative}


# The exact law is solved at Chebyshev nodes of panels of ln n and interpolated between them, to 1e-10: a
# causal row has a thousand lengths, and a solution costs 10 ms.
_WIDTH, _NODES = 1.0, 10


@built_in
@dataclass(frozen=True)
class Annealed(ClosedForm):
    """sqrt(1 + 2 ln(n / n0) / variance) / sqrt(head_dim): entropy-invariant to first order.

    Parameters
    ----------
    n0 : float, default 512
        The length at which the scale is the standard one; >= 1.
    least : float, default 0
        Lower bound of the multiplier; >= 0. Rows shorter than n0 / sqrt(e) cannot have the entropy of n0
        keys: with the bound 0 they get equal weights, the nearest possible.
    variance : float or sequence of float, default 1
        Variance of a row's scores at the standard scale, one for all heads or one a head
        (:func:`attnscale.theory.score_cumulants`); greater than 0. A sharp head has a larger variance, and
        needs a smaller multiplier.

    Examples
    --------
    >>> Annealed().multiplier([100, 512, 32768], 64).round(4)
    array([0.    , 1.    , 3.0525])
    >>> Annealed(variance=[4.0, 0.5]).multiplier(32768, 64).round(4)
    array([[1.7548],
           [4.1995]])
    """

    n0: float = 512.0
    least: float = 0.0
    variance: OneOrPerHead | Sequence[float] = 1.0
    name: ClassVar[str] = "annealed"
    n_means: ClassVar[NMeans] = "visible keys"
    length_parameter: ClassVar[str | None] = "n0"
    formula: ClassVar[str] = "max(least, sqrt(max(0, 1 + 2 ln(n / n0) / variance))) / sqrt(head_dim)"
    source: ClassVar[str] = (
        "annealed entropy ln n - beta^2 variance / 2 of independent normal scores, held fixed"
    )
    used_by: ClassVar[str] = "nothing known; the form of scale-invariant attention's factor"
    remark: ClassVar[str] = (
        "low by 12 % at n = 32768 and by 20 % at 2^20 against the exact law of keys uniform on a sphere, "
        "head_dim 64, n0 = 512"
    )

    def _check(self) -> None:
        at_least(self, "n0", 1)
        at_least(self, "least", 0)
        one_or_per_head(self, "variance")
        if np.min(np.asarray(self.variance)) <= 0:
            raise ValueError(
                f"variance must be greater than 0, got {as_number(np.min(np.asarray(self.variance)))}"
            )

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        beta = self._beta(n, head_dim)
        moves = beta > self.least
        slope = -1 / (self.n0 * head_parameter(self, "variance") * np.where(moves, beta, 1))
        return {"n0": np.where(moves, slope, 0.0)}


@built_in
@dataclass(frozen=True)
class EntropyInvariant(Law):
    """The scale that gives a row of n random keys the expected entropy of n0 keys.

    Parameters
    ----------
    n0 : float, default 512
        The length at which the scale is the standard one; >= 2.
    model : {"sphere", "gaussian"}, default "sphere"
        Distribution of the keys: uniform on a sphere, or such that scores are independent and normal.
    least : float, default 0
        Lower bound of the multiplier; >= 0. Rows too short for the entropy of n0 keys come nearest at 0, with
        equal weights.

    Notes
    -----
    Solves E[H(n, beta)] = E[H(n0, 1)] with :func:`attnscale.theory.invariant_beta`. To first order it is
    :class:`Annealed`. Trained keys are neither independent nor isotropic: measure before you trust it.

    Examples
    --------
    >>> EntropyInvariant().multiplier([100, 512, 4096, 32768], 64).round(4)
    array([0.    , 1.    , 2.4333, 3.4712])
    """

    n0: float = 512.0
    model: str = "sphere"
    least: float = 0.0
    name: ClassVar[str] = "entropy_invariant"
    n_means: ClassVar[NMeans] = "visible keys"
    length_parameter: ClassVar[str | None] = "n0"
    formula: ClassVar[str] = "max(least, beta) / sqrt(head_dim); beta(n) solves E[H(n, beta)] = E[H(n0, 1)]"
    source: ClassVar[str] = "attnscale.theory.invariant_beta, exact for random keys at every n"
    used_by: ClassVar[str] = "this package"
    remark: ClassVar[str] = (
        "1.587, 2.433, 3.471, 5.041 at n = 1024, 4096, 32768, 2^20 for keys uniform on a sphere, head_dim "
        "64: it keeps entropy, which is not the same as keeping one key in sight"
    )

    def _check(self) -> None:
        at_least(self, "n0", 2)
        choose("model", self.model, ("sphere", "gaussian"))
        at_least(self, "least", 0)

    def _beta(self, n: NDArray[np.float64], head_dim: int) -> Any:
        start = _target_entropy(self.n0, head_dim, self.model)
        # beta^2 is smooth in ln n down to the shortest row that can have this entropy, where it is 0.
        offset = np.log(n) - start
        squared = np.zeros(n.shape)
        panels = np.floor(offset / _WIDTH)
        for panel in np.unique(panels[offset > 0]):
            here = (panels == panel) & (offset > 0)
            coefficients = _panel(self.n0, head_dim, self.model, int(panel))
            t = 2 * (offset[here] / _WIDTH - panel) - 1
            squared[here] = np.polynomial.chebyshev.chebval(t, np.array(coefficients))
        return np.maximum(np.sqrt(np.maximum(squared, 0.0)), self.least)


@lru_cache(maxsize=256)
def _target_entropy(n0: float, head_dim: int, model: str) -> float:
    from .. import theory  # SciPy at first use

    return float(theory.expected_entropy(n0, 1.0, head_dim=head_dim, model=model))


@lru_cache(maxsize=4096)
def _panel(n0: float, head_dim: int, model: str, panel: int) -> tuple[float, ...]:
    """Chebyshev coefficients of beta^2 over one panel of ln n."""
    from .. import theory

    nodes = _NODES if head_dim > 3 else 2 * _NODES  # beta grows like n^(2/head_dim)
    t = np.cos(np.pi * (np.arange(nodes) + 0.5) / nodes)
    n = np.exp(_target_entropy(n0, head_dim, model) + _WIDTH * (panel + (t + 1) / 2))
    beta = theory.invariant_beta(n, n0=n0, head_dim=head_dim, model=model, on_infeasible="nan")
    return tuple(np.polynomial.chebyshev.chebfit(t, beta**2, nodes - 1).tolist())


@built_in
@dataclass(frozen=True)
class SparsityInvariant(ClosedForm):
    """isf(keys / n) / isf(keys / n0) / sqrt(head_dim), isf the upper quantile of the normal distribution.

    Parameters
    ----------
    n0 : float, default 512
        The length at which the scale is the standard one; more than 2 keys.
    keys : float, default 1
        Rank of the score whose typical value is divided out: 1 for sparsemax, 3 for entmax-1.5; greater
        than 0.
    least : float, default 0
        Lower bound of the multiplier; >= 0. At 2 keys or fewer the quantile is at most 0.

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

    def _check(self) -> None:
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
        Lower bound of the multiplier; >= 0. Rows shorter than n0 / e have a larger variance even with equal
        weights, which they get at 0.

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

    def _check(self) -> None:
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
        a: distance of the sought key's score above the mean of the others, in their standard deviations at
        the standard scale; greater than 0.
    weight : float, default 0.5
        Weight of the sought key, in (0, 1).
    least : float, default 0
        Lower bound of the multiplier; >= 0.

    Notes
    -----
    No scale finds the key among more than exp(a^2 / 2) others (:func:`attnscale.theory.retrieval_length`).
    Beyond them the multiplier is a, which maximizes the key's weight in the model.

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

    def _check(self) -> None:
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


@built_in
@dataclass(frozen=True)
class ScaleInvariant(ClosedForm):
    """Scale-invariant attention: score = a_t q . k / sqrt(head_dim) + m_t at distance t.

    Parameters
    ----------
    tau : float, default 10
        Distance, in tokens, beyond which the law departs from the standard scale; > 0.

    Notes
    -----
    a_t = sqrt(1 + 2 ln(1 + t/tau)) and m_t = -2 ln(1 + t/tau). The paper writes a_t^2 = 2 [ln(t/tau + 1) -
    ln(alpha) + beta/alpha] and m_t = -a_t^2 + beta/alpha with alpha = beta = e^(1/2), which is the same.

    The factor differs between the keys of a row: attention takes the tables :meth:`factor` and :meth:`bias`
    over the distance between query and key, on either side.

    Examples
    --------
    >>> law = ScaleInvariant()
    >>> law.factor([0, 32768]).round(6), law.bias([0, 32768]).round(6)
    (array([1.      , 4.146065]), array([ -0.      , -16.189855]))
    """

    tau: float = 10.0
    name: ClassVar[str] = "scale_invariant"
    n_means: ClassVar[NMeans] = "query-key distance"
    formula: ClassVar[str] = "sqrt(1 + 2 ln(1 + n / tau)) / sqrt(head_dim), and -2 ln(1 + n / tau) is added"
    source: ClassVar[str] = "Anson et al. 2025, Scale-invariant attention, arXiv 2505.17083"
    used_by: ClassVar[str] = "its authors, with p-RoPE"
    remark: ClassVar[str] = "the only law here whose value differs between the keys of one row"

    def _check(self) -> None:
        greater_than(self, "tau", 0)

    def factor(self, distance: ArrayLike) -> NDArray[np.float64]:
        """a_t: the multiple of 1/sqrt(head_dim) at each distance, of the shape of `distance`."""
        return np.asarray(self._beta(_distances(distance), 1), np.float64)

    def bias(self, distance: ArrayLike) -> NDArray[np.float64]:
        """m_t: the term added to the score at each distance, of the shape of `distance`."""
        return np.asarray(-2 * np.log1p(_distances(distance) / self.tau), np.float64)


def _distances(distance: ArrayLike) -> NDArray[np.float64]:
    refuse_masked("distance", distance, USE_DATA)
    t = np.asarray(distance, np.float64)
    if not (t >= 0).all():
        raise ValueError(f"distance must be at least 0, got {t.min()}")
    return t
