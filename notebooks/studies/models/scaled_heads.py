# SPDX-License-Identifier: BSD-3-Clause
"""A layer of attention whose scale is fixed, learned, or learned for each head."""

from __future__ import annotations

import math

import torch
from attnscale import laws
from attnscale.torch import Scaled, attention
from torch import Tensor
from torch.nn import functional

from .attention import BACKENDS, attend_rows
from .transformer import rotate

#: Kinds of scales. The unscaled kinds have 1 in place of 1/sqrt(head_dim).
SCALES = ("fixed", "one", "per_head", "unscaled", "unscaled_t5")


class Heads(torch.nn.Module):
    """Queries, keys and values of all heads, and the factor of each head's scale.

    Parameters
    ----------
    width, heads, head_dim : int
    scale : str
        One of SCALES.
    qk_norm : bool
        Whether queries and keys are divided by their root mean square.
    rotary : bool
        Whether queries and keys have rotary positions.
    start : float, optional
        The factor before training; by default the square root of head_dim for "unscaled" scales, else 1.
    law : str
        Law to multiply by the factor, as for :func:`attnscale.laws.get`.
    implementation : {"attnscale", "torch"}

    Attributes
    ----------
    factor : Parameter, shape (1,) or (heads,)
        The scale over that of the law, which is 1/sqrt(head_dim) if "standard". Trained only if the scale is
        learned.
    entropy : Tensor or None
        Entropy of the rows of the last call, (batch, heads, n_queries), if `watched`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_dim: int,
        scale: str,
        implementation: str,
        *,
        qk_norm: bool,
        rotary: bool,
        start: float | None = None,
        law: str = "standard",
    ) -> None:
        super().__init__()
        self.heads, self.head_dim, self.scale = heads, head_dim, scale
        self.qk_norm, self.rotary, self.implementation, self.law = qk_norm, rotary, implementation, law
        self.query, self.key, self.value = (
            torch.nn.Linear(width, heads * head_dim, bias=False) for _ in range(3)
        )
        # Scores have variance 1 by the scale, or by the initial weights as in T5.
        small = head_dim**-0.5 if scale == "unscaled_t5" else 1.0
        for linear, std in ((self.query, small), (self.key, 1.0), (self.value, 1.0)):
            torch.nn.init.normal_(linear.weight, std=std * width**-0.5)
        if start is None:
            start = math.sqrt(head_dim) if scale.startswith("unscaled") else 1.0
        self.factor = torch.nn.Parameter(torch.full((heads if scale == "per_head" else 1,), start))
        self.watched = False
        self.entropy: Tensor | None = None

    def forward(self, queries: Tensor, items: Tensor) -> Tensor:
        """Concatenated outputs of all heads, (batch, n_queries, heads * head_dim)."""
        query, key = self.projected(queries, items)
        value = self._split(self.value(items))
        law, backend = Scaled(self.law, self.factor.expand(self.heads)), BACKENDS[self.implementation]
        if self.watched:
            output, self.entropy = attend_rows(query, key, value, scale=law, backend=backend)
        else:
            output = attention(query, key, value, scale=law, backend=backend)
        return output.transpose(1, 2).flatten(2)

    def projected(self, queries: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and keys whose products are the scores, (batch, heads, n, head_dim)."""
        query, key = self._split(self.query(queries)), self._split(self.key(items))
        if self.qk_norm:
            query, key = (functional.rms_norm(each, each.shape[-1:]) for each in (query, key))
        return (rotate(query), rotate(key)) if self.rotary else (query, key)

    def free(self) -> torch.nn.Parameter:
        """Give each head its own factor, and return the new parameter."""
        self.factor = torch.nn.Parameter(self.factor.detach().expand(self.heads).clone())
        return self.factor

    def scales(self, n: int) -> Tensor:
        """Whole multiplier of q . k among n keys, or with qk_norm of their cosine: (heads,)."""
        return self._scales(n).detach() * (self.head_dim if self.qk_norm else 1)

    @property
    def products(self) -> Tensor:
        """The norm of W_q^T W_k of each head, (heads,)."""
        query, key = (
            linear.weight.detach().view(self.heads, self.head_dim, -1) for linear in (self.query, self.key)
        )
        return (query.transpose(1, 2) @ key).flatten(1).norm(dim=1)

    @torch.no_grad()
    def spread(self, queries: Tensor, items: Tensor) -> Tensor:
        """Standard deviation of a row's scores, as the root mean square over rows: (heads,)."""
        query, key = self.projected(queries, items)
        scores = query @ key.transpose(-1, -2) * self._scales(items.shape[1]).view(-1, 1, 1)
        return scores.var(-1).mean((0, 2)).sqrt()

    def _scales(self, n: int) -> Tensor:
        return self.factor.expand(self.heads) * float(laws.get(self.law).scale(n, self.head_dim))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)


class ScaledReader(torch.nn.Module):
    """A model in which one query reads items, for the task "recall"."""

    def __init__(self, width: int, outputs: int, **heads: object) -> None:
        super().__init__()
        self.heads = Heads(width, **heads)  # type: ignore[arg-type]
        self.answer = torch.nn.Linear(self.heads.heads * self.heads.head_dim, outputs)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        """The answer to each query, (batch, outputs)."""
        answer: Tensor = self.answer(self.heads(*inputs)[:, 0])
        return answer

    def read(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Queries and items, as the heads get them."""
        return inputs


class Tagger(torch.nn.Module):
    """A transformer of one layer that tags each token."""

    def __init__(self, width: int, vocabulary: int, tags: int, **heads: object) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.before = torch.nn.LayerNorm(width)
        self.heads = Heads(width, **heads)  # type: ignore[arg-type]
        self.merge = torch.nn.Linear(self.heads.heads * self.heads.head_dim, width)
        self.feed = torch.nn.Sequential(
            torch.nn.LayerNorm(width),
            torch.nn.Linear(width, 4 * width),
            torch.nn.GELU(),
            torch.nn.Linear(4 * width, tags),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the tags, (batch, n, tags)."""
        x = self.embedding(tokens)
        logits: Tensor = self.feed(x + self.merge(self.heads(*self.read(tokens))))
        return logits

    def read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Queries and items, as the heads get them."""
        x = self.before(self.embedding(tokens))
        return x, x
