# SPDX-License-Identifier: BSD-3-Clause
"""Dropout of weights in models of transformers: that of at.torch.nn.MultiheadAttention."""

from __future__ import annotations

from typing import Any

import attnscale as at
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from attnscale.torch._models.interface import (  # noqa: E402
    Pattern,
    PatternMask,
    attend,
)
from attnscale.torch.nn import _dropout  # noqa: E402
from attnscale.torch.nn._dropout import Dropout  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("fixed_seed")]

BATCH, HEADS, N, DIM, P = 2, 4, 9, 8, 0.4
IDS = torch.arange(40).reshape(2, 20) % 37


def pattern(causal: bool, window: tuple[int, int] | None, padding: Any = None) -> Any:
    return PatternMask.of(Pattern(causal, window, padding), lambda: torch.ones(1), "cpu")


PADDING = torch.ones(BATCH, N, dtype=torch.bool)
PADDING[0, -2:] = False
#: What models ask for: mask, other arguments, heads of the keys, and the same as options of attention.
FORMS: dict[str, tuple[Any, dict[str, Any], int, dict[str, Any]]] = {
    "plain": (None, {"is_causal": False}, 4, {}),
    "causal": (None, {"is_causal": True}, 4, {"is_causal": True}),
    "pattern": (pattern(True, None), {}, 4, {"causal": "bottom_right"}),
    "grouped": (pattern(True, None), {}, 2, {"causal": "bottom_right", "enable_gqa": True}),
    "window": (pattern(True, (2, 0)), {}, 4, {"causal": "bottom_right", "window": (2, 0)}),
    "both sides": (pattern(False, (2, 3)), {}, 4, {"window": (2, 3)}),
    "padding": (pattern(False, None, PADDING), {}, 4, {"attn_mask": PADDING[:, None, None]}),
    "soft-cap": (None, {"is_causal": True, "softcap": 0.7}, 4, {"is_causal": True, "softcap": 0.7}),
    "sink": (None, {"is_causal": False, "s_aux": torch.arange(4.0)}, 4, {"sink": torch.arange(4.0)}),
    "window of sinks": (
        pattern(True, (3, 0)),
        {"s_aux": torch.arange(4.0), "softcap": 2.0},
        2,
        {
            "causal": "bottom_right",
            "window": (3, 0),
            "softcap": 2.0,
            "sink": torch.arange(4.0),
            "enable_gqa": True,
        },
    ),
}
BLOCKS = {"one": (2**22, 128), "of entries": (HEADS * N * N, N), "of queries": (70, 2), "small": (1, 1)}


def leaves(kv_heads: int) -> list[Any]:
    heads = (HEADS, kv_heads, kv_heads)
    return [torch.randn(BATCH, h, N, DIM, dtype=torch.float64, requires_grad=True) for h in heads]


@pytest.mark.parametrize("size", BLOCKS)
@pytest.mark.parametrize("form", FORMS)
def test_output_and_gradients_are_those_of_the_dropped_matrix(
    monkeypatch: pytest.MonkeyPatch, form: str, size: str
) -> None:
    mask, arguments, kv_heads, options = FORMS[form]
    monkeypatch.setattr(_dropout, "_PAIRS", BLOCKS[size][0])
    monkeypatch.setattr(_dropout, "_ROWS", BLOCKS[size][1])
    q, k, v = leaves(kv_heads)
    torch.manual_seed(5)
    found, weights = attend(torch.nn.Identity(), q, k, v, mask, dropout=P, scaling=0.3, **arguments)
    assert weights is None
    torch.manual_seed(5)
    kept = Dropout.draw(P).kept((0, BATCH), HEADS, (0, N, N), N)
    options = dict(options)
    if "sink" in options:
        options["normalizer"] = at.torch.Sink(options.pop("sink").double())
    unit = torch.eye(N, dtype=torch.float64).expand(BATCH, kv_heads, N, N)
    matrix = at.torch.attention(q, k, unit, scale=0.3, **options)
    want = (matrix * kept / (1 - P)) @ v.repeat_interleave(HEADS // kv_heads, 1)
    torch.testing.assert_close(found, want.transpose(1, 2))
    grad = torch.randn_like(found)
    torch.testing.assert_close(
        torch.autograd.grad(found, (q, k, v), grad),
        torch.autograd.grad(want.transpose(1, 2), (q, k, v), grad),
    )


def model_of(kind: str, dropout: float, **config: Any) -> Any:
    import transformers

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}
    if kind == "bert":
        own = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": dropout}
        made = transformers.BertModel(transformers.BertConfig(vocab_size=40, **sizes, **own, **config))
    else:
        own = {"attention_dropout": dropout, "num_key_value_heads": 2}
        made = transformers.LlamaModel(transformers.LlamaConfig(vocab_size=40, **sizes, **own, **config))
    made.set_attn_implementation(at.torch.register())
    return made.train()


def run(model: Any, seed: int) -> tuple[Any, list[Any]]:
    torch.manual_seed(seed)
    output = model(input_ids=IDS).last_hidden_state
    used = [each for each in model.parameters() if each.requires_grad]
    return output.detach(), list(torch.autograd.grad(output.sin().sum(), used, allow_unused=True))


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_without_dropout_nothing_changes(kind: str) -> None:
    model, model_in_eval = model_of(kind, 0.0), model_of(kind, 0.5)
    model_in_eval.load_state_dict(model.state_dict())
    state = torch.get_rng_state()
    with torch.no_grad():
        found = model(input_ids=IDS).last_hidden_state
        assert torch.equal(found, model_in_eval.eval()(input_ids=IDS).last_hidden_state)
        assert torch.equal(state, torch.get_rng_state())  # where nothing is dropped, nothing is drawn
        model.set_attn_implementation("eager")
        torch.testing.assert_close(found, model(input_ids=IDS).last_hidden_state)


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_the_seed_is_that_of_pytorch(kind: str) -> None:
    model = model_of(kind, 0.5)
    (first, gradients), (again, more), (other, _) = (run(model, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    for one, two in zip(gradients, more, strict=True):
        assert (one is None) == (two is None)
        assert one is None or torch.equal(one, two)
    assert not torch.allclose(first, other)


def test_the_mean_over_seeds_is_attention_without() -> None:
    q, k, v = (x.detach() for x in leaves(2))
    draws = 3000
    many = [x.expand(draws, -1, -1, -1, -1).flatten(0, 1) for x in (q, k, v)]
    dropped, _ = attend(torch.nn.Identity(), *many, None, dropout=P, is_causal=True)
    want, _ = attend(torch.nn.Identity(), q, k, v, None, is_causal=True)
    found = dropped.unflatten(0, (draws, BATCH))
    error = found.std(0) / draws**0.5
    # 576 numbers: of as many standard normal ones, 5 is passed once in 3000 draws.
    assert bool(((found.mean(0) - want).abs() <= 5 * error).all())
    seeds = []
    for seed in range(200):
        torch.manual_seed(seed)
        seeds.append(attend(torch.nn.Identity(), q, k, v, None, dropout=P, is_causal=True)[0])
    spread = torch.stack(seeds)
    assert bool(((spread.mean(0) - want).abs() <= 5 * spread.std(0) / 200**0.5).all())


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_a_model_is_trained_with_it(kind: str) -> None:
    model = model_of(kind, 0.1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        optimiser.zero_grad()
        loss = (model(input_ids=IDS).last_hidden_state - 0.3).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    gradients = [x.grad for x in model.parameters() if x.grad is not None]
    assert gradients
    assert all(bool(x.isfinite().all()) for x in gradients)


def test_layers_that_are_computed_again_have_their_mask() -> None:
    plain, again = model_of("llama", 0.3), model_of("llama", 0.3)
    again.load_state_dict(plain.state_dict())
    again.gradient_checkpointing_enable()
    (want, gradients), (found, more) = run(plain, 3), run(again, 3)
    torch.testing.assert_close(found, want)
    for one, two in zip(gradients, more, strict=True):
        assert one is None or bool(torch.isclose(one, two, rtol=1e-4, atol=1e-6).all())


def test_what_is_recorded_is_before_any_is_dropped() -> None:
    model = model_of("bert", 0.6)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)

    with torch.no_grad():
        with at.torch.record(model, statistics=["entropy", "lse"]) as dropped:
            model(input_ids=IDS)
        with at.torch.record(model.eval(), statistics=["entropy", "lse"]) as plain:
            model(input_ids=IDS)

    # The first layer reads the same inputs; later ones read what the dropout left.
    torch.testing.assert_close(torch.as_tensor(dropped.entropy[0]), torch.as_tensor(plain.entropy[0]))
    assert not torch.allclose(torch.as_tensor(dropped.entropy[1]), torch.as_tensor(plain.entropy[1]))


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_a_probability_out_of_range(p: float) -> None:
    q, k, v = leaves(4)
    with pytest.raises(ValueError, match=rf"dropout must be between 0 and 1, got {p}"):
        attend(torch.nn.Identity(), q, k, v, None, dropout=p, is_causal=False)


def test_what_cannot_be_done_is_refused_with_dropout_too() -> None:
    q, k, v = leaves(4)
    with pytest.raises(NotImplementedError, match="Identity passes indices="):
        attend(torch.nn.Identity(), q, k, v, None, dropout=0.1, indices=torch.zeros(1))
    with pytest.raises(ValueError, match="must be on the device of query, meta, got one on cpu"):
        attend(torch.nn.Identity(), q.to("meta"), k, v, None, dropout=0.1)
