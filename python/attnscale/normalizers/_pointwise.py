# SPDX-License-Identifier: BSD-3-Clause
"""Weights that are functions of single scores; they need not add up to 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from .._base.checks import choose, number, shown
from .._base.rows import CallRows
from .._core import statistics_of
from ._base import Normalizer, Rule, built_in


def _n_visible(call: CallRows) -> Any:
    """Number of visible keys of each row, at least 1, broadcast to (..., heads, n_queries)."""
    return np.maximum(call.visible_keys(), 1).astype(np.float64)


@built_in
@dataclass(frozen=True)
class Sigmoid(Normalizer):
    """w_j = 1 / (1 + exp(-s_j - bias)): each key on its own; the weights are not a distribution.

    Parameters
    ----------
    bias : float, optional
        Added to every score. None: -ln n for n visible keys, so that zero scores have the sum n / (n + 1).

    Raises
    ------
    TypeError, ValueError
        If the bias is not a finite number.

    Notes
    -----
    Ramapuram et al. 2024, "Theory, analysis, and best practices for sigmoid self-attention" (arXiv
    2409.04431); their bias is -ln n for training of length n.

    Statistics: max_score, min_score, n_visible, argmax, max_weight and support (every visible key).

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k, v = np.zeros((1, 2)), np.zeros((3, 2)), np.ones((3, 1))
    >>> at.attention(q, k, v, normalizer="sigmoid")
    array([[0.75]])
    """

    name: ClassVar[str] = "sigmoid"
    statistics: ClassVar[tuple[str, ...]] = statistics_of(name, False)
    bias: float | None = None

    def _check(self) -> None:
        if self.bias is not None:
            number("bias", self.bias)

    def _rule(self, call: CallRows) -> Rule:
        if self.bias is not None:
            return Rule("sigmoid", bias=float(self.bias))
        return Rule("sigmoid", bias=-np.log(_n_visible(call)))


@built_in
@dataclass(frozen=True)
class ReLU(Normalizer):
    """w_j = max(s_j, 0) / n, or over the sum of the row.

    Parameters
    ----------
    divide : {"n", "sum"}
        "n": divide by the number of visible keys. "sum": by sum_k max(s_k, 0), which makes the weights a
        distribution; a row without a positive score is 0.

    Raises
    ------
    ValueError
        If divide is neither.

    Notes
    -----
    Wortsman et al. 2023, "Replacing softmax with ReLU in vision transformers" (arXiv 2309.08586).

    Statistics: max_score, min_score, n_visible, argmax, max_weight and support, the keys with a positive
    weight; for "sum" also entropy, ln S - sum_j w_j ln w_j / S with w_j = max(s_j, 0) and S their sum,
    concentration and renyi2. A row without a positive score has no weights: these three, and its support, are
    0.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.ones((1, 1)), np.array([[-2.0], [1.0], [3.0]])
    >>> at.attention(q, k, np.eye(3), normalizer=at.normalizers.ReLU("sum"))
    array([[0.  , 0.25, 0.75]])
    >>> at.attention_entropy(q, k, normalizer=at.normalizers.ReLU("sum")).round(4)
    array([0.5623])
    """

    name: ClassVar[str] = "relu"
    statistics: ClassVar[tuple[str, ...]] = statistics_of(name, False)
    divide: str = "n"

    def _check(self) -> None:
        if choose("divide", self.divide, ("n", "sum")) == "sum":
            object.__setattr__(self, "statistics", statistics_of(self.name, True))

    @property
    def _keeps_weights(self) -> Literal["always", "never"]:
        return "always" if self.divide == "sum" else "never"

    def _rule(self, call: CallRows) -> Rule:
        factor = None if self.divide == "sum" else 1 / _n_visible(call)
        return Rule(self.name, factor=factor)


@built_in
@dataclass(frozen=True)
class SquaredReLU(ReLU):
    """w_j = max(s_j, 0)^2 / n, or over the sum of the row; see :class:`ReLU`.

    Parameters
    ----------
    divide : {"n", "sum"}
        As for :class:`ReLU`.

    Raises
    ------
    ValueError
        If divide is neither.

    Notes
    -----
    So et al. 2021, "Primer" (arXiv 2109.08668) for the activation; Hua et al. 2022, "Transformer quality
    in linear time" (arXiv 2202.10447) as attention.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.ones((1, 1)), np.array([[-2.0], [1.0], [3.0]])
    >>> at.attention(q, k, np.eye(3), normalizer=at.normalizers.SquaredReLU("sum"))
    array([[0. , 0.1, 0.9]])
    """

    name: ClassVar[str] = "squared_relu"


@built_in
@dataclass(frozen=True)
class Softpick(Normalizer):
    """``w_j = max(exp(s_j) - 1, 0) / (sum_k |exp(s_k) - 1| + eps)``: no sink, and zero weights.

    Parameters
    ----------
    eps : float, default 1e-8
        At least 0.

    Raises
    ------
    TypeError, ValueError
        If eps is not a finite number of at least 0.

    Notes
    -----
    Zuhri, Fuadi & Aji 2025, "Softpick: no attention sink, no massive activations with rectified softmax"
    (arXiv 2504.20966). Numerator and denominator are relative to exp(max(s, 0)).

    Statistics: max_score, min_score, n_visible, argmax, max_weight and support (keys with a positive weight).

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.ones((1, 1)), np.log([[0.5], [2.0], [3.5]])
    >>> at.attention(q, k, np.eye(3), normalizer=at.normalizers.Softpick(eps=0)).round(3)
    array([[0.   , 0.25 , 0.625]])
    """

    name: ClassVar[str] = "softpick"
    statistics: ClassVar[tuple[str, ...]] = statistics_of(name, False)
    eps: float = 1e-8

    def _check(self) -> None:
        if number("eps", self.eps) < 0:
            raise ValueError(f"eps must be at least 0, got {shown(self.eps)}")

    @property
    def _keeps_weights(self) -> Literal["while small", "never"]:
        return "while small" if self.eps == 0 else "never"

    def _rule(self, call: CallRows) -> Rule:
        return Rule("softpick", eps=float(self.eps))
