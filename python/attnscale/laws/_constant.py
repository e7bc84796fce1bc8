# SPDX-License-Identifier: BSD-3-Clause
"""Laws that do not look at the length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .._spelling import as_literal
from ._base import Law, head_parameter
from ._closed_form import ClosedForm
from ._meaning import NMeans
from ._parameters import OneOrPerHead, finite, one_or_per_head
from ._registry import built_in

if TYPE_CHECKING:
    from numpy.typing import NDArray


@built_in
@dataclass(frozen=True)
class Standard(ClosedForm):
    """1 / sqrt(head_dim): what ``scale=None`` means.

    Examples
    --------
    >>> Standard().scale(512, 64)
    0.125
    """

    name: ClassVar[str] = "standard"
    n_means: ClassVar[NMeans] = "not used"
    formula: ClassVar[str] = "1 / sqrt(head_dim)"
    source: ClassVar[str] = "Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1"
    used_by: ClassVar[str] = "nearly every transformer"
    remark: ClassVar[str] = "unit variance of scores for unit-variance q and k; entropy then grows like ln n"


@built_in
@dataclass(frozen=True)
class Unscaled(ClosedForm):
    """1: raw dot products.

    Examples
    --------
    >>> Unscaled().scale(512, 64), Unscaled().multiplier(512, 64)
    (1.0, 8.0)
    """

    name: ClassVar[str] = "unscaled"
    n_means: ClassVar[NMeans] = "not used"
    formula: ClassVar[str] = "1"
    source: ClassVar[str] = "TENER, Yan et al. 2019, arXiv 1911.04474"
    used_by: ClassVar[str] = "TENER, T5 (whose initialisation carries the factor)"


@built_in
@dataclass(frozen=True)
class Constant(ClosedForm):
    """A given scale.

    Parameters
    ----------
    value : float
        The multiplier of q . k itself, not of 1/sqrt(head_dim).

    Examples
    --------
    Gemma 2 27B has head_dim 128, but ``query_pre_attn_scalar`` 144:

    >>> Constant(144**-0.5).multiplier(512, 128)
    0.9428090415820634
    """

    value: float
    name: ClassVar[str] = "constant"
    n_means: ClassVar[NMeans] = "not used"
    formula: ClassVar[str] = "value"
    source: ClassVar[str] = "a choice of the model's configuration"
    used_by: ClassVar[str] = "Gemma 2 and 3 (query_pre_attn_scalar ** -0.5)"

    def __post_init__(self) -> None:
        finite(self, "value")

    @property
    def spelling(self) -> str:
        """The spelling, which is the number itself."""
        return as_literal(self.value)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"value": np.full_like(n, math.sqrt(head_dim))}


@built_in
@dataclass(frozen=True)
class PerHead(Law):
    """A multiple of 1/sqrt(head_dim) for each head, learned elsewhere.

    Parameters
    ----------
    values : float or sequence of float
        One multiple a head.

    Examples
    --------
    >>> PerHead([0.5, 2]).scale(512, 64)
    array([[0.0625],
           [0.25  ]])
    """

    values: OneOrPerHead | Sequence[float]
    name: ClassVar[str] = "per_head"
    n_means: ClassVar[NMeans] = "not used"
    formula: ClassVar[str] = "values[head] / sqrt(head_dim)"
    source: ClassVar[str] = "learned temperatures, e.g. Henry et al. 2020 (QKNorm), arXiv 2010.04245"
    used_by: ClassVar[str] = (
        "models with a learnable scale a head; HeadScale (Wang et al. 2024, arXiv 2404.12224), tuned at the "
        "length that a model without positions is to read"
    )

    def __post_init__(self) -> None:
        one_or_per_head(self, "values")

    def _beta(self, n: NDArray[np.float64], head_dim: int) -> Any:
        return head_parameter(self, "values") * np.ones_like(n)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        return {"values": np.ones_like(head_parameter(self, "values")) * np.ones_like(n)}
