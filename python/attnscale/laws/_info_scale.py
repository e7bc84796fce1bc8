# SPDX-License-Identifier: BSD-3-Clause
"""InfoScale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ._closed_form import ClosedForm
from ._meaning import NMeans
from ._parameters import greater_than
from ._registry import built_in

if TYPE_CHECKING:
    from numpy.typing import NDArray


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
    sqrt(1 - n^(-2/d)) is about the largest cosine of one query with n random keys. Of the authors' two
    programs one takes d = head_dim and one d = heads * head_dim; this is the first.

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

    def __post_init__(self) -> None:
        greater_than(self, "train_length", 1)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        # The derivative of 1 - L^(-2/d) by L, over 1 - L^(-2/d) itself, is 2 / (d L (L^(2/d) - 1)).
        relative = 1 / (head_dim * self.train_length * math.expm1(2 / head_dim * math.log(self.train_length)))
        return {"train_length": -self._beta(n, head_dim) * relative}
