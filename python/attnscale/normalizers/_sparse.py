# SPDX-License-Identifier: BSD-3-Clause
"""Weights that are zero below a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .._base.checks import number, positive_int, shown
from .._base.rows import CallRows
from .._core import statistics_of
from ._base import Normalizer, Rule, built_in


@built_in
@dataclass(frozen=True)
class Entmax(Normalizer):
    """p_j = max((alpha - 1) s_j - tau, 0)^(1 / (alpha - 1)), with tau such that the sum is 1.

    Keys far below the largest score have weight 0. alpha = 2 is :class:`Sparsemax`; alpha -> 1 is
    :class:`Softmax`.

    Parameters
    ----------
    alpha : float, default 1.5
        Greater than 1. A larger alpha gives fewer keys a weight.

    Raises
    ------
    TypeError
        If alpha is not a number.
    ValueError
        If alpha is not greater than 1.

    Notes
    -----
    Peters, Niculae & Martins 2019, "Sparse sequence-to-sequence models" (arXiv 1905.05702). The scores are
    streamed once; a row keeps those within 1 / (alpha - 1) of its running maximum, below which weights are 0,
    and solves for tau in float64 by Newton's method on sum^(alpha - 1). alpha = 1.5 and 2 are vectorized;
    others take a power a key and step. A key has a weight if the scores above its own distribute less than 1:
    on the edge it has none, regardless of the rounding of tau. For alpha > 2 the search continues in the
    least weight: weights are roots of distances from tau, which may be less than tau's spacing.

    Statistics: all but lse. ``support`` is the number of keys with a positive weight.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.ones((1, 1)), np.array([[-2.0], [0.0], [0.5]])
    >>> at.attention(q, k, np.eye(3), normalizer=at.normalizers.Entmax(1.5)).round(8)
    array([[0.        , 0.32600736, 0.67399264]])
    """

    name: ClassVar[str] = "entmax"
    statistics: ClassVar[tuple[str, ...]] = statistics_of("entmax", False)
    alpha: float = 1.5

    def _check(self) -> None:
        alpha = number("alpha", self.alpha)
        if alpha <= 1:
            hint = "; alpha = 1 is softmax: use Softmax()" if alpha == 1 else "; Softmax() is alpha = 1"
            raise ValueError(f"alpha must be greater than 1, got {shown(self.alpha)}{hint}")

    def _rule(self, call: CallRows) -> Rule:
        return Rule("entmax", alpha=float(self.alpha))


@built_in
@dataclass(frozen=True)
class Sparsemax(Normalizer):
    """p_j = max(s_j - tau, 0): the distribution nearest to the scores.

    Sparsemax equals ``Entmax(2)``.

    Notes
    -----
    Martins & Astudillo 2016, "From softmax to sparsemax" (arXiv 1602.02068).

    Statistics: all but lse. ``support`` is the number of keys with a positive weight.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.ones((1, 1)), np.array([[-2.0], [0.0], [0.5]])
    >>> at.attention(q, k, np.eye(3), normalizer="sparsemax")
    array([[0.  , 0.25, 0.75]])
    """

    name: ClassVar[str] = "sparsemax"
    statistics: ClassVar[tuple[str, ...]] = statistics_of("entmax", False)

    def _rule(self, call: CallRows) -> Rule:
        return Rule("entmax", alpha=2.0)


@built_in
@dataclass(frozen=True)
class TopK(Normalizer):
    """Softmax over the k largest scores of the row; of equal scores the first keys.

    Parameters
    ----------
    k : int
        At least 1. Rows with fewer visible keys use all.

    Raises
    ------
    TypeError
        If k is not an integer.
    ValueError
        If k is less than 1.

    Notes
    -----
    Gupta et al. 2021, "Memory-efficient transformers via top-k attention" (arXiv 2106.06899). All
    statistics are those of the softmax over the k keys; ``support`` is their number.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.ones((1, 1)), np.log([[1.0], [2.0], [2.0], [6.0]])
    >>> at.attention(q, k, np.eye(4), normalizer=at.normalizers.TopK(2)).round(2)
    array([[0.  , 0.25, 0.  , 0.75]])
    """

    name: ClassVar[str] = "top_k"
    k: int

    def _check(self) -> None:
        positive_int("k", self.k)

    def _rule(self, call: CallRows) -> Rule:
        return Rule("top_k", k=min(self.k, 2**62))
