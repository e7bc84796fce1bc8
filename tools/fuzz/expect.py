# SPDX-License-Identifier: BSD-3-Clause
"""Statistics and outputs of rows of weights, and the largest error that each may have.

From the weights' errors e_j: of a distribution sum p = 1, so that constants drop out of first-order terms.

entropy         sum e_j (|ln p_j + H| + e_j / p_j) where the e_j are small, else
                sum e_j (1 + |ln max(p_j, e_j)|), since -p ln p moves by at most that; 2e-6 (float32) or 1e-12
                is the promise for the sums
mean_score      sum e_j |s_j - mean| + sum p_j d_j
score_variance  sum e_j (s_j - mean)^2 + 2 sum p_j |s_j - mean| d_j, and rounding of sums centred on the top
concentration   sum 2 p_j e_j + e_j^2
renyi2          -ln (1 - that of the concentration over the concentration)
output          sum e_j |v_j|, and the promise for the sum: 4 eps sum p|v| on random data, 64 eps on any
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

__all__ = ["bounds_of", "entropy_of", "moments", "output", "statistics"]

Array = np.ndarray[Any, Any]


def _product(w: Array, v: Array) -> Array:
    """Weights times values, hidden pairs left out by their weight 0."""
    return np.asarray(w @ v)


def output(
    row: SimpleNamespace,
    seen: Array,
    value: Array,
    broken: Array,
    form: SimpleNamespace,
    random: bool,
    rounding: float = 0.0,
) -> tuple[Array, Array, Array, Array]:
    """Output (without NaN), its bound, where it cannot be finite and where sums of values may overflow.

    Value is wide, its heads repeated. `rounding` is what that of a weight is of it.
    """
    n = seen.shape[-1]
    w = np.where(seen, row.w[..., :n], 0)
    finite = np.isfinite(value)
    v = value if finite.all() else np.where(finite, value, 0)
    found = _product(w, v)
    size = np.abs(v).astype(np.float64)
    weight = np.where(seen, np.abs(w), 0)
    if weight.max(initial=0) < 1e300:  # the square of a score may leave float64
        weight = weight.astype(np.float64)
    absolute = weight @ size
    error = np.where(seen, row.error[..., :n], 0) @ size
    # Products below the normal numbers lose least each, before relative weights become those of the row.
    floor = (n + 4) * form.least * np.maximum(1, row.unit)
    limit = error + ((4 if random else 64) * form.eps + rounding) * absolute + floor
    bad = np.broadcast_to(broken[..., None], found.shape)
    if not finite.all():
        bad = bad | (seen.astype(np.float64) @ (~finite).astype(np.float64) > 0)
    # A partial sum may overflow where the output does not (docs/explanation/numerics.md).
    return found, limit, bad, 2.0**9 * (seen.astype(np.float64) @ size) + limit > form.largest


# How far the reference of a streaming softmax may be below the largest score (docs/explanation/numerics.md).
LAG = 8 * np.log(2)


def moments(
    w: Array, error: Array, x: Array, dx: Array, center: Array, form: SimpleNamespace
) -> tuple[Array, Array, Array, Array]:
    """Mean and variance of x under w, and their bounds.

    Sums are around `center` or up to LAG below it, or around some x of a mask.
    """
    mean = (w * x).sum(-1)
    off = np.abs(x - mean[..., None])  # in the oracle's type: its square may leave float64
    variance = (w * off * off).sum(-1)
    sd = np.sqrt(variance)
    both = w + error
    # A product without weight may be the center too: before it lost its weight, or under a soft-cap.
    any_of = center.dtype == bool
    if any_of:
        far = np.where(center, off, 0).max(-1, initial=0)
    else:
        far = np.maximum(np.abs(mean - center), np.abs(mean - center + LAG))
    chain = _chain(x.shape[-1], far if any_of else 0, form)
    dmean = (error * off).sum(-1) + (both * dx).sum(-1)
    dmean = dmean + form.eps * (2 * np.abs(mean) + (8 + 2 * chain) * (sd + far))
    dvariance = (error * off * off).sum(-1) + (both * dx * (2 * off + dx)).sum(-1) + dmean * dmean
    dvariance = dvariance + (32 + 4 * chain) * form.eps * (variance + far * far)
    return mean, variance, dmean, dvariance


def entropy_of(row: SimpleNamespace, form: SimpleNamespace) -> tuple[Array, Array]:
    """Entropy of rows of weights, and its bound."""
    w, error = row.w, row.error
    log = np.log(np.where(w > 0, w, 1))
    entropy = -(w * log).sum(-1) + 0.0
    w64 = w.astype(np.float64)
    small = error <= 0.05 * w64
    near = np.abs(log + entropy[..., None]).astype(np.float64) * 1.1 + error / np.where(w64 > 0, w64, 1)
    far = 1 + np.abs(np.log(np.where(w64 + error > 0, np.maximum(w64, error), 1)))
    moved = (error * np.where(small, near, far)).sum(-1)
    return entropy, moved + (1e-12 if form.double else 2e-6) + 2 * form.eps * entropy.astype(np.float64)


def bounds_of(
    row: SimpleNamespace, scores: SimpleNamespace, form: SimpleNamespace, names: Any
) -> dict[str, Any]:
    """name -> (wanted, limit) of the statistics that are numbers."""
    found: dict[str, Any] = {}
    n = scores.s.shape[-1]
    w, error = row.w, row.error
    top = scores.s.max(-1, initial=-np.inf)
    none = ~row.any
    if "lse" in names and hasattr(row, "lse"):
        size = np.abs(np.where(np.isfinite(row.lse), row.lse, 0)).astype(np.float64)
        found["lse"] = row.lse, row.lse_error + 2 * form.eps * size + 8 * form.eps
    if "max_score" in names:
        found["max_score"] = (
            top,
            scores.d.max(-1, initial=0) + form.eps * np.abs(np.where(none, 0, top)).astype(np.float64),
        )
    if "entropy" in names:
        entropy, limit = entropy_of(row, form)
        found["entropy"] = entropy, limit + 2 * form.eps * getattr(row, "log_sum", 0.0)
    if "mean_score" in names or "score_variance" in names:
        s = np.where(np.isfinite(row.s), row.s, 0)
        mean, variance, dmean, dvariance = moments(
            w, error, s, row.d, s.max(-1, initial=0) * 0 + _center(row), form
        )
        found["mean_score"] = mean, dmean + 8 * form.eps
        found["score_variance"] = variance, dvariance + 32 * form.eps
    if "min_score" in names:
        least = np.where(scores.seen, scores.s, np.inf).min(-1, initial=np.inf)
        size = np.abs(np.where(none, 0, least)).astype(np.float64)
        found["min_score"] = least, scores.d.max(-1, initial=0) + form.eps * size
    if "concentration" in names or "renyi2" in names:
        w64 = w.astype(np.float64)
        c = (w * w).sum(-1)
        limit = (2 * w64 * error + error * error).sum(-1) + _summed(n, form) * c.astype(np.float64)
        found |= {"concentration": (c, limit)} if "concentration" in names else {}
    if "renyi2" in names:
        renyi2 = -np.log(np.where(c > 0, c, 1)) + 0.0
        share = np.minimum(limit / np.where(c > 0, c, 1).astype(np.float64), 1 - 1e-12)
        found["renyi2"] = renyi2, -np.log1p(-share) + 4 * form.eps * (1 + renyi2.astype(np.float64))
    if "max_weight" in names:
        most = w[..., :n].max(-1, initial=0)
        # exp(top - lse) of a top score that is rounded, which the weights under lse are not.
        top = scores.s.max(-1, initial=-np.inf)
        # Computed in the oracle's type: in float64 it may be inf beside a weight of 0.
        rounded = 4 * form.eps * np.abs(np.where(np.isfinite(top), top, 0))
        limit = error[..., :n].max(-1, initial=0) + (8 * form.eps + rounded) * most
        found["max_weight"] = most, limit
    if "sink_weight" in names:
        own = np.zeros(w.shape[:-1]) if row.sink is None else w[..., row.sink]
        off = 0.0 if row.sink is None else error[..., row.sink]
        found["sink_weight"] = own, off + 8 * form.eps * own.astype(np.float64)
    return found


def _chain(n: int, far: Any, form: SimpleNamespace) -> Any:
    """Additions of a sum over n keys one after the other, whose roundings are half an eps each, in eps.

    A tile of at most 240 keys is summed in two parts or more, tiles one after the other; key by key where a
    product is further than 2^490 from the center. Such a sum of float32 is one of doubles, as across tiles.
    """
    blocked = (2 + min(n, 240) / 2 + n / 240) / 2
    return np.where(far > 2.0**489, n / 2, blocked) if form.double else (2 + min(n, 240) / 2) / 2


def _summed(n: int, form: SimpleNamespace) -> float:
    """Relative error of sum w^2 / (sum w)^2: three sums of positive terms, and 8 eps for all else."""
    return float(8 + 3 * _chain(n, 0, form)) * form.eps


def _center(row: SimpleNamespace) -> Array:
    """The largest score of an outcome, around which sums are taken; 0 without one."""
    top = row.s.max(-1, initial=-np.inf)
    return np.asarray(np.where(np.isfinite(top), top, 0))


def statistics(
    row: SimpleNamespace, scores: SimpleNamespace, form: SimpleNamespace, names: Any
) -> dict[str, Any]:
    """bounds_of, with the values of rows that see no key."""
    found = bounds_of(row, scores, form, names)
    alone = ~row.any
    if row.sink is None and alone.any():
        of_none = {"lse": -np.inf, "max_score": -np.inf, "min_score": np.inf}
        for name, (wanted, limit) in found.items():
            found[name] = np.where(alone, of_none.get(name, 0.0), wanted), np.where(alone, 0, limit)
    return found
