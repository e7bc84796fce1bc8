# SPDX-License-Identifier: BSD-3-Clause
"""Weights from scores under every normalizer, in plain operations of PyTorch, with gradients."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import normalizers
from ..normalizers import Normalizer


class Learnt(NamedTuple):
    """Parameters of a normalizer that are tensors and broadcast to (..., heads, n_queries, 1)."""

    sink: Tensor | None = None
    bias: Tensor | None = None
    alpha: Tensor | None = None


class Weights(NamedTuple):
    """The weights of a block of rows, and which keys count in statistics."""

    of_keys: Tensor  # 0 where the key is hidden
    counted: Tensor | None  # True where a key counts for lse and support; None: every key
    sink: Tensor | None = None  # (..., rows, 1): the weight of the outcome that is no key
    logit: Tensor | None = None  # score of the outcome that is no key


def weigh(rule: Normalizer, scores: Tensor, seen: Tensor | None, learnt: Learnt) -> Weights:
    """Weights of rows from scores, which are -inf at hidden keys; rows without keys have no weight."""
    logit = learnt.sink
    if isinstance(rule, normalizers.SoftmaxN):
        logit = scores.new_full((), math.log(rule.n))
    if logit is not None:
        logit = logit.to(scores.dtype).expand(*scores.shape[:-1], 1)
        both = torch.cat((scores, logit), -1).softmax(-1)
        return Weights(both[..., :-1], seen, both[..., -1:], logit)
    if isinstance(rule, (normalizers.Sigmoid, normalizers.ReLU, normalizers.Softpick)):
        return _of_single_scores(rule, scores, seen, learnt)
    if seen is not None:
        empty = ~seen.any(-1, keepdim=True)
        scores = scores.masked_fill(empty, 0.0)
    counted = seen
    if isinstance(rule, normalizers.TopK):
        counted = _largest(scores, rule.k)
        counted = counted if seen is None else counted & seen
        scores = scores.masked_fill(~counted & ~torch.isnan(scores), -math.inf)
        scores = scores if seen is None else scores.masked_fill(empty, 0.0)
    is_sparse = isinstance(rule, (normalizers.Sparsemax, normalizers.Entmax))
    if is_sparse:
        fixed = rule.alpha if isinstance(rule, normalizers.Entmax) else 2.0
        weights = entmax(scores, fixed if learnt.alpha is None else learnt.alpha)
    else:
        assert isinstance(rule, (normalizers.Softmax, normalizers.TopK))
        weights = scores.softmax(-1)
    weights = weights if seen is None else weights.masked_fill(empty, 0.0)
    return Weights(weights, weights > 0 if is_sparse else counted)


def _of_single_scores(rule: Normalizer, scores: Tensor, seen: Tensor | None, learnt: Learnt) -> Weights:
    """Weights that are functions of single scores, which need not add up to 1."""
    if seen is not None:
        # Any finite number serves: the weight is set to 0 later, so the gradient is 0 and not 0 * inf.
        scores = scores.masked_fill(~seen, 0.0)
    if isinstance(rule, normalizers.Sigmoid):
        n = _count(scores, seen)
        given = -n.log() if rule.bias is None else rule.bias
        weights = torch.sigmoid(scores + (given if learnt.bias is None else learnt.bias.to(scores.dtype)))
        return Weights(weights if seen is None else weights.masked_fill(~seen, 0.0), seen)
    if isinstance(rule, normalizers.Softpick):
        weights = _softpick(scores, seen, rule.eps)
    else:
        assert isinstance(rule, normalizers.ReLU)
        positive = scores.clamp(min=0)
        positive = positive.square() if isinstance(rule, normalizers.SquaredReLU) else positive
        total = positive.sum(-1, keepdim=True) if rule.divide == "sum" else _count(scores, seen)
        weights = positive / torch.where(total == 0, 1, total)
    return Weights(weights, weights > 0)


def _count(scores: Tensor, seen: Tensor | None) -> Tensor:
    """The number of keys that each row sees, but at least 1."""
    if seen is None:
        return scores.new_full((), max(scores.shape[-1], 1))
    return seen.sum(-1, keepdim=True).clamp(min=1).to(scores.dtype)


def _softpick(scores: Tensor, seen: Tensor | None, eps: float) -> Tensor:
    """The weights max(e^s - 1, 0) / (sum |e^s - 1| + eps), both over exp(max(s, 0)).

    Hidden scores are 0, and so is their e^0 - 1.
    """
    top = scores.detach().amax(-1, keepdim=True).clamp(min=0) if scores.shape[-1] else scores.new_zeros(())
    # Where s is small, expm1 keeps the difference from cancelling.
    small = (-top).exp() * torch.expm1(scores.clamp(max=1))
    excess = torch.where(scores < 1, small, (scores - top).exp() - (-top).exp())
    total = excess.abs().sum(-1, keepdim=True) + eps * (-top).exp()
    return excess.clamp(min=0) / torch.where(total == 0, 1, total)


def _largest(scores: Tensor, k: int) -> Tensor:
    """True at the k largest scores of each row; of equal scores, at the first ones."""
    order = scores.detach().sort(dim=-1, descending=True, stable=True).indices[..., :k]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, True)


def _at_least_one(x: Any) -> Any:
    return x.clamp(min=1) if isinstance(x, Tensor) else max(x, 1.0)


class _Entmax(torch.autograd.Function):
    """Entmax, p = max(0, (alpha - 1) z - tau)^(1 / (alpha - 1)), of Peters et al. 2019, arXiv 1905.05702."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha: Any) -> Tensor:
        """Weights from the support, then by bisection of the least of them.

        A key has a weight where the scores above its own share out less than 1; on the edge it has none. The
        last of them in order is searched for by halves. For alpha > 2 what is bisected is its weight,
        a root of its distance from the threshold, else that distance.
        """
        power, exponent = 1 / (alpha - 1), _at_least_one(alpha - 1)
        z = (alpha - 1) * (scores - scores.amax(-1, keepdim=True))
        order = z.sort(dim=-1, descending=True).values
        eps = torch.finfo(z.dtype).eps
        first = torch.zeros_like(order[..., :1], dtype=torch.int64)
        last = torch.full_like(first, z.shape[-1])
        for _ in range(z.shape[-1].bit_length()):
            middle = (first + last) // 2
            above = (z - order.gather(-1, middle)).clamp(min=0)
            inside = above.pow(power).sum(-1, keepdim=True) < 1 - 4 * eps
            first, last = torch.where(inside, middle, first), torch.where(inside, last, middle)
        distance = z - order.gather(-1, first)

        def weights(least: Tensor) -> Tensor:
            more = (distance + least.pow(exponent)).pow(power)
            own = torch.where(distance == 0, least.pow(exponent * power), 0.0)  # the sum may underflow
            return torch.where(distance > 0, more, own)

        low = torch.zeros_like(order[..., :1])
        width = torch.ones_like(low)
        for _ in range(4 - round(math.log2(eps))):
            width = width / 2
            room = weights(low + width).sum(-1, keepdim=True) <= 1
            low = torch.where(room, low + width, low)
        found = torch.where(distance.isnan(), distance, weights(low))
        return found / found.sum(-1, keepdim=True)

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save the weights and alpha, which the backward pass reads."""
        alpha = inputs[1]
        learnt = isinstance(alpha, Tensor)
        context.save_for_backward(output, alpha if learnt else None)
        context.alpha = None if learnt else alpha

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients of scores, s (g - <s, g> / <s, 1>) with s = p^(2 - alpha) on the support, and of alpha.

        The gradient of alpha is that of Correia et al. 2019.
        """
        weights, learnt = context.saved_tensors
        alpha = context.alpha if learnt is None else learnt
        there = weights > 0
        # A power and a logarithm of 0 have no derivative, which the second derivative would read.
        positive = torch.where(there, weights, 1.0)
        s = torch.where(there, positive.pow(2 - alpha), 0.0)
        total = s.sum(-1, keepdim=True)
        # From the gradient at the largest s, beside which others would be lost where alpha > 2.
        beside = gradient - gradient.gather(-1, s.argmax(-1, keepdim=True))
        of_scores = s * (beside - (s * beside).sum(-1, keepdim=True) / total)
        if learnt is None:
            return of_scores, None
        step, share, entropy = 1 / (alpha - 1), s / total, torch.special.entr(positive)
        slope = step * (weights - share) + entropy - share * entropy.sum(-1, keepdim=True)
        return of_scores, (gradient * step * slope).sum().to(learnt.dtype)


def entmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    """Entmax along the last axis with alpha > 1; alpha = 2 is sparsemax. A score of -inf has no weight.

    Examples
    --------
    >>> entmax(torch.tensor([0.5, 0.0, -1.0]), 2.0)
    tensor([0.7500, 0.2500, 0.0000])
    """
    if not scores.shape[-1]:
        return scores
    weights: Tensor = _Entmax.apply(scores, alpha)
    return weights
