# SPDX-License-Identifier: BSD-3-Clause
"""Modules with several calls, with steps in several modules, or with a memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .base import HEAD_DIM, SIZES, SIZES_OF_SEVERAL, WIDTH, Right, Spelling, outputs
from .heads import Windows

SCALE = HEAD_DIM**-0.5


class OneHead(Spelling):
    """An axis of heads that has one."""

    @property
    def scale(self) -> float:
        return WIDTH**-0.5

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unsqueeze(1) for layer in (self.to_q, self.to_k, self.to_v))
        return self.joined(self.keep((q @ k.mT * self.scale).softmax(-1)) @ v)

    def right(self, x: Tensor) -> list[Right]:
        return [Right(self.four(self.to_q, x, 1) @ self.four(self.to_k, x, 1).mT * self.scale)]


class SelfAndOther(Spelling):
    """Self-attention, then cross-attention to another text, in one module."""

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(batch, n, WIDTH), torch.randn(batch, n + 1, WIDTH)), {}

    def attended(self, x: Tensor, context: Tensor) -> Tensor:
        (q, _, _), (_, k, v) = self.split(x), self.split(context)
        return self.joined(self.keep((q @ k.mT * SCALE).softmax(-1)) @ v)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.attended(x, x) + self.attended(x, context)

    def right(self, x: Tensor, context: Tensor) -> list[Right]:
        q = self.four(self.to_q, x)
        own, other = (q @ self.four(self.to_k, y).mT * SCALE for y in (x, context))
        return [Right(own), Right(other, module="#1", kind="cross")]


class BothWays(Spelling):
    """Two texts attend to each other by one product, along both of its axes, as in BiDAF."""

    sizes = SIZES_OF_SEVERAL
    own_axes = "b h i j"

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(batch, n, WIDTH), torch.randn(batch, n + 1, WIDTH)), {}

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        (q, _, v), (_, k, values) = self.split(x), self.split(context)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * SCALE
        there = torch.einsum("bhij,bhjd->bhid", self.keep(scores.softmax(-1)), values)
        weights = scores.softmax(-2)
        self.keep(weights.transpose(-2, -1))
        back = torch.einsum("bhij,bhid->bhjd", weights, v)
        return torch.cat([self.joined(there), self.joined(back)], 1)

    def right(self, x: Tensor, context: Tensor) -> list[Right]:
        product = self.four(self.to_q, x) @ self.four(self.to_k, context).mT * SCALE
        return [Right(product, kind="cross"), Right(product.mT, module="#1", kind=None)]


class WeightsForTwo(Spelling):
    """Weights that mix two kinds of values: one call."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = self.keep((q @ k.mT * SCALE).softmax(-1))
        return self.joined(weights @ v + weights @ (weights @ v))


class CalledTwice(Spelling):
    """A layer that is called again."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = OneOfTwo()
        self.own = self.layer.own

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + self.layer(x))

    def right(self, x: Tensor) -> list[Right]:
        (first,) = self.layer.right(x)
        (second,) = self.layer.right(x.double() + self.layer.mixed(first, x))
        return [
            Right(right.product, module=f"layer{call}")
            for right, call in zip((first, second), ("", "#1"), strict=True)
        ]


class OneOfTwo(Spelling):
    """Three modules for products, for weights and for values."""

    class Product(nn.Module):
        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return torch.matmul(a, b)

    def __init__(self) -> None:
        super().__init__()
        self.scores, self.softmax, self.dropout = self.Product(), nn.Softmax(-1), nn.Dropout(0.5).eval()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined(self.dropout(self.keep(self.softmax(self.scores(q, k.mT) * SCALE))) @ v)

    def mixed(self, right: Right, x: Tensor) -> Tensor:
        return outputs(right.weights() @ self.four(self.to_v, x), self.to_out)


class BlockByBlock(Spelling):
    """Keys in blocks of two, with the largest score and the sum of exponentials carried along."""

    sizes = SIZES_OF_SEVERAL
    unmeasured = "may"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        most = q.new_full((*q.shape[:-1], 1), -torch.inf)
        total, mixed = torch.zeros_like(most), torch.zeros_like(q)
        for keys, values in zip(k.split(2, 2), v.split(2, 2), strict=True):
            scores = q @ keys.mT * SCALE
            larger = torch.maximum(most, scores.amax(-1, keepdim=True))
            powers, before = (scores - larger).exp(), (most - larger).exp()
            total = total * before + powers.sum(-1, keepdim=True)
            mixed, most = mixed * before + powers @ values, larger
        return self.joined(mixed / total)


class TopKeys(Spelling):
    """The two largest scores of each row, by sorting, and their values."""

    unmeasured = "may"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores, which = (q @ k.mT * SCALE).topk(min(2, x.shape[1]), dim=-1)
        weights = scores.softmax(-1)
        chosen = v.unsqueeze(2).expand(-1, -1, x.shape[1], -1, -1)
        chosen = chosen.gather(3, which.unsqueeze(-1).expand(*which.shape, HEAD_DIM))
        self.keep(torch.zeros(*v.shape[:2], x.shape[1], x.shape[1]).to(x).scatter(-1, which, weights))
        return self.joined((weights.unsqueeze(-2) @ chosen).squeeze(-2))

    def right(self, x: Tensor) -> list[Right]:
        (found,) = super().right(x)
        least = found.product.topk(min(2, x.shape[1]), dim=-1).values[..., -1:]

        def after(product: Tensor) -> Tensor:
            return product.masked_fill(found.product < least, -torch.inf)

        return [Right(found.product, after)]


class WindowsBehindMemory(Windows):
    """Windows of learned tokens and those of the text, as in Titans."""

    sizes = SIZES

    def __init__(self) -> None:
        super().__init__()
        self.memory = nn.Parameter(torch.randn(16, WIDTH))

    def with_memory(self, x: Tensor) -> Tensor:
        memory = self.memory[: x.shape[1]].expand(len(x), -1, -1)
        return torch.cat([memory, x], 1).reshape(len(x) * 2, -1, WIDTH)

    def own_sizes(self, batch: int, n: int) -> dict[str, int]:
        return {"b": batch, "w": 2, "i": n}

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.with_memory(x))
        return self.joined(self.keep((q @ k.mT * SCALE).softmax(-1)) @ v)

    def right(self, x: Tensor) -> list[Right]:
        return Spelling.right(self, self.with_memory(x))
