# SPDX-License-Identifier: BSD-3-Clause
"""Hidden keys, and real rows of texts, for masks from any source."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import HEAD_DIM, HEADS, SIZES_OF_SEVERAL, WIDTH, Right, Spelling, causal, hide, padding

SCALE = HEAD_DIM**-0.5
#: Without texts of one token, which have no hidden key.
LONG = SIZES_OF_SEVERAL
LOWEST = torch.finfo(torch.float32).min


class Causal(Spelling):
    """Later keys filled with -inf by a mask in a buffer, as in nanoGPT."""

    sizes = LONG

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", causal(16).view(1, 1, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = self.split(x)
        scores = (q @ k.transpose(-2, -1)) * (1.0 / HEAD_DIM**0.5)
        scores = scores.masked_fill(self.bias[:, :, :n, :n] == 0, float("-inf"))
        return self.joined(self.keep(functional.softmax(scores, dim=-1)) @ v)

    def after(self, product: Tensor) -> Tensor:
        return hide(product, causal(product.shape[-1]))


class CausalByWhere(Causal):
    """Scores where a key is seen, else the lowest number of the type, as in GPT-2."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = self.split(x)
        scores = torch.matmul(q, k.transpose(-1, -2)) / torch.full([], HEAD_DIM**0.5, dtype=x.dtype)
        lowest = torch.full([], torch.finfo(x.dtype).min, dtype=x.dtype)
        scores = torch.where(self.bias[:, :, :n, :n], scores, lowest)
        return self.joined(self.keep(scores.softmax(-1)) @ v)


class CausalByAdding(Causal):
    """An added triangle of -inf, as in CLIP."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = self.split(x)
        hidden = x.new_full((n, n), float("-inf")).triu_(1)
        return self.joined(self.keep((q @ k.mT * SCALE + hidden).softmax(-1)) @ v)


class CausalByPlaces(Causal):
    """Later keys written by an index."""

    has_law = True if torch.__version__ >= "2.13" else None  # that of 2.6 writes into a slice

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = self.split(x)
        scores = q @ k.mT * SCALE
        scores[:, :, ~causal(n)] = float("-inf")
        return self.joined(self.keep(scores.softmax(-1)) @ v)


class CausalByMultiplying(Causal):
    """Scores times a mask, less 10000 where it is 0, as in the first GPT."""

    has_law = None

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = self.split(x)
        seen = causal(n).to(x)
        scores = q @ k.mT * SCALE
        scores = scores * seen + -1e4 * (1 - seen)
        return self.joined(self.keep(scores.softmax(-1)) @ v)


class Trained(Causal):
    """Dropout of the weights in training: rows are those before it."""

    trained = True

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = (q @ k.mT * SCALE).masked_fill(~causal(x.shape[1]), float("-inf"))
        weights = self.keep(scores.softmax(-1))
        return self.joined(functional.dropout(weights, 0.5, self.training) @ v)


class Banded(Causal):
    """A window of three keys by two fills."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = self.split(x)
        scores = q @ k.mT * SCALE
        scores.masked_fill_(~causal(n), LOWEST)
        scores.masked_fill_(~causal(n).T.triu().tril(2).T, LOWEST)
        return self.joined(self.keep(scores.softmax(-1)) @ v)

    def after(self, product: Tensor) -> Tensor:
        n = product.shape[-1]
        return hide(product, causal(n) & ~causal(n).tril(-3))


class Padded(Spelling):
    """Keys of padding hidden by a mask that is called ``mask``, and rows of padding that do not count."""

    sizes = LONG

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(batch, n, WIDTH),), {"mask": padding(batch, n)}

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) * SCALE
        scores = scores.masked_fill(~mask[:, None, None], -torch.finfo(scores.dtype).max)
        return self.joined(torch.einsum("bhij,bhjd->bhid", self.keep(scores.softmax(dim=-1)), v))

    def right(self, x: Tensor, mask: Tensor) -> list[Right]:
        (found,) = super().right(x)
        seen = mask.bool()
        return [Right(found.product, lambda y: hide(y, seen[:, None, None]), real=seen)]


class PaddedPairs(Padded):
    """Rows of padding are hidden as well as keys, which leaves them alike."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = (q @ k.mT * SCALE).masked_fill(~(mask[:, None, :, None] & mask[:, None, None]), -1e9)
        return self.joined(self.keep(scores.softmax(-1)) @ v)


class PaddedPlaces(Padded):
    """Texts folded into heads, a mask that is repeated, and rows of padding cleared behind the softmax."""

    own_axes = "b*h i j"

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = (y.flatten(0, 1) for y in self.split(x))
        hidden = ~mask[:, None].expand(batch, n, n).repeat_interleave(HEADS, 0)
        weights = self.keep((torch.bmm(q, k.mT) * SCALE).masked_fill(hidden, -torch.inf).softmax(-1))
        return self.joined(torch.bmm(weights, v).unflatten(0, (batch, HEADS)))


class PaddedByAdding(Padded):
    """A mask of 0 and 1 made into an added one, as in BERT."""

    lowest = -1e4

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(batch, n, WIDTH),), {"mask": padding(batch, n).long()}

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(x)
        added = (1.0 - mask[:, None, None].to(x)) * self.lowest
        scores = q @ k.transpose(-1, -2) / HEAD_DIM**0.5 + added
        return self.joined(self.keep(scores.softmax(-1)) @ v)


class PaddedBehindTwoProducts(PaddedByAdding):
    """Content and places by two products, and padding taken off as a large number, as in XLNet."""

    own_axes = "b h i j"
    has_law = False

    def __init__(self) -> None:
        super().__init__()
        self.r_w_bias, self.r_r_bias = (nn.Parameter(torch.randn(HEADS, HEAD_DIM) * 0.3) for _ in range(2))
        self.r = nn.Parameter(torch.randn(16, HEADS, HEAD_DIM) * 0.3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = (y.permute(2, 0, 1, 3) for y in self.split(x))  # (n, batch, heads, channels)
        content = torch.einsum("ibnd,jbnd->bnij", q + self.r_w_bias, k)
        places = torch.einsum("ibnd,jnd->bnij", q + self.r_r_bias, self.r[:n])
        hidden = (1.0 - mask.to(x)).T[None, :, :, None].expand(n, n, -1, HEADS)
        scores = (content + places) * SCALE - 1e30 * torch.einsum("ijbn->bnij", hidden)
        weights = self.keep(scores.softmax(dim=3))
        return self.to_out(torch.einsum("bnij,jbnd->ibnd", weights, v).flatten(2)).transpose(0, 1)

    def right(self, x: Tensor, mask: Tensor) -> list[Right]:
        n, seen = x.shape[1], mask.bool()
        q, k = (self.four(layer, x) for layer in (self.to_q, self.to_k))
        w, r = (y.detach().double()[:, None] for y in (self.r_w_bias, self.r_r_bias))
        product = ((q + w) @ k.mT + self.by_place(q + r, n)) * SCALE
        return [Right(product, lambda y: hide(y, seen[:, None, None]), real=seen)]

    def by_place(self, q: Tensor, n: int) -> Tensor:
        """Products of queries with the vectors of places, in float64."""
        return q @ self.r.detach().double()[:n].transpose(0, 1).mT


class PaddedBehindAShift(PaddedBehindTwoProducts):
    """Places by a product that is shifted against its rows, less a million for padding, as in Funnel."""

    def __init__(self) -> None:
        super().__init__()
        self.r = nn.Parameter(torch.randn(32, HEADS, HEAD_DIM) * 0.3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = (y.transpose(1, 2) for y in self.split(x))
        q = q * SCALE
        content = torch.einsum("bind,bjnd->bnij", q + self.r_w_bias * SCALE, k)
        places = torch.einsum("bind,tnd->bnit", q + self.r_r_bias * SCALE, self.r[: 2 * n - 1])
        places = functional.pad(places, (1, 0)).view(batch, HEADS, 2 * n, n)[:, :, 1:]
        places = places.reshape(batch, HEADS, n, 2 * n - 1)[..., :n]
        scores = content + places
        dtype, scores = scores.dtype, scores.float() if scores.dtype != torch.float64 else scores
        scores = scores - 1e6 * (1 - mask[:, None, None].to(scores))
        weights = self.keep(scores.softmax(dim=-1, dtype=dtype))
        return self.to_out(torch.einsum("bnij,bjnd->bind", weights, v).flatten(2))

    def by_place(self, q: Tensor, n: int) -> Tensor:
        distances = n - 1 - torch.arange(n)[:, None] + torch.arange(n)  # of keys from each row
        return torch.einsum("bhid,ijhd->bhij", q, self.r.detach().double()[distances])


class PaddedInFront(Padded):
    """Causal rows behind padding, of which those without keys become NaN and then 0."""

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(batch, n, WIDTH),), {"mask": padding(batch, n).flip(1)}

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(x)
        seen = causal(x.shape[1]) & mask[:, None, None]
        scores = (q @ k.mT * SCALE).masked_fill(~seen, float("-inf"))
        return self.joined(self.keep(scores.softmax(-1).nan_to_num(0.0)) @ v)

    def right(self, x: Tensor, mask: Tensor) -> list[Right]:
        (found,) = Spelling.right(self, x)
        seen = causal(x.shape[1]) & mask[:, None, None]
        return [Right(found.product, lambda y: hide(y, seen), real=mask)]


class PaddedBehindCausal(PaddedInFront):
    """Causal rows in front of padding, by two masks that are added, of which the sum is -inf."""

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(batch, n, WIDTH),), {"mask": padding(batch, n)}

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        n, lowest = x.shape[1], torch.finfo(x.dtype).min
        q, k, v = self.split(x)
        later = torch.zeros(n, n).to(x).masked_fill(~causal(n), lowest)
        none = torch.zeros(mask.shape).to(x).masked_fill(~mask, lowest)[:, None, None]
        scores = q @ k.mT * SCALE + later + none
        return self.joined(self.keep(scores.softmax(-1)) @ v)


class PaddedLowest(PaddedByAdding):
    """The lowest number of float32, added."""

    lowest = LOWEST


class PaddedBillion(PaddedByAdding):
    """Minus a billion, added."""

    lowest = -1e9


class PaddedClamped(Padded):
    """A mask that is added, scores less their largest, and a floor, as in grounded detectors."""

    own_axes = "b*h i j"

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch = len(x)
        q, k, v = (y.reshape(batch * HEADS, -1, HEAD_DIM) for y in self.split(x))
        scores = torch.bmm(q * SCALE, k.transpose(1, 2))
        scores = scores.clamp(min=-50000).clamp(max=50000)
        added = torch.zeros(mask.shape).to(x).masked_fill(~mask, -1e9)[:, None, None]
        scores = (scores.view(batch, HEADS, *scores.shape[1:]) + added).flatten(0, 1)
        scores = scores - scores.max(dim=-1, keepdim=True).values
        mixed = torch.bmm(self.keep(scores.softmax(-1)), v)
        return self.joined(mixed.view(batch, HEADS, *mixed.shape[1:]))


class ClearedAndDividedAgain(Padded):
    """A softmax of scores times the mask, times the mask, over its sum, as in AllenNLP."""

    unmeasured = "may"

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(x)
        seen = mask[:, None, None].to(x)
        weights = ((q @ k.mT * SCALE) * seen).softmax(-1) * seen
        weights = self.keep(weights / (weights.sum(dim=-1, keepdim=True) + 1e-13))
        return self.joined(weights @ v)


class Fused(Padded):
    """PyTorch's fused function with a boolean mask of keys."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.joined(
            functional.scaled_dot_product_attention(*self.split(x), attn_mask=mask[:, None, None])
        )

    def output(self, rights: list[Right], x: Tensor, *_: Any, **__: Any) -> Tensor | None:
        return super().output(rights, x)


class FusedByAdding(Fused):
    """PyTorch's fused function with a mask of numbers, of all rows."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        added = torch.zeros(mask.shape).to(x).masked_fill(~mask, torch.finfo(x.dtype).min)
        added = added[:, None, None].expand(-1, -1, x.shape[1], -1)
        return self.joined(functional.scaled_dot_product_attention(*self.split(x), attn_mask=added))


class Crossing(Padded):
    """Queries ask the words of another text, of which some are padding: all rows count."""

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        memory, seen = torch.randn(batch, n + 2, WIDTH), padding(batch, n + 2)
        return (torch.randn(batch, n, WIDTH), memory), {"mask": seen}

    def forward(self, x: Tensor, context: Tensor, mask: Tensor) -> Tensor:
        (q, _, _), (_, k, v) = self.split(x), self.split(context)
        scores = (q @ k.mT * SCALE).masked_fill(~mask[:, None, None], -torch.inf)
        return self.joined(self.keep(scores.softmax(-1)) @ v)

    def right(self, x: Tensor, context: Tensor, mask: Tensor) -> list[Right]:
        product = self.four(self.to_q, x) @ self.four(self.to_k, context).mT * SCALE
        return [Right(product, lambda y: hide(y, mask[:, None, None]), kind="cross")]


class CrossingAsLong(Crossing):
    """Cross-attention to a text of the same length."""

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(torch.randn(2, batch, n, WIDTH)), {"mask": padding(batch, n)}


class CrossingFused(Crossing):
    """PyTorch's fused function to another text."""

    def forward(self, x: Tensor, context: Tensor, mask: Tensor) -> Tensor:
        (q, _, _), (_, k, v) = self.split(x), self.split(context)
        return self.joined(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None]))

    def output(self, rights: list[Right], x: Tensor, *given: Any, **__: Any) -> Tensor | None:
        return super().output(rights, given[0])


class Body(nn.Module):
    """A layer inside of the wrapped module."""

    def __init__(self, kind: type[Padded]) -> None:
        super().__init__()
        self.embed, self.attention = nn.Embedding(50, WIDTH), kind()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.attention(self.embed(input_ids), mask=attention_mask)


class Wrapped(Spelling):
    """A wrapper that calls the ``forward`` of its body with features, as sentence-transformers does."""

    layer: type[Padded] = PaddedByAdding
    sizes = LONG

    def __init__(self) -> None:
        super().__init__()
        self.body = Body(self.layer)
        self.own = self.body.attention.own

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        ids = torch.randint(0, 50, (batch, n))
        return ({"input_ids": ids, "attention_mask": padding(batch, n).long()},), {}

    def forward(self, features: dict[str, Tensor]) -> Tensor:
        return self.body.forward(**features)

    def right(self, features: dict[str, Tensor]) -> list[Right]:
        x, seen = self.body.embed(features["input_ids"]), features["attention_mask"]
        (found,) = self.body.attention.right(x, seen)
        return [Right(found.product, found.after, "body.attention", real=found.real)]

    def output(self, rights: list[Right], features: dict[str, Tensor]) -> Tensor | None:
        return self.body.attention.output(rights, self.body.embed(features["input_ids"]))


class WrappedTwoProducts(Wrapped):
    """The features of a body whose scores are two products."""

    layer = PaddedBehindTwoProducts
    has_law = False


class WrappedFused(Wrapped):
    """The features of a body whose attention is fused."""

    class Fused(Fused):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            return super().forward(x, mask.bool())

    layer = Fused
