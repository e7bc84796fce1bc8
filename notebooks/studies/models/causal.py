# SPDX-License-Identifier: BSD-3-Clause
"""A causal language model with no positions, ALiBi or rotary ones, and its readings of long texts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from attnscale import laws
from attnscale.torch import Learned, attention
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn import functional

from .attention import BACKENDS, attend_rows
from .clipped import clipped_rows
from .transformer import Transformer, rotate

#: Positions of a model; "plain rotary" is an ordinary transformer without the aids of the others.
POSITIONS = ("none", "alibi", "rotary", "plain rotary")
#: Scales in training: 1/sqrt(d); log n over the log of the training length; SSMax, whose slope is learned per
#: head; sqrt(1 + ln n) over its value at the training length.
SCALES = ("standard", "log_n", "ssmax", "root_log")
_TAPS = 4  # tokens in a layer's convolution: its own and the three before
_TAP = 0.3  # standard deviation of its first weights


@dataclass
class CausalMix:
    """The ``mix`` of a causal transformer: positions, and a scale for each layer.

    Attributes
    ----------
    positions : {"none", "alibi", "rotary"}
    scales : list
        Scale of each layer, as :func:`attnscale.torch.attention` takes it.
    implementation : {"attnscale", "torch"}
    clip : int or None
        Largest distance of rotary positions; None for no limit.
    entropies : list or None
        If a list, the entropy of the rows of each layer, (batch, heads, n), is appended to it.
    smear : Tensor or None
        Logit of the share of the previous key in a key, by layer and head; None for no mixing.
    """

    positions: str
    scales: list[Any]
    implementation: str
    clip: int | None = None
    entropies: list[Tensor] | None = field(default=None, repr=False)
    smear: Tensor | None = field(default=None, repr=False)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, layer: int) -> Tensor:
        """The output of one layer's heads."""
        if self.smear is not None:
            before = functional.pad(key, (0, 0, 1, 0))[..., :-1, :]
            key = torch.lerp(key, before, self.smear[layer].sigmoid()[:, None, None])
        options: dict[str, Any] = {"scale": self.scales[layer], "backend": BACKENDS[self.implementation]}
        if self.clip is not None:
            output, entropy = clipped_rows(query, key, value, clip=self.clip, causal=True, **options)
        else:
            options["is_causal"] = True
            if self.positions == "rotary":
                query, key = rotate(query), rotate(key)
            elif self.positions == "alibi":
                options["distance_bias"] = alibi(query.shape[1], query.shape[2], query.device)
            if self.entropies is None:
                return attention(query, key, value, **options)
            output, entropy = attend_rows(query, key, value, **options)
        if self.entropies is not None:
            self.entropies.append(entropy.detach())
        return output


def alibi(heads: int, n: int, device: torch.device) -> Tensor:
    """ALiBi's bias of the scores at each distance, (heads, n): slopes are 2^(-8/heads), 2^(-16/heads), ...

    Press, Smith and Lewis 2022, arXiv 2108.12409.
    """
    slopes = 2.0 ** (-8.0 / heads * torch.arange(1, heads + 1, device=device))
    return -slopes[:, None] * torch.arange(n, device=device)


class CausalModel(Transformer):
    """A transformer that predicts the next token under one of SCALES.

    Three aids let a small model use its context early in training, also without positions; "plain rotary" has
    none of them. A short causal convolution per channel precedes each layer. Each head mixes a key with the
    previous key, by a learned share ("smeared keys": Olsson et al. 2022, arXiv 2209.11895). Queries and keys
    begin with the same weights, so that a row first attends to keys like its query. None of the three depends
    on the length: without positions, length acts only through the number of keys.

    Parameters
    ----------
    vocabulary, layers, width, heads : int
    positions, trained : str
        One of POSITIONS and of SCALES.
    train_length : int
        The length n at which log n, and SSMax before training, equal the standard scale.
    implementation : {"attnscale", "torch"}

    Attributes
    ----------
    taps : Parameter, shape (layers, 4, width)
        Weights of the convolution, those of the token itself last.
    smear : Parameter, shape (layers, heads)
        Logit of the share of the previous key.
    slopes : Parameter, shape (layers, heads)
        SSMax's s of each head; unused under other scales.
    """

    mix: CausalMix
    taps: torch.nn.Parameter | None

    def __init__(
        self,
        vocabulary: int,
        layers: int,
        width: int,
        heads: int,
        *,
        positions: str,
        trained: str,
        train_length: int,
        implementation: str,
    ) -> None:
        plain = positions == "plain rotary"
        mix = CausalMix("rotary" if plain else positions, [], implementation)
        super().__init__(vocabulary, layers, width, heads, mix)
        self.trained, self.train_length = trained, train_length
        self.taps = None
        if not plain:
            for block in self.blocks:
                query, key, _ = block.project.weight.detach().chunk(3)
                torch.nn.init.normal_(query, std=width**-0.5)
                key.copy_(query)
            mix.smear = self.smear = torch.nn.Parameter(torch.zeros(layers, heads))
            self.taps = torch.nn.Parameter(_TAP * torch.randn(layers, _TAPS, width))
        learned = trained == "ssmax"
        start = torch.full((layers, heads), 1 / math.log(train_length))
        self.slopes = torch.nn.Parameter(start, requires_grad=learned)

    def hidden(self, tokens: Tensor) -> Tensor:
        """The last hidden states, (batch, n, width)."""
        x = self.embedding(tokens)
        for layer, block in enumerate(self.blocks):
            if self.taps is not None:
                x = _with_near(x, self.taps[layer])
            x = block(x, self.mix, layer)
        normed: Tensor = self.norm(x)
        return normed

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of each position, (batch, n, vocabulary), under the scale in training."""
        self.mix.scales = [self._scale(layer) for layer in range(len(self.blocks))]
        logits: Tensor = self.head(self.hidden(tokens))
        return logits

    def _scale(self, layer: int) -> Any:
        if self.trained == "ssmax":
            return Learned("ssmax", s=self.slopes[layer])
        if self.trained == "root_log":
            return f"{float(root_log(1, self.train_length))!r} * variance_invariant(n0=1)"
        return "standard" if self.trained == "standard" else f"log_n(base={self.train_length})"

    @torch.no_grad()
    def losses(
        self, tokens: Tensor, *, factor: NDArray[np.float64] | None = None, clip: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """The loss of each next token, and the entropy of each row as a mean over layers and heads.

        Parameters
        ----------
        tokens : Tensor, shape (batch, n + 1)
            Texts of any length.
        factor : ndarray, shape (n,), optional
            Multiple of the trained scale in the row of i + 1 keys.
        clip : int, optional
            The largest distance of rotary positions.

        Returns
        -------
        losses, entropies : Tensor, shape (batch, n)
            In nats.
        """
        mix, n = self.mix, tokens.shape[1] - 1
        mix.scales = [self._rows(layer, n, factor).to(tokens.device) for layer in range(len(self.blocks))]
        mix.entropies, mix.clip = [], clip
        logits = self.head(self.hidden(tokens[:, :-1]))
        entropies = torch.stack([each.mean(1) for each in mix.entropies]).mean(0)
        mix.entropies, mix.clip = None, None
        return functional.cross_entropy(logits.mT, tokens[:, 1:], reduction="none"), entropies

    def _rows(self, layer: int, n: int, factor: NDArray[np.float64] | None) -> Tensor:
        """The multiplier of the scores in each row, (1 or heads, n)."""
        head_dim = self.embedding.embedding_dim // self.slopes.shape[1]
        scale = self._scale(layer)
        law = scale.current() if isinstance(scale, Learned) else laws.get(scale)
        rows = law.multiplier(np.arange(1, n + 1), head_dim) * (1.0 if factor is None else factor)
        return torch.from_numpy(np.atleast_2d(rows) / math.sqrt(head_dim)).float()


def _with_near(x: Tensor, taps: Tensor) -> Tensor:
    """Each token plus a sum over it and the three before it, weighted by channel and distance."""
    padded = functional.pad(x, (0, 0, len(taps) - 1, 0))
    for i, tap in enumerate(taps):
        x = torch.addcmul(x, padded[:, i : i + x.shape[1]], tap)
    return x


def in_short_windows(
    model: CausalModel, text: Tensor, n: int, multiple: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Losses and entropies of a text read in windows of n tokens, each (tokens,).

    A window begins every n / 2 tokens, and its second half counts (of the first window, all): a token beyond
    the first n / 2 has between n / 2 and n keys. The trained scale is multiplied by ``multiple``.
    """
    half = n // 2
    read = model.losses(text.unfold(0, n + 1, half), factor=np.full(n, multiple))
    return tuple(torch.cat((each[0, :half], each[:, half:].flatten())) for each in read)


def root_log(n: ArrayLike, n0: int) -> Any:
    """sqrt(1 + ln n) over its value at n0."""
    return np.sqrt((1 + np.log(n)) / (1 + math.log(n0)))


def row_factor(law: str, n: int, train_length: int, head_dim: int) -> NDArray[np.float64]:
    """Multiple of the trained scale in each causal row of 1 ... n keys, for a law put in after training.

    It is 1 up to the training length. Beyond it, "log_n" is ln i / ln L, "root_log" is sqrt(1 + ln i) over
    its value at L, and "yarn" is YaRN's factor for an extension by i / L, which grows along the text as with
    dynamic scaling.

    Examples
    --------
    >>> row_factor("log_n", 4, 2, 8), row_factor("yarn", 4, 2, 8).round(4)
    (array([1.       , 1.       , 1.5849625, 2.       ]), array([1.    , 1.    , 1.0827, 1.1434]))
    """
    rows = np.arange(1, n + 1)
    if law == "log_n":
        law_of_row = laws.LogNFromTraining(train_length)
        return np.asarray(law_of_row.multiplier(rows, head_dim))
    if law == "root_log":
        return np.asarray(np.maximum(1, root_log(rows, train_length)))
    factors = np.maximum(1, rows / train_length)
    return np.array([float(laws.YaRN(float(s), channels="all").multiplier(1, head_dim)) for s in factors])
