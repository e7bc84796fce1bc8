# SPDX-License-Identifier: BSD-3-Clause
"""Sigma-reparametrisation: a weight divided by its spectral norm, times a learned number."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.utils import parametrize


class SpectralScale(torch.nn.Module):
    """Weight gamma W / sigma(W), by one power iteration per call (Zhai et al. 2023, arXiv 2303.06296).

    Examples
    --------
    >>> with torch.random.fork_rng(devices=[]):
    ...     _ = torch.manual_seed(0)
    ...     weight = torch.randn(6, 4)
    ...     scale = SpectralScale(weight)
    >>> round(torch.linalg.matrix_norm(scale(weight), 2).item(), 3)
    1.0
    """

    left: Tensor
    right: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.gamma = torch.nn.Parameter(torch.ones(()))
        self.register_buffer("left", torch.randn(weight.shape[0]))
        self.register_buffer("right", torch.randn(weight.shape[1]))
        for _ in range(30):
            self._iterate(weight)

    @torch.no_grad()
    def _iterate(self, weight: Tensor) -> None:
        self.right.copy_(torch.nn.functional.normalize(weight.T @ self.left, dim=0))
        self.left.copy_(torch.nn.functional.normalize(weight @ self.right, dim=0))

    def forward(self, weight: Tensor) -> Tensor:
        """The weight that the layer uses."""
        if self.training:
            self._iterate(weight)
        # Copied: the next call overwrites the vectors before the backward pass of this call.
        sigma = self.left.clone() @ weight @ self.right.clone()
        return self.gamma / sigma * weight


def reparametrise(module: torch.nn.Module) -> None:
    """Give all linear layers of a module a :class:`SpectralScale`."""
    for layer in list(module.modules()):
        if isinstance(layer, torch.nn.Linear):
            parametrize.register_parametrization(layer, "weight", SpectralScale(layer.weight.detach()))
