# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's own functions and modules for attention, called in the ways that libraries have."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from .base import HEAD_DIM, HEADS, SIZES_OF_SEVERAL, WIDTH, Right, Spelling, causal, hide, outputs, padding

SCALE = HEAD_DIM**-0.5
LONG = SIZES_OF_SEVERAL
attend = functional.scaled_dot_product_attention


class Sdpa(Spelling):
    """The fused function with four axes."""

    def forward(self, x: Tensor) -> Tensor:
        return self.joined(attend(*self.split(x)))


class SdpaCausal(Sdpa):
    """The fused function, causal, with a scale."""

    scale = 0.3

    def forward(self, x: Tensor) -> Tensor:
        return self.joined(attend(*self.split(x), is_causal=True, scale=0.3))

    def after(self, product: Tensor) -> Tensor:
        return hide(product, causal(product.shape[-1]))


class SdpaAsProducts(SdpaCausal):
    """The fused function where PyTorch computes it as products and a softmax: one call."""

    def forward(self, x: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return super().forward(x)


class SdpaWithBias(Sdpa):
    """A learned bias for each head, with a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(HEADS, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return self.joined(attend(*self.split(x), attn_mask=self.bias[None, :, :n, :n]))

    def after(self, product: Tensor) -> Tensor:
        n = product.shape[-1]
        return product + self.bias.detach().double()[:, :n, :n]


class SdpaDropping(Sdpa):
    """The fused function with dropout: rows are those before it."""

    trained = True

    def forward(self, x: Tensor) -> Tensor:
        return self.joined(attend(*self.split(x), dropout_p=0.5 if self.training else 0.0))


class SdpaGrouped(Spelling):
    """Fewer key heads by ``enable_gqa``."""

    def __init__(self) -> None:
        super().__init__()
        self.to_k, self.to_v = (nn.Linear(WIDTH, 2 * HEAD_DIM) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q = self.to_q(x).unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2)
        k, v = (layer(x).unflatten(-1, (2, HEAD_DIM)).transpose(1, 2) for layer in (self.to_k, self.to_v))
        return self.joined(attend(q, k, v, enable_gqa=True))

    def right(self, x: Tensor) -> list[Right]:
        q, k = self.four(self.to_q, x), self.four(self.to_k, x, 2).repeat_interleave(2, 1)
        return [Right(q @ k.mT * SCALE, key_heads=2)]

    def output(self, rights: list[Right], x: Tensor, *_: Any, **__: Any) -> Tensor:
        values = self.four(self.to_v, x, 2).repeat_interleave(2, 1)
        return outputs(rights[0].weights() @ values, self.to_out)


class SdpaFolded(Sdpa):
    """Three axes, of which the first is texts and heads."""

    def forward(self, x: Tensor) -> Tensor:
        mixed = attend(*(y.flatten(0, 1) for y in self.split(x)))
        return self.joined(mixed.unflatten(0, (len(x), HEADS)))


class SdpaWithoutHeads(Spelling):
    """Three axes without heads, in a module that says that it has some."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS

    @property
    def scale(self) -> float:
        return WIDTH**-0.5

    def forward(self, x: Tensor) -> Tensor:
        return self.to_out(attend(self.to_q(x), self.to_k(x), self.to_v(x)))

    def right(self, x: Tensor) -> list[Right]:
        return [Right(self.four(self.to_q, x, 1) @ self.four(self.to_k, x, 1).mT * self.scale)]


class SdpaOfOneText(SdpaWithoutHeads):
    """Two axes: one text, one head, a call for each text."""

    def forward(self, x: Tensor) -> Tensor:
        parts = zip(self.to_q(x), self.to_k(x), self.to_v(x), strict=True)
        return self.to_out(torch.stack([attend(*part) for part in parts]))

    def right(self, x: Tensor) -> list[Right]:
        (found,) = super().right(x)
        return [Right(one[None], module=f"#{i}" if i else "") for i, one in enumerate(found.product)]

    def output(self, rights: list[Right], x: Tensor, *_: Any, **__: Any) -> Tensor | None:
        whole = Right(torch.cat([right.product for right in rights]))
        return super().output([whole], x)


class SdpaInAHouseOfEight(Spelling):
    """Fused attention over (2, 4, 8, 8) inside of modules that say that they have eight heads."""

    sizes = {"eight": (2, 8)}  # noqa: RUF012

    class Inner(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return attend(q, k, v)

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = self.n_heads = self.heads = self.num_attention_heads = 8
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, 32) for _ in range(3))
        self.to_out, self.inner = nn.Linear(32, WIDTH), self.Inner()

    @property
    def scale(self) -> float:
        return 8**-0.5

    def forward(self, x: Tensor) -> Tensor:
        parts = (layer(x).unflatten(-1, (4, 8)) for layer in (self.to_q, self.to_k, self.to_v))
        return self.joined(self.inner(*(y.transpose(1, 2) for y in parts)))

    def right(self, x: Tensor) -> list[Right]:
        (found,) = super().right(x)
        return [Right(found.product, module="inner")]


class WrittenInAHouseOfEight(SdpaInAHouseOfEight):
    """Attention over (2, 4, 8, 8), written out, inside of modules that say that they have eight heads."""

    class Inner(nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return (q @ k.mT * 8**-0.5).softmax(-1) @ v


class SdpaGivenAxes(Spelling):
    """Input that has the four axes already."""

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(torch.randn(3, batch, HEADS, n, HEAD_DIM)), {}

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v)

    def right(self, q: Tensor, k: Tensor, v: Tensor) -> list[Right]:
        return [Right(q.double() @ k.double().mT * SCALE, kind=None)]

    def output(self, rights: list[Right], q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # type: ignore[override]
        return rights[0].weights() @ v.double()


class Multihead(Spelling):
    """PyTorch's module."""

    options: dict[str, Any] = {}  # noqa: RUF012
    first = True
    asked: dict[str, Any] = {"need_weights": False}  # noqa: RUF012
    exact = False

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=self.first, **self.options).eval()

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.first else x.transpose(0, 1)
        found = self.attention(x, x, x, **self.asked)[0]
        return found if self.first else found.transpose(0, 1)

    def heads(self, x: Tensor, part: int) -> Tensor:
        """Queries, keys or values, (batch, heads, n, channels), in float64."""
        weight = self.attention.in_proj_weight.double().chunk(3)[part]
        bias = self.attention.in_proj_bias.double().chunk(3)[part]
        return functional.linear(x.double(), weight, bias).unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def right(self, x: Tensor) -> list[Right]:
        return [Right(self.heads(x, 0) @ self.of_keys(x, 1).mT * SCALE, module="attention")]

    def of_keys(self, x: Tensor, part: int) -> Tensor:
        """All keys or values."""
        return self.heads(x, part)

    def output(self, rights: list[Right], x: Tensor, *_: Any, **__: Any) -> Tensor:
        return outputs(rights[0].weights() @ self.of_keys(x, 2), self.attention.out_proj)


class MultiheadTimeFirst(Multihead):
    """PyTorch's module with tokens in front."""

    first = False


class MultiheadWithWeights(Multihead):
    """PyTorch's module that gives weights back."""

    asked = {"need_weights": True, "average_attn_weights": True}  # noqa: RUF012


class MultiheadTimeFirstWithWeights(MultiheadWithWeights):
    """PyTorch's module with tokens in front, that gives weights back."""

    first = False


class MultiheadPadded(Multihead):
    """PyTorch's module with padding."""

    sizes = LONG

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(batch, n, WIDTH), ~padding(batch, n)), {}

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        return self.attention(x, x, x, key_padding_mask=hidden, need_weights=False)[0]

    def right(self, x: Tensor, hidden: Tensor) -> list[Right]:
        product = self.heads(x, 0) @ self.heads(x, 1).mT * SCALE
        return [Right(product, lambda y: hide(y, ~hidden[:, None, None]), "attention", real=~hidden)]


class MultiheadOfPooling(Multihead):
    """The function behind PyTorch's module with the mean of the tokens as query, as in CLIP's pooling."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x.mean(1, keepdim=True), x], 1).transpose(0, 1)
        weights, biases = self.attention.in_proj_weight.chunk(3), self.attention.in_proj_bias
        found, _ = functional.multi_head_attention_forward(
            query=x[:1],
            key=x,
            value=x,
            embed_dim_to_check=WIDTH,
            num_heads=HEADS,
            q_proj_weight=weights[0],
            k_proj_weight=weights[1],
            v_proj_weight=weights[2],
            in_proj_weight=None,
            in_proj_bias=biases,
            bias_k=None,
            bias_v=None,
            add_zero_attn=False,
            dropout_p=0.0,
            out_proj_weight=self.attention.out_proj.weight,
            out_proj_bias=self.attention.out_proj.bias,
            use_separate_proj_weight=True,
            training=self.training,
            need_weights=False,
        )
        return found.transpose(0, 1)

    def right(self, x: Tensor) -> list[Right]:
        x = torch.cat([x.double().mean(1, keepdim=True), x.double()], 1)
        return [Right(self.heads(x[:, :1], 0) @ self.heads(x, 1).mT * SCALE)]

    def output(self, rights: list[Right], x: Tensor, *_: Any, **__: Any) -> Tensor:
        return super().output(rights, torch.cat([x.mean(1, keepdim=True), x], 1))


class MultiheadWithMoreKeys(Multihead):
    """A learned key and a key of zeros behind the tokens."""

    options = {"add_bias_kv": True, "add_zero_attn": True}  # noqa: RUF012

    def of_keys(self, x: Tensor, part: int) -> Tensor:
        own = (self.attention.bias_k, self.attention.bias_v)[part - 1].double().view(1, 1, HEADS, -1)
        own = own.transpose(1, 2).expand(len(x), -1, -1, -1)
        return torch.cat([self.heads(x, part), own, torch.zeros_like(own)], 2)


class Encoder(Spelling):
    """PyTorch's encoder, in the mode in which each of its layers is one operator."""

    sizes = LONG
    exact = False
    nested = False

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=self.nested).eval()

    def inputs(self, batch: int, n: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(batch, n, WIDTH), padding(batch, n)), {}

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nested tensors are a prototype
            found = self.encoder(x, src_key_padding_mask=~seen)
        return functional.pad(found, (0, 0, 0, x.shape[1] - found.shape[1])) * seen[..., None]

    def parts(self, layer: Any, x: Tensor) -> Any:
        attention = layer.self_attn
        weights, biases = attention.in_proj_weight.double(), attention.in_proj_bias.double()
        made = functional.linear(x, weights, biases).unflatten(-1, (3, HEADS, -1))
        return made.permute(2, 0, 3, 1, 4)

    def walked(self, x: Tensor, seen: Tensor) -> tuple[list[Right], Tensor]:
        found, x = [], x.double()
        for number, layer in enumerate(self.encoder.layers):
            whole = layer.double() if x.dtype == torch.float64 else layer
            q, k, v = self.parts(whole, x)
            right = Right(
                q @ k.mT * SCALE,
                lambda y: hide(y, seen[:, None, None]),
                f"encoder.layers.{number}.self_attn",
                real=seen,
            )
            found.append(right)
            joined = whole.self_attn.out_proj((right.weights() @ v).transpose(1, 2).flatten(-2))
            x = whole.norm1(x + joined)
            x = whole.norm2(x + whole.linear2(whole.linear1(x).relu()))
        return found, x * seen[..., None]

    def right(self, x: Tensor, seen: Tensor) -> list[Right]:
        import copy

        return copy.deepcopy(self).double().walked(x, seen)[0]

    def output(self, rights: list[Right], x: Tensor, seen: Tensor) -> Tensor:  # type: ignore[override]
        return self.double().walked(x, seen)[1]


class EncoderOfNested(Encoder):
    """PyTorch's encoder, which packs texts of several lengths where padding is given."""

    nested = True


class Checkpointed(Sdpa):
    """A pass computed again for gradients: one call."""

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.once, x, use_reentrant=False)

    def once(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        return self.joined((q @ k.mT * SCALE).softmax(-1) @ v)


class CheckpointedAgain(Checkpointed):
    """A pass computed again for gradients, in PyTorch's older way."""

    def forward(self, x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return self.once(x)
        return checkpoint(self.once, x + 0 * self.to_out.bias.sum(), use_reentrant=True)


class MappedOverHeads(Spelling):
    """A single-head function under ``torch.vmap`` over texts and heads."""

    unmeasured = "may"

    def forward(self, x: Tensor) -> Tensor:
        def one(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return (q @ k.mT * SCALE).softmax(-1) @ v

        return self.joined(torch.vmap(torch.vmap(one))(*self.split(x)))


class Scripted(Spelling):
    """A function that TorchScript compiled."""

    def forward(self, x: Tensor) -> Tensor:
        return self.joined(scripted()(*self.split(x), SCALE))


_compiled: list[Any] = []


def _attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return torch.softmax(torch.matmul(q, k.transpose(-2, -1)) * scale, dim=-1).matmul(v)


def scripted() -> Any:
    """The function, compiled once."""
    if not _compiled:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is to go
            _compiled.append(torch.jit.script(_attention))
    return _compiled[0]


class ByNumPy(Spelling):
    """Weights that are taken to NumPy, and values mixed there; it has no gradient."""

    unmeasured = "may"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (y.detach() for y in self.split(x))
        weights = self.keep((q @ k.mT * SCALE).softmax(-1))
        return self.joined(torch.from_numpy(weights.numpy() @ v.numpy()))


class OwnDerivative(Spelling):
    """An ``autograd.Function`` that writes attention out."""

    class Attend(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:  # type: ignore[override]
            weights = torch.softmax(q @ k.transpose(-2, -1) * SCALE, dim=-1)
            ctx.save_for_backward(q, k, v, weights)
            return weights @ v

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
            q, k, v, weights = ctx.saved_tensors
            of_weights = grad @ v.mT
            of_scores = weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True)) * SCALE
            return of_scores @ k, of_scores.mT @ q, weights.mT @ grad

    def forward(self, x: Tensor) -> Tensor:
        return self.joined(self.Attend.apply(*self.split(x)))


class Flex(Spelling):
    """PyTorch's attention by functions of scores and of masks, which runs uncompiled."""

    has_law = None  # what a function does with scores is not known to be a sum

    @classmethod
    def is_whole(cls) -> bool:
        """Whether PyTorch takes heads of six channels, which that of 2.6 does not."""
        return torch.__version__ >= "2.13"

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        block = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device="cpu")

        def moved(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return score - 0.1 * (h + 1) * (i - j)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is slow without the compiler
            parts = (each.detach() for each in self.split(x))  # on the CPU it has no gradient
            return self.joined(flex_attention(*parts, score_mod=moved, block_mask=block))

    def after(self, product: Tensor) -> Tensor:
        n = product.shape[-1]
        distance = torch.arange(n)[:, None] - torch.arange(n)
        moved = product - 0.1 * torch.arange(1.0, HEADS + 1).double()[:, None, None] * distance
        return hide(moved, causal(n))


@torch.library.custom_op("attnscale_tests::flash_attn_forward", mutates_args=())
def opaque(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention as a foreign operator whose inside cannot be seen."""
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


class Opaque(Spelling):
    """A kernel of somebody else, which has no gradient."""

    unmeasured = "must"

    def forward(self, x: Tensor) -> Tensor:
        return self.joined(opaque(*(each.detach() for each in self.split(x))))
