# SPDX-License-Identifier: BSD-3-Clause
"""Weights, output and statistics of blocks of queries, in plain operations of PyTorch, with gradients."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from ... import normalizers
from ...normalizers import Normalizer
from .._base.autograd import zeroed
from .._base.device import without_autocast
from .._base.private import has_forward_derivatives
from .._base.tensors import joined
from .scores import Scores
from .sums import loses_digits, softmax, softmax_entropy, weighted_sum


class Learnt(NamedTuple):
    """Parameters of a normalizer that are tensors and broadcast to (..., heads, n_queries, 1)."""

    sink: Tensor | None = None
    bias: Tensor | None = None
    alpha: Tensor | None = None


class Weights(NamedTuple):
    """Weights of a block of rows, with the scores that they come from; a sink follows the keys."""

    of_keys: Tensor  # 0 where the key is hidden
    counted: Tensor | None  # True where a key counts for lse and support; None: every key
    scores: Tensor  # scores of all outcomes; -inf where an outcome does not count
    of_all: Tensor
    is_softmax: bool = False  # whether `of_all` is the softmax of `scores`


def weigh(rule: Normalizer, scores: Tensor, seen: Tensor | None, learnt: Learnt) -> Weights:
    """Weights of rows from scores, which are -inf at hidden keys; rows without keys have weights of 0."""
    logit = learnt.sink
    if isinstance(rule, normalizers.SoftmaxN):
        logit = scores.new_full((), math.log(rule.n))
    if logit is not None:
        outcomes = torch.cat((scores, logit.to(scores.dtype).expand(*scores.shape[:-1], 1)), -1)
        weights = softmax(outcomes)
        return Weights(weights[..., :-1], seen, outcomes, weights, is_softmax=True)
    if isinstance(rule, (normalizers.Sigmoid, normalizers.ReLU, normalizers.Softpick)):
        return _of_single_scores(rule, scores, seen, learnt)
    counted, outcomes = seen, scores
    if isinstance(rule, normalizers.TopK):
        counted = _among_largest(scores, rule.k)
        counted = counted if seen is None else counted & seen
        outcomes = scores.masked_fill(~counted & ~torch.isnan(scores), -math.inf)
    if seen is not None:
        empty = ~seen.any(-1, keepdim=True)
    scores = outcomes if seen is None else outcomes.masked_fill(empty, 0.0)
    is_sparse = isinstance(rule, (normalizers.Sparsemax, normalizers.Entmax))
    if is_sparse:
        fixed = rule.alpha if isinstance(rule, normalizers.Entmax) else 2.0
        weights = entmax(scores, fixed if learnt.alpha is None else learnt.alpha)
    else:
        assert isinstance(rule, (normalizers.Softmax, normalizers.TopK))
        weights = softmax(scores)
    weights = weights if seen is None else weights.masked_fill(empty, 0.0)
    return Weights(weights, weights > 0 if is_sparse else counted, outcomes, weights, not is_sparse)


def _of_single_scores(rule: Normalizer, scores: Tensor, seen: Tensor | None, learnt: Learnt) -> Weights:
    """Weights that are functions of single scores, which need not add up to 1."""
    outcomes = scores
    if seen is not None:
        # Any finite number serves: the weight is set to 0 later, so the gradient is 0 and not 0 * inf.
        scores = scores.masked_fill(~seen, 0.0)
    if isinstance(rule, normalizers.Sigmoid):
        n = _count(scores, seen)
        given = -n.log() if rule.bias is None else rule.bias
        weights = torch.sigmoid(scores + (given if learnt.bias is None else learnt.bias.to(scores.dtype)))
        weights = weights if seen is None else weights.masked_fill(~seen, 0.0)
        return Weights(weights, seen, outcomes, weights)
    if isinstance(rule, normalizers.Softpick):
        weights = _softpick(scores, seen, rule.eps)
    else:
        assert isinstance(rule, normalizers.ReLU)
        positive = scores.relu()  # not clamp, whose derivative at a score of 0 is 1
        positive = positive.square() if isinstance(rule, normalizers.SquaredReLU) else positive
        total = positive.sum(-1, keepdim=True) if rule.divide == "sum" else _count(scores, seen)
        weights = positive / torch.where(total == 0, 1, total)
    return Weights(weights, weights > 0, outcomes, weights)


def _count(scores: Tensor, seen: Tensor | None) -> Tensor:
    if seen is None:
        return scores.new_full((), max(scores.shape[-1], 1))
    return seen.sum(-1, keepdim=True).clamp(min=1).to(scores.dtype)


def _softpick(scores: Tensor, seen: Tensor | None, eps: float) -> Tensor:
    """The weights max(e^s - 1, 0) / (sum |e^s - 1| + eps), both over exp(max(s, 0)); hidden scores are 0."""
    top = scores.detach().amax(-1, keepdim=True).clamp(min=0) if scores.shape[-1] else scores.new_zeros(())
    # Where s is small, expm1 keeps the difference from cancelling.
    small = (-top).exp() * torch.expm1(scores.clamp(max=1))
    excess = torch.where(scores < 1, small, (scores - top).exp() - (-top).exp())
    total = excess.abs().sum(-1, keepdim=True) + eps * (-top).exp()
    return excess.relu() / torch.where(total == 0, 1, total)


def _among_largest(scores: Tensor, k: int) -> Tensor:
    """True at the k largest scores of each row; ties go to the first ones."""
    order = scores.detach().sort(dim=-1, descending=True, stable=True).indices[..., :k]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, True)


class _Entmax(torch.autograd.Function):
    """Entmax, p = max(0, (alpha - 1) z - tau)^(1 / (alpha - 1)), of Peters et al. 2019, arXiv 1905.05702."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, alpha: Any) -> Tensor:
        """Weights from the support, then by bisection of the smallest of them.

        A key has a weight if the scores above its own share out less than 1. The last such key is found by
        binary search. For alpha > 2 its weight is bisected, a root of its distance from the threshold, else
        the distance itself.
        """
        power, exponent = 1 / (alpha - 1), alpha - 1
        exponent = exponent.clamp(min=1) if isinstance(exponent, Tensor) else max(exponent, 1.0)
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
        alpha = inputs[1]
        learnt = isinstance(alpha, Tensor)
        context.save_for_backward(output, alpha if learnt else None)
        context.alpha = None if learnt else alpha

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients of scores, s (g - <s, g> / <s, 1>), s = p^(2-alpha), and alpha (Correia et al. 2019)."""
        weights, learnt = context.saved_tensors
        alpha = context.alpha if learnt is None else learnt
        there = weights > 0
        # Powers and logarithms of 0 have no derivative, which a second derivative would read.
        positive = torch.where(there, weights, 1.0)
        s = torch.where(there, positive.pow(2 - alpha), 0.0)
        total = s.sum(-1, keepdim=True)
        # Relative to the gradient at the largest s: others would lose their digits beside it where alpha > 2.
        beside = gradient - gradient.gather(-1, s.argmax(-1, keepdim=True))
        of_scores = s * (beside - (s * beside).sum(-1, keepdim=True) / total)
        if learnt is None:
            return of_scores, None
        step, share, entropy = 1 / (alpha - 1), s / total, torch.special.entr(positive)
        slope = step * (weights - share) + entropy - share * entropy.sum(-1, keepdim=True)
        return of_scores, (gradient * step * slope).sum().to(learnt.dtype)


def entmax(scores: Tensor, alpha: float | Tensor) -> Tensor:
    """Entmax along the last axis with alpha > 1; alpha = 2 is sparsemax. A score of -inf has no weight."""
    if not scores.shape[-1]:
        return scores
    weights: Tensor = _Entmax.apply(scores, alpha)
    return weights


class BlockCall(NamedTuple):
    """A call ready to be computed, with tensors in the type of the arithmetic."""

    scores: Scores
    value: Tensor | None
    rule: Normalizer
    learnt: Learnt
    asked: tuple[str, ...]
    of_one_type: bool  # whether the caller's tensors have the type of the arithmetic
    is_causal: bool  # whether query i sees the keys 0 ... i, apart from the mask

    def all_rows(self) -> tuple[Tensor | None, dict[str, Tensor]]:
        output = self._by_pytorch()
        if output is not None:
            return output, {}
        parts = self.scores.in_blocks(self._rows)
        if self.value is not None:
            output = joined(parts.pop(0), -2)
        return output, {name: joined(part, -1) for name, part in zip(self.asked, parts, strict=True)}

    def weights(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Scores and weights of queries start ... stop - 1, each (..., heads, rows, n_keys)."""
        scores, seen = self.scores.of_rows(start, stop)
        shape = (*self.scores.row_shape[:-1], stop - start, scores.shape[-1])
        return scores.expand(shape), self._weights(start, stop, scores, seen).of_keys.expand(shape)

    def _by_pytorch(self) -> Tensor | None:
        """The output of PyTorch's own attention where it means the same, else None.

        PyTorch's attention reads hidden keys, and some of its kernels give NaN for rows without keys. Those
        for the CPU lose digits of long rows.
        """
        scores, value = self.scores, self.value
        is_softmax = isinstance(self.rule, normalizers.Softmax) and self.learnt.sink is None
        if self.asked or value is None or not (is_softmax and self.of_one_type and scores.finite):
            return None
        if loses_digits(scores.key):
            return None
        if has_forward_derivatives():  # PyTorch's fused kernels have no forward-mode derivative
            return None
        if (
            scores.softcap is not None
            or not scores.query.shape[:-2] == scores.key.shape[:-2] == value.shape[:-2]
        ):
            return None
        begin, _, mask, _ = scores.visible
        if begin is not None and not self.is_causal:
            return None
        seen = None
        if mask is not None:
            if begin is not None and mask.shape[-2] == 1:
                return None
            seen = scores.visible.of_rows(0, self.scores.row_shape[-1])
            if seen is None or not bool(seen.any(-1).all()):
                return None
        causal = begin is not None and seen is None
        given = (scores.query, scores.key, value, seen)
        output = scaled_dot_product_attention(*given, is_causal=causal, scale=1.0)
        if not output.requires_grad:
            return output
        found: Tensor = _DifferentiableAgain.apply(output, *given, causal)
        return found

    def _rows(self, start: int, stop: int) -> tuple[Tensor, ...]:
        scores, seen = self.scores.of_rows(start, stop)
        weights = self._weights(start, stop, scores, seen)
        rows = _BlockRows(scores, seen, weights)
        shape = (*self.scores.row_shape[:-1], stop - start)
        found = [getattr(rows, name)().expand(shape) for name in self.asked]
        if self.value is None:
            return tuple(found)
        return rows.output(self.value, finite=self.scores.finite).expand(*shape, -1), *found

    def _weights(self, start: int, stop: int, scores: Tensor, seen: Tensor | None) -> Weights:
        learnt = self.learnt
        if learnt.sink is not None and learnt.sink.ndim > 1 and learnt.sink.shape[-2] > 1:  # one for each row
            learnt = Learnt(learnt.sink[..., start:stop, :], learnt.bias, learnt.alpha)
        return weigh(self.rule, scores, seen, learnt)


class _DifferentiableAgain(torch.autograd.Function):
    """The output of PyTorch's own attention, whose fused kernels have no second derivative.

    A backward pass that is not differentiated runs the fused one. With ``create_graph=True`` attention is
    computed again in operations with derivatives of any order.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, *inputs: Any) -> Tensor:
        """Return the output unchanged, and save what PyTorch saved."""
        *tensors, ctx.is_causal = inputs
        ctx.save_for_backward(*tensors)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of the output, or those of query, key and value."""
        if not torch.is_grad_enabled():
            return grad, None, None, None, None, None
        *rows, seen = ctx.saved_tensors
        # Separate tensors, since two may be the same one, or one a function of another.
        rows = query, key, value = [x.view_as(x) for x in rows]
        with without_autocast(grad.device), sdpa_kernel(SDPBackend.MATH):
            output = scaled_dot_product_attention(query, key, value, seen, is_causal=ctx.is_causal, scale=1.0)
        learnt = [x for x in rows if x.requires_grad]
        found = iter(torch.autograd.grad(output, learnt, grad, create_graph=True))
        return None, *(next(found) if x.requires_grad else None for x in rows), None, None


class _BlockRows(NamedTuple):
    """Scores and weights of a block; each statistic of its rows is a method."""

    scores: Tensor
    seen: Tensor | None  # None: every key
    weights: Weights

    def output(self, value: Tensor, *, finite: bool) -> Tensor:
        """The weighted values; a value that is not finite affects only the rows that see it."""
        weights = self.weights.of_keys
        if finite or self.seen is None:
            return weighted_sum(weights, value)
        bad, weights = ~torch.isfinite(value), weights.masked_fill(~self.seen, 0.0)
        output = weighted_sum(weights, zeroed(value, bad))
        # A sum over bad values is infinite if all of them have a weight and one sign, else NaN.
        count = self.seen.to(value.dtype) @ bad.to(value.dtype)
        signs = (weights > 0).to(value.dtype) @ value.sign().masked_fill(~torch.isinf(value), 0.0)
        found = torch.where(signs.abs() == count, signs * math.inf, math.nan)
        # A factor of the weights, whose gradient reads the value; the gradient of the value does not.
        return output + weights.sum(-1, keepdim=True) * torch.where(count > 0, found, 0.0)

    def lse(self) -> Tensor:
        return self.weights.scores.logsumexp(-1)

    def entropy(self) -> Tensor:
        weights = self.weights.of_all
        if self.weights.is_softmax:
            return softmax_entropy(self.weights.scores, weights)
        # Without terms of p = 0, where -p ln p has an infinite derivative.
        return torch.special.entr(torch.where(weights == 0, 1, weights)).sum(-1)

    def max_score(self) -> Tensor:
        return _largest(self.scores, -math.inf)

    def min_score(self) -> Tensor:
        scores = self.scores if self.seen is None else self.scores.masked_fill(~self.seen, math.inf)
        return -_largest(-scores, -math.inf)

    def mean_score(self) -> Tensor:
        return (self.weights.of_all * self._shown()).sum(-1)

    def score_variance(self) -> Tensor:
        weights, scores = self.weights.of_all, self._shown()
        mean = (weights * scores).sum(-1, keepdim=True)
        return (weights * (scores - mean).square()).sum(-1)

    def concentration(self) -> Tensor:
        return self.weights.of_all.square().sum(-1)

    def renyi2(self) -> Tensor:
        squares = self.concentration()
        # Rows without weights get 0 and no gradient; rounding may leave the result just below 0.
        return -torch.where(squares == 0, 1, squares).log().clamp(max=0)

    def n_visible(self) -> Tensor:
        return self._counted(self.seen)

    def argmax(self) -> Tensor:
        if not self.scores.shape[-1]:
            return torch.full(self.scores.shape[:-1], -1, device=self.scores.device)
        first = self.scores.argmax(-1)
        return first if self.seen is None else first.where(self.seen.any(-1), -1)

    def max_weight(self) -> Tensor:
        return _largest(self.weights.of_keys, 0.0)

    def sink_weight(self) -> Tensor:
        keys, every = self.weights.of_keys, self.weights.of_all
        return 0 * keys.sum(-1) if every is keys else every[..., -1]  # NaN where the row is NaN

    def support(self) -> Tensor:
        return self._counted(self.weights.counted)

    def _shown(self) -> Tensor:
        """The scores of all outcomes, 0 where they are hidden."""
        scores = self.weights.scores
        return scores if self.weights.counted is None else scores.masked_fill(scores == -math.inf, 0.0)

    def _counted(self, there: Tensor | None) -> Tensor:
        if there is None:
            return torch.tensor(self.scores.shape[-1], device=self.scores.device)
        return there.sum(-1)


def _largest(x: Tensor, of_none: float) -> Tensor:
    return x.amax(-1) if x.shape[-1] else x.new_full(x.shape[:-1], of_none)
