# SPDX-License-Identifier: BSD-3-Clause
"""Error bounds of weights from those of scores, for each normalizer.

With |s'_j - s_j| <= d_j, every weight w'_j is within `error` of w_j:

softmax   p'_j / p_j - 1 <= exp(d_j) / sum_l p_l exp(-d_l) - 1; the sink is one more outcome. Rows with a d
          that is no small number: exp(s_j + d_j) over the sum of exp(s_l - d_l), and the other way round.
entmax    tau' - tau is at most the largest (alpha - 1) d_l of the keys near the support, as a mean of
          theirs; the power of (alpha - 1) s_j - tau follows, up and down.
sums      w_j = f_j / S: (df_j + w_j sum df) / (S - sum df); without a bound where sum df >= S / 2.
the rest  w_j = f(s_j): its slope times d_j.

Exponentials add 4 unit roundoffs each. Everything but the scores is float64: bounds need few digits.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from attnscale import normalizers as N

__all__ = ["SMALL", "share", "weigh"]

Array = np.ndarray[Any, Any]

# Above this error of a score its exponential is bounded by intervals instead of slopes.
SMALL = 0.01


def weigh(scores: SimpleNamespace, rule: Any, form: SimpleNamespace) -> SimpleNamespace:
    """w, error, free (rows without a bound), support from ... to; with a sink as one more outcome.

    unit: what a sum of values by relative weights is multiplied by in the end, and their rounding with it.
    """
    s, d, seen = scores.s, scores.d, scores.seen
    none = np.zeros(s.shape[:-1], bool)
    one = np.ones((*s.shape[:-1], 1))
    row = SimpleNamespace(
        s=s,
        d=d,
        seen=seen,
        sink=None,
        unit=one,
        free=none,
        may_break=none,
        distribution=True,
        any=seen.any(-1),
    )
    row.least = row.most = seen.sum(-1)
    if isinstance(rule, (N.Softmax, N.SoftmaxN, N.Sink)):
        _softmax(row, rule, form)
    elif isinstance(rule, (N.Entmax, N.Sparsemax)):
        _entmax(row, 2.0 if isinstance(rule, N.Sparsemax) else rule.alpha, form)
    elif isinstance(rule, N.TopK):
        _top_k(row, rule.k, form)
    elif isinstance(rule, N.Sigmoid):
        _sigmoid(row, rule.bias, form)
    elif isinstance(rule, N.ReLU):
        _relu(row, rule, form)
    else:
        _softpick(row, rule.eps, form)
    row.free = row.free | scores.free
    lost = ~np.isfinite(row.error)
    if lost.any():
        row.free, row.error = row.free | lost.any(-1), np.where(lost, 1, row.error)
    return row


def _softmax(row: SimpleNamespace, rule: Any, form: SimpleNamespace) -> None:
    if not isinstance(rule, N.Softmax):
        logit = (
            np.log(form.wide(rule.n)) if isinstance(rule, N.SoftmaxN) else np.asarray(rule.logits, form.wide)
        )
        logit = logit[:, None, None] if np.ndim(logit) and row.s.ndim > 2 else np.asarray(logit)
        logit = np.broadcast_to(logit, (*row.s.shape[:-1], 1))
        row.s = np.concatenate([row.s, logit], -1)
        top = row.s.max(-1, initial=-np.inf, keepdims=True)
        # The term is added to a rounded lse, and the sum is rounded.
        size = np.abs(logit) + 2 * np.abs(np.where(np.isfinite(top), top, 0)) + 2 * np.log(row.s.shape[-1])
        row.d = np.concatenate([row.d, 4 * form.u * (1 + size.astype(np.float64))], -1)
        row.seen = np.concatenate([row.seen, np.ones_like(logit, bool)], -1)
        row.sink = row.s.shape[-1] - 1
    _exponentials(row, row.seen, form)


def _exponentials(row: SimpleNamespace, kept: Array, form: SimpleNamespace) -> None:
    """Softmax over these outcomes."""
    s, d = np.where(kept, row.s, -np.inf), np.where(kept, row.d + 8 * form.u, 0)
    top = s.max(-1, initial=-np.inf, keepdims=True)
    t = s - np.where(np.isneginf(top), 0, top)
    e = np.exp(t)
    total = e.sum(-1, keepdims=True)
    full = np.where(total == 0, 1, total)
    w = e / full
    row.lse = (np.log(full) + top)[..., 0]
    row.lse[np.isneginf(top[..., 0])] = -np.inf
    w64, log = w.astype(np.float64), (t - np.log(full)).astype(np.float64)
    mean = (w64 * d).sum(-1, keepdims=True)
    error = w64 * np.expm1(np.minimum(d + mean, 1) * (1 + 2 * SMALL))
    row.lse_error = mean[..., 0] * (1 + 2 * SMALL)
    wild = ((d > SMALL) & (log + d > -50)).any(-1)
    if wild.any():
        low, high = log[wild] - d[wild], log[wild] + d[wild]
        most, least = share(high, low), share(low, high)
        error[wild] = np.maximum(most - w64[wild], w64[wild] - least)
        row.lse_error[wild] = np.where(log[wild] + d[wild] > -50, d[wild], 0).max(-1)
    # At most form.lost, or their own size, is lost of weights. In the oracle's type: a value of 1e307 shows
    # in it what float64 does not.
    lost = np.minimum(form.lost, np.exp(np.minimum(t - np.log(full) + d, 0)))
    row.w, row.error = w, error + np.where(kept, lost, 0)


def share(own: Array, others: Array) -> Array:
    """Share of each outcome, from the logarithms of all.

    Other outcomes are summed before and after it: in a sum of all the largest cancels, or overflows.
    """
    rest = np.full((2, *others.shape), -np.inf)
    np.logaddexp.accumulate(others[..., :-1], -1, out=rest[0, ..., 1:])
    np.logaddexp.accumulate(others[..., :0:-1], -1, out=rest[1, ..., -2::-1])
    beside = np.logaddexp(*rest)
    return np.where(np.isneginf(own), 0.0, 1 / (1 + np.exp(beside - own)))


def _entmax(row: SimpleNamespace, alpha: float, form: SimpleNamespace) -> None:
    order, s = alpha - 1, row.s
    top = s.max(-1, initial=-np.inf, keepdims=True)
    x = (s - np.where(np.isneginf(top), 0, top)) * form.wide(order)
    tau = _threshold_of_sparsemax(x, row.seen) if alpha == 2 else _threshold(x, order)
    row.excess = excess = (x - tau).astype(np.float64)
    w = np.maximum(x - tau, 0) ** (1 / order)
    moved = order * row.d + 8 * form.u * np.maximum(-x, 0).astype(np.float64)
    near = row.seen & (excess > -2 * moved - 2 * order * _largest(np.where(excess > 0, row.d, 0)))
    shift = _largest(np.where(near, moved, 0)) + 16 * form.u + (1e-14 if form.double else 1e-10)
    w64 = np.where(row.seen, w, 0).astype(np.float64)
    high = np.maximum(excess + moved + shift, 0) ** (1 / order)
    low = np.maximum(excess - moved - shift, 0) ** (1 / order)
    error = np.where(row.seen, np.maximum(high - w64, w64 - low), 0)
    # Weights are divided by their sum, which a weight at its threshold may move more than all others.
    error = np.minimum(error, 1)
    row.error = error + w64 * error.sum(-1, keepdims=True) + 16 * form.u * w64
    row.w = np.where(row.seen, w, 0)
    row.free = shift[..., 0] > 0.5
    row.least, row.most = ((row.seen & bound).sum(-1) for bound in (low > 4 * form.tiny, high > 0))
    row.least = np.maximum(row.least, row.any)


def _largest(x: Array) -> Array:
    return np.asarray(x.max(-1, keepdims=True, initial=0))


def _threshold_of_sparsemax(x: Array, seen: Array) -> Array:
    z = -np.sort(-x, axis=-1)
    if not z.shape[-1]:
        return np.zeros((*x.shape[:-1], 1), x.dtype)
    excess = np.cumsum(np.where(np.isneginf(z), 0, z), -1) - 1
    k = ((z * np.arange(1, z.shape[-1] + 1) > excess) & ~np.isneginf(z)).sum(-1, keepdims=True)
    return np.asarray(np.take_along_axis(excess, np.maximum(k - 1, 0), -1) / np.maximum(k, 1))


def _threshold(x: Array, order: float) -> Array:
    """Threshold by bisection in float64 and Newton steps in the wider type."""
    narrow = x.astype(np.float64)
    low, high = np.full((*x.shape[:-1], 1), -1.0), np.zeros((*x.shape[:-1], 1))
    for _ in range(50):
        tau = (low + high) / 2
        small = (np.maximum(narrow - tau, 0) ** (1 / order)).sum(-1, keepdims=True) < 1
        low, high = np.where(small, low, tau), np.where(small, tau, high)
    tau = low.astype(x.dtype)
    for _ in range(2 if x.dtype != np.float64 else 0):
        base = np.maximum(x - tau, 0)
        root = base ** (1 / order)
        slope = np.where(base > 0, root / np.where(base > 0, base, 1), 0).sum(-1, keepdims=True) / order
        step = (root.sum(-1, keepdims=True) - 1) / np.where(slope > 0, slope, 1)
        tau = np.where(np.abs(step) < 1e-12, tau + step, tau)
    return tau


def _top_k(row: SimpleNamespace, k: int, form: SimpleNamespace) -> None:
    """Rows in which rounding may choose another key are free; equal scores go to the first keys."""
    n = row.s.shape[-1]
    order = np.argsort(-row.s, axis=-1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(n), order.shape), -1)
    chosen = row.seen & (rank < k)
    last = np.where(chosen, row.s, np.inf).min(-1, keepdims=True, initial=np.inf)
    gap = (last - row.s).astype(np.float64)
    reach = row.d + _largest(np.where(chosen & (row.s - last <= 2 * row.d), row.d, 0))
    rival = row.seen & ~chosen & (gap <= reach) & (gap > 0)
    tie = row.seen & ~chosen & (gap == 0)
    row.free = rival.any(-1) | tie.any(-1)
    row.least = row.most = np.minimum(row.most, k)
    _exponentials(row, chosen, form)


def _sigmoid(row: SimpleNamespace, bias: float | None, form: SimpleNamespace) -> None:
    n = np.maximum(row.seen.sum(-1, keepdims=True), 1)
    shift = -np.log(n.astype(form.wide)) if bias is None else np.full(n.shape, bias, form.wide)
    w = np.where(row.seen, 1 / (1 + np.exp(-np.where(row.seen, row.s, 0) - shift)), 0)
    d = row.d + 4 * form.u * (2 + np.abs(shift).astype(np.float64))
    w64 = w.astype(np.float64)
    row.w, row.distribution = w, False
    # Weights below 2^-120 (float32) or 2^-1000 are 0, as the inverse of what exp2 still returns.
    cut = 2.0**-1000 if form.double else 2.0**-120
    row.error = np.minimum(np.where(row.seen, w64 * np.expm1(np.minimum(d, 50)), 0), 1) + 4 * cut * row.seen


def _relu(row: SimpleNamespace, rule: Any, form: SimpleNamespace) -> None:
    power = 2 if isinstance(rule, N.SquaredReLU) else 1
    f = np.where(row.seen, np.maximum(row.s, 0), 0)
    # Computed in the oracle's type: squares of scores near the ends of float64, or errors over n, leave it.
    error = np.where(row.seen & (row.s > -row.d), row.d, 0).astype(form.wide)
    if power == 2:
        error = (2 * f + error) * error
        f = f * f
    reference = _reference_of_relu(f + error, power, form)
    small = 4 * form.least * np.maximum(reference, 1) + np.minimum(form.lost * reference, f)
    error = error + 8 * form.u * f + np.where(row.seen & (row.s > -row.d), small, 0)
    row.may_break = f.max(-1, initial=0) * f.shape[-1] > form.largest / 64  # the sum leaves the type
    row.most, row.least = (row.seen & (row.s > -row.d)).sum(-1), (row.seen & (f > 2 * error)).sum(-1)
    if rule.divide == "sum":
        _over_sum(row, f, error, 0.0)
        row.unit = reference * row.unit
        # H = ln S - (sum w ln w) / S of weights whose largest is 2^-40 or more: two numbers of that size.
        row.log_sum = 40 * np.log(2)
        return
    n = np.maximum(row.seen.sum(-1, keepdims=True), 1)
    row.w, row.error, row.distribution, row.unit = f / n, error / n, False, reference / n


def _reference_of_relu(most: Array, power: int, form: SimpleNamespace) -> Array:
    """Upper bound of the reference of weights: 1, or the row's largest weight if that is far from 1.

    The kernel takes a power of two below the largest weight if that leaves 2^-40 ... 2^8, in base 2, and no
    more than 2^-120 or 2^-1000 a power. Rounding a relative weight costs half of the least denormal where it
    is denormal, and so does rounding its product with a value; the reference multiplies both in the end:
    beside a weight of 1e34, a value of 1e-44 keeps no digit.
    """
    top = np.asarray(most.max(-1, keepdims=True, initial=0)) * np.log2(np.e) ** power
    small = np.maximum(top, form.wide(2) ** (-(1000 if form.double else 120) * power))
    return np.where(top >= 250, top, np.where(top < 2.0**-42, small, 1.0))


def _over_sum(row: SimpleNamespace, f: Array, error: Array, more: Any) -> None:
    total = f.sum(-1, keepdims=True) + more
    off = error.sum(-1, keepdims=True)
    row.w = f / np.where(total == 0, 1, total)
    row.unit = 1 / np.where(total == 0, 1, total)
    rest = total - off
    row.free = ((2 * off > total) & (off > 0))[..., 0]
    row.error = np.minimum((error + row.w * off) / np.where(rest > 0, rest, 1), 1)


def _softpick(row: SimpleNamespace, eps: float, form: SimpleNamespace) -> None:
    top = np.maximum(row.s.max(-1, keepdims=True, initial=-np.inf), 0)
    e = np.where(row.s < 1, np.exp(-top) * np.expm1(np.minimum(row.s, 1)), np.exp(row.s - top) - np.exp(-top))
    f = np.where(row.seen, e, 0)
    # The exponent, a score less a reference at most 8 in base 2 below the top, is one more rounding: of
    # scores far below the top exp(s) - 1 keeps no digit where it is small.
    away = np.where(row.seen, np.abs(row.s - top), 0).astype(np.float64)
    d = row.d + form.u * (10 + away)
    size = np.where(row.seen, np.exp(np.minimum(row.s - top + d, 0.0)), 0).astype(np.float64)
    lift = np.minimum(d, 50)
    small = 4 * form.tiny * row.seen + np.minimum(form.lost, size)
    error = size * np.expm1(lift) + 16 * form.u * np.abs(f).astype(np.float64) + small
    # exp(s) - 1 is taken relative to exp(top): the top's own error moves all terms alike, but for the 1s.
    wanted = np.maximum(f, 0)
    total = np.abs(f).sum(-1, keepdims=True) + eps * np.exp(-top)
    _over_sum(row, np.abs(f), error, eps * np.exp(-top))
    row.w = wanted / np.where(total == 0, 1, total)
    row.distribution = False
    row.free = row.free | (d.max(-1, initial=0) > 1)
    weighty = row.seen & (row.w.astype(np.float64) > 4 * (row.error + form.tiny))
    row.most, row.least = (row.seen & (row.s > -row.d)).sum(-1), weighty.sum(-1)
