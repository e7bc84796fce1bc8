# SPDX-License-Identifier: BSD-3-Clause
"""Readings of a trained model at other lengths: under laws, or with a scale that keeps each head's
entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from attnscale import laws
from attnscale.calibration.calibration import calibrate
from numpy.typing import NDArray
from torch import Tensor

from .attention import BACKENDS, attend_rows
from .clipped import clipped_rows, clipped_scores
from .transformer import Transformer, rotate

#: Names and spellings of the laws of a reading; {n0} is the training length.
LAWS = {
    "standard": "standard",
    "log_n": "log_n(base={n0})",
    "annealed": "annealed(n0={n0})",
    "entropy_invariant": "entropy_invariant(n0={n0})",
    "natural_log_n": "natural_log_n",
    "calibrated": "",  # measured: one number for each head
    "info_scale": "info_scale(train_length={n0})",
    "yarn": "yarn(factor={factor}, channels='all')",
}
_HIGHEST = 16.0  # largest beta tried for a clipped head
_HALVINGS = 14  # of the interval of beta, to a width of 0.001


def multiplier(name: str, n: int, n0: int, head_dim: int) -> float:
    """The multiplier beta of a law at length n for a model trained at n0.

    Examples
    --------
    >>> multiplier("log_n", 4096, 64, 32), round(multiplier("yarn", 1024, 64, 32), 3)
    (2.0, 1.631)
    """
    law = laws.get(LAWS[name].format(n0=n0, factor=n / n0))
    return float(law.multiplier(n, head_dim))


@dataclass
class Reading:
    """A ``mix`` with given positions and scales that collects the entropy of each head.

    Attributes
    ----------
    positions : {"rotary", "none", "clipped"}
    scales : list of float or Tensor
        The whole multiplier of each layer, or of each head in shape (heads, 1).
    clip : int
        Largest distance if positions are "clipped".
    implementation : {"attnscale", "torch"}
    entropies : list of list of Tensor
        For each layer and call, the mean entropy of each head over the rows of the call.
    kept : list or None
        If a list, query and key of each layer are appended: rotated for "rotary", unrotated for "clipped".
    """

    positions: str
    scales: list[Any]
    clip: int
    implementation: str
    entropies: list[list[Tensor]] = field(default_factory=list)
    kept: list[tuple[Tensor, Tensor]] | None = None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, layer: int) -> Tensor:
        """The output of one layer's heads."""
        if self.positions == "rotary":
            query, key = rotate(query), rotate(key)
        if self.kept is not None:
            self.kept.append((query, key))
        options = {"scale": self.scales[layer], "backend": BACKENDS[self.implementation]}
        if self.positions == "clipped":
            output, entropy = clipped_rows(query, key, value, clip=self.clip, **options)
        else:
            output, entropy = attend_rows(query, key, value, **options)
        while len(self.entropies) <= layer:
            self.entropies.append([])
        self.entropies[layer].append(entropy.mean((0, 2)))
        return output

    def entropy(self) -> NDArray[np.float64]:
        """Mean entropy of each head over all calls, which have one size: (layers, heads)."""
        return np.stack([torch.stack(each).mean(0).cpu().double().numpy() for each in self.entropies])


@torch.no_grad()
def calibrated(
    model: Transformer, tokens: Tensor, reading: Reading, n0: int, lengths: Sequence[int]
) -> NDArray[np.float64]:
    """Beta that keeps each head's mean entropy at n0, for each length, (lengths, layers, heads).

    Beta is measured on queries and keys of whole texts, read under the reading's own scales, and averaged
    over the texts; it is 1 where no beta keeps the entropy.
    """
    reading.kept = []
    model.mix = reading
    model.hidden(tokens)
    kept, reading.kept = reading.kept, None
    layers = []
    for (query, key), scale in zip(kept, reading.scales, strict=True):
        query = query * (scale * math.sqrt(query.shape[-1]))  # so that beta = 1 is the given scale
        if reading.positions == "clipped":
            beta = _clipped_beta(clipped_scores(query, key, reading.clip), query.shape[-1], n0, lengths)
        else:
            q, k = (each.cpu().numpy() for each in (query, key))
            beta = calibrate(q, k, n0=n0, lengths=list(lengths), laws=["standard"]).beta
        layers.append(_mean(np.asarray(beta)))
    return np.stack(layers).transpose(2, 0, 1)


def _mean(beta: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of beta over the texts where it is not NaN: (texts, heads, lengths) to (heads, lengths)."""
    there = np.isfinite(beta)
    total, count = np.where(there, beta, 0).sum(0), there.sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), 1.0)


def _clipped_beta(scores: Tensor, head_dim: int, n0: int, lengths: Sequence[int]) -> NDArray[np.float64]:
    """Beta of each text and head at each length by bisection, from products (texts, heads, n, n).

    NaN where no value keeps the entropy.
    """
    found = []
    for n in lengths:
        here = scores[..., :n, :n] / math.sqrt(head_dim)
        target = _entropy(scores[..., :n0, :n0] / math.sqrt(head_dim), torch.ones(1, device=scores.device))
        low, width = torch.zeros_like(target), torch.full_like(target, _HIGHEST)
        reached = (_entropy(here, low) >= target) & (_entropy(here, low + width) <= target)
        for _ in range(_HALVINGS):
            width = width / 2
            low = torch.where(_entropy(here, low + width) > target, low + width, low)
        found.append(torch.where(reached, low + width / 2, torch.nan).cpu().double().numpy())
    return np.stack(found, -1)


def _entropy(scores: Tensor, beta: Tensor) -> Tensor:
    """Mean entropy of the rows of each head, (texts, heads)."""
    weights = (scores * beta[..., None, None]).softmax(-1)
    return torch.special.entr(weights).sum(-1).mean(-1)
