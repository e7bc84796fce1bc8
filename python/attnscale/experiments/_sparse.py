# SPDX-License-Identifier: BSD-3-Clause
"""Entmax of whole matrices of scores in PyTorch, on any device, with its gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["entmax"]

_HALVINGS = 40  # of an interval of length 1: below the resolution of float32


class _Entmax(torch.autograd.Function):
    """Peters et al. 2019, arXiv 1905.05702: p = max(0, (alpha - 1) z - tau)^(1 / (alpha - 1))."""

    @staticmethod
    def forward(context: Any, scores: Tensor, alpha: float) -> Tensor:
        """Weights by bisection of tau: of the sum of weights, which falls in tau."""
        z = (alpha - 1) * scores
        power = 1 / (alpha - 1)
        low = z.amax(-1, keepdim=True) - 1
        width = torch.ones_like(low)
        for _ in range(_HALVINGS):
            width = width / 2
            enough = (z - low - width).clamp(min=0).pow(power).sum(-1, keepdim=True) >= 1
            low = torch.where(enough, low + width, low)
        weights = (z - low).clamp(min=0).pow(power)
        weights = weights / weights.sum(-1, keepdim=True)
        context.save_for_backward(weights)
        context.alpha = alpha
        return weights

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """s (g - <s, g> / <s, 1>) with s = p^(2 - alpha) on the support."""
        (weights,) = context.saved_tensors
        s = torch.where(weights > 0, weights.pow(2 - context.alpha), 0.0)
        mean = (s * gradient).sum(-1, keepdim=True) / s.sum(-1, keepdim=True)
        return s * (gradient - mean), None


def entmax(scores: Tensor, alpha: float) -> Tensor:
    """Entmax of the last axis, alpha > 1; 2 is sparsemax. A score of -inf has no weight.

    Examples
    --------
    >>> entmax(torch.tensor([0.5, 0.0, -1.0]), 2.0)
    tensor([0.7500, 0.2500, 0.0000])
    """
    weights: Tensor = _Entmax.apply(scores, alpha)
    return weights
