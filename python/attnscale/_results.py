# SPDX-License-Identifier: BSD-3-Clause
"""What attention_statistics and solve_scale return, and the names of the statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from ._checks import shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["NAMES", "AttentionStatistics", "ScaleSolution", "describe_arrays", "statistic_names"]


def describe_arrays(result: Any) -> str:
    """Class name and the fields that are present, with type and shape instead of numbers."""
    present = ((field.name, getattr(result, field.name)) for field in fields(result))
    parts = [
        f"{name}=<{value.dtype} {value.shape}>" if hasattr(value, "shape") else f"{name}={value!r}"
        for name, value in present
        if value is not None
    ]
    return f"{type(result).__name__}({', '.join(parts)})"


@dataclass(frozen=True, eq=False, repr=False)
class AttentionStatistics:
    """Statistics of each row of attention weights; those that were not asked for are None.

    A row is one query of one head. With s its scores (after scale, soft-cap and bias) over the keys
    it may see and p = softmax(s):

    Attributes
    ----------
    output : ndarray, shape (..., heads, n_queries, value_dim)
        sum_j p_j v_j, of the inputs' type (the order of axes follows ``layout``). None without value.
    lse : ndarray, shape (..., heads, n_queries)
        ln sum_j exp(s_j). -inf for a row without keys.
    entropy : ndarray
        -sum_j p_j ln p_j = lse - mean_score, in nats; between 0 and ln n_visible, to rounding (2e-6 in
        float32).
    max_score : ndarray
        The largest score. -inf for a row without keys.
    mean_score : ndarray
        sum_j p_j s_j.
    score_variance : ndarray
        sum_j p_j (s_j - mean_score)^2; d entropy / d ln(scale) is minus this (no soft-cap or bias).
    concentration : ndarray
        sum_j p_j^2: the inverse of an effective number of keys.
    n_visible : ndarray of int64
        Keys that the row may see.
    argmax : ndarray of int64
        Index of the first key with the largest score; -1 for a row without keys.
    max_weight : ndarray
        The largest weight of a key.
    sink_weight : ndarray
        The weight of the sink of :class:`attnscale.normalizers.Sink` or ``SoftmaxN``; 0 without one.
        1 for a row without keys that has a sink.
    support : ndarray of int64
        Keys with a positive weight; those of a softmax are all that the row may see.

    Notes
    -----
    With another normalizer, p are its weights. A sink is one more outcome in lse, entropy, mean_score,
    score_variance and concentration, and no key. Normalizers say in ``statistics`` which fields their rows
    have; those whose weights do not add up to 1 have no entropy. A row of ReLU("sum") without a positive
    score has no weights: its entropy is 0.

    Shapes are (..., heads, n_queries); types are float64 for float64 input, else float32, and int64
    for the counts. A row without keys has zeros where no other value is named. A row that sees a NaN
    or an infinite score is NaN.
    """

    output: NDArray[Any] | None = None
    lse: NDArray[Any] | None = None
    entropy: NDArray[Any] | None = None
    max_score: NDArray[Any] | None = None
    mean_score: NDArray[Any] | None = None
    score_variance: NDArray[Any] | None = None
    concentration: NDArray[Any] | None = None
    n_visible: NDArray[np.int64] | None = None
    argmax: NDArray[np.int64] | None = None
    max_weight: NDArray[Any] | None = None
    sink_weight: NDArray[Any] | None = None
    support: NDArray[np.int64] | None = None

    def __repr__(self) -> str:
        return describe_arrays(self)


#: The statistics, in the order of the fields.
NAMES = tuple(field.name for field in fields(AttentionStatistics) if field.name != "output")


def statistic_names(statistics: Iterable[str]) -> tuple[str, ...]:
    """The statistics asked for, each once and known."""
    try:
        wanted = (statistics,) if isinstance(statistics, str) else tuple(dict.fromkeys(statistics))
    except TypeError:
        raise TypeError(f"statistics must be names of statistics, got {shown(statistics)}") from None
    for name in wanted:
        if name not in NAMES:
            raise ValueError(f"statistics must be among {', '.join(NAMES)}; got {shown(name)}")
    return wanted


@dataclass(frozen=True, eq=False, repr=False)
class ScaleSolution:
    """Scales that give a wanted entropy, and how far that went.

    Shapes are (..., heads, n_queries) for ``per="row"``, (..., heads) for "head" and () for "all".

    Attributes
    ----------
    scale : ndarray of float64
        The least scale >= 0 at which the entropy is at most the target, to the tolerance: 0 where
        the target is ``highest`` or above, inf where it is below ``lowest``, NaN where a visible
        dot product is NaN or infinite.
    entropy : ndarray
        The entropy at this scale, in nats (its limit where the scale is inf). Of the arithmetic's
        type for rows, else float64.
    lowest, highest : ndarray
        What any scale can reach: ln of the number of keys that tie for the largest dot product, and
        ln n_visible; means over the rows for "head" and "all". ``lowest`` is a limit that no finite
        scale need reach.
    converged : ndarray of bool
        Whether ``entropy`` is within the tolerance of the target.
    feasible : ndarray of bool
        Whether the target lies between ``lowest`` and ``highest``, to the tolerance.
    iterations : ndarray of int64
        Evaluations of the entropy; 0 where none was needed.
    """

    scale: NDArray[np.float64]
    entropy: NDArray[Any]
    lowest: NDArray[Any]
    highest: NDArray[Any]
    converged: NDArray[np.bool_]
    feasible: NDArray[np.bool_]
    iterations: NDArray[np.int64]

    def __repr__(self) -> str:
        return describe_arrays(self)
