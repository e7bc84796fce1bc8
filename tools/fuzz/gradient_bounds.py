# SPDX-License-Identifier: BSD-3-Clause
"""Gradients of scores in extended precision, and how far rounding may move each.

With w the weights (of a softmax with its sink as one more outcome), e their errors (bounds.py), g the
gradients of the weights, and c_j = ln w_j + H: a product of x within dx and y within dy is within
dx |y| + (|x| + dx) dy, and what is rounded costs 8 eps of the sum of its absolute terms. Weights of a
softmax are computed again: what lse is off by its rounding, 2 eps |lse|, goes into every weight and into c,
and scores that are added in another order than the forward pass's do not sum to its lse: e^(d of the score
+ d of lse). Those of entmax and top-k are the forward pass's own.

entmax    u = w^(2 - alpha) between those of w - e and w + e; the mean of g over u follows; of alpha the sum
          of (g - mean) (w / (alpha - 1)^2 - w ln w / (alpha - 1))
top-k     a softmax over the kept keys, whose weights are the forward pass's own
the rest  f'(s) (g - mean) / total: slopes that jump at 0 are free of a sign where |s| <= d
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from attnscale import normalizers as N

from . import expect

__all__ = ["STATISTICS", "of_scores", "of_weights"]

Array = np.ndarray[Any, Any]
STATISTICS = ("entropy", "max_weight", "concentration", "score_variance")


def of_scores(truth: SimpleNamespace, g: SimpleNamespace, given: dict[str, Array]) -> SimpleNamespace:
    """ds (with a column for the sink), its error, and rows without a bound; `alpha`: of entmax's.

    g: of the weights: `x`, its error `d` and the sum of absolute terms `size`; `of_output` is the error of
    g . output by way of the output alone.
    """
    rule = truth.rule
    if isinstance(rule, (N.Softmax, N.Sink, N.SoftmaxN)):
        return _softmax(truth, g, given)
    if isinstance(rule, N.Sigmoid):
        w, e = truth.row.w, truth.row.error
        return _product(w * (1 - w), e + 4 * truth.form.eps * w, g.x, g.d, None)
    if isinstance(rule, (N.Entmax, N.Sparsemax)):
        return _entmax(truth, g, rule.alpha if isinstance(rule, N.Entmax) else 2.0)
    if isinstance(rule, N.TopK):
        return _kept(truth, g)
    return _relu(truth, g, rule) if isinstance(rule, N.ReLU) else _softpick(truth, g, rule.eps)


def of_weights(truth: SimpleNamespace) -> Array:
    """Errors of the weights of the backward pass; they are 0 below the normal numbers."""
    row, form = truth.row, truth.form
    lost = 4 * form.tiny * row.seen
    if not hasattr(row, "lse") or isinstance(truth.rule, N.TopK):
        return np.asarray(row.error + lost)
    again = row.w * np.expm1(np.minimum(row.d + row.lse_error[..., None], 50))
    return np.asarray(np.maximum(row.error, again) + _of_lse(row, form) * row.w + lost, np.float64)


def _of_lse(row: SimpleNamespace, form: SimpleNamespace) -> Array:
    lse = np.abs(np.where(np.isfinite(row.lse), row.lse, 0))[..., None]
    return np.asarray(form.eps * (8 + 2 * lse), np.float64)  # as in expect.bounds_of


def _product(x: Array, dx: Array, y: Array, dy: Array, free: Any) -> SimpleNamespace:
    """x y; an x of 0 without error says nothing of y."""
    limit = dx * np.abs(y) + (np.abs(x) + dx) * dy
    return SimpleNamespace(x=x * y, d=np.asarray(limit, np.float64), free=free, alpha=None)


def _mean(w: Array, e: Array, g: SimpleNamespace, form: SimpleNamespace) -> tuple[Array, Array]:
    """sum w g, which the kernel has from the output, and its error."""
    mean = (w * g.x).sum(-1, keepdims=True)
    error = (e * np.abs(g.x) + (w + e) * (g.d + 8 * form.eps * g.size)).sum(-1, keepdims=True)
    return mean, error + g.of_output


def _padded(x: Array, like: Array) -> Array:
    """Values with a 0 for the sink, which has no value."""
    more = like.shape[-1] - x.shape[-1]
    return np.concatenate([x, np.zeros((*x.shape[:-1], more), x.dtype)], -1) if more else x


def _softmax(truth: SimpleNamespace, g: SimpleNamespace, given: dict[str, Array]) -> SimpleNamespace:
    row, form = truth.row, truth.form
    w = row.w
    e, of_lse = truth.error, _of_lse(row, form)
    padded = {name: _padded(getattr(g, name), w) for name in ("x", "d", "size")}
    g = SimpleNamespace(**padded, of_output=g.of_output)
    log = np.where(w > 0, np.log(np.where(w > 0, w, 1)), 0)
    numbers = expect.bounds_of(row, truth.scores, form, STATISTICS)
    (h, dh), (top, dtop), (con, dcon), (var, dvar) = (
        (np.asarray(x)[..., None] for x in numbers[name]) for name in STATISTICS
    )
    c = log + h
    dc = row.d + row.lse_error[..., None] + of_lse + dh + 4 * form.eps * (np.abs(log) + h)
    mean, dmean = _mean(w, e, g, form)
    one_of = lambda x: np.where(x == 0, 1, x)  # noqa: E731
    names = ("lse", "mean_score", "renyi2", *STATISTICS)
    a = {name: given.get(name, np.zeros(1))[..., None] for name in names}
    r = g.x - mean + a["lse"] - a["entropy"] * c + a["mean_score"] * (1 + c)
    r = r + a["score_variance"] * (c * c - var + 2 * c) + 2 * a["concentration"] * (w - con)
    r = r - a["max_weight"] * top - 2 * a["renyi2"] * (w / one_of(con) - 1)
    b = {name: np.abs(x) for name, x in a.items()}
    far = np.abs(c) + dc
    size = (
        g.size + (w * g.size).sum(-1, keepdims=True) + b["lse"] + (b["entropy"] + b["mean_score"]) * (1 + far)
    )
    size = size + b["score_variance"] * (far * far + var + 2 * far) + 2 * b["concentration"] * (w + con)
    size = size + 2 * b["renyi2"] * (w / one_of(con) + 1)
    dr = g.d + dmean + (b["entropy"] + b["mean_score"]) * dc + 2 * b["concentration"] * (e + dcon)
    dr = dr + 2 * b["renyi2"] * (e + w * dcon / one_of(con)) / one_of(con)
    dr = dr + b["score_variance"] * (dc * (2 * far + 2) + dvar) + b["max_weight"] * dtop
    found = _product(w, e, r, dr + 8 * form.eps * (size + b["max_weight"] * top), None)
    return _at_the_top(found, truth, given, top, dtop)


def _at_the_top(
    found: SimpleNamespace, truth: SimpleNamespace, given: dict[str, Array], top: Array, dtop: Array
) -> SimpleNamespace:
    """Gradients of max_score and max_weight go to one key; rows with a rival within rounding are free."""
    if not {"max_score", "max_weight"} & given.keys() or not truth.scores.s.shape[-1]:
        return found
    s, d = truth.scores.s, truth.scores.d
    first = np.arange(s.shape[-1]) == s.argmax(-1)[..., None]
    first &= truth.scores.seen.any(-1, keepdims=True)
    best = s.max(-1, keepdims=True)
    near = truth.scores.seen & (s >= best - d - d.max(-1, keepdims=True))
    zero = np.zeros(1)
    of_score, of_weight = (given.get(n, zero)[..., None] for n in ("max_score", "max_weight"))
    n = s.shape[-1]
    found.x[..., :n] += first * (of_score + of_weight * top)
    found.d[..., :n] += first * (np.abs(of_weight) * dtop + 8 * truth.form.eps * np.abs(of_score + of_weight))
    found.free = near.sum(-1) > 1
    return found


def _entmax(truth: SimpleNamespace, g: SimpleNamespace, alpha: float) -> SimpleNamespace:
    row, form = truth.row, truth.form
    w, e, power = row.w.astype(np.float64), truth.error, 2 - alpha
    positive = lambda x: np.where(x > 0, np.where(x > 0, x, 1) ** power, 0)  # noqa: E731
    u = positive(w)
    ends = positive(np.maximum(w - e, 0)), positive(w + e)
    du = np.maximum(np.abs(ends[0] - u), np.abs(ends[1] - u)) + 16 * form.eps * u
    total, off = u.sum(-1, keepdims=True), du.sum(-1, keepdims=True)
    full = np.where(total == 0, 1, total)
    mean = (u * g.x).sum(-1, keepdims=True) / full
    left = np.where(total > 2 * off, total - off, 1)
    of_g = g.d + 8 * form.eps * g.size
    dmean = (du * np.abs(g.x - mean) + (u + du) * of_g).sum(-1, keepdims=True) / left
    r = g.x - mean
    size = g.size + (u * g.size).sum(-1, keepdims=True) / full
    # A power of a weight below 0 has no bound where the weight may be 0.
    lost = (power < 0) & (row.seen & (w <= 2 * e) & (w + e > 0)).any(-1)
    dr = of_g + dmean + 8 * form.eps * size
    found = _product(u, du, r, dr, (total <= 2 * off)[..., 0] & row.any | lost)
    found.alpha = _alpha(w, e, r, dr, alpha)
    return found


def _alpha(w: Array, e: Array, r: Array, dr: Array, alpha: float) -> tuple[Array, Array]:
    """Terms of the gradient of alpha by pairs, in float64 for all types, and their error."""
    step = 1 / (alpha - 1)
    entropy = lambda p: -np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0)  # noqa: E731
    least, most = np.maximum(w - e, 0), np.minimum(w + e, 1)
    h, peak = entropy(w), np.clip(np.exp(-1.0), least, most)  # where -p ln p is largest
    dh = np.max([np.abs(entropy(each) - h) for each in (least, most, peak)], axis=0)
    by, dby = step * (step * w + h), step * (step * e + dh)
    dby = dby + 16 * 2.0**-52 * by
    return r * by, dby * (np.abs(r) + dr) + by * dr


def _kept(truth: SimpleNamespace, g: SimpleNamespace) -> SimpleNamespace:
    w, e = truth.row.w, truth.error
    mean, dmean = _mean(w, e, g, truth.form)
    size = g.size + (w * g.size).sum(-1, keepdims=True)
    return _product(w, e, g.x - mean, g.d + dmean + 8 * truth.form.eps * size, None)


def _relu(truth: SimpleNamespace, g: SimpleNamespace, rule: Any) -> SimpleNamespace:
    row, form = truth.row, truth.form
    above, d = np.where(row.seen, np.maximum(row.s, 0), 0), row.d
    squared = isinstance(rule, N.SquaredReLU)
    near = row.seen & (np.abs(np.where(row.seen, row.s, 1)) <= d)
    slope = 2 * above if squared else (above > 0) + 0 * above
    dslope = np.where(row.seen & (row.s > -d), 2 * d, 0) if squared else near + 0.0
    if rule.divide == "n":
        total, off = np.maximum(row.seen.sum(-1, keepdims=True), 1), np.zeros(1)
        r, dr = g.x, g.d + 8 * form.eps * g.size
    else:
        f = above * above if squared else above
        df = np.where(row.seen & (row.s > -d), (2 * above + d) * d if squared else d, 0)
        total, off = f.sum(-1, keepdims=True), df.sum(-1, keepdims=True)
        mean, dmean = _mean(row.w, row.error, g, form)
        r, dr = g.x - mean, g.d + dmean + 8 * form.eps * (g.size + (row.w * g.size).sum(-1, keepdims=True))
    return _over(_product(slope, dslope + 8 * form.eps * slope, r, dr, None), total, off, row, form)


def _softpick(truth: SimpleNamespace, g: SimpleNamespace, eps: float) -> SimpleNamespace:
    row, form = truth.row, truth.form
    top = np.maximum(row.s.max(-1, keepdims=True, initial=-np.inf), 0)
    away = np.where(row.seen, np.abs(row.s - top), 0).astype(np.float64)
    d = np.minimum(row.d + form.u * (10 + away), 50)
    grown = np.where(row.seen, np.exp(np.where(row.seen, row.s, top) - top), 0)
    # Weights below the normal numbers, and those of keys before a new reference, are lost.
    change = grown * np.expm1(d) + row.seen * (4 * form.tiny + np.minimum(form.lost, grown))
    f = np.abs(np.where(row.seen, grown - np.exp(-top), 0))
    total, off = (
        f.sum(-1, keepdims=True) + eps * np.exp(-top),
        (change + 16 * form.u * f).sum(-1, keepdims=True),
    )
    mean, dmean = _mean(row.w, row.error, g, form)
    sign = np.sign(np.where(row.seen, row.s, 0))
    r = (sign > 0) * g.x - sign * mean
    size = g.size + (row.w * g.size).sum(-1, keepdims=True)
    flips = (np.abs(np.where(row.seen, row.s, 1)) <= d) * (np.abs(g.x) + 2 * np.abs(mean))
    found = _product(grown, change, r, g.d + dmean + flips + 8 * form.eps * size, None)
    return _over(found, total, off, row, form)


def _over(
    found: SimpleNamespace, total: Array, off: Array, row: SimpleNamespace, form: SimpleNamespace
) -> SimpleNamespace:
    """Divided by a total that is within `off`."""
    found.free = np.broadcast_to((total <= 2 * off) & (off > 0), (*row.any.shape, 1))[..., 0]
    full, left = np.where(total == 0, 1, total), np.where(total > 2 * off, total - off, 1)
    found.d = found.d / left + np.abs(found.x) * (off / (full * left) + 8 * form.eps / full)
    found.x = found.x / full
    return found
