# SPDX-License-Identifier: BSD-3-Clause
"""Scalable-Softmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ._base import head_parameter
from ._closed_form import ClosedForm
from ._meaning import NMeans
from ._parameters import OneOrPerHead, at_least, one_or_per_head
from ._registry import built_in

if TYPE_CHECKING:
    from numpy.typing import NDArray


@built_in
@dataclass(frozen=True)
class SSMax(ClosedForm):
    """(s * ln(max(n, floor)) + b) / sqrt(head_dim), s and b learned.

    Parameters
    ----------
    s : float or sequence of float, default 0.43
        Slope, one for all heads or one a head.
    b : float or sequence of float, default 0
        Offset, one for all heads or one a head.
    floor : float, default 1
        Shorter rows count as this long; >= 1. axolotl takes 2.

    Examples
    --------
    >>> SSMax(s=[0.4, 0.5]).multiplier(1024, 64).shape
    (2, 1)
    """

    s: OneOrPerHead | Sequence[float] = 0.43
    b: OneOrPerHead | Sequence[float] = 0.0
    floor: float = 1.0
    name: ClassVar[str] = "ssmax"
    n_means: ClassVar[NMeans] = "row size"
    formula: ClassVar[str] = "(s * ln(max(n, floor)) + b) / sqrt(head_dim)"
    source: ClassVar[str] = "Nakanishi 2025, arXiv 2501.19399"
    used_by: ClassVar[str] = "axolotl (floor=2, n from the start of each packed document)"
    remark: ClassVar[str] = "s is learned a head and layer; 0.43 is the value of the paper's figure 1"

    def __post_init__(self) -> None:
        one_or_per_head(self, "s")
        one_or_per_head(self, "b")
        at_least(self, "floor", 1)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        shape = np.ones_like(head_parameter(self, "s") + head_parameter(self, "b"))
        return {"s": shape * np.log(np.maximum(n, self.floor)), "b": shape * np.ones_like(n)}
