# SPDX-License-Identifier: BSD-3-Clause
"""Output and statistics of blocks of queries, in plain operations of PyTorch."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from .. import normalizers
from ..normalizers import Normalizer
from ._autograd import compute_again
from ._device import without_autocast
from ._private import has_forward_derivatives
from ._scores import Scores, rows_of_block
from ._weigh import Learnt, Weights, weigh


class BlockCall(NamedTuple):
    """A call that has been read, with tensors in the type of the arithmetic."""

    scores: Scores
    value: Tensor | None
    rule: Normalizer
    learnt: Learnt
    asked: tuple[str, ...]
    row_shape: tuple[int, ...]
    of_one_type: bool  # whether the caller's tensors are of the type of the arithmetic
    is_causal: bool  # whether query i sees the keys 0 ... i, but for the mask

    def all_rows(self) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Output and statistics of all queries."""
        output = self._by_pytorch()
        if output is not None:
            return output, {}
        n_queries = self.row_shape[-1]
        step = rows_of_block(self.row_shape, self.scores.key.shape[-2])
        starts = range(0, max(n_queries, 1), step)
        several = len(starts) > 1
        blocks = [compute_again(self._rows, i, min(i + step, n_queries), enabled=several) for i in starts]
        parts = [list(each) for each in zip(*blocks, strict=True)]
        if self.value is not None:
            output = _joined(parts.pop(0), -2)
        return output, {name: _joined(part, -1) for name, part in zip(self.asked, parts, strict=True)}

    def matrix(self) -> Tensor:
        """The weights of all queries, (..., heads, n_queries, n_keys), written out on purpose."""
        n_queries, n_keys = self.row_shape[-1], self.scores.key.shape[-2]
        scores, seen = self.scores.of_rows(0, n_queries)
        return self._weights(0, n_queries, scores, seen).of_keys.expand(*self.row_shape, n_keys)

    def _by_pytorch(self) -> Tensor | None:
        """The output by PyTorch's own attention, where that has the same meaning; else None.

        PyTorch's attention reads hidden keys, and gives NaN for rows without keys in some of its programs.
        """
        scores, value = self.scores, self.value
        is_softmax = isinstance(self.rule, normalizers.Softmax) and self.learnt.sink is None
        if self.asked or value is None or not (is_softmax and self.of_one_type and scores.finite):
            return None
        if has_forward_derivatives():  # PyTorch's fused programs have no forward-mode derivative
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
            seen = scores.visible.of_rows(0, self.row_shape[-1])
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
        """Output and statistics of the queries start ... stop - 1."""
        scores, seen = self.scores.of_rows(start, stop)
        weights = self._weights(start, stop, scores, seen)
        rows = _BlockRows(scores, seen, weights, is_cut=isinstance(self.rule, normalizers.TopK))
        shape = (*self.row_shape[:-1], stop - start)
        found = [getattr(rows, name)().expand(shape) for name in self.asked]
        if self.value is None:
            return tuple(found)
        return rows.output(self.value, finite=self.scores.finite).expand(*shape, -1), *found

    def _weights(self, start: int, stop: int, scores: Tensor, seen: Tensor | None) -> Weights:
        learnt = self.learnt
        if learnt.sink is not None and learnt.sink.ndim > 1 and learnt.sink.shape[-2] > 1:  # one for each row
            learnt = learnt._replace(sink=learnt.sink[..., start:stop, :])
        return weigh(self.rule, scores, seen, learnt)


class _DifferentiableAgain(torch.autograd.Function):
    """The output of PyTorch's own attention, whose fused programs have no second derivative.

    A backward pass that is not differentiated goes on to the fused one. One that is (``create_graph=True``)
    leaves it out, and computes attention again in operations that have derivatives of any order.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, *inputs: Any) -> Tensor:
        """The output as it is; saved is what PyTorch has saved, too."""
        *tensors, ctx.is_causal = inputs
        ctx.save_for_backward(*tensors)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of the output, or those of query, key and value."""
        if not torch.is_grad_enabled():
            return grad, None, None, None, None, None
        *rows, seen = ctx.saved_tensors
        # As tensors of their own: two of them may be one, or one a function of another.
        rows = query, key, value = [x.view_as(x) for x in rows]
        with without_autocast(grad.device), sdpa_kernel(SDPBackend.MATH):
            output = scaled_dot_product_attention(query, key, value, seen, is_causal=ctx.is_causal, scale=1.0)
        learnt = [x for x in rows if x.requires_grad]
        found = iter(torch.autograd.grad(output, learnt, grad, create_graph=True))
        return None, *(next(found) if x.requires_grad else None for x in rows), None, None


class _BlockRows(NamedTuple):
    """Scores and weights of a block, and the statistics of its rows by their names."""

    scores: Tensor
    seen: Tensor | None  # None: every key
    weights: Weights
    is_cut: bool  # whether some visible keys do not count in lse

    def output(self, value: Tensor, *, finite: bool) -> Tensor:
        """The weighted values. One that is not finite reaches the rows that see it, and no other."""
        weights = self.weights.of_keys
        if finite or self.seen is None:
            return weights @ value
        bad, weights = ~torch.isfinite(value), weights.masked_fill(~self.seen, 0.0)
        output = weights @ value.masked_fill(bad, 0.0)
        # What is seen adds up to an infinity where all of it has a weight and one sign, and else to NaN.
        count = self.seen.to(value.dtype) @ bad.to(value.dtype)
        signs = (weights > 0).to(value.dtype) @ value.sign().masked_fill(~torch.isinf(value), 0.0)
        found = torch.where(signs.abs() == count, signs * math.inf, math.nan)
        reached = count > 0
        # It comes in as a factor of 1, so that the gradient is not finite where the output is not.
        output = torch.where(reached, output - output.detach() + 1, output)
        return output * torch.where(reached, found, 1.0)

    def lse(self) -> Tensor:
        scores, counted = self.scores, self.weights.counted
        if self.is_cut and counted is not None:
            scores = scores.masked_fill(~counted & ~torch.isnan(scores), -math.inf)
        if self.weights.logit is not None:
            scores = torch.cat((scores, self.weights.logit), -1)
        return scores.logsumexp(-1)

    def entropy(self) -> Tensor:
        found = _entropy(self.weights.of_keys)
        return found if self.weights.sink is None else found + _entropy(self.weights.sink)

    def max_score(self) -> Tensor:
        return _largest(self.scores, -math.inf)

    def min_score(self) -> Tensor:
        scores = self.scores if self.seen is None else self.scores.masked_fill(~self.seen, math.inf)
        return -_largest(-scores, -math.inf)

    def mean_score(self) -> Tensor:
        mean = (self.weights.of_keys * self._shown()).sum(-1)
        return mean if self.weights.sink is None else mean + (self.weights.sink * self.weights.logit)[..., 0]

    def score_variance(self) -> Tensor:
        mean = self.mean_score()[..., None]
        variance = (self.weights.of_keys * (self._shown() - mean).square()).sum(-1)
        if self.weights.sink is None or self.weights.logit is None:
            return variance
        return variance + (self.weights.sink * (self.weights.logit - mean).square())[..., 0]

    def concentration(self) -> Tensor:
        found = self.weights.of_keys.square().sum(-1)
        return found if self.weights.sink is None else found + self.weights.sink[..., 0].square()

    def renyi2(self) -> Tensor:
        squares = self.concentration()
        # Rows without weights have none of it, and no gradient; rounding may leave it just below 0.
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
        if self.weights.sink is not None:
            return self.weights.sink[..., 0]
        return 0 * self.weights.of_keys.sum(-1)  # NaN where the row is NaN

    def support(self) -> Tensor:
        return self._counted(self.weights.counted)

    def _shown(self) -> Tensor:
        """The scores, but 0 at hidden keys."""
        return self.scores if self.seen is None else self.scores.masked_fill(~self.seen, 0.0)

    def _counted(self, there: Tensor | None) -> Tensor:
        if there is None:
            return torch.tensor(self.scores.shape[-1], device=self.scores.device)
        return there.sum(-1)


def _entropy(weights: Tensor) -> Tensor:
    """The sum of -p ln p without the terms p = 0, where the derivative is infinite."""
    return torch.special.entr(torch.where(weights == 0, 1, weights)).sum(-1)


def _largest(x: Tensor, of_none: float) -> Tensor:
    return x.amax(-1) if x.shape[-1] else x.new_full(x.shape[:-1], of_none)


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)
