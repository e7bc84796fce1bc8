# SPDX-License-Identifier: BSD-3-Clause
"""The smallest model with attention: queries read the tokens once and give an answer."""

from __future__ import annotations

import math
from typing import Any

import torch
from attnscale.torch import Learned, Scaled, attention
from torch import Tensor
from torch.nn import functional

from ..data.tasks import Batch
from .attention import BACKENDS, attend_rows


class Reader(torch.nn.Module):
    """A model of an embedding, one layer of attention without residual, and a linear answer.

    Parameters
    ----------
    features, labels : int
        Size of a token, and number of logits of an answer.
    width, heads : int
    law : str, float or Law
        Law of the scale; also "ssmax", "ssmax_b" (s ln n + b) and "asentmax", whose parameters are learned.
    normalizer : str
    n0 : int
        Length at which the factor of "ssmax" is 1 before training. The factor of "ssmax_b" is then 1 at all
        lengths.
    implementation : {"attnscale", "torch"}

    Examples
    --------
    >>> with torch.random.fork_rng(devices=[]):
    ...     _ = torch.manual_seed(0)
    ...     model = Reader(features=5, labels=3, width=8, heads=2)
    >>> with torch.no_grad():
    ...     logits, entropy = model(torch.zeros(4, 1, 5), torch.zeros(4, 10, 5))  # one query, ten tokens
    >>> logits.shape, entropy.exp().mean().round().item()
    (torch.Size([4, 1, 3]), 10.0)
    """

    def __init__(
        self,
        features: int,
        labels: int,
        *,
        width: int,
        heads: int,
        law: Any = "standard",
        normalizer: str = "softmax",
        n0: int = 32,
        implementation: str = "attnscale",
    ) -> None:
        super().__init__()
        self.heads, self.law, self.normalizer = heads, law, normalizer
        self.implementation = implementation
        self.embed = torch.nn.Linear(features, width)
        self.query = torch.nn.Linear(width, width)
        self.key_value = torch.nn.Linear(width, 2 * width)
        self.answer = torch.nn.Linear(width, labels)
        if law == "ssmax":
            self.factor = torch.nn.Parameter(torch.full((heads,), 1 / math.log(n0)))
        elif law == "ssmax_b":
            self.factor, self.shift = (torch.nn.Parameter(torch.full((heads,), each)) for each in (0.0, 1.0))
        elif law == "asentmax":
            self.slope, self.power = (torch.nn.Linear(width, heads, bias=False) for _ in range(2))

    def forward(
        self,
        query: Tensor,
        tokens: Tensor,
        *,
        mask: Tensor | None = None,
        law: Any = None,
        order: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Logits, (batch, queries, labels), and without gradients the entropies, (batch, heads, queries).

        `law` replaces the law of the model; tokens with True in `mask`, (queries, tokens), are seen. With
        `order`, (batch, tokens), the weight of the token at i is given to the token at order[i].
        """
        asks, tokens = self.embed(query), self.embed(tokens)
        q, kv = self._split(self.query(asks), 1), list(self._split(self.key_value(tokens), 2))
        if order is not None:
            kv[1] = kv[1].gather(2, order[:, None, :, None].expand_as(kv[1]))
        chosen: Any = (self.learned() or self.law) if law is None else law
        if chosen == "asentmax":
            q, chosen = q * self._adaptive(asks, tokens.shape[1]), "standard"
        options: dict[str, Any] = {
            "scale": chosen,
            "normalizer": self.normalizer,
            "attn_mask": mask,
            "backend": BACKENDS[self.implementation],
        }
        entropy = None
        if torch.is_grad_enabled():
            read = attention(q[0], kv[0], kv[1], **options)
        else:
            read, entropy = attend_rows(q[0], kv[0], kv[1], **options)
        logits: Tensor = self.answer(read.transpose(1, 2).flatten(2))
        return logits, entropy

    def learned(self) -> Learned | None:
        """The law "ssmax" or "ssmax_b" with its learned parameters; None for other laws."""
        if self.law == "ssmax":
            return Scaled("ssmax(s=1)", self.factor)
        return Learned("ssmax", s=self.factor, b=self.shift) if self.law == "ssmax_b" else None

    def _split(self, x: Tensor, parts: int) -> Tensor:
        """The parts and heads of a projection, (parts, batch, heads, n, head_dim)."""
        batch, n, width = x.shape
        return x.view(batch, n, parts, self.heads, width // parts // self.heads).permute(2, 0, 3, 1, 4)

    def _adaptive(self, asks: Tensor, n: int) -> Tensor:
        """The factor 1 + beta ln(n)^gamma of each query and head, (batch, heads, queries, 1).

        Here beta = softplus(x W) and gamma = 2 tanh(x U): Vasylenko et al. 2025, arXiv 2506.16640.
        """
        beta, gamma = functional.softplus(self.slope(asks)), 2 * torch.tanh(self.power(asks))
        factor: Tensor = 1 + beta * math.log(max(n, 2)) ** gamma
        return factor.transpose(1, 2)[..., None]


def answer_loss(model: Reader, batch: Batch) -> Tensor:
    """Mean negative log-likelihood of the answers to a batch, which is moved to the model's device."""
    query, tokens, label = (each.to(model.answer.weight.device) for each in batch)
    return functional.cross_entropy(model(query[:, None], tokens)[0][:, 0], label)


def answers(model: Reader, batch: Batch, *, law: Any = None) -> tuple[Tensor, Tensor, Tensor]:
    """Negative log-likelihood, correctness and entropies of each row.

    Parameters
    ----------
    model : Reader
        Called without gradients, so that it returns entropies.
    batch : Batch
        Moved to the model's device.
    law : optional
        Replaces the law of the model.

    Returns
    -------
    nll, right : Tensor of float64, shape (batch,)
    entropy : Tensor, shape (batch, heads, 1)
    """
    query, tokens, label = (each.to(model.answer.weight.device) for each in batch)
    logits, entropy = model(query[:, None], tokens, law=law)
    nll = functional.cross_entropy(logits[:, 0], label, reduction="none").double()
    assert entropy is not None
    return nll, (logits[:, 0].argmax(-1) == label).double(), entropy
