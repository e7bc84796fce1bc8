# SPDX-License-Identifier: BSD-3-Clause
"""Dropout of weights in at.torch.nn.MultiheadAttention, and in models of transformers."""

from __future__ import annotations

from typing import Any

import attnscale as at
import pytest

torch = pytest.importorskip("torch")

pytest.importorskip("transformers")

from attnscale.torch.nn import _dropout  # noqa: E402

from tests.tensors import operators  # noqa: E402
from tests.tensors.recording import interface  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("fixed_seed")]

BATCH, HEADS, QUERIES, KEYS = 2, 3, 9, 11
#: Pairs and queries of a block, so small that there are many: of entries, of queries, of single queries.
BLOCKS = {
    "one": (2**22, 128),
    "of entries": (HEADS * QUERIES * KEYS, QUERIES),
    "of queries": (70, 2),
    "small": (1, 1),
}


def blocks(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    pairs, rows = BLOCKS[name]
    monkeypatch.setattr(_dropout, "_PAIRS", pairs)
    monkeypatch.setattr(_dropout, "_ROWS", rows)


def leaf(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def check(q: Any, k: Any, v: Any, *learnt: Any, **options: Any) -> None:
    """Compare output and all gradients to those of the whole dropped matrix of weights."""
    dropout = _dropout.Dropout.draw(0.4)
    found = _dropout.attend_with_dropout(q, k, v, dropout=dropout, statistics=(), **options).output
    unit = torch.eye(k.shape[2], dtype=torch.float64).expand(*k.shape[:2], -1, -1)
    weights = at.torch.attention(q, k, unit, **options)
    (batch, heads, n_queries, _), n_keys = q.shape, k.shape[2]
    kept = dropout.kept((0, batch), heads, (0, n_queries, n_queries), n_keys)
    want = (weights * kept / 0.6) @ v.repeat_interleave(heads // v.shape[1], 1)
    torch.testing.assert_close(found, want)
    grad, leaves = torch.randn_like(want), (q, k, v, *learnt)
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves, grad), torch.autograd.grad(want, leaves, grad)
    )


def check_law(normalizer: str, law: str, causal: int | None, mask: Any) -> None:
    """Check with a factor of the law and a mask, learned where possible."""
    q, k, v = leaf(BATCH, HEADS, QUERIES, 4), leaf(BATCH, HEADS, KEYS, 4), leaf(BATCH, HEADS, KEYS, 4)
    learnt = [mask] if mask is not None and mask.requires_grad else []
    scale: Any = at.laws.get(law)
    if not scale.meaning.is_distance:
        learnt.append(torch.rand(HEADS, dtype=torch.float64, requires_grad=True))
        scale = at.torch.Learned(f"1.0 * {law}", amplitude=learnt[-1])
    rule = at.normalizers.get(normalizer)
    check(q, k, v, *learnt, normalizer=rule, attn_mask=mask, causal=causal, scale=scale)


@pytest.mark.parametrize("size", BLOCKS)
@pytest.mark.parametrize(
    "normalizer", ["softmax", "softmax_n", "sink(logits=0.5)", "sigmoid", "entmax", "relu"]
)
def test_output_and_gradients(monkeypatch: pytest.MonkeyPatch, normalizer: str, size: str) -> None:
    blocks(monkeypatch, size)
    hidden = torch.rand(BATCH, 1, 1, KEYS) < 0.3
    hidden[0] = True  # rows without keys
    check_law(normalizer, "log_n", None, None)
    check_law(normalizer, "log_n", 0, ~hidden)
    check_law(normalizer, "natural_log_n", 2, leaf(BATCH, HEADS, QUERIES, KEYS))


@pytest.mark.parametrize("size", BLOCKS)
@pytest.mark.parametrize(
    "law", ["scale_invariant", "llama4_temperature", "adaptive_temperature", "norm_softmax"]
)
def test_laws_that_count_or_measure_something_else(
    monkeypatch: pytest.MonkeyPatch, law: str, size: str
) -> None:
    """Blocks know positions of queries, distances and scores of rows in the whole call."""
    blocks(monkeypatch, size)
    check_law("softmax", law, None, None)
    if law != "norm_softmax":  # the scale of a row of one key has no bound
        check_law("softmax", law, 0, None)


#: Heads of the keys, and options of model layers beside a number as their scale.
FORMS: dict[str, tuple[int, dict[str, Any]]] = {
    "plain": (4, {}),
    "causal": (4, {"is_causal": True}),
    "bottom right": (4, {"causal": "bottom_right"}),
    "grouped": (2, {"causal": "bottom_right"}),
    "window": (4, {"causal": "bottom_right", "window": (2, 0)}),
    "both sides": (4, {"window": (2, 3)}),
    "padding": (4, {"attn_mask": torch.tensor([[True] * 7 + [False] * 2, [True] * 9])[:, None, None]}),
    "soft-cap": (4, {"is_causal": True, "softcap": 0.7}),
    "sink": (4, {"normalizer": at.torch.Sink(torch.arange(4.0).double())}),
    "window of sinks": (
        2,
        {
            "causal": "bottom_right",
            "window": (3, 0),
            "softcap": 2.0,
            "normalizer": at.torch.Sink(torch.arange(4.0).double()),
        },
    ),
}


@pytest.mark.parametrize("size", BLOCKS)
@pytest.mark.parametrize("form", FORMS)
def test_masks_and_shared_heads(monkeypatch: pytest.MonkeyPatch, form: str, size: str) -> None:
    kv_heads, options = FORMS[form]
    blocks(monkeypatch, size)
    check(*(leaf(2, h, 9, 8) for h in (4, kv_heads, kv_heads)), scale=0.3, enable_gqa=kv_heads < 4, **options)


def module_of(**options: Any) -> Any:
    module = at.torch.nn.MultiheadAttention(16, 4, dropout=0.5, batch_first=True, **options)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return module


def test_the_seed_is_pytorchs() -> None:
    module, x = module_of(), torch.randn(2, 7, 16)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(module(x, x, x)[0])
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0], found[2])
    assert not torch.allclose(found[2], module(x, x, x)[0])  # each pass draws its own
    state = torch.get_rng_state()
    module.eval()(x, x, x)
    module.dropout = 0.0
    module.train()(x, x, x)
    assert torch.equal(state, torch.get_rng_state())  # where nothing is dropped, nothing is drawn


def test_how_many_are_kept_and_that_rows_differ() -> None:
    for p in (0.1, 0.75):
        kept = _dropout.Dropout.draw(p).kept((0, 4), 8, (0, 64, 64), 61).double()
        size = kept.numel()
        assert abs(kept.mean() - (1 - p)) < 4 * (p * (1 - p) / size) ** 0.5
        rows = (kept - (1 - p)).reshape(-1, 61)
        for pairs in ((rows[1:] * rows[:-1]), (rows[:, 1:] * rows[:, :-1]), (rows[64:] * rows[:-64])):
            assert abs(pairs.mean()) < 4 * p * (1 - p) / pairs.numel() ** 0.5  # no correlation
    assert bool(_dropout.Dropout.draw(0.0).kept((0, 1), 1, (0, 9, 9), 9).all())
    assert not _dropout.Dropout.draw(1.0).kept((0, 1), 1, (0, 9, 9), 9).any()


def test_the_weights_are_those_after_and_the_statistics_those_before() -> None:
    module, x = module_of(statistics=("entropy", "max_weight"), law="log_n"), torch.randn(2, 7, 16)
    output, weights = module(x, x, x, average_attn_weights=False)
    rows = module.rows
    plain = module.eval()(x, x, x, average_attn_weights=False)[1]
    torch.testing.assert_close(rows.entropy, module.rows.entropy)
    torch.testing.assert_close(rows.max_weight, module.rows.max_weight)
    assert rows.lse is None
    kept = weights != 0
    assert 0.3 < kept.float().mean() < 0.7
    torch.testing.assert_close(weights, plain * kept / 0.5)
    values = (
        (x @ module.in_proj_weight[32:].T + module.in_proj_bias[32:]).unflatten(-1, (4, 4)).transpose(1, 2)
    )
    torch.testing.assert_close(output, module.out_proj((weights @ values).transpose(1, 2).flatten(-2)))


def test_memory_of_the_backward_pass_does_not_grow_with_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dropout, "_PAIRS", 4 * 16 * 256)
    module, x, sizes = module_of(), torch.randn(1, 256, 16, requires_grad=True), []

    def pack(tensor: Any) -> Any:
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module(x, x, x, need_weights=False)[0]
    assert 0 < max(sizes) <= 256 * 48
    output.sum().backward()
    assert bool(x.grad.isfinite().all())


@pytest.mark.parametrize("p", [0.0, 1.0])
def test_probabilities_zero_and_one(p: float) -> None:
    module, x = module_of(), torch.randn(2, 7, 16, requires_grad=True)
    module.dropout = p
    output, weights = module(x, x, x)
    if p:
        torch.testing.assert_close(output, module.out_proj.bias.expand_as(output))
        assert not weights.any()
    else:
        torch.testing.assert_close(output, module.eval()(x, x, x)[0])
    (gradient,) = torch.autograd.grad(output.sum(), x)
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("p", [-0.1, 1.5])
def test_a_probability_out_of_range(p: float) -> None:
    module, x = module_of(), torch.randn(2, 7, 16)
    module.dropout = p
    with pytest.raises(ValueError, match=rf"dropout must be between 0 and 1, got {p}"):
        module(x, x, x)
    module.eval()(x, x, x)


@pytest.mark.parametrize("shape", [(0, 7, 16), (2, 0, 16), (7, 16)], ids=str)
def test_extents(shape: tuple[int, ...]) -> None:
    module, x = module_of(), torch.randn(shape)
    output, weights = module(x, x, x, average_attn_weights=False)
    assert output.shape == shape
    assert weights.shape == (*shape[:-2], 4, shape[-2], shape[-2])


def test_the_operator_of_weights_is_what_pytorch_expects() -> None:
    module, x = module_of(law="ssmax", learnable_law=("s",)), torch.randn(2, 7, 16)
    mask = torch.randn(7, 7)
    operators.check(lambda: module(x, x, x, attn_mask=mask), "weights")


def test_the_operator_of_the_mask_is_what_pytorch_expects() -> None:
    torch.library.opcheck(_dropout.kept, (torch.tensor([1, 2]), 0.5, 0, 2, 1, 3, 5, 7))


def test_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dropout, "_PAIRS", 4 * 5 * 5)  # a block for each entry of the batch
    module, x = module_of(law="ssmax", learnable_law=("s",)), torch.randn(2, 5, 16)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    gradients = []
    for each in (module, compiled):
        torch.manual_seed(1)
        output = each(x, x, x, need_weights=False)[0]
        gradients.append(torch.autograd.grad(output.sin().sum(), list(module.parameters())))
    torch.testing.assert_close(gradients[0], gradients[1])


def test_under_torch_func(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks(monkeypatch, "of queries")
    module, x = module_of(), torch.randn(2, 5, 16)
    parameters = dict(module.named_parameters())

    def loss(parameters: Any) -> Any:
        return torch.func.functional_call(module, parameters, (x, x, x))[0].sin().sum()

    torch.manual_seed(1)
    found = torch.func.grad(loss)(parameters)
    torch.manual_seed(1)
    want = torch.autograd.grad(loss(parameters), list(parameters.values()))
    torch.testing.assert_close(tuple(found.values()), want)
    for randomness, same in (("same", True), ("different", False)):
        rows = torch.func.vmap(lambda _: module(x, x, x)[0], randomness=randomness)(torch.zeros(2))
        assert torch.equal(rows[0], rows[1]) == same


# ---- models of transformers ------------------------------------------------------------------------

IDS = torch.arange(40).reshape(2, 20) % 37


def test_a_layer_drops_as_a_call_does() -> None:
    q, k, v = (leaf(2, 4, 9, 8) for _ in range(3))
    mask = interface.PatternMask.of(interface.Pattern(True, (3, 0), None), lambda: torch.ones(1), "cpu")
    more = {"scaling": 0.3, "softcap": 2.0, "s_aux": torch.arange(4.0)}
    torch.manual_seed(5)
    found, weights = interface.attend(torch.nn.Identity(), q, k, v, mask, dropout=0.4, **more)
    assert weights is None
    torch.manual_seed(5)
    options = {"scale": 0.3, **FORMS["window of sinks"][1]}
    dropout = _dropout.Dropout.draw(0.4)
    want = _dropout.attend_with_dropout(q, k, v, dropout=dropout, statistics=(), **options).output
    torch.testing.assert_close(found, want.transpose(1, 2))


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
def test_the_seed_of_a_model_is_pytorchs(kind: str) -> None:
    model = model_of(kind, 0.5)
    (first, gradients), (again, more), (other, _) = (run(model, seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    for one, two in zip(gradients, more, strict=True):
        assert (one is None) == (two is None)
        assert one is None or torch.equal(one, two)
    assert not torch.allclose(first, other)


def test_layers_that_are_computed_again_have_their_mask() -> None:
    plain, again = model_of("llama", 0.3), model_of("llama", 0.3)
    again.load_state_dict(plain.state_dict())
    again.gradient_checkpointing_enable()
    (want, gradients), (found, more) = run(plain, 3), run(again, 3)
    torch.testing.assert_close(found, want)
    for one, two in zip(gradients, more, strict=True):
        assert one is None or bool(torch.isclose(one, two, rtol=1e-4, atol=1e-6).all())


def test_weights_are_recorded_before_dropout() -> None:
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
