# SPDX-License-Identifier: BSD-3-Clause
"""The tasks of the experiment "learned_scales": batches, losses, errors of a sharp and a broad output."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ..models.scaled_heads import ScaledReader, Tagger
from .tags import OTHER, TAGS, tagged

#: The sharp output depends on one key, the broad output on many keys.
OUTPUTS = ("sharp", "broad")


class ScaleTask(Protocol):
    """A task that a model is trained on: its model, batches, loss and errors."""

    def model(self, **heads: Any) -> Any:
        """A new model for the task."""

    def batch(self, n: int, size: int, generator: torch.Generator, *, held_out: bool = False) -> Any:
        """Inputs of n keys each, and targets."""

    def loss(self, answers: Tensor, targets: Tensor) -> Tensor:
        """The loss to train by."""

    def errors(self, answers: Tensor, targets: Tensor) -> Tensor:
        """Errors of the sharp and of the broad output: 0 is perfect and 1 is bad."""


class Recall:
    """Recall: the query is one of n keys; half of the answer is its value, half the average of all values.

    Keys and values are normal. The average is multiplied by the root of the n of training, so that both
    halves of the answer have variance 1 at that n. A model that answers 0 has an error of 1 at every n.

    Parameters
    ----------
    dim : int
        Dimension of keys and of values.
    n : int
        Number of keys in training.
    """

    def __init__(self, dim: int, n: int) -> None:
        self.dim, self.n = dim, n

    def model(self, **heads: Any) -> ScaledReader:
        """A layer that reads keys and values side by side."""
        return ScaledReader(2 * self.dim, 2 * self.dim, rotary=False, **heads)

    def batch(self, n: int, size: int, generator: torch.Generator, *, held_out: bool = False) -> Any:
        """Queries and items, and the answers to them."""
        items = torch.randn(size, n, 2 * self.dim, generator=generator)
        chosen = torch.randint(n, (size,), generator=generator)
        key, value = items[torch.arange(size), chosen].split(self.dim, dim=-1)
        average = items[..., self.dim :].mean(1) * self.n**0.5
        query = torch.cat((key, torch.zeros_like(key)), dim=-1)
        return (query[:, None], items), torch.cat((value, average), dim=-1)

    def loss(self, answers: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of the answers."""
        return functional.mse_loss(answers, targets)

    def errors(self, answers: Tensor, targets: Tensor) -> Tensor:
        """Mean squared error of each half of the answers, over the mean square of the targets."""
        wrong, right = (
            each.square().mean(0).view(2, self.dim).mean(1) for each in (answers - targets, targets)
        )
        return wrong / right


class Tagging:
    """Tagging of the kinds of names in source code, similar to TENER's task (arXiv 1911.04474).

    Errors are rates. The sharp one is for attributes and definitions, which depend on one neighbour; the
    broad one for parameters, keywords of calls and other names. Every tag counts equally.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        train, test = tagged(False), tagged(True)
        self.vocabulary = train.vocabulary
        self.facts = train.facts | test.facts
        self._data = [(torch.from_numpy(part.tokens), torch.from_numpy(part.tags)) for part in (train, test)]

    def model(self, **heads: Any) -> Tagger:
        """A transformer of one layer with rotary positions."""
        return Tagger(self.width, self.vocabulary, len(TAGS), rotary=True, **heads)

    def batch(self, n: int, size: int, generator: torch.Generator, *, held_out: bool = False) -> Any:
        """Windows of n tokens, and their tags."""
        tokens, tags = self._data[held_out]
        start = torch.randint(tokens.numel() - n, (size, 1), generator=generator)
        window = start + torch.arange(n)
        return tokens[window], tags[window]

    def loss(self, answers: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of the tags of names."""
        return functional.cross_entropy(answers.flatten(0, 1), targets.flatten(), ignore_index=OTHER)

    def errors(self, answers: Tensor, targets: Tensor) -> Tensor:
        """Mean error rate of the sharp tags, and of the broad ones."""
        wrong = answers.argmax(-1) != targets
        rates = torch.stack([wrong[targets == tag].double().mean() for tag in range(len(TAGS))])
        return torch.stack((rates[:2].mean(), rates[2:].mean()))
