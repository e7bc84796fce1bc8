# SPDX-License-Identifier: BSD-3-Clause
"""Laws that multiply the cosine of q and k: a number over head_dim, for q and k of length sqrt(head_dim).

``qk_norm="rms"`` gives q and k that length. With ``qk_norm="l2"`` their length is 1, and the scale is
head_dim times as large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ._base import ClosedForm, head_parameter
from ._meaning import NMeans
from ._parameters import OneOrPerHead, at_least, greater_than, one_or_per_head
from ._registry import built_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LN_10 = math.log(10)
_LENGTH = (
    'for q and k of length sqrt(head_dim), which qk_norm="rms" gives them: then head_dim times the scale '
    "multiplies their cosine"
)


@built_in
@dataclass(frozen=True)
class QKNormScale(ClosedForm):
    """log2(L^2 - L) / head_dim: the initial value of the learned scale of QKNorm.

    Parameters
    ----------
    train_length : float
        L, the 97.5th percentile of the training lengths; at least 2. The learned scale is ``g / head_dim``: a
        :class:`Constant`, or with one number a head a :class:`PerHead`.

    Examples
    --------
    >>> round(QKNormScale(512).scale(512, 64) * 64, 6)  # g
    17.997179
    """

    train_length: float
    name: ClassVar[str] = "qk_norm_scale"
    n_means: ClassVar[NMeans] = "not used"
    formula: ClassVar[str] = "log2(train_length^2 - train_length) / head_dim"
    source: ClassVar[str] = "Henry et al. 2020 (QKNorm), arXiv 2010.04245; CyndxAI/QKNorm"
    used_by: ClassVar[str] = "QKNorm, at the first step of training"
    remark: ClassVar[str] = _LENGTH

    def _check(self) -> None:
        at_least(self, "train_length", 2)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        length = self.train_length
        slope = (2 * length - 1) / (length * (length - 1) * math.log(2))
        return {"train_length": np.full_like(n, slope / math.sqrt(head_dim))}


@built_in
@dataclass(frozen=True)
class SwinV2(ClosedForm):
    """exp(min(theta, ln most)) / head_dim, theta learned for each head.

    Parameters
    ----------
    theta : float or sequence of float, default ln 10
        One for all heads or one a head; training starts at the default.
    most : float, default 100
        The largest multiple of the cosine; > 0.

    Examples
    --------
    >>> [round(SwinV2(theta).scale(49, 32) * 32, 6) for theta in (np.log(10), 9)]
    [10.0, 100.0]
    """

    theta: OneOrPerHead | Sequence[float] = _LN_10
    most: float = 100.0
    name: ClassVar[str] = "swin_v2"
    n_means: ClassVar[NMeans] = "not used"
    formula: ClassVar[str] = "exp(min(theta, ln(most))) / head_dim"
    source: ClassVar[str] = (
        "Liu et al. 2021 (Swin Transformer V2), arXiv 2111.09883; microsoft/Swin-Transformer"
    )
    used_by: ClassVar[str] = "Swin Transformer V2, theta a head and layer"
    remark: ClassVar[str] = _LENGTH

    def _check(self) -> None:
        one_or_per_head(self, "theta")
        greater_than(self, "most", 0)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        learning = head_parameter(self, "theta") < math.log(self.most)
        return {"theta": np.where(learning, self._beta(n, head_dim), 0.0)}


@built_in
@dataclass(frozen=True)
class LSSA(ClosedForm):
    """ln(head_dim) ln(n) / head_dim: the scale in softplus attention.

    Examples
    --------
    >>> round(LSSA().scale(1024, 64) * 64, 6)
    28.827181
    """

    name: ClassVar[str] = "lssa"
    n_means: ClassVar[NMeans] = "query position + 1"
    formula: ClassVar[str] = "ln(head_dim) * ln(n) / head_dim"
    source: ClassVar[str] = "Gao, Spratling & Gionfrida 2025, arXiv 2501.13428"
    used_by: ClassVar[str] = "LSSA, whose weights are softplus of these scores over their sum"
    remark: ClassVar[str] = f"{_LENGTH}. Under softmax, as here, it is another attention than its authors'"
