# SPDX-License-Identifier: BSD-3-Clause
"""Texts, heads, windows and images: which axis is which, and heads that share or mix."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import HEAD_DIM, HEADS, SIZES, SIZES_OF_SEVERAL, WIDTH, Right, Spelling

SCALE = HEAD_DIM**-0.5
PAIRS = HEADS // 2
#: More than one token, so that rows and channels have a product to compare.
LONG = SIZES_OF_SEVERAL


class Interpretable(Spelling):
    """Heads with their own layers and shared values, each a call of one submodule."""

    own_axes = "b i j"

    class Attention(nn.Module):
        """(texts, tokens, channels) without heads."""

        def __init__(self) -> None:
            super().__init__()
            self.softmax, self.dropout = nn.Softmax(dim=2), nn.Dropout(0.1)

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            scores = torch.bmm(q, k.permute(0, 2, 1)) / torch.as_tensor(k.size(-1), dtype=q.dtype).sqrt()
            weights = self.dropout(self.softmax(scores))
            return torch.bmm(weights, v), weights

    def __init__(self) -> None:
        super().__init__()
        self.n_head = self.num_heads = HEADS
        self.q_layers, self.k_layers = (
            nn.ModuleList([nn.Linear(WIDTH, HEAD_DIM) for _ in range(HEADS)]) for _ in range(2)
        )
        self.v_layer = nn.Linear(WIDTH, HEAD_DIM)
        self.attention = self.Attention()

    def forward(self, x: Tensor) -> Tensor:
        mixed = []
        for q_layer, k_layer in zip(self.q_layers, self.k_layers, strict=True):
            head, weights = self.attention(q_layer(x), k_layer(x), self.v_layer(x))
            mixed.append(head)
            self.keep(weights)
        return torch.stack(mixed).mean(0)

    def right(self, x: Tensor) -> list[Right]:
        found = []
        for head, layers in enumerate(zip(self.q_layers, self.k_layers, strict=True)):
            q, k = (self.four(layer, x, 1) for layer in layers)
            found.append(Right(q @ k.mT * SCALE, module=f"attention#{head}" if head else "attention"))
        return found


class GroupedByRepeating(Spelling):
    """Key heads repeated for the queries that share them, neighbours together."""

    key_heads = PAIRS

    def __init__(self) -> None:
        super().__init__()
        self.to_k, self.to_v = (nn.Linear(WIDTH, self.key_heads * HEAD_DIM) for _ in range(2))

    def own_sizes(self, batch: int, n: int) -> dict[str, int]:
        return {"g": PAIRS, "r": HEADS // PAIRS}

    def spread(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(HEADS // self.key_heads, dim=1)

    def forward(self, x: Tensor) -> Tensor:
        q = self.to_q(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        k, v = (
            self.spread(layer(x).unflatten(-1, (self.key_heads, HEAD_DIM)).transpose(1, 2))
            for layer in (self.to_k, self.to_v)
        )
        return self.joined(self.keep((q @ k.mT * SCALE).softmax(-1)) @ v)

    def right(self, x: Tensor) -> list[Right]:
        q, k = self.four(self.to_q, x), self.four(self.to_k, x, self.key_heads)
        return [Right(q @ self.spread(k).mT * SCALE, key_heads=self.key_heads)]


class GroupedByExpanding(GroupedByRepeating):
    """Key heads on an expanded and folded axis, as in transformers."""

    def spread(self, x: Tensor) -> Tensor:
        batch, heads, n, channels = x.shape
        x = x[:, :, None].expand(batch, heads, HEADS // heads, n, channels)
        return x.reshape(batch, HEADS, n, channels)


class GroupedByRemainder(GroupedByRepeating):
    """Head h of the queries has the keys of head h modulo the number of these, as in x-transformers."""

    def spread(self, x: Tensor) -> Tensor:
        return x.repeat(1, HEADS // self.key_heads, 1, 1)


class GroupedByAxis(GroupedByRepeating):
    """Groups as a separate axis, of size 1 in the keys."""

    own_axes = "b g r i j"
    own_order = "b g*r i j"

    def forward(self, x: Tensor) -> Tensor:
        q = self.to_q(x).unflatten(-1, (PAIRS, HEADS // PAIRS, HEAD_DIM)).permute(0, 2, 3, 1, 4)
        k, v = (
            layer(x).unflatten(-1, (PAIRS, HEAD_DIM)).transpose(1, 2).unsqueeze(2)
            for layer in (self.to_k, self.to_v)
        )
        weights = self.keep((q @ k.transpose(-2, -1) * SCALE).softmax(-1))
        return self.joined((weights @ v).flatten(1, 2))


class GroupedByEinsum(GroupedByAxis):
    """Groups as a separate axis, by einsum."""

    def forward(self, x: Tensor) -> Tensor:
        q = self.to_q(x).unflatten(-1, (PAIRS, HEADS // PAIRS, HEAD_DIM))
        k, v = (layer(x).unflatten(-1, (PAIRS, HEAD_DIM)) for layer in (self.to_k, self.to_v))
        weights = self.keep((torch.einsum("bigrd,bjgd->bgrij", q, k) * SCALE).softmax(-1))
        return self.to_out(torch.einsum("bgrij,bjgd->bigrd", weights, v).flatten(2))


class GroupedAsRows(GroupedByRepeating):
    """Queries that share a key head stand as further rows of it."""

    own_axes = "b g r*i j"
    own_order = "b g*r i j"

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q = self.to_q(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        q = q.reshape(batch, PAIRS, (HEADS // PAIRS) * n, HEAD_DIM)
        k, v = (layer(x).unflatten(-1, (PAIRS, HEAD_DIM)).transpose(1, 2) for layer in (self.to_k, self.to_v))
        mixed = self.keep((q @ k.mT * SCALE).softmax(-1)) @ v
        return self.joined(mixed.reshape(batch, HEADS, n, HEAD_DIM))


class OneKeyHead(GroupedByRepeating):
    """A single key head for all queries, without an axis of heads."""

    key_heads = 1

    def forward(self, x: Tensor) -> Tensor:
        q = self.to_q(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        k, v = self.to_k(x), self.to_v(x)
        weights = self.keep((torch.einsum("bhid,bjd->bhij", q, k) * SCALE).softmax(-1))
        return self.joined(torch.einsum("bhij,bjd->bhid", weights, v))


class OneKeyHeadAsRows(OneKeyHead):
    """A single key head; query heads are rows of one product, as in PaLM."""

    own_axes = "b i*h j"

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q = self.to_q(x).view(batch, n * HEADS, HEAD_DIM)
        k, v = self.to_k(x), self.to_v(x)
        weights = self.keep((torch.bmm(q, k.mT) * SCALE).softmax(-1))
        return self.to_out(torch.bmm(weights, v).view(batch, n, WIDTH))


class MixedScores(Spelling):
    """Heads mixed before the softmax and behind it, by layers over the axis of heads, as in CaiT."""

    unmeasured = "may"
    has_law = False

    def __init__(self) -> None:
        super().__init__()
        self.proj_l, self.proj_w = nn.Linear(HEADS, HEADS), nn.Linear(HEADS, HEADS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = (q * SCALE) @ k.transpose(-2, -1)
        scores = self.proj_l(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        weights = self.keep(scores.softmax(dim=-1))
        return self.joined(self.proj_w(weights.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) @ v)

    def after(self, product: Tensor) -> Tensor:
        weight, bias = self.proj_l.weight.detach().double(), self.proj_l.bias.detach().double()
        return torch.einsum("bhij,gh->bgij", product, weight) + bias[:, None, None]


class MixedByConvolution(MixedScores):
    """Heads mixed before the softmax by a convolution of 1 x 1."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(HEADS, HEADS, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined(self.keep(self.mix(q @ k.mT * SCALE).softmax(-1)) @ v)

    def after(self, product: Tensor) -> Tensor:
        weight, bias = self.mix.weight.detach().double()[..., 0, 0], self.mix.bias.detach().double()
        return torch.einsum("bhij,gh->bgij", product, weight) + bias[:, None, None]


class MixedWeights(Spelling):
    """Heads of the weights mixed behind the softmax by einsum and normalised, as in DeepViT."""

    sizes = SIZES_OF_SEVERAL

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm = nn.Parameter(torch.randn(HEADS, HEADS)), nn.LayerNorm(HEADS)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = self.keep((torch.einsum("bhid,bhjd->bhij", q, k) * SCALE).softmax(dim=-1))
        mixed = torch.einsum("bhij,hg->bgij", weights, self.mix)
        mixed = self.norm(mixed.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.joined(torch.einsum("bhij,bhjd->bhid", mixed, v))


class MixedWeightsByConvolution(MixedWeights):
    """Heads of the weights mixed behind the softmax by a convolution of 1 x 1, with a norm of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(HEADS, HEADS, 1), nn.BatchNorm2d(HEADS)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = self.keep((q @ k.mT * SCALE).softmax(-1))
        return self.joined(self.norm(self.conv(weights)) @ v)


class Differential(Spelling):
    """Twice as many heads, of which pairs are subtracted behind the softmax."""

    own_axes = "b h i j"

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k = (nn.Linear(WIDTH, 2 * WIDTH) for _ in range(2))
        self.lam = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k = (
            layer(x).view(batch, n, 2 * HEADS, HEAD_DIM).transpose(1, 2) for layer in (self.to_q, self.to_k)
        )
        v = self.to_v(x).view(batch, n, HEADS, HEAD_DIM).transpose(1, 2)
        weights = self.keep(functional.softmax(q @ k.mT * SCALE, dim=-1))
        pairs = weights.view(batch, HEADS, 2, n, n)
        return self.joined((pairs[:, :, 0] - self.lam * pairs[:, :, 1]) @ v)

    def right(self, x: Tensor) -> list[Right]:
        q, k = (self.four(layer, x, 2 * HEADS) for layer in (self.to_q, self.to_k))
        return [Right(q @ k.mT * SCALE)]


class MeanOverHeads(Spelling):
    """The mean of the heads' weights mixes values that all of them share."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, _ = self.split(x)
        weights = self.keep((q @ k.mT * SCALE).softmax(-1))
        return self.to_out(weights.mean(1) @ self.to_v(x))


class ByChannels(Spelling):
    """Channels attend to channels of their head over the tokens, as in XCiT and Restormer."""

    own_axes = "b h i j"
    sizes = LONG

    @property
    def scale(self) -> float:
        return 1.0

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.linspace(1, 4, HEADS).view(HEADS, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = (
            layer(x).reshape(batch, n, HEADS, HEAD_DIM).permute(0, 2, 3, 1)
            for layer in (self.to_q, self.to_k, self.to_v)
        )
        q, k = functional.normalize(q, dim=-1), functional.normalize(k, dim=-1)
        weights = self.keep(((q @ k.transpose(-2, -1)) * self.temperature).softmax(dim=-1))
        return self.to_out((weights @ v).permute(0, 3, 1, 2).reshape(batch, n, WIDTH))

    def right(self, x: Tensor) -> list[Right]:
        q, k = (self.four(layer, x).mT for layer in (self.to_q, self.to_k))
        q, k = (y / y.norm(dim=-1, keepdim=True) for y in (q, k))
        return [Right(q @ k.mT * self.temperature.detach().double())]


class Grid(Spelling):
    """Input with two axes of tokens, (texts, 3, n, channels)."""

    across = 3
    sizes = LONG

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(batch, self.across, n, WIDTH),), {}

    def own_sizes(self, batch: int, n: int) -> dict[str, int]:
        return {"b": batch, "r": self.across}

    def five(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Rows of each head in float64, (texts, across, n, heads, channels)."""
        made = functional.linear(x.double(), layer.weight.double(), layer.bias.double())
        return made.unflatten(-1, (HEADS, -1))


class TiedRows(Grid):
    """All rows of an alignment have the weights of their sum, heads in front, as in MSA transformers."""

    own_axes = "h b i j"
    products, mixtures, answers = "rinhd,rjnhd->hnij", "hnij,rjnhd->rinhd", "brihd,brjhd->bhij"

    @property
    def scale(self) -> float:
        return (HEAD_DIM * self.across) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(1, 2, 0, 3)  # (rows, columns, batch, channels)
        q, k, v = (
            layer(x).view(*x.shape[:3], HEADS, HEAD_DIM) for layer in (self.to_q, self.to_k, self.to_v)
        )
        weights = self.keep(torch.einsum(self.products, q * self.scale, k).softmax(-1))
        mixed = torch.einsum(self.mixtures, weights, v)
        return self.to_out(mixed.contiguous().view(x.shape)).permute(2, 0, 1, 3)

    def right(self, x: Tensor) -> list[Right]:
        q, k = (self.five(layer, x) for layer in (self.to_q, self.to_k))
        return [Right((torch.einsum(self.answers, q, k) * self.scale).flatten(0, -4))]


class Columns(TiedRows):
    """Columns of an alignment attend over its rows, heads in front, as in MSA transformers."""

    own_axes = "h c b i j"
    own_order = "c*b h i j"
    products, mixtures, answers = "icnhd,jcnhd->hcnij", "hcnij,jcnhd->icnhd", "bichd,bjchd->cbhij"
    scale = SCALE  # type: ignore[assignment]

    def own_sizes(self, batch: int, n: int) -> dict[str, int]:
        return {"b": batch, "c": n}


class FramesAsTexts(Grid):
    """Frames are folded into the texts, as in video transformers."""

    own_axes = "b*r h i j"
    own_order = "b*r h i j"

    def forward(self, x: Tensor) -> Tensor:
        y = x.flatten(0, 1)
        q, k, v = self.split(y)
        return self.joined(self.keep((q @ k.mT * SCALE).softmax(-1)) @ v).view(x.shape)

    def right(self, x: Tensor) -> list[Right]:
        q, k = (self.five(layer, x) for layer in (self.to_q, self.to_k))
        return [Right(torch.einsum("brihd,brjhd->brhij", q, k).flatten(0, 1) * SCALE)]


class FiveAxes(FramesAsTexts):
    """Frames as a separate axis, (texts, frames, heads, tokens, channels)."""

    own_axes = "b r h i j"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(2, 3)
            for layer in (self.to_q, self.to_k, self.to_v)
        )
        weights = self.keep((q @ k.transpose(-2, -1) * SCALE).softmax(-1))
        return self.to_out((weights @ v).transpose(2, 3).flatten(3))


class HeadsBeforeFrames(FramesAsTexts):
    """(texts, heads, frames, tokens, channels), as attention along an axis is often written."""

    own_axes = "b h r i j"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (HEADS, HEAD_DIM)).permute(0, 3, 1, 2, 4)
            for layer in (self.to_q, self.to_k, self.to_v)
        )
        weights = self.keep((q @ k.transpose(-2, -1) * SCALE).softmax(-1))
        return self.to_out((weights @ v).permute(0, 2, 3, 1, 4).flatten(3))


class KeysOnAGrid(Grid):
    """Queries are the mean of the frames; keys lie on two axes, over which the softmax goes as one."""

    own_axes = "b h i j"

    def own_sizes(self, batch: int, n: int) -> dict[str, int]:
        return {}

    def forward(self, x: Tensor) -> Tensor:
        q = self.to_q(x.mean(1)).unflatten(-1, (HEADS, HEAD_DIM))
        k, v = (layer(x).unflatten(-1, (HEADS, HEAD_DIM)) for layer in (self.to_k, self.to_v))
        scores = torch.einsum("bihd,bryhd->bhiry", q, k) * SCALE
        weights = self.keep(scores.flatten(-2).softmax(-1)).unflatten(-1, scores.shape[-2:])
        return self.to_out(torch.einsum("bhiry,bryhd->bihd", weights, v).flatten(2))

    def right(self, x: Tensor) -> list[Right]:
        q = self.four(self.to_q, x.double().mean(1))
        k = self.five(self.to_k, x).flatten(1, 2).transpose(1, 2)
        return [Right(q @ k.mT * SCALE, kind=None)]


WINDOW = 2
EVEN = {name: (batch, n) for name, (batch, n) in SIZES.items() if n % WINDOW == 0}


class Windows(Spelling):
    """Windows folded into the texts and a bias for each pair of places, as in Swin."""

    own_axes = "b*w h i j"
    own_order = "b*w h i j"
    sizes = EVEN

    def own_sizes(self, batch: int, n: int) -> dict[str, int]:
        return {"b": batch, "w": n // WINDOW, "i": WINDOW}

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(2 * WINDOW - 1, HEADS))
        place = torch.arange(WINDOW)
        self.register_buffer("index", place[:, None] - place + WINDOW - 1)

    def bias(self) -> Tensor:
        found = self.table[self.index.view(-1)].view(WINDOW, WINDOW, HEADS)
        return found.permute(2, 0, 1).contiguous()

    def forward(self, x: Tensor) -> Tensor:
        windows = x.view(-1, WINDOW, WIDTH)
        q, k, v = self.split(windows)
        scores = (q * SCALE) @ k.transpose(-2, -1) + self.bias().unsqueeze(0)
        return self.joined(self.keep(scores.softmax(-1)) @ v).view(x.shape)

    def right(self, x: Tensor) -> list[Right]:
        (found,) = super().right(x.reshape(-1, WINDOW, WIDTH))
        bias = self.bias().detach().double()
        return [Right(found.product, lambda product: product + bias)]

    def output(self, rights: list[Right], x: Tensor, *_: Any, **__: Any) -> None:
        return None


class WindowsOfHeads(Windows):
    """Texts and heads folded into one axis, windows behind it, as in local-attention."""

    own_axes = "b*h w i j"

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = (y.reshape(batch * HEADS, n // WINDOW, WINDOW, HEAD_DIM) for y in self.split(x))
        scores = torch.einsum("bhie,bhje->bhij", q * SCALE, k)
        weights = self.keep(scores.softmax(dim=-1))
        mixed = torch.einsum("bhij,bhje->bhie", weights, v)
        return self.joined(mixed.reshape(batch, HEADS, n, HEAD_DIM))

    def right(self, x: Tensor) -> list[Right]:
        return [Right(super().right(x)[0].product)]


class LookingAround(WindowsOfHeads):
    """Windows that also see the previous one; the place in front of the text is hidden by a number."""

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = (y.reshape(batch * HEADS, n // WINDOW, WINDOW, HEAD_DIM) for y in self.split(x))
        k, v = (torch.cat([functional.pad(y, (0, 0, 0, 0, 1, 0))[:, :-1], y], dim=2) for y in (k, v))
        places = functional.pad(torch.arange(n).view(1, -1, WINDOW), (0, 0, 1, 0), value=-1)
        places = torch.cat([places[:, :-1], places[:, 1:]], -1)
        scores = torch.einsum("bhie,bhje->bhij", q, k) * SCALE
        scores = scores.masked_fill(places[:, :, None] == -1, -torch.finfo(scores.dtype).max)
        weights = self.keep(scores.softmax(dim=-1))
        mixed = torch.einsum("bhij,bhje->bhie", weights, v)
        return self.joined(mixed.reshape(batch, HEADS, n, HEAD_DIM))

    def right(self, x: Tensor) -> list[Right]:
        batch, n, _ = x.shape
        q, k = (self.four(layer, x) for layer in (self.to_q, self.to_k))
        q, k = (y.unflatten(2, (-1, WINDOW)).transpose(1, 2).flatten(0, 1) for y in (q, k))
        before = k.unflatten(0, (batch, -1)).roll(1, 1).flatten(0, 1)
        seen = torch.arange(n // WINDOW).repeat(batch)[:, None, None, None] > 0
        seen = torch.cat([seen.expand(-1, 1, 1, WINDOW), torch.ones_like(seen).expand(-1, 1, 1, WINDOW)], -1)
        product = q @ torch.cat([before, k], 2).mT * SCALE
        return [Right(product, lambda product: product.masked_fill(~seen, -torch.inf))]


class HalfLinear(Spelling):
    """Two heads by features of queries and keys without a softmax, two in windows, as in Performer."""

    own_axes = "b*h w i j"
    own_order = "b*w h i j"
    sizes = EVEN

    def own_sizes(self, batch: int, n: int) -> dict[str, int]:
        return {"b": batch, "w": n // WINDOW, "h": PAIRS}

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = self.split(x)
        features, keys = (y[:, :PAIRS].relu() + 1e-3 for y in (q, k))
        context = torch.einsum("bhnd,bhne->bhde", keys, v[:, :PAIRS])
        total = torch.einsum("bhnd,bhd->bhn", features, keys.sum(dim=-2))
        linear = torch.einsum("bhde,bhnd,bhn->bhne", context, features, 1.0 / total)
        q, k, v = (y[:, PAIRS:].reshape(batch * PAIRS, n // WINDOW, WINDOW, HEAD_DIM) for y in (q, k, v))
        weights = self.keep((torch.einsum("bhie,bhje->bhij", q, k) * SCALE).softmax(dim=-1))
        local = torch.einsum("bhij,bhje->bhie", weights, v).reshape(batch, PAIRS, n, HEAD_DIM)
        return self.joined(torch.cat([linear, local], dim=1))

    def right(self, x: Tensor) -> list[Right]:
        q, k = (self.four(layer, x)[:, PAIRS:].unflatten(2, (-1, WINDOW)) for layer in (self.to_q, self.to_k))
        return [Right((q @ k.mT * SCALE).transpose(1, 2).flatten(0, 1))]


class Neighbours(Spelling):
    """Three keys per query, as one row of a product."""

    own_axes = "b h i o j"
    own_order = "b h i*o j"

    def own_sizes(self, batch: int, n: int) -> dict[str, int]:
        return {"i": n, "o": 1}

    def neighbours(self, x: Tensor) -> Tensor:
        """(batch, heads, n, 3, channels), going round."""
        return torch.stack([x.roll(1, 2), x, x.roll(-1, 2)], 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        k, v = self.neighbours(k), self.neighbours(v)
        weights = self.keep((q.unsqueeze(3) @ k.transpose(-2, -1) * SCALE).softmax(-1))
        return self.joined((weights @ v).squeeze(3))

    def right(self, x: Tensor) -> list[Right]:
        q, k = (self.four(layer, x) for layer in (self.to_q, self.to_k))
        product = (q.unsqueeze(3) * self.neighbours(k)).sum(-1) * SCALE
        return [Right(product, kind=None, has_axes=False)]


class NeighboursBySum(Neighbours):
    """Three keys per query, by products that are summed."""

    own_axes = "b h i j"
    own_order = "b h i j"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        k, v = self.neighbours(k), self.neighbours(v)
        weights = self.keep(((q.unsqueeze(3) * k).sum(-1) * SCALE).softmax(-1))
        return self.joined((weights.unsqueeze(-1) * v).sum(3))
