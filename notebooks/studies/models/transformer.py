# SPDX-License-Identifier: BSD-3-Clause
"""A small pre-norm transformer with a replaceable attention ``mix``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from attnscale.torch import attention
from torch import Tensor
from torch.nn import functional

from .attention import BACKENDS, attend_rows

#: A callable ``mix(query, key, value, layer)`` of (batch, heads, n, head_dim), before any rotation.
Mix = Callable[[Tensor, Tensor, Tensor, int], Tensor]


@lru_cache(maxsize=64)
def _turns(n: int, head_dim: int, base: float, device: torch.device) -> tuple[Tensor, Tensor]:
    half = head_dim // 2
    speed = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(n, dtype=torch.float64)[:, None] * speed
    return angle.cos().float().to(device), angle.sin().float().to(device)


def rotate(x: Tensor, base: float = 10_000.0, at: int | None = None) -> Tensor:
    """Rows (..., n, head_dim) rotated by their index, or all by the index `at`, which may be negative.

    Pairs are as in :mod:`attnscale.torch.nn`: channel c of the first half with c of the second, rotated by
    i * base^(-2c / head_dim) (Su et al. 2021, arXiv 2104.09864).
    """
    n, head_dim = x.shape[-2:]
    half = head_dim // 2
    if at is None:
        cos, sin = _turns(n, head_dim, base, x.device)
    else:
        cos, sin = (each[abs(at)] for each in _turns(abs(at) + 1, head_dim, base, x.device))
        sin = sin if at >= 0 else -sin
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@dataclass
class Mixing:
    """The ``mix`` of a :class:`Transformer`: attention with a law, a normalizer and positions.

    Attributes
    ----------
    law : str, float, Law, Scaled, Tensor or list of them
        Scale of the scores, or a list with one per layer.
    normalizer : str or Normalizer
    positions : {"rotary", "none"}
    causal : bool
    mask : Tensor or None
        Keys with True are seen.
    implementation : {"attnscale", "torch"}
    base : float
        Base of the rotary positions.
    entropies : list or None
        If a list, the entropy of the rows of each layer, (batch, heads, n), is appended to it.
    """

    law: Any = "standard"
    normalizer: Any = "softmax"
    positions: str = "rotary"
    causal: bool = False
    mask: Tensor | None = None
    implementation: str = "attnscale"
    base: float = 10_000.0
    entropies: list[Tensor] | None = field(default=None, repr=False)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, layer: int) -> Tensor:
        """The output of one layer's heads."""
        if self.positions == "rotary":
            query, key = rotate(query, self.base), rotate(key, self.base)
        options: dict[str, Any] = {
            "scale": self.law[layer] if isinstance(self.law, list) else self.law,
            "normalizer": self.normalizer,
            "is_causal": self.causal,
            "attn_mask": self.mask,
            "backend": BACKENDS[self.implementation],
        }
        if self.entropies is None:
            return attention(query, key, value, **options)
        output, entropy = attend_rows(query, key, value, **options)
        self.entropies.append(entropy.detach())
        return output


class _Layer(torch.nn.Module):
    def __init__(self, width: int, heads: int, expansion: int, *, qk_norm: bool) -> None:
        super().__init__()
        self.heads = heads
        self.before_mix, self.before_feed = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.project = torch.nn.Linear(width, 3 * width)
        self.merge = torch.nn.Linear(width, width)
        self.widen = torch.nn.Linear(width, expansion * width)
        self.narrow = torch.nn.Linear(expansion * width, width)
        self.qk_norm = qk_norm

    def forward(self, x: Tensor, mix: Mix, layer: int) -> Tensor:
        batch, n, width = x.shape
        parts = self.project(self.before_mix(x)).view(batch, n, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if self.qk_norm:  # q and k have length sqrt(head_dim), for the usual 1/sqrt(head_dim)
            query, key = (functional.rms_norm(each, each.shape[-1:]) for each in (query, key))
        mixed = mix(query, key, value, layer).transpose(1, 2).reshape(batch, n, width)
        x = x + self.merge(mixed)
        hidden: Tensor = x + self.narrow(functional.gelu(self.widen(self.before_feed(x))))
        return hidden


class Transformer(torch.nn.Module):
    """A transformer: embedding, blocks of attention and feed-forward after LayerNorm, a tied output.

    Parameters
    ----------
    vocabulary, layers, width, heads : int
    mix : callable
        A :class:`Mixing`, or ``mix(query, key, value, layer)``; the attribute may be replaced at any time.
    outputs : int, optional
        Number of logits of each position, from a separate layer; by default they come from the embedding.
    expansion : int
        Width of the feed-forward part divided by that of the model.
    qk_norm : bool
        Whether queries and keys are divided by their root mean square.

    Examples
    --------
    >>> with torch.random.fork_rng(devices=[]):
    ...     _ = torch.manual_seed(0)
    ...     model = Transformer(vocabulary=11, layers=2, width=16, heads=2, mix=Mixing(causal=True))
    >>> model(torch.zeros(3, 5, dtype=torch.int64)).shape
    torch.Size([3, 5, 11])
    """

    def __init__(
        self,
        vocabulary: int,
        layers: int,
        width: int,
        heads: int,
        mix: Mix,
        *,
        outputs: int | None = None,
        expansion: int = 4,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        self.mix = mix
        self.embedding = torch.nn.Embedding(vocabulary, width)
        self.blocks = torch.nn.ModuleList(
            _Layer(width, heads, expansion, qk_norm=qk_norm) for _ in range(layers)
        )
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, vocabulary if outputs is None else outputs)
        self.apply(_initialise)
        if outputs is None:
            self.head.weight = self.embedding.weight

    def hidden(self, tokens: Tensor) -> Tensor:
        """The last hidden states, (batch, n, width)."""
        x = self.embedding(tokens)
        for layer, block in enumerate(self.blocks):
            x = block(x, self.mix, layer)
        normed: Tensor = self.norm(x)
        return normed

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of each position, (batch, n, outputs)."""
        logits: Tensor = self.head(self.hidden(tokens))
        return logits


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over the positions whose target is not -100."""
    return functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=-100)


def _initialise(module: torch.nn.Module) -> None:
    """Draw weights with a standard deviation of 0.02 and set biases to 0, as BERT and GPT-2 do."""
    if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
        torch.nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.zeros_(module.bias)
