# SPDX-License-Identifier: BSD-3-Clause
"""A reader whose heads have their own scales, on separate or shared scores."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from attnscale import laws as known_laws
from attnscale.torch import attention
from torch import Tensor

from .attention import BACKENDS, attend_rows


class TwoScales(torch.nn.Module):
    """An embedding, one layer of attention without residual, and an answer, as in :class:`Reader`.

    Parameters
    ----------
    features, labels : int
        Size of a token, and number of logits of an answer.
    width : int
    laws : sequence of str
        Law of each head.
    factors : sequence of float
        Factor of the law of each head.
    learned : bool
        Whether the factors, initially as given, are trained.
    shared : bool
        Whether all heads share queries and keys of the whole width, so that their scores differ only by the
        scale. Each head has its own values in any case: there are as many weights as in one head.
    hidden : int, default 0
        Hidden units of the answer; with 0 it is linear.
    implementation : {"attnscale", "torch"}

    Examples
    --------
    >>> heads = {"laws": ("standard", "standard"), "factors": (4.0, 0.0), "learned": False, "shared": True}
    >>> with torch.random.fork_rng(devices=[]):
    ...     _ = torch.manual_seed(0)
    ...     model = TwoScales(5, 3, width=8, implementation="attnscale", **heads)
    >>> with torch.no_grad():
    ...     logits, entropy = model(torch.ones(4, 1, 5), torch.eye(5).expand(4, 5, 5))
    >>> logits.shape, entropy[0, 1].exp().round().item()  # the second head reads all 5 tokens alike
    (torch.Size([4, 1, 3]), 5.0)
    """

    def __init__(
        self,
        features: int,
        labels: int,
        *,
        width: int,
        laws: Sequence[str],
        factors: Sequence[float],
        learned: bool,
        shared: bool,
        implementation: str,
        hidden: int = 0,
    ) -> None:
        super().__init__()
        self.laws = [known_laws.get(law) for law in laws]
        self.shared, self.implementation = shared, implementation
        self.embed = torch.nn.Linear(features, width)
        self.query = torch.nn.Linear(width, width)
        self.key_value = torch.nn.Linear(width, 2 * width)
        self.answer = _answer(width, hidden, labels)
        factor = torch.tensor(factors, dtype=torch.float32)
        if learned:
            self.factor = torch.nn.Parameter(factor)
        else:
            self.register_buffer("factor", factor)

    def forward(self, query: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits, (batch, queries, labels), and without gradients the entropies, (batch, heads, queries)."""
        q, k, v = self.projected(query, tokens)
        scale, backend, entropy = self.scale(*k.shape[-2:]), BACKENDS[self.implementation], None
        if torch.is_grad_enabled():
            read = attention(q, k, v, scale=scale, backend=backend)
        else:
            read, entropy = attend_rows(q, k, v, scale=scale, backend=backend)
        logits: Tensor = self.answer(read.transpose(1, 2).flatten(2))
        return logits, entropy

    def scores(self, query: Tensor, tokens: Tensor, n: int) -> Tensor:
        """The scores of each head at its scale for n keys, (batch, heads, queries, tokens)."""
        q, k, _ = self.projected(query, tokens)
        return (q * self.scale(n, k.shape[-1])[..., None]) @ k.transpose(-1, -2)

    def projected(self, query: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (batch, heads, n, dim)."""
        keys, values = self.key_value(self.embed(tokens)).chunk(2, -1)
        q, heads = self.query(self.embed(query)), len(self.laws)
        if self.shared:
            q, k = (x[:, None].expand(-1, heads, -1, -1) for x in (q, keys))
        else:
            q, k = (self._split(x) for x in (q, keys))
        return q, k, self._split(values)

    def scale(self, n: int, dim: int) -> Tensor:
        """The scale of each head for n keys of this dimension, (heads, 1)."""
        betas = [float(law.multiplier(n, dim)) / math.sqrt(dim) for law in self.laws]
        return (self.factor * self.factor.new_tensor(betas))[:, None]

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (len(self.laws), -1)).transpose(1, 2)


def _answer(width: int, hidden: int, labels: int) -> torch.nn.Module:
    """A linear answer, or one with a layer of hidden units."""
    if not hidden:
        return torch.nn.Linear(width, labels)
    inner = torch.nn.Linear(width, hidden)
    return torch.nn.Sequential(inner, torch.nn.GELU(), torch.nn.Linear(hidden, labels))
