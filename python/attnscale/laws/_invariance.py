# SPDX-License-Identifier: BSD-3-Clause
"""Laws that keep the expected entropy of random scores what it was at n0 keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .._checks import choose
from .._spelling import as_number
from ._base import Law, head_parameter
from ._closed_form import ClosedForm
from ._meaning import NMeans
from ._parameters import OneOrPerHead, at_least, one_or_per_head
from ._registry import built_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

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
        The multiplier is never below this; >= 0. Rows shorter than n0 / sqrt(e) cannot have the entropy
        of n0 keys: at 0 they come as near as they can, with equal weights.
    variance : float or sequence of float, default 1
        Variance of a row's scores at the standard scale, one for all heads or one a head
        (:func:`attnscale.theory.score_cumulants`); greater than 0. A sharp head has a larger one, and needs
        less.

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

    def __post_init__(self) -> None:
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
    """The scale that keeps the expected entropy of a row of n random keys what it is at n0 keys.

    Parameters
    ----------
    n0 : float, default 512
        The length at which the scale is the standard one; >= 2.
    model : {"sphere", "gaussian"}, default "sphere"
        What the keys are: uniform on a sphere, or such that their scores are independent and normal.
    least : float, default 0
        The multiplier is never below this; >= 0. Rows that are too short to have the entropy of n0 keys
        come as near as they can at 0, with equal weights.

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

    def __post_init__(self) -> None:
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
