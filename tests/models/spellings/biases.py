# SPDX-License-Identifier: BSD-3-Clause
"""Additions to products: biases, caps, sinks, second products; and learned queries."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import HEAD_DIM, HEADS, SIZES, SIZES_OF_SEVERAL, WIDTH, Right, Spelling, causal, hide, outputs

SCALE = HEAD_DIM**-0.5
#: Tokens that lie in two rows.
EVEN = {name: (batch, n) for name, (batch, n) in SIZES.items() if n % 2 == 0}


class Alibi(Spelling):
    """A slope for each head times the place of the key, by ``baddbmm`` and causal, as in Bloom."""

    def bias(self, n: int) -> Tensor:
        slopes = 2.0 ** -torch.arange(1.0, HEADS + 1)
        return slopes[:, None, None] * torch.arange(n)

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = (y.reshape(batch * HEADS, n, HEAD_DIM) for y in self.split(x))
        alibi = self.bias(n).to(x).repeat(batch, 1, 1)
        scores = alibi.baddbmm(batch1=q, batch2=k.transpose(1, 2), beta=1.0, alpha=SCALE)
        scores = scores.view(batch, HEADS, n, n).masked_fill(~causal(n), torch.finfo(x.dtype).min)
        mixed = torch.bmm(self.keep(scores.softmax(-1)).view(batch * HEADS, n, n), v)
        return self.joined(mixed.view(batch, HEADS, n, HEAD_DIM))

    def after(self, product: Tensor) -> Tensor:
        n = product.shape[-1]
        return hide(product + self.bias(n).double(), causal(n))


class AlibiByDistance(Alibi):
    """A slope for each head times the distance, added."""

    def bias(self, n: int) -> Tensor:
        slopes = 2.0 ** -torch.arange(1.0, HEADS + 1)
        place = torch.arange(n)
        return -slopes[:, None, None] * (place[:, None] - place).abs()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * SCALE + self.bias(x.shape[1]).to(x)
        return self.joined(self.keep(scores.softmax(-1)) @ v)

    def after(self, product: Tensor) -> Tensor:
        return product + self.bias(product.shape[-1]).double()


class Buckets(Spelling):
    """A learned number for each head and bucket of distances, and no scale, as in T5."""

    scale = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, HEADS)

    def bias(self, n: int) -> Tensor:
        place = torch.arange(n)
        return self.table((place - place[:, None]).clamp(-7, 7) + 8).permute(2, 0, 1).unsqueeze(0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = torch.matmul(q, k.transpose(3, 2))
        scores += self.bias(x.shape[1])
        weights = (
            functional.softmax(scores.float(), dim=-1) if x.dtype == torch.float32 else scores.softmax(-1)
        )
        return self.joined(torch.matmul(self.keep(weights.type_as(scores)), v))

    def after(self, product: Tensor) -> Tensor:
        return product + self.bias(product.shape[-1]).detach().double()


class Relative(Spelling):
    """Queries times a vector for each distance, as in Shaw."""

    has_law = False

    def __init__(self) -> None:
        super().__init__()
        self.relative = nn.Parameter(torch.randn(16, HEAD_DIM) * 0.3)

    def rows(self, n: int) -> Tensor:
        place = torch.arange(n)
        return self.relative[(place - place[:, None]).clamp(-7, 7) + 8]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = q @ k.mT + torch.einsum("bhid,ijd->bhij", q, self.rows(x.shape[1]))
        return self.joined(self.keep((scores * SCALE).softmax(-1)) @ v)

    def right(self, x: Tensor) -> list[Right]:
        (found,) = super().right(x)
        q, rows = self.four(self.to_q, x), self.rows(x.shape[1]).double()
        return [Right(found.product + (q[..., None, :] * rows).sum(-1) * SCALE)]


class RelativeByGathering(Relative):
    """Products with all distances, of which each key takes its own, as in DeBERTa."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = self.split(x)
        place = torch.arange(n)
        wanted = ((place - place[:, None]).clamp(-7, 7) + 8).expand(*q.shape[:2], n, n)
        far = torch.matmul(q, self.relative.T)
        scores = q @ k.mT * SCALE + torch.gather(far, -1, wanted) * SCALE
        return self.joined(self.keep(scores.softmax(-1)) @ v)


class PlacesInFront(Relative):
    """Products with a learned vector for each place come first in the sum."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = torch.einsum("bhid,jd->bhij", q, self.relative)[..., : x.shape[1]] + q @ k.mT
        return self.joined(self.keep((scores * SCALE).softmax(-1)) @ v)

    def rows(self, n: int) -> Tensor:
        return self.relative[:n].expand(n, n, -1)


class MaskedInFrontOfPlaces(Relative):
    """A mask added to the first of two products, with a factor per product."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = self.split(x)
        mask = torch.where(causal(n), 0.0, -10000.0)
        scores = q @ k.mT * SCALE + mask
        scores = scores + torch.einsum("bhid,ijd->bhij", q, self.rows(n)) * SCALE
        return self.joined(self.keep(scores.softmax(-1)) @ v)

    def right(self, x: Tensor) -> list[Right]:
        (found,) = super().right(x)
        return [Right(found.product, lambda y: hide(y, causal(x.shape[1])))]


class RelativeOnAGrid(Spelling):
    """Rows and columns of an image have vectors of their own, added to a view of scores, as in MViT."""

    has_law = False
    sizes = EVEN

    def __init__(self) -> None:
        super().__init__()
        self.high, self.wide = (nn.Parameter(torch.randn(8, 8, HEAD_DIM) * 0.3) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = (y.reshape(batch * HEADS, n, HEAD_DIM) for y in self.split(x))
        scores, q = (q * SCALE) @ k.transpose(-2, -1), q.view(batch * HEADS, 2, n // 2, HEAD_DIM)
        high = torch.einsum("bhwc,hkc->bhwk", q, self.high[:2, :2])
        wide = torch.einsum("bhwc,wkc->bhwk", q, self.wide[: n // 2, : n // 2])
        scores = scores.view(batch * HEADS, 2, n // 2, 2, n // 2) + high[..., None] + wide[..., None, :]
        weights = self.keep(scores.view(batch * HEADS, n, n).softmax(-1))
        return self.joined((weights @ v).view(batch, HEADS, n, HEAD_DIM))

    own_axes = "b*h i j"

    def right(self, x: Tensor) -> list[Right]:
        (found,) = super().right(x)
        n, q = x.shape[1], self.four(self.to_q, x)
        row, column = torch.arange(n) // (n // 2), torch.arange(n) % (n // 2)
        added = self.high[row[:, None], row] + self.wide[column[:, None], column]
        return [Right(found.product + torch.einsum("bhid,ijd->bhij", q, added.double()))]


class FromBefore(Spelling):
    """Scores of the layer before are added, as in RealFormer."""

    has_law = None

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([self.Layer(), self.Layer()])

    class Layer(Spelling):
        def hidden(self, scores: Tensor) -> Tensor:
            return scores

        def forward(self, x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
            q, k, v = self.split(x)
            scores = q @ k.mT * SCALE
            if before is not None:
                scores = scores + before
            scores = self.hidden(scores)
            return x + self.joined(self.keep(scores.softmax(-1)) @ v), scores

    def forward(self, x: Tensor) -> Tensor:
        before = None
        for layer in self.layers:
            x, before = layer(x, before)
        return x

    def right(self, x: Tensor) -> list[Right]:
        found, before, x = [], torch.zeros(()), x.double()
        for number, layer in enumerate(self.layers):
            product = layer.right(x)[0].product + before
            found.append(Right(product, layer.after, module=f"layers.{number}"))
            x, before = x + self.mixed(layer, found[-1], x), found[-1].product
        return found

    def output(self, rights: list[Right], x: Tensor, *_: Any, **__: Any) -> Tensor:
        for layer, right in zip(self.layers, rights, strict=True):
            x = x + self.mixed(layer, right, x)
        return x

    @staticmethod
    def mixed(layer: Spelling, right: Right, x: Tensor) -> Tensor:
        return outputs(right.weights() @ layer.four(layer.to_v, x), layer.to_out)


class MaskedFromBefore(FromBefore):
    """Scores of the layer before are added before and after a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([self.Masked(), self.Masked()])

    class Masked(FromBefore.Layer):
        def hidden(self, scores: Tensor) -> Tensor:
            return scores.masked_fill(~causal(scores.shape[-1]), -9e15)

        def after(self, product: Tensor) -> Tensor:
            return hide(product, causal(product.shape[-1]))


class Capped(Spelling):
    """A soft cap before the mask, as in Gemma 2."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = torch.tanh(torch.matmul(q, k.transpose(2, 3)) * SCALE / 2.0) * 2.0
        scores = scores + torch.zeros_like(scores[:1, :1]).masked_fill(~causal(x.shape[1]), -torch.inf)
        return self.joined(self.keep(scores.softmax(-1)) @ v)

    def after(self, product: Tensor) -> Tensor:
        return hide(2 * (product / 2).tanh(), causal(product.shape[-1]))


class Sinks(Spelling):
    """A learned logit for each head joined to scores and cut off behind the softmax, as in gpt-oss."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.linspace(-1, 2, HEADS))

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = self.split(x)
        scores = torch.matmul(q, k.transpose(2, 3)) * SCALE
        scores = scores + torch.full_like(scores[:1, :1], torch.finfo(x.dtype).min).triu(1)
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(batch, -1, n, -1)
        joined = torch.cat([scores, sinks], dim=-1)
        joined = joined - joined.max(dim=-1, keepdim=True).values
        weights = self.keep(functional.softmax(joined, dim=-1, dtype=joined.dtype))
        return self.joined(torch.matmul(weights[..., :-1], v))

    def right(self, x: Tensor) -> list[Right]:
        (found,) = super().right(x)
        seen, sinks = causal(x.shape[1]), self.sinks.detach()[:, None, None]
        return [Right(found.product, lambda y: hide(y, seen), sink=sinks)]


class OneMoreZero(Spelling):
    """A score of 0 without a value, by a padded column."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = functional.pad(q @ k.mT * SCALE, (0, 1), value=0.0)
        return self.joined(self.keep(scores.softmax(-1))[..., :-1] @ v)

    def right(self, x: Tensor) -> list[Right]:
        (found,) = super().right(x)
        return [Right(found.product, sink=torch.zeros(1))]


class OneMoreByHand(OneMoreZero):
    """Exponentials over their sum plus 1."""

    sizes = SIZES_OF_SEVERAL
    unmeasured = "may"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        powers = (q @ k.mT * SCALE).exp()
        total = 1 + powers.sum(-1, keepdim=True)
        self.keep(torch.cat([powers, torch.ones_like(total)], -1) / total)
        return self.joined((powers / total) @ v)


class NullKey(Spelling):
    """A learned key and value in front of those of tokens, as in lucidrains' modules."""

    def __init__(self) -> None:
        super().__init__()
        self.null_k, self.null_v = (nn.Parameter(torch.randn(HEADS, 1, HEAD_DIM)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        k, v = (
            torch.cat([null.expand(len(x), -1, -1, -1), y], dim=2)
            for null, y in ((self.null_k, k), (self.null_v, v))
        )
        return self.joined(self.keep((q @ k.mT * SCALE).softmax(-1)) @ v)

    def right(self, x: Tensor) -> list[Right]:
        q, k = self.four(self.to_q, x), self.four(self.to_k, x)
        null = self.null_k.detach().double().expand(len(x), -1, -1, -1)
        return [Right(q @ torch.cat([null, k], 2).mT * SCALE)]


class Sizes(Spelling):
    """Logarithms of how many tokens each key stands for are added, as for merged tokens."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = q @ k.mT * SCALE + self.counts(x).log()[:, None, None]
        return self.joined(self.keep(scores.softmax(-1)) @ v)

    def counts(self, x: Tensor) -> Tensor:
        return x[..., 0].square().ceil().clamp(1, 5)

    def right(self, x: Tensor) -> list[Right]:
        (found,) = super().right(x)
        added = self.counts(x).double().log()[:, None, None]
        return [Right(found.product, lambda y: y + added)]


class ByPlace(Spelling):
    """Queries times a number that grows with their place, as in Llama 4."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        q = q * (1 + torch.arange(x.shape[1]).to(x).log1p())[:, None]
        return self.joined(self.keep((q @ k.mT * SCALE).softmax(-1)) @ v)

    def right(self, x: Tensor) -> list[Right]:
        (found,) = super().right(x)
        return [Right(found.product * (1 + torch.arange(x.shape[1]).double().log1p())[:, None])]


class ScoresByPlace(ByPlace):
    """Scores times a number for each query, behind the product."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = q @ k.mT * SCALE * (1 + torch.arange(x.shape[1]).to(x).log1p())[:, None]
        return self.joined(self.keep(scores.softmax(-1)) @ v)


class LowRank(Spelling):
    """Keys and values of all tokens brought to three by a layer over tokens, as in Linformer."""

    own_axes = "b*h i j"

    def __init__(self) -> None:
        super().__init__()
        self.squeeze = nn.Linear(16, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = self.split(x)
        k, v = (
            functional.linear(y.transpose(2, 3), self.squeeze.weight[:, :n]).transpose(2, 3) for y in (k, v)
        )
        q, k, v = (y.flatten(0, 1) for y in (q, k, v))
        mixed = self.keep((q @ k.mT * SCALE).softmax(-1)) @ v
        return self.joined(mixed.unflatten(0, (-1, HEADS)))

    def right(self, x: Tensor) -> list[Right]:
        q, k = self.four(self.to_q, x), self.four(self.to_k, x)
        k = self.squeeze.weight.double()[:, : x.shape[1]] @ k
        return [Right(q @ k.mT * SCALE)]


class FirstTokenAsks(Spelling):
    """Attention of the first token to all, as in the last layers of CaiT."""

    def forward(self, x: Tensor) -> Tensor:
        batch = len(x)
        q = self.to_q(x[:, 0]).unsqueeze(1).reshape(batch, 1, HEADS, HEAD_DIM).permute(0, 2, 1, 3)
        _, k, v = self.split(x)
        return self.joined(self.keep((q * SCALE @ k.transpose(-2, -1)).softmax(-1)) @ v)

    def right(self, x: Tensor) -> list[Right]:
        (found,) = super().right(x)
        return [Right(found.product[:, :, :1])]


class SeedsAsk(Spelling):
    """Learned rows ask all tokens and pool them, as set transformers do."""

    sizes = SIZES_OF_SEVERAL

    def __init__(self) -> None:
        super().__init__()
        self.seeds = nn.Parameter(torch.randn(1, 3, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        (q, _, _), (_, k, v) = self.split(self.seeds.repeat(len(x), 1, 1)), self.split(x)
        return self.joined(self.keep((q @ k.mT * SCALE).softmax(-1)) @ v)

    def right(self, x: Tensor) -> list[Right]:
        q = self.four(self.to_q, self.seeds.detach().expand(len(x), -1, -1))
        return [Right(q @ self.four(self.to_k, x).mT * SCALE, kind="cross")]


class SeedsAskAsOneText(SeedsAsk):
    """Learned rows that have no axis of texts ask those of all texts."""

    def forward(self, x: Tensor) -> Tensor:
        q = self.to_q(self.seeds[0]).view(3, HEADS, HEAD_DIM)
        k, v = (layer(x).unflatten(-1, (HEADS, HEAD_DIM)) for layer in (self.to_k, self.to_v))
        weights = self.keep((torch.einsum("ihd,bjhd->bhij", q, k) * SCALE).softmax(-1))
        return self.to_out(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(2))


class LatentsBesideTokens(SeedsAsk):
    """Learned rows ask the tokens and themselves, as Perceiver's resampler does."""

    def forward(self, x: Tensor) -> Tensor:
        seeds = self.seeds.expand(len(x), -1, -1)
        (q, _, _), (_, k, v) = self.split(seeds), self.split(torch.cat([x, seeds], dim=1))
        return self.joined(self.keep((q @ k.mT * SCALE).softmax(-1)) @ v)

    def right(self, x: Tensor) -> list[Right]:
        seeds = self.seeds.detach().expand(len(x), -1, -1)
        q, k = self.four(self.to_q, seeds), self.four(self.to_k, torch.cat([x, seeds], dim=1))
        return [Right(q @ k.mT * SCALE, kind="cross")]


class StepBehindACache(Spelling):
    """A new token attends to the cache and to itself."""

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        cache = tuple(torch.randn(batch, HEADS, n, HEAD_DIM) for _ in range(2))
        return (torch.randn(batch, 1, WIDTH), cache), {}

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = self.split(x)
        k, v = (torch.cat([old, new], dim=2) for old, new in zip(cache, (k, v), strict=True))
        return self.joined(self.keep((q @ k.mT * SCALE).softmax(-1)) @ v)

    def right(self, x: Tensor, cache: tuple[Tensor, Tensor]) -> list[Right]:
        keys = torch.cat([cache[0].double(), self.four(self.to_k, x)], 2)
        return [Right(self.four(self.to_q, x) @ keys.mT * SCALE)]


class BehindAnEmptyCache(StepBehindACache):
    """A cache without tokens is split into heads, and joined in front and behind."""

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(batch, n, WIDTH), (torch.zeros(batch, 0, WIDTH),) * 2), {}

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = self.split(x)
        none = [y.reshape(len(x), 0, HEADS, HEAD_DIM).transpose(1, 2) for y in cache]
        k, v = (torch.cat([old, new, old], dim=2) for old, new in zip(none, (k, v), strict=True))
        return self.joined(self.keep((q @ k.mT * SCALE).softmax(-1)) @ v)

    def right(self, x: Tensor, cache: tuple[Tensor, Tensor]) -> list[Right]:
        return Spelling.right(self, x)


class IntoAStaticCache(StepBehindACache):
    """A new token is written into a static cache; the places of later tokens are hidden."""

    def forward(self, x: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        q, k, v = self.split(x)
        n = cache[0].shape[2]
        memory = []
        for old, new in zip(cache, (k, v), strict=True):
            room = x.new_zeros(len(x), HEADS, 12, HEAD_DIM)
            room[:, :, :n] = old
            room[:, :, n : n + 1] = new
            memory.append(room)
        scores = q @ memory[0].mT * SCALE
        scores = scores.masked_fill(torch.arange(12) > n, torch.finfo(x.dtype).min)
        return self.joined(self.keep(scores.softmax(-1)) @ memory[1])

    def right(self, x: Tensor, cache: tuple[Tensor, Tensor]) -> list[Right]:
        (found,) = super().right(x, cache)
        product = functional.pad(found.product, (0, 12 - found.product.shape[-1]))
        seen = torch.arange(12) < found.product.shape[-1]
        return [Right(product, lambda y: hide(y, seen))]


class StepByStep(Spelling):
    """A decoder that attends to all words of the input at each step, with one head, as in Luong."""

    own_axes = "b i j"
    steps = 3

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(WIDTH, WIDTH)

    def walked(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        hidden, found, asked = x.new_zeros(len(x), WIDTH), [], []
        for _ in range(self.steps):
            asked.append(self.to_q(hidden))
            weights = torch.bmm(asked[-1][:, None], x.transpose(1, 2)).softmax(-1)
            context = torch.bmm(self.keep(weights), x)[:, 0]
            hidden = self.cell(context, hidden)
            found.append(hidden)
        return torch.stack(found, 1), asked

    def forward(self, x: Tensor) -> Tensor:
        return self.to_out(self.walked(x)[0])

    def right(self, x: Tensor) -> list[Right]:
        alone = copy.deepcopy(self).double()
        asked = alone.walked(x.double())[1]
        return [
            Right(q[:, None, None].detach() @ x.double().mT[:, None], module=f"#{i}" if i else "", kind=None)
            for i, q in enumerate(asked)
        ]
