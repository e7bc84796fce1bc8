# SPDX-License-Identifier: BSD-3-Clause
"""The scale of adaptive-scalable entmax."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ._base import head_parameter
from ._closed_form import ClosedForm
from ._meaning import NMeans
from ._parameters import OneOrPerHead, one_or_per_head
from ._registry import built_in

if TYPE_CHECKING:
    from numpy.typing import NDArray


@built_in
@dataclass(frozen=True)
class ASEntmax(ClosedForm):
    """(delta + beta ln(n)^gamma) / sqrt(head_dim), n = i + 2; the scores then go into entmax.

    Parameters
    ----------
    delta, beta, gamma : float or sequence of float
        One for all heads, or one a head. The authors fix delta = 1 and compute the others from the query.

    Examples
    --------
    >>> round(ASEntmax(delta=1, beta=0.5, gamma=2).multiplier(100, 64), 6)
    11.603796
    """

    delta: OneOrPerHead | Sequence[float]
    beta: OneOrPerHead | Sequence[float]
    gamma: OneOrPerHead | Sequence[float]
    name: ClassVar[str] = "asentmax"
    n_means: ClassVar[NMeans] = "query position + 2"
    formula: ClassVar[str] = "(delta + beta * ln(n)**gamma) / sqrt(head_dim)"
    source: ClassVar[str] = "Vasylenko et al. 2025, arXiv 2506.16640; deep-spin/asentmax"
    used_by: ClassVar[str] = "ASEntmax"
    remark: ClassVar[str] = (
        "i + 2 keeps the authors' logarithm away from ln 1 = 0. Theirs: beta = softplus(x W), "
        "gamma = 2 tanh(x U), for each query and head"
    )

    def __post_init__(self) -> None:
        for name in ("delta", "beta", "gamma"):
            one_or_per_head(self, name)

    def _derivatives(self, n: NDArray[np.float64], head_dim: int) -> dict[str, Any]:
        delta, beta, gamma = (head_parameter(self, name) for name in ("delta", "beta", "gamma"))
        shape, log = np.ones_like(delta + beta + gamma), np.log(n)
        power = log**gamma
        return {
            "delta": shape * np.ones_like(n),
            "beta": shape * power,
            "gamma": shape * beta * power * np.log(log),  # n is at least 2
        }
