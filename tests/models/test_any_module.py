# SPDX-License-Identifier: BSD-3-Clause
"""Modules of PyTorch and code of one's own, recorded and compared with weights that plain torch computes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

pytestmark = [pytest.mark.torch]

BATCH, N, MEMORY, DIM, HEADS = 2, 12, 9, 32, 4
#: The second text has seven tokens, and its memory has five.
PAD = torch.arange(N) >= torch.tensor([[N], [7]])
MEMORY_PAD = torch.arange(MEMORY) >= torch.tensor([[MEMORY], [5]])
CAUSAL = torch.ones(N, N, dtype=torch.bool).triu(1)  # True hides, as PyTorch's modules have it


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class SelfAttention(nn.Module):
    """Causal attention as nanoGPT writes it."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.c_attn, self.c_proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Any) -> Any:
        batch, n, dim = x.shape
        q, k, v = (
            part.view(batch, n, HEADS, dim // HEADS).transpose(1, 2)
            for part in self.c_attn(x).split(dim, dim=2)
        )
        if self.fused:
            y = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=None, dropout_p=0.0, is_causal=True
            )
        else:
            scores = (q @ k.transpose(-2, -1)) * (1.0 / k.size(-1) ** 0.5)
            scores = scores.masked_fill(CAUSAL[:n, :n], float("-inf"))
            y = functional.softmax(scores, dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(batch, n, dim))


class Block(nn.Module):
    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(DIM), SelfAttention(fused)
        self.mlp = nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, 64), nn.GELU(), nn.Linear(64, DIM))

    def forward(self, x: Any) -> Any:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(x)


class GPT(nn.Module):
    """Tokens in, logits out; ``twice`` runs all blocks a second time."""

    def __init__(self, fused: bool, twice: bool = False) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(50, DIM), nn.Embedding(64, DIM)
        self.h = nn.ModuleList([Block(fused) for _ in range(3)])
        self.lm_head = nn.Linear(DIM, 50, bias=False)
        self.rounds = 1 + twice

    def forward(self, idx: Any) -> Any:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for _ in range(self.rounds):
            for block in self.h:
                x = block(x)
        return self.lm_head(x)


def of_gpt(model: GPT, idx: Any) -> dict[str, Any]:
    """The weights of every call, from the inputs of the modules."""
    found: dict[str, Any] = {}
    hooks = []
    for number, block in enumerate(model.h):

        def keep(module: Any, args: Any, name: str = f"h.{number}.attn") -> None:
            x = args[0].double()
            q, k, _ = functional.linear(x, module.c_attn.weight.double(), module.c_attn.bias.double()).chunk(
                3, -1
            )
            times = sum(each.partition("#")[0] == name for each in found)
            found[f"{name}#{times}" if times else name] = weights(q, k, CAUSAL)

        hooks.append(block.attn.register_forward_pre_hook(keep))
    with torch.no_grad():
        model(idx)
    for hook in hooks:
        hook.remove()
    return found


def weights(q: Any, k: Any, hidden: Any) -> Any:
    """Softmax over the keys that are not hidden, of (batch, n, heads * channels), in float64."""
    q, k = (x.unflatten(-1, (HEADS, -1)).transpose(1, 2) for x in (q, k))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.masked_fill(hidden, -torch.inf).softmax(-1)


def of_modules(model: nn.Module, *inputs: Any, **options: Any) -> dict[str, Any]:
    """The weights of each nn.MultiheadAttention, from its inputs."""
    found: dict[str, Any] = {}
    hooks = []
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):

            def keep(module: Any, args: Any, kwargs: Any, name: str = name) -> None:
                query, key = (x.double() for x in args[:2])
                if not module.batch_first:
                    query, key = query.transpose(0, 1), key.transpose(0, 1)
                (w_q, w_k, _), (b_q, b_k, _) = (
                    x.double().chunk(3) for x in (module.in_proj_weight, module.in_proj_bias)
                )
                hidden = torch.zeros(query.shape[1], key.shape[1], dtype=torch.bool)
                for mask in (kwargs.get("attn_mask"), kwargs.get("key_padding_mask")):
                    if mask is not None:
                        mask = mask if mask.dtype == torch.bool else mask == -torch.inf
                        is_of_keys = mask is not None and mask.shape == key.shape[:2]
                        hidden = hidden | (mask[:, None, None] if is_of_keys else mask)
                found[name] = weights(query @ w_q.T + b_q, key @ w_k.T + b_k, hidden)

            hooks.append(module.register_forward_pre_hook(keep, with_kwargs=True))
    with torch.no_grad():
        model(*inputs, **options)
    for hook in hooks:
        hook.remove()
    return found


def entropy(p: Any) -> Any:
    return torch.special.entr(p).sum(-1).numpy()


def check(log: Any, right: dict[str, Any], real: dict[str, Any] | None = None) -> None:
    """The log has these calls and no other, their entropies, real rows and means."""
    assert sorted(log.modules) == sorted(right)
    for name, p in right.items():
        rows, expected = log["entropy"][name], entropy(p)
        which = torch.ones(rows.shape[0], rows.shape[2], dtype=torch.bool) if real is None else real[name]
        np.testing.assert_array_equal(log.rows[name], which)
        mask = np.broadcast_to(which[:, None], rows.shape)
        np.testing.assert_allclose(rows[mask], expected[mask], rtol=0, atol=1e-5)
        mean = log.select(modules=name).mean_entropy()[0]
        np.testing.assert_allclose(mean, (expected * mask).sum((0, 2)) / mask.sum((0, 2)), rtol=0, atol=1e-5)


def recorded(model: Any, *inputs: Any, **options: Any) -> tuple[Any, Any]:
    with torch.no_grad(), at.torch.record(model) as log:
        output = model(*inputs, **options)
    return log, output


@pytest.mark.parametrize("twice", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("fused", [False, True], ids=["softmax", "fused"])
def test_a_gpt_of_ones_own(fused: bool, twice: bool) -> None:
    model, idx = GPT(fused, twice).eval(), torch.randint(0, 50, (BATCH, N))
    log, output = recorded(model, idx)
    check(log, of_gpt(model, idx))
    assert len(log.modules) == 3 * (1 + twice)
    assert set(log.ways.values()) == {"scaled_dot_product_attention" if fused else "softmax"}
    assert torch.equal(output, model(idx))


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_multihead_attention(batch_first: bool, need_weights: bool, training: bool) -> None:
    model = nn.MultiheadAttention(DIM, HEADS, batch_first=batch_first).train(training)
    query, memory = torch.randn(BATCH, N, DIM), torch.randn(BATCH, MEMORY, DIM)
    if not batch_first:
        query, memory = query.transpose(0, 1), memory.transpose(0, 1)
    options = {"need_weights": need_weights, "key_padding_mask": MEMORY_PAD}
    log, output = recorded(model, query, memory, memory, **options)
    check(log, of_modules(model, query, memory, memory, **options))
    assert dict(log.kinds) == {"": "cross"}
    with torch.no_grad():
        plain = model(query, memory, memory, **options)
    torch.testing.assert_close(output[0], plain[0])


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_transformer_encoder(training: bool, batch_first: bool) -> None:
    """The fused operator of a layer, which PyTorch takes in eval mode, gives the same rows of texts."""
    layer = nn.TransformerEncoderLayer(DIM, HEADS, 64, dropout=0.0, batch_first=batch_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).train(training)
    x = torch.randn(BATCH, N, DIM)
    x = x if batch_first else x.transpose(0, 1)
    log, output = recorded(model, x, src_key_padding_mask=PAD)
    right = of_modules(model, x, src_key_padding_mask=PAD)
    check(log, right, dict.fromkeys(right, ~PAD))
    with torch.no_grad():
        plain = model(x, src_key_padding_mask=PAD)
    texts = ~PAD if batch_first else ~PAD.T
    torch.testing.assert_close(output[texts], plain[texts])


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_transformer_decoder(training: bool) -> None:
    layer = nn.TransformerDecoderLayer(DIM, HEADS, 64, dropout=0.0, batch_first=True)
    model = nn.TransformerDecoder(layer, 2).train(training)
    given = torch.randn(BATCH, N, DIM), torch.randn(BATCH, MEMORY, DIM)
    masks = {"tgt_mask": CAUSAL, "tgt_key_padding_mask": PAD, "memory_key_padding_mask": MEMORY_PAD}
    log, _ = recorded(model, *given, **masks)
    right = of_modules(model, *given, **masks)
    check(log, right, dict.fromkeys(right, ~PAD))
    kinds = {name: "self" if name.endswith("self_attn") else "cross" for name in right}
    assert dict(log.kinds) == kinds


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_whole_transformer() -> None:
    """PyTorch packs texts for its fused operator in eval mode; train mode has the weights."""
    model = nn.Transformer(DIM, HEADS, 1, 1, 64, dropout=0.0, batch_first=True).eval()
    given = torch.randn(BATCH, MEMORY, DIM), torch.randn(BATCH, N, DIM)
    masks = {
        "src_key_padding_mask": MEMORY_PAD,
        "memory_key_padding_mask": MEMORY_PAD,
        "tgt_key_padding_mask": PAD,
        "tgt_mask": CAUSAL,
    }
    log, _ = recorded(model, *given, **masks)
    right = of_modules(model.train(), *given, **masks)
    check(log, right, {name: ~(MEMORY_PAD if "encoder" in name else PAD) for name in right})


@pytest.mark.parametrize(
    ("wrap", "prefix"),
    [
        pytest.param(nn.DataParallel, "module.", id="DataParallel"),
        # The import of the compiler takes seconds.
        pytest.param(
            lambda model: torch.compile(model, backend="eager"),
            "_orig_mod.",
            id="compile",
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.parametrize("fused", [False, True], ids=["softmax", "fused"])
def test_wrappers(wrap: Any, prefix: str, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    # The device that other tests make up must not get a part of the batch.
    monkeypatch.setattr(
        import_module("torch.nn.parallel.data_parallel"), "_get_available_device_type", lambda: None
    )
    model, idx = GPT(fused).eval(), torch.randint(0, 50, (BATCH, N))
    right = {prefix + name: p for name, p in of_gpt(model, idx).items()}
    wrapped = wrap(model)
    with torch.no_grad():
        wrapped(idx)
    log, _ = recorded(wrapped, idx)
    check(log, right)
