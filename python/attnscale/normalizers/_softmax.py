# SPDX-License-Identifier: BSD-3-Clause
"""Softmax, alone and beside an outcome that is not a key."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .._base.checks import as_array, fit_to, number, shown
from .._base.rows import CallRows
from ._base import Normalizer, Rule, built_in

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@built_in
@dataclass(frozen=True)
class Softmax(Normalizer):
    """p_j = exp(s_j) / sum_k exp(s_k).

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.ones((1, 1)), np.array([[-2.0], [0.0], [0.5]])
    >>> at.attention(q, k, np.eye(3), normalizer=at.normalizers.Softmax()).round(4)
    array([[0.0486, 0.3592, 0.5922]])
    """

    name: ClassVar[str] = "softmax"
    _in_core: ClassVar[None] = None

    def _rule(self, call: CallRows) -> Rule:
        return Rule("softmax")


@built_in
@dataclass(frozen=True)
class SoftmaxN(Normalizer):
    """p_j = exp(s_j) / (n + sum_k exp(s_k)): a row may attend to nothing; n = 1 is "off by one".

    The rest, 1 - sum_j p_j, is the weight of a sink: another outcome with the score ln n and the value 0. The
    sink counts in lse, entropy, mean_score, score_variance, concentration and renyi2, so that still entropy =
    lse - mean_score. ``sink_weight`` is its weight. A row without keys has sink_weight 1 and lse ln n.

    Parameters
    ----------
    n : float, default 1
        Greater than 0.

    Raises
    ------
    TypeError
        If n is not a number.
    ValueError
        If n is not finite and greater than 0.

    Notes
    -----
    Miller 2023, "Attention is off by one"; earlier in Shazeer's softmax with an extra 0 logit.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.zeros((2, 3, 4))
    >>> rows = at.attention_statistics(q, k, normalizer=at.normalizers.SoftmaxN(1), statistics="sink_weight")
    >>> rows.sink_weight  # three keys and the sink, all of score 0
    array([0.25, 0.25, 0.25])
    """

    name: ClassVar[str] = "softmax_n"
    n: float = 1

    def _check(self) -> None:
        if number("n", self.n) <= 0:
            raise ValueError(f"n must be greater than 0 (Softmax() is n = 0), got {shown(self.n)}")

    @cached_property
    def _in_core(self) -> float:
        """The score of the sink."""
        return math.log(self.n)

    def _rule(self, call: CallRows) -> Rule:
        return Rule("softmax", sink=self._in_core)


@built_in
@dataclass(frozen=True, eq=False)
class Sink(Normalizer):
    """p_j = exp(s_j) / (exp(logit) + sum_k exp(s_k)), with a logit for each head or each row.

    The sink is another outcome without a value, as for :class:`SoftmaxN`, whose logit is ln n. The logit is a
    score: it is not scaled.

    Parameters
    ----------
    logits : float or array_like, shape (heads,) or (..., heads, n_queries)
        The logit of each query head, or one for all; with two axes or more, one for each row, which
        broadcasts.

    Raises
    ------
    TypeError
        If the logits are not numbers.
    ValueError
        If they are not finite; in a call, if they are neither one a head nor broadcast to its rows.

    Notes
    -----
    gpt-oss (OpenAI 2025) appends the logit to the scores and drops its column after the softmax. Inkling 2
    computes the logit of each token. A sink key, a learned vector of each head, gives the logits
    ``scale * np.einsum("...hnd,hd->...hn", query, sink_key)``; :class:`attnscale.torch.Sink` passes their
    gradient to both.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> q, k = np.zeros((2, 2, 1, 4))  # (heads, 1, 4)
    >>> sink = at.normalizers.Sink([0.0, -100.0])
    >>> at.attention_statistics(q, k, normalizer=sink, statistics="sink_weight").sink_weight.round(3)
    array([[0.5],
           [0. ]])
    """

    name: ClassVar[str] = "sink"
    logits: ArrayLike

    def _check(self) -> None:
        if getattr(self.logits, "requires_grad", False):
            raise TypeError(
                "logits must not require grad; attnscale.torch.Sink takes logits that are learned"
            )
        array = as_array("logits", self.logits)
        if array.dtype.kind not in "iuf" and array.dtype.name != "bfloat16":
            raise TypeError(f"logits must be numbers, got {shown(self.logits)}")
        if not np.isfinite(array).all():
            raise ValueError("logits must be finite, got NaN or infinity")
        own: Any = array.astype(np.float64)  # a private copy
        if own.ndim > 1:
            own.flags.writeable = False
        else:
            own = tuple(own.tolist()) if own.ndim else own.item()
        object.__setattr__(self, "logits", own)

    def __eq__(self, other: object) -> bool:
        return np.array_equal(self.logits, other.logits) if isinstance(other, Sink) else NotImplemented

    def __hash__(self) -> int:
        return hash((Sink, np.asarray(self.logits).tobytes()))

    @cached_property
    def _in_core(self) -> Any:
        """The scores of the sink: a number, or an array of one a head or one a row."""
        return np.asarray(self.logits, np.float64) if np.ndim(self.logits) else self.logits

    def _rule(self, call: CallRows) -> Rule:
        return Rule("softmax", sink=self._per_row(call.row_shape))

    def _per_row(self, row_shape: tuple[int, ...]) -> Any:
        logits = fit_logits(np.asarray(self.logits), row_shape)
        return logits if logits.ndim else float(logits)


def fit_logits(logits: Any, row_shape: tuple[int, ...]) -> Any:
    """The logits of a sink in a shape that broadcasts to (..., heads, n_queries)."""
    if logits.ndim > 1:
        return fit_to("logits", logits, row_shape, "(..., heads, n_queries)")
    heads = row_shape[-2] if len(row_shape) > 1 else 1
    if logits.size not in (1, heads):
        raise ValueError(f"logits must be one number or one a head, {heads}, got {logits.size}")
    return logits[:, None] if logits.ndim and len(row_shape) > 1 else logits
