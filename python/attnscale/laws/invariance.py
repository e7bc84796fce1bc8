# SPDX-License-Identifier: BSD-3-Clause
"""Laws that keep the expected entropy of random scores what it was at n0 keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ._base import Law
from ._meaning import NMeans
from ._parameters import at_least
from ._registry import built_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Annealed"]


@built_in
@dataclass(frozen=True)
class Annealed(Law):
    """sqrt(1 + 2 ln(n / n0)) / sqrt(head_dim): entropy-invariant to first order.

    Parameters
    ----------
    n0 : float, default 512
        The length at which the scale is the standard one; >= 1.
    least : float, default 0
        The multiplier is never below this; >= 0. Rows shorter than n0 / sqrt(e) cannot have the entropy
        of n0 keys: at 0 they come as near as they can, with equal weights.

    Examples
    --------
    >>> Annealed().multiplier([100, 512, 32768], 64).round(4)
    array([0.    , 1.    , 3.0525])
    """

    n0: float = 512.0
    least: float = 0.0
    name: ClassVar[str] = "annealed"
    n_means: ClassVar[NMeans] = "visible keys"
    formula: ClassVar[str] = "max(least, sqrt(max(0, 1 + 2 ln(n / n0)))) / sqrt(head_dim)"
    source: ClassVar[str] = "annealed entropy ln n - beta^2 / 2 of independent normal scores, held fixed"
    used_by: ClassVar[str] = "nothing known; the form of scale-invariant attention's factor"
    remark: ClassVar[str] = (
        "low by 12 % at n = 32768 and by 20 % at 2^20 against the exact law of keys uniform on a sphere, "
        "head_dim 64, n0 = 512"
    )

    def __post_init__(self) -> None:
        at_least(self, "n0", 1)
        at_least(self, "least", 0)

    def _beta(self, n: NDArray[np.float64], head_dim: int) -> Any:
        squared = 1 + 2 * (np.log(n) - math.log(self.n0))
        return np.maximum(np.sqrt(np.maximum(squared, 0.0)), self.least)
