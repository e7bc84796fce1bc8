# SPDX-License-Identifier: BSD-3-Clause
"""Products of queries and keys, and their softmax, in every spelling that libraries use."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import HEAD_DIM, HEADS, SIZES_OF_SEVERAL, WIDTH, Right, Spelling

SCALE = HEAD_DIM**-0.5


class Matmul(Spelling):
    """The plainest: four axes, matmul, a factor, softmax."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = self.keep((torch.matmul(q, k.transpose(-2, -1)) * SCALE).softmax(-1))
        return self.joined(weights @ v)


class OneProjection(Spelling):
    """Queries, keys and values by one layer, taken apart by an axis, as in timm."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(batch, n, 3, HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4).unbind(0)
        weights = self.keep(((q * SCALE) @ k.transpose(-2, -1)).softmax(dim=-1))
        return self.to_out((weights @ v).transpose(1, 2).reshape(batch, n, WIDTH))

    def right(self, x: Tensor) -> list[Right]:
        parts = (x.double() @ self.qkv.weight.double().T + self.qkv.bias.double()).chunk(3, -1)
        q, k = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts[:2])
        return [Right(q @ k.mT * SCALE)]


class Interleaved(OneProjection):
    """Queries, keys and values of each head side by side, as in GPT-NeoX and Bloom."""

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = self.qkv(x).view(batch, n, HEADS, 3 * HEAD_DIM).transpose(1, 2).chunk(3, -1)
        scores = torch.baddbmm(
            x.new_empty(batch * HEADS, n, n),
            q.reshape(batch * HEADS, n, HEAD_DIM),
            k.reshape(batch * HEADS, n, HEAD_DIM).transpose(1, 2),
            beta=0.0,
            alpha=SCALE,
        ).view(batch, HEADS, n, n)
        return self.joined(self.keep(scores.softmax(-1)) @ v)

    def right(self, x: Tensor) -> list[Right]:
        made = x.double() @ self.qkv.weight.double().T + self.qkv.bias.double()
        q, k, _ = made.unflatten(-1, (HEADS, 3, HEAD_DIM)).permute(2 + 1, 0, 2, 1, 4)
        return [Right(q @ k.mT * SCALE)]


class Folded(Spelling):
    """Texts and heads folded into one axis, heads inside, as in rtdl; a count of its own name."""

    own_axes = "b*h i j"

    def __init__(self) -> None:
        super().__init__()
        self._n_heads = HEADS

    def fold(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        x = x.reshape(batch, n, self._n_heads, HEAD_DIM).transpose(1, 2)
        return x.reshape(batch * self._n_heads, n, HEAD_DIM)

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = (self.fold(layer(x)) for layer in (self.to_q, self.to_k, self.to_v))
        weights = self.keep(functional.softmax(q @ k.transpose(1, 2) / HEAD_DIM**0.5, dim=-1))
        mixed = (weights @ v).reshape(batch, self._n_heads, n, HEAD_DIM)
        return self.to_out(mixed.transpose(1, 2).reshape(batch, n, WIDTH))


class FoldedHeadsFirst(Spelling):
    """Heads outside and texts inside of one axis, as in old translations of the paper."""

    own_axes = "h*b i j"

    def fold(self, x: Tensor) -> Tensor:
        return torch.cat(x.split(HEAD_DIM, dim=2), dim=0)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.fold(layer(x)) for layer in (self.to_q, self.to_k, self.to_v))
        weights = self.keep(torch.bmm(q, k.transpose(1, 2)).div(HEAD_DIM**0.5).softmax(-1))
        return self.to_out(torch.cat(torch.bmm(weights, v).split(len(x), dim=0), dim=2))


class TimeFirst(Spelling):
    """Tokens in front of texts, as in fairseq and Megatron."""

    own_axes = "b*h i j"

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1).contiguous()
        n, batch, _ = x.shape
        q, k, v = (
            layer(x).view(n, batch * HEADS, HEAD_DIM).transpose(0, 1)
            for layer in (self.to_q, self.to_k, self.to_v)
        )
        weights = self.keep(torch.bmm(q * SCALE, k.transpose(1, 2)).softmax(-1))
        mixed = torch.bmm(weights, v).transpose(0, 1).contiguous().view(n, batch, WIDTH)
        return self.to_out(mixed).transpose(0, 1)


class EinsumHeadsBehind(Spelling):
    """Heads behind tokens, by einsum."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.transpose(1, 2) for y in self.split(x))
        weights = self.keep((torch.einsum("bihd,bjhd->bhij", q, k) * SCALE).softmax(-1))
        return self.to_out(torch.einsum("bhij,bjhd->bihd", weights, v).flatten(-2))


class EinsumHeadsInFront(Spelling):
    """Heads in front of texts, by einsum."""

    own_axes = "h b i j"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.permute(1, 0, 2, 3) for y in self.split(x))
        weights = self.keep((torch.einsum("hbid,hbjd->hbij", q, k) * SCALE).softmax(-1))
        return self.joined(torch.einsum("hbij,hbjd->hbid", weights, v).transpose(0, 1))


class EinsumAxesApart(Spelling):
    """Queries, keys, texts and heads in the order of XLNet, with the softmax over the second axis."""

    own_axes = "i j b h"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.permute(2, 0, 1, 3) for y in self.split(x))
        weights = self.keep((torch.einsum("ibnd,jbnd->ijbn", q, k) * SCALE).softmax(1))
        return self.to_out(torch.einsum("ijbn,jbnd->ibnd", weights, v).transpose(0, 1).flatten(-2))


class EinsumOfWeights(Spelling):
    """Projections by einsum with parameters of three axes, as in JAX code that was carried over."""

    def __init__(self) -> None:
        super().__init__()
        self.w_q, self.w_k, self.w_v = (
            nn.Parameter(torch.randn(WIDTH, HEADS, HEAD_DIM) * 0.2) for _ in range(3)
        )
        self.w_o = nn.Parameter(torch.randn(HEADS, HEAD_DIM, WIDTH) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (torch.einsum("bne,ehd->bhnd", x, w) for w in (self.w_q, self.w_k, self.w_v))
        weights = self.keep((torch.einsum("bhid,bhjd->bhij", q, k) * SCALE).softmax(-1))
        return torch.einsum("bhij,bhjd,hde->bie", weights, v, self.w_o)

    def right(self, x: Tensor) -> list[Right]:
        q, k = (torch.einsum("bne,ehd->bhnd", x.double(), w.double()) for w in (self.w_q, self.w_k))
        return [Right(q @ k.mT * SCALE)]


class KeysFirst(Spelling):
    """Scores with the keys in front of the queries, softmax over the axis before the last."""

    own_axes = "b h j i"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = self.keep((k @ q.transpose(-2, -1) * SCALE).softmax(dim=-2))
        return self.joined(weights.transpose(-2, -1) @ v)


class HeadsLast(Spelling):
    """Scores with heads as their last axis, as in DeepMind's code."""

    own_axes = "b i j h"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.transpose(1, 2) for y in self.split(x))
        weights = self.keep(torch.softmax(torch.einsum("bihd,bjhd->bijh", q, k) * SCALE, dim=2))
        return self.to_out(torch.einsum("bijh,bjhd->bihd", weights, v).flatten(-2))


class ValuesOnTheLeft(Spelling):
    """Channels in front of tokens and values on the left, as attention over images is often written."""

    own_axes = "b h i j"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.transpose(-2, -1) for y in self.split(x))  # (batch, heads, channels, n)
        weights = self.keep((q.transpose(-2, -1) @ k * SCALE).softmax(-1))
        mixed = v @ weights.transpose(-2, -1)
        return self.to_out(mixed.flatten(1, 2).transpose(1, 2))


class Products(Spelling):
    """Queries times keys entry by entry, and a sum over the channels."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = (q.unsqueeze(3) * k.unsqueeze(2)).sum(-1)
        weights = self.keep((scores * SCALE).softmax(-1))
        return self.joined((weights.unsqueeze(-1) * v.unsqueeze(2)).sum(3))


class Cosine(Spelling):
    """The cosine of queries and keys by PyTorch's function, times a temperature."""

    @property
    def scale(self) -> float:
        return 5.0

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = functional.cosine_similarity(q[:, :, :, None], k[:, :, None], dim=-1)
        return self.joined(self.keep((5.0 * scores).softmax(-1)) @ v)

    def right(self, x: Tensor) -> list[Right]:
        q, k = (self.four(layer, x) for layer in (self.to_q, self.to_k))
        q, k = (y / y.norm(dim=-1, keepdim=True) for y in (q, k))
        return [Right(q @ k.mT * self.scale, self.after)]


class Normalised(Cosine):
    """Rows of length one, and a learned temperature for each head, as in Swin v2."""

    def __init__(self) -> None:
        super().__init__()
        self.logit_scale = nn.Parameter(torch.log(torch.linspace(2, 8, HEADS)).view(HEADS, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).transpose(-2, -1)
        scores = scores * torch.clamp(self.logit_scale, max=4.6).exp()
        return self.joined(self.keep(scores.softmax(-1)) @ v)

    def right(self, x: Tensor) -> list[Right]:
        (found,) = super().right(x)
        return [Right(found.product / self.scale * self.logit_scale.detach().double().exp())]


class Distances(Spelling):
    """Minus half of the squared distance: a product plus squared lengths."""

    has_law = False

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        weights = self.keep((torch.cdist(q, k).square() * -0.5).softmax(-1))
        return self.joined(weights @ v)

    def right(self, x: Tensor) -> list[Right]:
        q, k = (self.four(layer, x) for layer in (self.to_q, self.to_k))
        product = -0.5 * (q[:, :, :, None] - k[:, :, None]).square().sum(-1)
        return [Right(product)]


class LinearOfRows(Spelling):
    """A single head, text by text; product and weighted sum are ``F.linear``."""

    own_axes = "i j"

    def product(self, query: Tensor, key: Tensor) -> Tensor:
        return functional.linear(query, key)

    def mixed(self, weights: Tensor, values: Tensor) -> Tensor:
        return functional.linear(weights, values.T)

    def forward(self, x: Tensor) -> Tensor:
        texts = []
        for q, k, v in zip(*(layer(x) for layer in (self.to_q, self.to_k, self.to_v)), strict=True):
            weights = self.keep((self.product(q, k) * SCALE).softmax(-1))
            texts.append(self.mixed(weights, v))
        return self.to_out(torch.stack(texts))

    def right(self, x: Tensor) -> list[Right]:
        q, k = (self.four(layer, x, 1) for layer in (self.to_q, self.to_k))
        every = q @ k.mT * SCALE
        return [Right(one[None], module=f"#{i}" if i else "") for i, one in enumerate(every)]


class InnerOfRows(LinearOfRows):
    """A single head, text by text, by ``torch.inner``."""

    sizes = SIZES_OF_SEVERAL
    product, mixed = staticmethod(torch.inner), staticmethod(torch.mm)  # type: ignore[assignment]


class TensordotOfRows(LinearOfRows):
    """A single head, text by text, by ``torch.tensordot``."""

    sizes = SIZES_OF_SEVERAL
    product = staticmethod(partial(torch.tensordot, dims=([-1], [-1])))  # type: ignore[assignment]
    mixed = staticmethod(partial(torch.tensordot, dims=1))  # type: ignore[assignment]


class TextByText(Spelling):
    """All heads of one text at a time: three axes with heads in front."""

    own_axes = "h i j"

    def forward(self, x: Tensor) -> Tensor:
        texts = []
        for one in x:
            q, k, v = (
                layer(one).view(-1, HEADS, HEAD_DIM).transpose(0, 1)
                for layer in (self.to_q, self.to_k, self.to_v)
            )
            weights = self.keep((torch.bmm(q, k.transpose(1, 2)) * SCALE).softmax(-1))
            texts.append(torch.bmm(weights, v).transpose(0, 1).flatten(1))
        return self.to_out(torch.stack(texts))

    def right(self, x: Tensor) -> list[Right]:
        (found,) = super().right(x)
        return [Right(one[None], module=f"#{i}" if i else "") for i, one in enumerate(found.product)]


class HeadByHead(Spelling):
    """A loop over heads, each a call of (texts, tokens, channels)."""

    own_axes = "b i j"

    def forward(self, x: Tensor) -> Tensor:
        parts = []
        for q, k, v in zip(
            *(layer(x).chunk(HEADS, -1) for layer in (self.to_q, self.to_k, self.to_v)), strict=True
        ):
            weights = self.keep((q @ k.transpose(-2, -1) * SCALE).softmax(-1))
            parts.append(weights @ v)
        return self.to_out(torch.cat(parts, -1))

    def right(self, x: Tensor) -> list[Right]:
        (found,) = super().right(x)
        return [Right(found.product[:, [h]], module=f"#{h}" if h else "") for h in range(HEADS)]


class Chunked(Spelling):
    """Queries in two parts, to save memory: two calls."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        parts = [
            self.keep((part @ k.transpose(-2, -1) * SCALE).softmax(-1)) @ v
            for part in q.split((q.shape[2] + 1) // 2, dim=2)
        ]
        return self.joined(torch.cat(parts, 2))

    def right(self, x: Tensor) -> list[Right]:
        (found,) = super().right(x)
        parts = found.product.split((x.shape[1] + 1) // 2, 2)
        return [Right(part, module=f"#{i}" if i else "") for i, part in enumerate(parts)]


class Special(Spelling):
    """``torch.special.softmax``."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined(self.keep(torch.special.softmax(q @ k.mT * SCALE, -1)) @ v)


class LogSoftmax(Spelling):
    """The exponential of a log-softmax."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined(self.keep(functional.log_softmax(q @ k.mT * SCALE, dim=-1).exp()) @ v)


class ByHand(Spelling):
    """Exponentials over their sum, with the largest score taken off before."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = q @ k.mT * SCALE
        powers = (scores - scores.max(dim=-1, keepdim=True).values).exp()
        return self.joined(self.keep(powers / powers.sum(dim=-1, keepdim=True)) @ v)


class ByLogSumExp(Spelling):
    """The exponential of scores less their log-sum-exp."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = q @ k.mT * SCALE
        return self.joined(self.keep((scores - torch.logsumexp(scores, -1, keepdim=True)).exp()) @ v)


class DividedAtTheEnd(Spelling):
    """Exponentials multiply values, and the sum divides the result."""

    unmeasured = "may"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        powers = (q @ k.mT * SCALE).exp()
        total = powers.sum(-1, keepdim=True)
        self.keep(powers / total)
        return self.joined((powers @ v) / total)


class ScaledOnBothSides(Spelling):
    """The root of the scale on queries and on keys, as in Whisper."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        root = HEAD_DIM**-0.25
        return self.joined(self.keep(((q * root) @ (k * root).mT).softmax(-1)) @ v)


class InPlace(Spelling):
    """Every step written over the one before."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        scores = torch.matmul(q, k.transpose(2, 3))
        scores *= 3.0
        scores /= 3.0 * HEAD_DIM**0.5
        return self.joined(
            self.keep(
                functional.softmax(scores, dim=-1, dtype=torch.promote_types(q.dtype, torch.float32)).type_as(
                    q
                )
            )
            @ v
        )


class IntoMemory(Spelling):
    """Products and weights written into memory that was there before; it has no gradient."""

    own_axes = "b*h i j"

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = (y.flatten(0, 1).detach() for y in self.split(x))
        scores, weights = x.new_empty(batch * HEADS, n, n), x.new_empty(batch * HEADS, n, n)
        torch.bmm(q, k.mT, out=scores)
        scores.mul_(SCALE)
        torch.softmax(scores, -1, out=weights)
        return self.joined((self.keep(weights) @ v).unflatten(0, (batch, HEADS)))


class PieceByPiece(Spelling):
    """The scores of each head written into their place of one tensor, as in code that saves memory."""

    has_law = False

    def forward(self, x: Tensor) -> Tensor:
        batch, n, _ = x.shape
        q, k, v = self.split(x)
        scores = x.new_zeros(batch, HEADS, n, n)
        for head in range(HEADS):
            scores[:, head] = q[:, head] @ k[:, head].mT * SCALE
        return self.joined(self.keep(scores.softmax(-1)) @ v)


class Rotated(Spelling):
    """Rotary positions by halves, on queries and keys."""

    def turned(self, x: Tensor, as_complex: bool) -> Tensor:
        n = x.shape[2]
        angles = torch.arange(n)[:, None] / 10.0 ** torch.arange(HEAD_DIM // 2).to(x)
        if as_complex:
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())
            return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)
        cos, sin = angles.cos().repeat(1, 2).to(x), angles.sin().repeat(1, 2).to(x)
        half = torch.cat((-x[..., HEAD_DIM // 2 :], x[..., : HEAD_DIM // 2]), dim=-1)
        return x * cos + half * sin

    as_complex = False

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        q, k = self.turned(q, self.as_complex), self.turned(k, self.as_complex)
        return self.joined(self.keep((q @ k.mT * SCALE).softmax(-1)) @ v)

    def right(self, x: Tensor) -> list[Right]:
        n = x.shape[1]
        q, k = (self.four(layer, x).numpy() for layer in (self.to_q, self.to_k))
        angles = (torch.arange(n)[:, None] / 10.0 ** torch.arange(HEAD_DIM // 2).double()).numpy()
        turns = torch.polar(torch.ones(n, HEAD_DIM // 2).double(), torch.from_numpy(angles)).numpy()

        def pairs(y: Any) -> Any:
            if self.as_complex:
                return y[..., ::2] + 1j * y[..., 1::2]
            return y[..., : HEAD_DIM // 2] + 1j * y[..., HEAD_DIM // 2 :]

        one, other = pairs(q) * turns, pairs(k) * turns
        product = (one[..., :, None, :] * other[..., None, :, :].conj()).real.sum(-1)
        return [Right(torch.from_numpy(product) * SCALE)]


class RotatedComplex(Rotated):
    """Rotary positions by complex numbers, as in Llama's first code."""

    as_complex = True


class NormalisedRows(Spelling):
    """A layer norm on the queries and keys of each head."""

    def __init__(self) -> None:
        super().__init__()
        self.q_norm, self.k_norm = nn.LayerNorm(HEAD_DIM), nn.LayerNorm(HEAD_DIM)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        q, k = self.q_norm(q), self.k_norm(k)
        return self.joined(self.keep((q @ k.mT * SCALE).softmax(-1)) @ v)

    def right(self, x: Tensor) -> list[Right]:
        q, k = (functional.layer_norm(self.four(layer, x), (HEAD_DIM,)) for layer in (self.to_q, self.to_k))
        return [Right(q @ k.mT * SCALE)]


class Bilinear(Spelling):
    """A single head with a matrix between queries and the input as keys, as in Luong."""

    own_axes = "b i j"

    @property
    def scale(self) -> float:
        return 1.0 / WIDTH

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.bmm(self.to_q(x), x.transpose(1, 2)) / WIDTH
        return self.to_out(torch.bmm(self.keep(scores.softmax(-1)), x))

    def right(self, x: Tensor) -> list[Right]:
        return [Right((self.four(self.to_q, x, 1) @ x.double().mT[:, None]) * self.scale)]


class NoProjection(Bilinear):
    """A single head with the input as queries and keys."""

    def forward(self, x: Tensor) -> Tensor:
        weights = self.keep(torch.softmax(x @ x.transpose(-2, -1) / WIDTH, -1))
        return weights @ x

    def right(self, x: Tensor) -> list[Right]:
        x = x.double()[:, None]
        return [Right(x @ x.mT / WIDTH)]


class GivenByHeads(Spelling):
    """Input that has four axes already: texts, heads, tokens and channels."""

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(torch.randn(batch, HEADS, n, HEAD_DIM) for _ in range(3)), {}

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.keep((q @ k.transpose(-2, -1) * SCALE).softmax(-1)) @ v

    def right(self, q: Tensor, k: Tensor, v: Tensor) -> list[Right]:
        return [Right(q.double() @ k.double().mT * SCALE, kind=None, has_axes=False)]


class Autocast(Spelling):
    """Products in bfloat16 and a softmax in float32, by PyTorch's mode for mixed precision."""

    near = 5e-2

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype == torch.float64:
            return self.attended(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.attended(x)

    def attended(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined(self.keep((q @ k.mT * SCALE).softmax(-1)) @ v)
