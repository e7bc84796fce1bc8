# SPDX-License-Identifier: BSD-3-Clause
"""Common parts of modules that spell attention: sizes, projections, and the right answer in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

HEADS, HEAD_DIM = 4, 6
WIDTH = HEADS * HEAD_DIM
#: Texts and tokens. Axes that could be mistaken for each other differ in some of them.
SIZES = {
    "plain": (2, 7),
    "as many texts as heads": (4, 7),
    "as many tokens as heads": (3, 4),
    "as many tokens as channels": (4, 6),
    "all alike": (4, 4),
    "one text": (1, 6),
    "one token": (3, 1),
}
#: Without a row of a single key, whose entropy is 0 and which some code multiplies in another way.
SIZES_OF_SEVERAL = {name: size for name, size in SIZES.items() if size[1] > 1}
#: Numbers that are filled in or added to hide a key.
HIDING = {
    "-1e4": -1e4,
    "-1e9": -1e9,
    "-inf": -math.inf,
    "finfo": torch.finfo(torch.float32).min,
    "half of finfo": torch.finfo(torch.float32).min / 2,
}


def _as_it_is(product: Tensor) -> Tensor:
    return product


@dataclass(frozen=True, eq=False)
class Right:
    """Right answer for one call of attention, in float64."""

    #: Products of queries and keys times the model's own scale, (batch, heads, n_queries, n_keys).
    product: Tensor
    #: Steps of the model from there to its softmax, which has -inf where a key is hidden.
    after: Callable[[Tensor], Tensor] = _as_it_is
    module: str = ""
    kind: str | None = "self"  # None: either
    key_heads: int | None = None  # None: as many as heads
    sink: Tensor | None = None  # the logit of a sink, broadcasts to (batch, heads, n_queries, 1)
    real: Tensor | None = None  # rows that count in means, (batch, n_queries); None: all
    #: Whether batch, heads and queries have these axes; otherwise rows are right in any order.
    has_axes: bool = True
    #: Whether the number of hidden keys is known; it is not for a bias that fades.
    tells_visible: bool = True

    def weights(self, factor: Tensor | float = 1.0) -> Tensor:
        """The weights of each row, with the sink behind those of the keys; rows without keys have 0."""
        scores = self.after(self.product * factor)
        if self.sink is not None:
            scores = torch.cat([scores, self.sink.double().expand(*scores.shape[:-1], 1)], -1)
        return scores.softmax(-1).nan_to_num()

    def entropy(self, factor: Tensor | float = 1.0) -> Tensor:
        """The entropy of each row in nats, (batch, heads, n_queries)."""
        return torch.special.entr(self.weights(factor)).sum(-1)

    def n_visible(self) -> Tensor:
        """The number of keys that each row sees, (batch, heads, n_queries)."""
        return (self.after(self.product) > -math.inf).sum(-1)

    def mean_entropy(self) -> Tensor:
        """The mean over the rows that count, (heads,)."""
        entropy = self.entropy()
        real = torch.ones_like(entropy[:, 0], dtype=torch.bool) if self.real is None else self.real
        return entropy.transpose(1, 2)[real].mean(0)


class Spelling(nn.Module):
    """Projections of queries, keys and values, of which each subclass spells attention in its own way."""

    #: "no": the log has its rows. "may": it has them, or names the module among those not measured. "must":
    #: the module is named there.
    unmeasured = "no"
    #: Sizes (texts, tokens) at which it runs.
    sizes: Mapping[str, tuple[int, int]] = SIZES
    #: The axes of the weights that it keeps, as :func:`arranged` reads them.
    own_axes = "b h i j"
    own_order = "b h i j"
    #: Whether its scores are one product, which a law multiplies; None: a law may as well be refused.
    has_law: bool | None = True
    #: How far its statistics may be from those of float64.
    near = 1e-5
    #: Whether its output keeps every bit while it is watched.
    exact = True
    #: Whether it runs in training mode.
    trained = False

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.own: list[Tensor] = []  # weights as the module computed them, call by call

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of the module."""
        return (torch.randn(batch, n, WIDTH),), {}

    def keep(self, weights: Tensor) -> Tensor:
        """Remember the weights for the check of the right answer."""
        self.own.append(weights.detach())
        return weights

    @classmethod
    def is_whole(cls) -> bool:
        """Whether this is a spelling and not a shared base."""
        return cls.forward is not nn.Module.forward

    def own_sizes(self, batch: int, n: int) -> dict[str, int]:
        """Sizes of further axes of the weights that it keeps."""
        return {}

    # ---- the right answer

    @property
    def scale(self) -> float:
        return HEAD_DIM**-0.5

    def four(self, layer: nn.Module, x: Tensor, heads: int = HEADS) -> Tensor:
        """Rows of each head, (batch, heads, n, channels), in float64."""
        bias = None if layer.bias is None else layer.bias.double()
        made = functional.linear(x.double(), layer.weight.double(), bias)
        return made.unflatten(-1, (heads, -1)).transpose(1, 2)

    def after(self, product: Tensor) -> Tensor:
        """Scores that the softmax gets, from products times the scale."""
        return product

    def right(self, x: Tensor) -> list[Right]:
        """The answer of each call, in the order of calls."""
        with torch.no_grad():
            product = self.four(self.to_q, x) @ self.four(self.to_k, x).mT * self.scale
        return [Right(product, self.after)]

    def output(self, rights: list[Right], x: Tensor, *_: Any, **__: Any) -> Tensor | None:
        """The output that follows from the weights of the answer; None where the module keeps its weights."""
        if self.own:
            return None
        weights = rights[0].weights()
        return outputs(weights @ self.four(self.to_v, x, weights.shape[1]), self.to_out)

    # ---- shared steps

    def split(self, x: Tensor) -> Iterator[Tensor]:
        """Queries, keys and values, (batch, heads, n, channels)."""
        for layer in (self.to_q, self.to_k, self.to_v):
            yield layer(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)

    def joined(self, x: Tensor) -> Tensor:
        """Heads side by side, and the layer behind them."""
        return self.to_out(x.transpose(1, 2).flatten(-2))


def outputs(mixed: Tensor, layer: nn.Module) -> Tensor:
    """Heads side by side, and the layer behind them, in float64."""
    joined = mixed.transpose(1, 2).flatten(-2)
    return functional.linear(joined, layer.weight.double(), layer.bias.double())


def arranged(x: Tensor, axes: str, sizes: Mapping[str, int], wanted: str = "b h i j") -> Tensor:
    """The tensor with its axes in another order: "b*h i j" has texts and heads folded into the first one.

    A size that is not named follows from the others, and an axis that is not there has the size 1.
    """
    names = [name for axis in axes.split() for name in axis.split("*")]
    missing = [name for name in wanted.replace("*", " ").split() if name not in names]
    x, axes, names = x[(..., *(None,) * len(missing))], " ".join([axes, *missing]), names + missing
    shape: list[int] = []
    for size, axis in zip(x.shape, axes.split(), strict=True):
        parts = [sizes.get(name, -1) for name in axis.split("*")]
        shape += [size // prod(p for p in parts if p > 0) if p < 0 else p for p in parts]
    x = x.reshape(shape).permute([names.index(name) for axis in wanted.split() for name in axis.split("*")])
    groups = [len(axis.split("*")) for axis in wanted.split()]
    folded, place = [], 0
    for size in groups:
        folded.append(prod(x.shape[place : place + size]))
        place += size
    return x.reshape(folded)


def causal(n: int, n_keys: int | None = None) -> Tensor:
    """A causal mask, True at the keys up to the query."""
    n_keys = n if n_keys is None else n_keys
    return torch.ones(n, n_keys, dtype=torch.bool).tril(n_keys - n)


def padding(batch: int, n: int) -> Tensor:
    """True where a text has tokens: the last text is shorter by half."""
    seen = torch.ones(batch, n, dtype=torch.bool)
    seen[-1, (n + 1) // 2 :] = False
    return seen


def hide(scores: Tensor, seen: Tensor) -> Tensor:
    """Scores of the right answer without the keys that are hidden."""
    return scores.masked_fill(~seen, -math.inf)
