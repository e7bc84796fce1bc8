# SPDX-License-Identifier: BSD-3-Clause
"""Attention that a model writes out or calls, as a watch sees it, against the model's own weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import attnscale as at
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tests.tensors.recording import Watch, watched  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("fixed_seed")]

BATCH, HEADS, N, DIM = 2, 4, 12, 8
SCALE = DIM**-0.5
SEEN = torch.ones(N, N, dtype=torch.bool).tril()
ADDED = torch.zeros(N, N).masked_fill(~SEEN, torch.finfo(torch.float32).min)
ALIBI = -(2.0 ** -torch.arange(1, HEADS + 1))[:, None, None] * torch.arange(N).flip(0)
SINKS = torch.linspace(-1, 2, HEADS).view(1, HEADS, 1, 1)


class Model(nn.Module):
    """Projections, and attention as a function writes it, whose weights are kept."""

    def __init__(self, attend: Callable[..., tuple[Any, Any]]) -> None:
        super().__init__()
        self.num_heads, self.attend = HEADS, attend
        self.project = nn.ModuleList([nn.Linear(HEADS * DIM, HEADS * DIM) for _ in range(3)])

    def forward(self, x: Any) -> Any:
        q, k, v = (layer(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2) * 2 for layer in self.project)
        output, self.weights = self.attend(q, k, v)
        return output


def scores_of(q: Any, k: Any) -> Any:
    return q @ k.transpose(-1, -2) * SCALE


def times_values(weights: Any, v: Any) -> tuple[Any, Any]:
    return weights @ v, weights


def in_place(q: Any, k: Any, v: Any) -> Any:
    scores = torch.matmul(q, k.transpose(2, 3))
    scores /= DIM**0.5
    scores += ADDED
    return times_values(functional.softmax(scores.float(), dim=-1).type_as(scores), v)


def folded(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.baddbmm(ADDED.expand(BATCH * HEADS, N, N), q, k.mT, beta=1.0, alpha=SCALE)
    weights = nn.Dropout(0.5).eval()(scores.softmax(-1))
    return torch.bmm(weights, v), weights.unflatten(0, (BATCH, HEADS))


def viewed(q: Any, k: Any, v: Any) -> Any:
    scores = torch.bmm(q.flatten(0, 1), k.flatten(0, 1).mT).mul(SCALE).view(BATCH, HEADS, N, N)
    return times_values(scores.masked_fill(~SEEN, -torch.inf).softmax(dim=3), v)


def heads_behind(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) * SCALE).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v), weights


def capped(q: Any, k: Any, v: Any) -> Any:
    return times_values(torch.where(SEEN, 3 * torch.tanh(scores_of(q, k) / 3), -1e9).softmax(-1), v)


def with_sink(q: Any, k: Any, v: Any) -> Any:
    whole = torch.cat([scores_of(q, k) + ADDED, SINKS.expand(BATCH, -1, N, -1)], dim=-1)
    whole = whole - whole.max(dim=-1, keepdim=True).values
    weights = whole.softmax(-1)
    return weights[..., :-1] @ v, weights


def hooked(q: Any, k: Any, v: Any) -> Any:
    """Attention as in TransformerLens: capped, a bias by distance, weights through an identity module."""
    scores = torch.einsum("bqhd,bkhd->bhqk", *(x.transpose(1, 2) for x in (q, k))) / DIM**0.5
    scores = 0.5 * torch.tanh(scores / 0.5) + ALIBI
    weights = nn.Identity()(scores.masked_fill(~SEEN, -torch.inf).softmax(-1).nan_to_num())
    return torch.einsum("bhqk,bkhd->bqhd", weights, v.transpose(1, 2)), weights


def grouped(q: Any, k: Any, v: Any) -> Any:
    k, v = (x[:, ::2].repeat_interleave(2, 1) for x in (k, v))
    return times_values(scores_of(q, k).softmax(-1), v)


def fused(q: Any, k: Any, v: Any) -> Any:
    weights = (scores_of(q, k).detach() + ADDED).softmax(-1)
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True), weights


def our_own(q: Any, k: Any, v: Any) -> Any:
    weights = (scores_of(q, k).detach() + ADDED).softmax(-1)
    return at.torch.attention(q, k, v, is_causal=True), weights


def two_products(q: Any, k: Any, v: Any) -> Any:
    return times_values((scores_of(q, k) + scores_of(q, k.flip(-2))).softmax(-1), v)


def mixed_heads(q: Any, k: Any, v: Any) -> Any:
    mixed = functional.linear(scores_of(q, k).permute(0, 2, 3, 1), torch.eye(HEADS).roll(1, 0) + 0.1)
    return times_values(mixed.permute(0, 3, 1, 2).softmax(-1), v)


KNOWN = [in_place, folded, viewed, heads_behind, capped, hooked, with_sink, grouped, fused, our_own]
UNKNOWN = [two_products, mixed_heads]


def entropy_of(weights: Any) -> Any:
    p = weights.double()
    return torch.special.entr(p).sum(-1).float()


@pytest.mark.parametrize("attend", KNOWN + UNKNOWN, ids=lambda each: each.__name__)
def test_the_rows_agree_with_the_models_own_weights(attend: Any) -> None:
    model, x = Model(attend), torch.randn(BATCH, N, HEADS * DIM)
    with torch.no_grad():
        plain = model(x)
    (call,), output = watched(model, x)
    assert torch.equal(output, plain)
    found = call.statistics(["entropy", "max_weight", "n_visible"])
    torch.testing.assert_close(found["entropy"], entropy_of(model.weights), rtol=0, atol=2e-6)
    columns = model.weights[..., :N]
    torch.testing.assert_close(found["max_weight"], columns.amax(-1), rtol=0, atol=2e-6)
    hides = attend not in (heads_behind, grouped, *UNKNOWN)
    seen = torch.arange(1, N + 1) if hides else torch.full((N,), N)
    assert (found["n_visible"] == seen).all()
    assert call.rows_shape == (BATCH, HEADS, N)
    assert (call.n_keys, call.has_sink) == (N, attend is with_sink)
    assert call.key_heads == (HEADS // 2 if attend is grouped else HEADS)


@pytest.mark.parametrize("attend", KNOWN, ids=lambda each: each.__name__)
def test_a_law_multiplies_the_product_alone(attend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask, the sink and the cap stay, as in a model whose own scale is larger."""
    model, x = Model(attend), torch.randn(BATCH, N, HEADS * DIM)
    (call,), _ = watched(model, x)
    found = call.entropy_under(at.laws.get("constant(value=1.5)"))
    with torch.no_grad():
        for layer in (model.project[0].weight, model.project[0].bias):
            layer *= 1.5 / SCALE
        model(x)
    torch.testing.assert_close(found, entropy_of(model.weights), rtol=0, atol=1e-5)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_lowest_number_of_any_type_hides_a_key(dtype: Any, added: bool) -> None:
    """Hidden keys count neither in statistics nor in the n of a law, as in a causal call."""
    lowest = torch.finfo(dtype).min

    def attend(q: Any, k: Any, v: Any) -> Any:
        scores = scores_of(q, k)
        mask = torch.zeros(N, N, dtype=dtype).masked_fill(~SEEN, lowest)
        scores = scores + mask if added else scores.masked_fill(~SEEN, lowest)
        return times_values(scores.softmax(-1), v)

    (call,), _ = watched(Model(attend).to(dtype), torch.randn(BATCH, N, HEADS * DIM, dtype=dtype))
    for some, seen in ((call, torch.arange(1, N + 1)), (call.some(3), torch.tensor([4, 8, 12]))):
        assert (some.statistics(["n_visible"])["n_visible"] == seen).all()
    assert call.product.options["causal"] == "top_left"
    assert "attn_mask" not in call.product.options


def test_a_causal_call_behind_padding_sees_no_other_text() -> None:
    """The padding in front of a text is another one, which a causal row that begins at 0 does not see."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        return at.torch.attention(q, k, v, causal=0), None

    (call,), _ = watched(Model(attend), torch.randn(1, N, HEADS * DIM))
    documents = (torch.arange(N) >= N - 3).long()[None]
    padded = replace(call, documents=documents, real=documents == 0)
    law = at.laws.get("llama4_temperature(floor=2)")
    whole, found = (each.entropy_under(law)[..., : N - 3] for each in (call, padded))
    torch.testing.assert_close(found, whole, rtol=0, atol=2e-6)


@pytest.mark.parametrize("attend", UNKNOWN, ids=lambda each: each.__name__)
def test_a_law_without_a_known_product_is_refused(attend: Any) -> None:
    (call,), _ = watched(Model(attend), torch.randn(BATCH, N, HEADS * DIM))
    message = r"^the model writes its softmax out .* law log_n multiplies"
    with pytest.raises(NotImplementedError, match=message):
        call.entropy_under(at.laws.get("log_n"))


@pytest.mark.parametrize(
    "options", [{"causal": 0}, {"is_causal": True}, {"scale": "ministral_temperature(length=4)"}]
)
def test_some_rows_of_this_packages_attention(options: dict[str, Any]) -> None:
    """Rows are chosen by a mask; where they depend on their position all are measured."""

    def attend(q: Any, k: Any, v: Any) -> Any:
        return at.torch.attention(q, k, v, **options), None

    (call,), _ = watched(Model(attend), torch.randn(BATCH, N, HEADS * DIM))
    whole, some = (each.statistics(["entropy"])["entropy"] for each in (call, call.some(3)))
    wanted = whole if "scale" in options else whole[:1, :, [3, 7, 11]]
    torch.testing.assert_close(some, wanted, rtol=0, atol=2e-6)


@pytest.mark.parametrize("attend", KNOWN, ids=lambda each: each.__name__)
def test_some_rows_of_the_first_text(attend: Any) -> None:
    (call,), _ = watched(Model(attend), torch.randn(BATCH, N, HEADS * DIM))
    whole, some = (each.statistics(["entropy", "n_visible"]) for each in (call, call.some(3)))
    for name, rows in some.items():
        torch.testing.assert_close(rows, whole[name][:1, :, [3, 7, 11]], rtol=0, atol=2e-6)


class NoAttention(nn.Module):
    """Softmax of no attention: of a router, of what a product made too, of a loss, of a learned query."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.query = nn.Linear(32, 12), nn.Parameter(torch.randn(1, 32))

    def forward(self, x: Any) -> Any:
        gates = self.router(x).softmax(-1)
        routed = gates @ torch.randn(2, 12, 32)
        mixed = x.transpose(1, 2) @ x
        routed = routed + (self.router(mixed).softmax(-1) @ torch.randn(2, 12, 32)).mean(1, keepdim=True)
        logits = (x @ x.transpose(1, 2)).softmax(-1)
        pooled = (self.query @ x.transpose(1, 2)).softmax(-1) @ x
        mixed = x + x.mT.mT @ torch.randn(32, 32)  # a product, which goes on as a hidden state
        streams = self.router(mixed).unflatten(-1, (3, 4)).softmax(-1)
        return routed + pooled + logits.sum() + (streams @ torch.randn(4, 32)).sum(-2)


def test_other_softmaxes_are_not_attention() -> None:
    calls, _ = watched(NoAttention(), torch.randn(2, 12, 32))
    assert not calls


class OverDepth(nn.Module):
    """A learned query with axes of batch and heads attends to outputs of earlier layers, per token."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(32))

    def forward(self, x: Any) -> Any:
        query = self.query.view(1, 32).expand(*x.shape[:2], 1, 32)
        return plain(query, x, x)


def test_a_learned_query_of_each_token_attends() -> None:
    x = torch.randn(2, 12, 3, 32)
    model = OverDepth()
    (call,), _ = watched(model, x)
    wanted = (x @ model.query).detach().flatten(
        0, 1
    ) * SCALE  # (batch * tokens, keys): no axis is one of heads
    rows = call.statistics(["lse", "entropy"])
    torch.testing.assert_close(rows["lse"][:, 0, 0], wanted.logsumexp(-1))
    weights = wanted.softmax(-1)
    torch.testing.assert_close(rows["entropy"][:, 0, 0], torch.special.entr(weights).sum(-1))


class Looking(Model):
    """Patches of an image attend to words, whose mask does not apply to patches."""

    def __init__(self) -> None:
        super().__init__(plain)
        self.inner = Asking()

    def forward(self, input_ids: Any, visual: Any, attention_mask: Any) -> Any:
        words = functional.one_hot(input_ids, HEADS * DIM).float()
        self.inner(visual, object_queries=torch.randn_like(visual))
        return self.inner(visual, context=words)


class Asking(Model):
    """Attention to the context if there is one, else to its own rows."""

    def __init__(self) -> None:
        super().__init__(plain)

    def forward(self, hidden: Any, context: Any = None, object_queries: Any = None) -> Any:
        sources = hidden, *[hidden if context is None else context] * 2
        made = zip(self.project, sources, strict=True)
        return self.attend(*(layer(x).unflatten(-1, (HEADS, DIM)).transpose(1, 2) for layer, x in made))


def plain(q: Any, k: Any, v: Any) -> Any:
    return times_values(scores_of(q, k).softmax(-1), v)


def test_a_mask_of_words_is_not_applied_to_patches() -> None:
    mask = torch.ones(BATCH, N, dtype=torch.long)
    mask[1, 7:] = 0
    calls, _ = watched(
        Looking(), torch.arange(2 * N).reshape(BATCH, N), torch.randn(BATCH, 5, HEADS * DIM), mask
    )
    assert [call.kind for call in calls] == ["self", "cross"]
    assert [call.real for call in calls] == [None, None]


def test_modules_passes_and_numbers_of_calls() -> None:
    layer = Model(fused)
    begun: list[int] = []
    calls: list[Any] = []
    x = torch.randn(BATCH, N, HEADS * DIM)
    whole = nn.ModuleDict({"one": layer, "other": Model(in_place)})
    whole.forward = lambda x: [whole["one"](x), whole["other"](x), whole["one"](x)]  # type: ignore[method-assign]
    with torch.no_grad(), Watch(whole, calls.append, lambda: begun.append(len(calls))):
        whole(x)
        whole(x)
        whole["one"](x)
    assert [str(each.place) for each in calls] == ["one", "other", "one#1"] * 2 + ["one"]
    assert begun == [0, 3, 6]


def test_nothing_is_left_behind_an_error() -> None:
    model = Model(lambda q, k, v: (_ for _ in ()).throw(RuntimeError("stop")))
    with pytest.raises(RuntimeError, match="stop"), Watch(model, print):
        model(torch.randn(BATCH, N, HEADS * DIM))
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in model.modules())
    assert torch.overrides._get_current_function_mode() is None
