# SPDX-License-Identifier: BSD-3-Clause
"""Laws that multiply by a logarithm of n."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ._closed_form import ClosedForm
from ._meaning import NMeans
from ._parameters import at_least, finite, greater_than
from ._registry import built_in

if TYPE_CHECKING:
    from numpy.typing import NDArray


@built_in
@dataclass(frozen=True)
class LogN(ClosedForm):
    """log_base(n) / sqrt(head_dim): 1/sqrt(head_dim) at n = base.

    Parameters
    ----------
    base : float, default 512
        The length at which the scale is the standard one; > 1.
    floor : float, default 1
        Shorter rows count as this long; >= 1. bert4keras takes 16.

    Examples
    --------
    >>> LogN().multiplier([512, 512**2], 64)
    array([1., 2.])
    """

    base: float = 512.0
    floor: float = 1.0
    name: ClassVar[str] = "log_n"
    n_means: ClassVar[NMeans] = "visible keys"
    length_parameter: ClassVar[str | None] = "base"
    formula: ClassVar[str] = "ln(max(n, floor)) / ln(base) / sqrt(head_dim)"
    source: ClassVar[str] = "Su Jianlin 2021, kexue.fm/8823, eq. 4 and 5"
    used_by: ClassVar[str] = "bert4keras (softmax_plus, floor=16), GAU-alpha"
    remark: ClassVar[str] = (
        "slows the growth of entropy with n, and does not stop it: for keys uniform on a sphere, "
        "head_dim 64, E[H] = 5.75, 7.46, 9.09 nats at n = 512, 4096, 32768 (1/sqrt(d): 5.75, 7.83, 9.91). "
        "Real heads are not random: with a constant a head, fitted from 64 to 512 tokens, it is third of all "
        "laws on the 18 shipped heads (variance_invariant 0.170, lssa 0.188, log_n 0.222, annealed 0.280 "
        "nats off); other lengths give another order"
    )

    def __post_init__(self) -> None:
        greater_than(self, "base", 1)
        at_least(self, "floor", 1)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"base": -self._beta(n, head_dim) / (self.base * math.log(self.base))}


@built_in
@dataclass(frozen=True)
class LogNFromTraining(ClosedForm):
    """max(1, log_L(n)) / sqrt(head_dim): the standard scale up to the training length L.

    Parameters
    ----------
    train_length : float
        L, in tokens; > 1.

    Examples
    --------
    >>> LogNFromTraining(512).multiplier([100, 512**2], 64)
    array([1., 2.])
    """

    train_length: float
    name: ClassVar[str] = "log_n_from_training"
    n_means: ClassVar[NMeans] = "query position + 1"
    length_parameter: ClassVar[str | None] = "train_length"
    formula: ClassVar[str] = "max(1, ln(n) / ln(train_length)) / sqrt(head_dim)"
    source: ClassVar[str] = "Su Jianlin 2023, kexue.fm/9708; bojone/rerope"
    used_by: ClassVar[str] = "ReRoPE, at inference only"

    def __post_init__(self) -> None:
        greater_than(self, "train_length", 1)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"train_length": by_length(self._beta(n, head_dim), self.train_length)}


@built_in
@dataclass(frozen=True)
class NaturalLogN(ClosedForm):
    """ln(n) / sqrt(head_dim).

    Examples
    --------
    >>> NaturalLogN().multiplier(1024, 64)
    6.931471805599453
    """

    name: ClassVar[str] = "natural_log_n"
    n_means: ClassVar[NMeans] = "row size"
    formula: ClassVar[str] = "ln(n) / sqrt(head_dim)"
    source: ClassVar[str] = "Chiang & Cholak 2022, arXiv 2202.12172 (eq. 1 of section 4.3 in kexue.fm/8823)"
    used_by: ClassVar[str] = (
        "its authors, where one position decides (FIRST, is the first bit a 1?) and in machine translation; "
        "ln n is also SSMax with s = 1"
    )
    remark: ClassVar[str] = (
        "for keys uniform on a sphere, head_dim 64, E[H] = 1.24, 1.17, 1.12 nats at n = 512, 4096, 32768: "
        "nearly constant, at about 3 effective keys. A model that was not trained with it saturates: on the "
        "18 shipped heads, 512 tokens, the median trace of the Jacobian falls from 0.98 to 0.11"
    )


@built_in
@dataclass(frozen=True)
class Kappa(ClosedForm):
    """kappa * ln(n) / head_dim: the entropy-invariant scale before its constant is chosen.

    Parameters
    ----------
    kappa : float
        The constant; sqrt(head_dim) / ln(512) makes it LogN().

    Examples
    --------
    >>> law = Kappa(8 / np.log(512))
    >>> bool(np.isclose(law.scale(4096, 64), LogN().scale(4096, 64)))
    True
    """

    kappa: float
    name: ClassVar[str] = "kappa"
    n_means: ClassVar[NMeans] = "visible keys"
    formula: ClassVar[str] = "kappa * ln(n) / head_dim"
    source: ClassVar[str] = "Su Jianlin 2021, kexue.fm/8823, eq. 4"
    used_by: ClassVar[str] = "the derivation of LogN"

    def __post_init__(self) -> None:
        finite(self, "kappa")

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"kappa": np.log(n) / math.sqrt(head_dim)}


def by_length(beta: Any, length: float) -> Any:
    """Derivative of beta = max(1, ln n / ln length) by the length."""
    return np.where(beta > 1, -beta / (length * math.log(length)), 0.0)
