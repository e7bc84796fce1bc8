# SPDX-License-Identifier: BSD-3-Clause
"""Entropy as a function of the scale, from one pass over the dot products."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from .._base.hints import hinted
from .._base.tabled import Labelled, Sheet, Tabled, row_dims
from .._base.text import number_cell
from .._call.call import Call
from .._call.options import EntropyCurveOptions, takes
from .._call.scale import read_scales
from .._call.weights import read_sink
from .results import coordinates_of

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


__all__ = ["EntropyCurve", "entropy_curve"]

_INSTEAD = "attention_statistics(..., scale=...) has its entropy at one scale"


@dataclass(frozen=True, eq=False, repr=False)
class EntropyCurve(Tabled):
    """Row statistics at many scales; the scales are the last axis.

    Attributes
    ----------
    scales : ndarray of float64, shape (n_scales,)
        Multipliers of query . key.
    entropy : ndarray, shape (..., heads, n_queries, n_scales)
        Entropy of the weights at each scale, in nats.
    lse : ndarray
        ln sum exp(score) at each scale.
    mean, variance : ndarray
        Mean and variance of the raw dot product query . key under the weights. Without soft-cap and bias,
        d lse / d scale = mean and, without a sink, d entropy / d scale = -scale * variance. A sink counts as
        an outcome with the dot product 0, since no scale changes its score.
    """

    scales: NDArray[np.float64]
    entropy: NDArray[Any]
    lse: NDArray[Any]
    mean: NDArray[Any]
    variance: NDArray[Any]

    @property
    def effective_keys(self) -> NDArray[Any]:
        """exp(entropy): as many keys of equal weight have this entropy."""
        keys: NDArray[Any] = np.exp(self.entropy)
        return keys

    def _variables(self) -> dict[str, Labelled]:
        kinds = {"entropy": "nat", "effective_keys": "", "lse": "", "mean": "", "variance": ""}
        arrays = {name: getattr(self, name) for name in kinds}
        dims = getattr(self.entropy, "dims", (*row_dims(self.entropy.ndim - 1), "scale"))
        return {name: Labelled(dims, each, kinds[name]) for name, each in arrays.items()}

    def _coordinates(self) -> dict[str, Any]:
        return {**coordinates_of([self.entropy]), "scale": self.scales}

    def _sheet(self, nats: float, unit: str) -> Sheet:
        rows_of = math.prod(self.entropy.shape[:-1])  # NumPy cannot infer it without scales
        entropy = np.asarray(self.entropy, np.float64).reshape(rows_of, len(self.scales))
        rows = [
            (
                f"{scale:.6g}",
                *(number_cell(each, ".4f") for each in column),
                number_cell(np.exp(column[0] * nats), ".4g"),
            )
            for scale, column in zip(self.scales, _mean_and_ends(entropy.T / nats), strict=True)
        ]
        title = f"EntropyCurve: rows {self.entropy.shape[:-1]}, {len(self.scales)} scales"
        return Sheet(title, ("scale", f"mean entropy ({unit})", "least", "largest", "effective keys"), rows)


def _mean_and_ends(columns: NDArray[np.float64]) -> list[tuple[float, float, float]]:
    """Mean, least and largest of each column; NaN for a column with a NaN or without numbers."""
    nothing = (np.nan, np.nan, np.nan)
    return [(x.mean(), x.min(), x.max()) if x.size else nothing for x in columns]


@hinted
@takes(EntropyCurveOptions)
def entropy_curve(
    query: ArrayLike, key: ArrayLike, scales: ArrayLike, **options: Unpack[EntropyCurveOptions]
) -> EntropyCurve:
    """Entropy of every row at many scales, for little more than the cost of one.

    Parameters
    ----------
    query, key : array_like
        As for :func:`attnscale.attention`.
    scales : array_like, shape (n_scales,)
        Multipliers of query . key, finite.
    {names}
        As for :func:`attnscale.attention`. With a distance_scale, "query . key" below includes that factor.
        The normalizer is the softmax, SoftmaxN or Sink.

    Returns
    -------
    EntropyCurve

    Raises
    ------
    ValueError
        If a scale is not finite, or the normalizer is another.

    Notes
    -----
    With x = query . key over the visible keys and p the weights at scale a: entropy falls as a moves
    away from 0, d entropy / d a = -a Var_p(x), and lse is convex in a.

    Examples
    --------
    >>> import numpy as np, attnscale as at
    >>> rng = np.random.default_rng(0)
    >>> q, k = rng.standard_normal((2, 1, 256, 64))
    >>> curve = at.entropy_curve(q, k, [0, 0.125, 0.25])
    >>> curve.entropy.mean(axis=(0, 1)).round(2)
    array([5.55, 5.04, 3.73])
    """
    call = Call(query, key, None, options)
    call.see()
    sink = read_sink(options, call.row_shape, "entropy_curve", _INSTEAD)
    multipliers = read_scales(scales)
    call.score()
    rows = _without_lost_rows(call, *call.core.curve(multipliers))
    call.check_rows(rows[0])
    curve = EntropyCurve(multipliers, *beside_sink(sink, *rows))
    axes = dict.fromkeys(("entropy", "lse", "mean", "variance"), (..., "queries", "scale"))
    return call.label(curve, axes, scale=multipliers)


def _without_lost_rows(call: Call, *rows: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """NaN, as in attention, for rows (entropy, lse, mean, variance) whose visible scores all underflow."""
    below = np.isneginf(rows[1])
    if not below.any():
        return rows
    lost = below & (np.asarray(call.visible_keys()) > 0)[..., None]
    return tuple(np.where(lost, each.dtype.type(np.nan), each) for each in rows)


def beside_sink(sink: Any, entropy: Any, lse: Any, mean: Any, variance: Any) -> tuple[NDArray[Any], ...]:
    """Rows with a sink: one more outcome with this score and the dot product 0; None changes nothing.

    With w its weight and keys = 1 - w: H = keys H_keys - w ln w - keys ln keys.
    """
    if sink is None:
        return entropy, lse, mean, variance
    logit = np.asarray(sink, np.float64)[..., None]
    h, total, m, v = (np.asarray(rows, np.float64) for rows in (entropy, lse, mean, variance))
    with np.errstate(invalid="ignore", over="ignore"):  # rows that see a NaN; squares of large products
        both = np.logaddexp(total, logit)
        # From their difference, not from `both`, whose rounding would count twice.
        less = np.exp(-np.abs(logit - total))
        more, less = 1 / (1 + less), less / (1 + less)
        keys, w = np.where(logit > total, less, more), np.where(logit > total, more, less)
        h = keys * h - w * np.log(np.where(w > 0, w, 1)) - keys * np.log(np.where(keys > 0, keys, 1))
        rows = np.maximum(h, 0), both, keys * m, keys * v + keys * w * m * m
        return tuple(each.astype(entropy.dtype) for each in rows)
