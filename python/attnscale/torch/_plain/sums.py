# SPDX-License-Identifier: BSD-3-Clause
"""Softmax and weighted sums whose rounding errors do not grow with the number of keys.

On the CPU PyTorch's softmax and its products of few rows add one number after the other in float32: with
2^20 nearly equal keys the weights of a row add up to 1.0003. Its ``sum`` adds in pairs.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .._base.private import has_forward_derivatives

#: Keys whose weighted values are added one after the other, and the largest number of parts.
_PART, _PARTS = 1024, 64


class _Softmax(torch.autograd.Function):
    """Softmax along the last axis; both passes use PyTorch's ``sum``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor) -> Tensor:
        weights = (scores - scores.amax(-1, keepdim=True)).exp_()
        return weights.div_(weights.sum(-1, keepdim=True))

    @staticmethod
    def setup_context(context: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        context.save_for_backward(output)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        """Gradient of scores, p (g - sum p g), in operations that have derivatives."""
        (weights,) = context.saved_tensors
        terms = weights * gradient
        return torch.addcmul(terms, weights, terms.sum(-1, keepdim=True), value=-1)


def softmax(scores: Tensor) -> Tensor:
    """Softmax along the last axis, with derivatives of any order."""
    if not scores.shape[-1] or torch.compiler.is_compiling():
        return scores.softmax(-1)
    if has_forward_derivatives():
        weights = below_largest(scores).exp()
        return weights / weights.sum(-1, keepdim=True)
    found: Tensor = _Softmax.apply(scores)
    return found


def log_softmax(scores: Tensor) -> Tensor:
    if not scores.shape[-1]:
        return scores
    below = below_largest(scores)
    return below - below.exp().sum(-1, keepdim=True).log()


def softmax_entropy(scores: Tensor, weights: Tensor) -> Tensor:
    """Entropy of a softmax, ln sum e^x - sum p x; 0 without keys. A score of -inf is hidden.

    Rounding that all weights share is multiplied by the spread of the scores; in -sum p ln p it is by ln n.
    """
    below = below_largest(scores)
    total = below.exp().sum(-1)
    mean = (weights * below.masked_fill(below == -math.inf, 0.0)).sum(-1)
    return torch.where(total == 0, 1, total).log() - mean


def below_largest(scores: Tensor) -> Tensor:
    """Scores minus the largest of their row, without a gradient of it; unchanged if that is infinite."""
    top = scores.detach().amax(-1, keepdim=True) if scores.shape[-1] else scores.new_zeros(())
    return scores - top.masked_fill(torch.isinf(top), 0.0)


def loses_digits(key: Tensor) -> bool:
    """Whether PyTorch's own attention adds too many keys one after the other for float32."""
    return key.device.type == "cpu" and key.dtype == torch.float32 and key.shape[-2] > 2 * _PART


def weighted_sum(weights: Tensor, value: Tensor) -> Tensor:
    """The product (..., rows, keys) @ (..., keys, dim); parts of the keys are added in pairs."""
    n_keys = weights.shape[-1]
    if torch.compiler.is_compiling() or n_keys <= 2 * _PART:
        return weights @ value
    step = max(_PART, -(-n_keys // _PARTS))
    parts = zip(weights.split(step, -1), value.split(step, -2), strict=True)
    return torch.stack([own @ of_keys for own, of_keys in parts]).sum(0)
