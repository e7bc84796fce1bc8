# SPDX-License-Identifier: BSD-3-Clause
"""Normalizers, from scores to weights and back through their gradients, with every matrix written out.

`seen` is True at the visible keys of a row.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import normalizers

Array = NDArray[Any]


def sparsemax(s: Array, seen: Array) -> Array:
    """max(s - tau, 0) with the sum 1; tau from the sorted scores."""
    if s.shape[-1] == 0:
        return s
    x = _below_top(s, seen)
    z = -np.sort(-x, axis=-1)
    excess = np.cumsum(z, -1) - 1
    with np.errstate(invalid="ignore"):
        k = (z * np.arange(1, s.shape[-1] + 1) > excess).sum(-1, keepdims=True)
        tau = np.take_along_axis(excess, np.maximum(k - 1, 0), -1) / np.maximum(k, 1)
        p: Array = np.where(seen, np.maximum(x - tau, 0), 0)
    return p


def entmax(s: Array, seen: Array, alpha: float) -> Array:
    """max((alpha - 1) s - tau, 0)^(1 / (alpha - 1)) with the sum 1, from the support."""
    x, power = _below_top(s, seen) * (alpha - 1), 1 / (alpha - 1)
    with np.errstate(invalid="ignore"):
        d = x - _least_with_weight(x, power)
        low, high = np.zeros((*s.shape[:-1], 1)), np.ones((*s.shape[:-1], 1))
        for _ in range(60):  # bisect the smallest distance from tau, or its root
            u = (low + high) / 2
            p = np.where(d > 0, (np.maximum(d, 0) + u ** max(alpha - 1, 1)) ** power, 0)
            p = np.where(d == 0, u ** max(1, power), p)  # where the power of u may underflow
            small = p.sum(-1, keepdims=True) < 1
            low, high = np.where(small, u, low), np.where(small, high, u)
    weights: Array = p / np.maximum(p.sum(-1, keepdims=True), np.finfo(float).tiny)
    return weights


def _least_with_weight(x: Array, power: float) -> Array:
    """Smallest entry of each row above which less than 1 is shared out; on the edge there is no weight."""
    order, n = -np.sort(-x, axis=-1), x.shape[-1]
    first, last = np.zeros((*x.shape[:-1], 1), int), np.full((*x.shape[:-1], 1), n)
    for _ in range(n.bit_length()):
        middle = (first + last) // 2
        above = np.maximum(x - np.take_along_axis(order, middle, -1), 0)
        inside = (above**power).sum(-1, keepdims=True) < 1 - 1e-15
        first, last = np.where(inside, middle, first), np.where(inside, last, middle)
    return np.take_along_axis(order, first, -1) if n else x


def top_k(s: Array, seen: Array, k: int) -> Array:
    """Softmax of the k largest scores; ties go to the first ones."""
    order = np.argsort(-np.where(seen, s, -np.inf), axis=-1, kind="stable")
    rank = np.argsort(order, axis=-1, kind="stable")
    e = np.where(seen & (rank < k), np.exp(_below_top(s, seen)), 0)
    weights: Array = e / np.maximum(e.sum(-1, keepdims=True), np.finfo(float).tiny)
    return weights


def sigmoid(s: Array, seen: Array, bias: float | None = None) -> Array:
    """1 / (1 + exp(-s - bias)); default bias: -ln of the row's number of keys."""
    n = np.maximum(seen.sum(-1, keepdims=True), 1)
    with np.errstate(over="ignore"):
        return np.where(seen, 1 / (1 + np.exp(-s - (-np.log(n) if bias is None else bias))), 0)


def relu(s: Array, seen: Array, divide: str = "n", power: int = 1) -> Array:
    """max(s, 0)^power over the number of keys, or over its sum."""
    w = np.where(seen, np.maximum(s, 0), 0) ** power
    n = seen.sum(-1, keepdims=True) if divide == "n" else w.sum(-1, keepdims=True)
    return w / np.where(n == 0, 1, n)


def softpick(s: Array, seen: Array, eps: float = 1e-8) -> Array:
    """max(e^s - 1, 0) / (sum |e^s - 1| + eps), both divided by exp(max(s, 0))."""
    top = np.maximum(np.where(seen, s, -np.inf).max(-1, keepdims=True, initial=-np.inf), 0)
    # e^-top (e^s - 1) from expm1 where s is small, so that nothing cancels.
    e = np.where(s < 1, np.exp(-top) * np.expm1(np.minimum(s, 1)), np.exp(s - top) - np.exp(-top))
    e = np.where(seen, e, 0)
    total = np.abs(e).sum(-1, keepdims=True) + eps * np.exp(-top)
    return np.maximum(e, 0) / np.where(total == 0, 1, total)


def softmax_beside(lse: Array, sink: Array) -> tuple[Array, Array, Array]:
    """Total weight of the keys, weight of the sink, and the lse of both."""
    both = np.logaddexp(lse, sink)
    return np.exp(lse - both), np.exp(sink - both), both


def weigh(rows: SimpleNamespace, s: Array, seen: Array, normalizer: Any) -> SimpleNamespace:
    """Rows of a softmax (p, lse, max_score) as rows of any normalizer."""
    rule, broken = normalizers.get(normalizer), np.isnan(rows.max_score)
    rows.sink_weight, rows.sink_score = np.where(broken, np.nan, 0.0), 0.0
    if isinstance(rule, (normalizers.SoftmaxN, normalizers.Sink)):
        logit = np.log(rule.n) if isinstance(rule, normalizers.SoftmaxN) else np.asarray(rule.logits)
        rows.sink_score = logit[:, None] if np.ndim(logit) == 1 and s.ndim > 2 else logit
        share, rows.sink_weight, rows.lse = softmax_beside(rows.lse, rows.sink_score)
        rows.p = rows.p * share[..., None]
    elif not isinstance(rule, normalizers.Softmax):
        weights = _weights(rule, np.where(seen & np.isfinite(s), s, -np.inf), seen)
        rows.p = np.where(broken[..., None], np.nan, weights)
    if isinstance(rule, normalizers.TopK):
        rows.lse = np.logaddexp.reduce(np.where(rows.p > 0, s, -np.inf), axis=-1) + rows.sink_weight
    dense = (normalizers.Softmax, normalizers.SoftmaxN, normalizers.Sink, normalizers.Sigmoid)
    rows.support = (seen if isinstance(rule, (*dense, normalizers.TopK)) else rows.p > 0).sum(-1)
    if isinstance(rule, normalizers.TopK):
        rows.support = np.minimum(rows.support, rule.k)
    return rows


def pull_back(normalizer: Any, s: Array, seen: Array, p: Array, g: Array) -> Array:
    """Gradient of each score, from that of each weight."""
    rule = normalizers.get(normalizer)
    if isinstance(rule, normalizers.Sigmoid):
        return np.asarray(p * (1 - p) * g)
    if isinstance(rule, normalizers.ReLU):
        return _pull_back_relu(rule, s, seen, p, g)
    if isinstance(rule, normalizers.Softpick):
        return _pull_back_softpick(rule, s, seen, p, g)
    if isinstance(rule, (normalizers.Entmax, normalizers.Sparsemax)):
        alpha = rule.alpha if isinstance(rule, normalizers.Entmax) else 2.0
        u = np.where(p > 0, p ** (2 - alpha), 0 * p)
        # Relative to the gradient at the largest u: others would lose their digits beside it where alpha > 2.
        g = g - np.take_along_axis(g, u.argmax(-1)[..., None], -1) if u.shape[-1] else g
        return np.asarray(u * (g - (u * g).sum(-1, keepdims=True) / u.sum(-1, keepdims=True)))
    return np.asarray(p * (g - (p * g).sum(-1, keepdims=True)))


def _pull_back_relu(rule: normalizers.ReLU, s: Array, seen: Array, p: Array, g: Array) -> Array:
    above = np.where(seen, np.maximum(s, 0), 0)
    squared = isinstance(rule, normalizers.SquaredReLU)
    slope = (2 * above if squared else above > 0) + 0 * p
    if rule.divide == "n":
        n, mean = seen.sum(-1, keepdims=True), 0
    else:
        n, mean = (above * above if squared else above).sum(-1, keepdims=True), (p * g).sum(-1, keepdims=True)
    return np.asarray(slope * (g - mean) / np.where(n == 0, 1, n))


def _pull_back_softpick(rule: normalizers.Softpick, s: Array, seen: Array, p: Array, g: Array) -> Array:
    e, mean = np.where(seen, np.exp(s), 0), (p * g).sum(-1, keepdims=True)
    total = np.where(seen, np.abs(np.expm1(s)), 0).sum(-1, keepdims=True) + rule.eps
    return np.asarray(0 * p + e * ((s > 0) * g - np.sign(s) * mean) / np.where(total == 0, 1, total))


def alpha_gradient(normalizer: Any, p: Array, g: Array) -> Array | None:
    """Gradient of each row's alpha, from that of each weight (Correia, Niculae & Martins 2019)."""
    rule = normalizers.get(normalizer)
    if not isinstance(rule, normalizers.Entmax):
        return None
    step, log_p = 1 / (rule.alpha - 1), np.log(np.where(p > 0, p, 1))
    u, h = (p > 0) * np.exp((2 - rule.alpha) * log_p) + 0 * p, -p * log_p
    share = u / np.where(u.sum(-1, keepdims=True) == 0, 1, u.sum(-1, keepdims=True))
    of_weight, of_entropy = p - share, h - share * h.sum(-1, keepdims=True)
    return np.asarray((g * step * (step * of_weight + of_entropy)).sum(-1))


def with_length(rows: Array, qk_norm: str) -> Array:
    """Rows of length 1, or sqrt(head_dim)."""
    wide: Array = rows.astype(np.float64)
    norm = np.linalg.norm(wide, axis=-1, keepdims=True)
    length = 1.0 if qk_norm == "l2" else np.sqrt(wide.shape[-1])
    with np.errstate(invalid="ignore"):
        return wide * (length / np.where(norm == 0, 1, norm))


def _below_top(s: Array, seen: Array) -> Array:
    """Scores minus the largest of their row; -inf for hidden keys."""
    shown = np.where(seen, s, -np.inf)
    top = shown.max(-1, keepdims=True, initial=-np.inf)
    return shown - np.where(np.isneginf(top), 0, top)


def _weights(rule: normalizers.Normalizer, s: Array, seen: Array) -> Array:
    if isinstance(rule, normalizers.Sigmoid):
        return sigmoid(s, seen, rule.bias)
    if isinstance(rule, normalizers.ReLU):
        return relu(s, seen, rule.divide, 2 if isinstance(rule, normalizers.SquaredReLU) else 1)
    if isinstance(rule, normalizers.Softpick):
        return softpick(s, seen, rule.eps)
    if isinstance(rule, normalizers.TopK):
        return top_k(s, seen, rule.k)
    return entmax(s, seen, rule.alpha) if isinstance(rule, normalizers.Entmax) else sparsemax(s, seen)
