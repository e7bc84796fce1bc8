# SPDX-License-Identifier: BSD-3-Clause
"""at.torch.attention and attention_statistics: learned options, operators, transformations, models."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.tensors import operators  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("default"),
    pytest.mark.usefixtures("fixed_seed", "either_way"),
]


def draw(*shape: int, dtype: Any = torch.float64) -> Any:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


@pytest.mark.parametrize("shape", [(2, 3, 9), (3, 9), (2, 3, 1)])
def test_a_sink_of_each_row(shape: tuple[int, ...]) -> None:
    """Sinks per row, as in layers whose sinks depend on the query."""
    q, k, v = (draw(2, 3, 9, 8) for _ in range(3))
    logits = draw(*shape)

    def call(logits: Any) -> tuple[Any, ...]:
        rows = at.torch.attention_statistics(q, k, v, normalizer=at.torch.Sink(logits))
        return rows.output, rows.entropy

    assert torch.autograd.gradcheck(call, (logits,))


def test_a_sink_key() -> None:
    """Sinks as a learned key without a value: the logits are its scores."""
    q, k, v = (draw(2, 3, 9, 8) for _ in range(3))
    sink_key = draw(3, 8)

    def call(*given: Any) -> Any:
        logits = 0.5 * torch.einsum("bhnd,hd->bhn", given[0], given[3])
        return at.torch.attention(*given[:3], scale=0.5, normalizer=at.torch.Sink(logits))

    keys = torch.cat([sink_key[None, :, None].expand(2, 3, 1, 8), k], 2)
    wanted = (0.5 * q @ keys.mT).softmax(-1)[..., 1:] @ v
    torch.testing.assert_close(call(q, k, v, sink_key), wanted)
    assert torch.autograd.gradcheck(call, (q, k, v, sink_key), fast_mode=True)


def test_a_bias_of_sigmoid_for_each_head() -> None:
    q, k, v = (draw(2, 3, 9, 8) for _ in range(3))
    bias = draw(3)

    def call(*given: Any) -> Any:
        return at.torch.attention(*given[:3], normalizer=at.torch.Sigmoid(given[3]), is_causal=True)

    scores = q @ k.mT / 8**0.5 + bias[:, None, None]
    torch.testing.assert_close(call(q, k, v, bias), (scores.sigmoid() * torch.ones(9, 9).tril()) @ v)
    assert torch.autograd.gradcheck(call, (q, k, v, bias), fast_mode=True)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: at.torch.Sigmoid(0.5), r"bias must be a tensor of shape \(\) or \(heads,\), got 0.5"),
        (lambda: at.torch.Entmax(1.5), r"alpha must be a tensor of shape \(\), got 1.5"),
        (lambda: at.torch.Entmax(torch.ones(2)), r"alpha must be a tensor of shape \(\), got .*"),
    ],
)
def test_parameters_that_are_not_tensors(made: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        made()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True, "softcap": 3.0},
        {"window": (2, None), "scale": draw(3, 1), "attn_mask": draw(5, 7)},
    ],
    ids=["plain", "soft-cap", "window"],
)
def test_opcheck(options: dict[str, Any]) -> None:
    q, k, v = draw(2, 3, 5, 4), draw(2, 3, 7, 4), draw(2, 3, 7, 6)
    statistics = ("lse", "entropy", "n_visible")
    operators.check(
        lambda: at.torch.attention_statistics(q, k, v, statistics=statistics, **options), "attend"
    )


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 4), (7, 4), (7, 6)),
        ((3, 5, 4), (3, 7, 4), (1, 7, 6)),
        ((2, 1, 3, 5, 4), (1, 6, 3, 7, 4), (3, 7, 6)),
    ],
)
def test_shapes_without_data_are_those_with_data(shapes: Any, layout: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    real = [torch.randn(*shape) for shape in shapes]
    if layout == "bshd":
        real = [x if x.ndim < 3 else x.transpose(-3, -2).contiguous() for x in real]
    statistics = ("lse", "n_visible", "support")
    want = at.torch.attention_statistics(*real, statistics=statistics, layout=layout)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in real]
        found = at.torch.attention_statistics(*fake, statistics=statistics, layout=layout)
    for each, exact in zip(found, want, strict=True):
        assert (each is None) == (exact is None)
        if exact is not None:
            assert (each.shape, each.dtype, each.stride()) == (exact.shape, exact.dtype, exact.stride())


def test_compiled_without_a_graph_break() -> None:
    law, normalizer = at.laws.LogN(base=64), at.normalizers.SoftmaxN(2.0)

    def loss(q: Any, k: Any, v: Any) -> Any:
        rows = at.torch.attention_statistics(q, k, v, scale=law, normalizer=normalizer, window=(3, None))
        return rows.output.sin().sum() + rows.entropy.square().sum()

    q, k, v = (draw(2, 3, 9, 8) for _ in range(3))
    want = torch.autograd.grad(loss(q, k, v), (q, k, v))
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(q, k, v), (q, k, v))
    for got, exact in zip(found, want, strict=True):
        torch.testing.assert_close(got, exact)


def test_functional_gradients() -> None:
    q, k, v = (draw(3, 9, 8).detach() for _ in range(3))
    found = torch.func.grad(lambda x: at.torch.attention(x, k, v).square().sum())(q)
    x = q.clone().requires_grad_()
    at.torch.attention(x, k, v).square().sum().backward()
    assert torch.equal(found, x.grad)


def test_second_derivatives_are_refused() -> None:
    q, k, v = (draw(3, 9, 8) for _ in range(3))
    (first,) = torch.autograd.grad(at.torch.attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        first.sum().backward()
    once = torch.func.grad(lambda x: at.torch.attention(x, k.detach(), v.detach()).square().sum())
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.func.grad(lambda x: once(x).sum())(q.detach())


def test_autocast_picks_the_type() -> None:
    q, k, v = (draw(3, 9, 8, dtype=torch.float32) for _ in range(3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = at.torch.attention(q, k, v)
    assert output.dtype == torch.bfloat16
    output.sum().backward()
    assert q.grad.dtype == torch.float32


def test_no_graph_is_kept_without_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = (draw(3, 9, 8) for _ in range(3))
    with torch.no_grad():
        output = at.torch.attention(q, k, v)
    assert output.grad_fn is None
    assert not at.torch.attention(*(x.detach() for x in (q, k, v))).requires_grad


def test_attention_needs_a_value() -> None:
    """A missing value is an error, not an empty tensor."""
    q = draw(2, 5, 4)
    seen = []
    for attend, x in ((at.attention, q.detach().numpy()), (at.torch.attention, q)):
        with pytest.raises(TypeError, match=r"value must be an? .*, got None; attention_statistics") as error:
            attend(x, x, None)
        seen.append(str(error.value).replace("an array", "a tensor"))
    assert seen[0] == seen[1]
    assert at.torch.attention_statistics(q, q).entropy.shape == (2, 5)


def test_tensors_of_other_devices_are_refused() -> None:
    q = torch.randn(3, 9, 8, device="meta")
    with pytest.raises(ValueError, match="attnscale runs on the CPU, got tensors on meta"):
        at.torch._base.tensors.check_on_cpu(None, torch.zeros(2), q)
    assert at.torch.attention(q, q, q).shape == q.shape  # a shape is all that these have


@pytest.mark.parametrize("kind", ["bert", "llama", "gpt_oss", "t5"])
def test_models_are_trained_as_with_their_own_attention(kind: str) -> None:
    """Grouped queries, sinks that learn, a position bias that learns: five steps of the same losses.

    In float64: in float32 five steps are enough for rounding to switch a ReLU of T5 on or off.
    """
    pytest.importorskip("transformers")
    from tools.audit import oracle

    losses = []
    for attention in ("eager", at.torch.register()):
        torch.manual_seed(0)
        model = oracle.build(kind)[0]
        if kind != "gpt_oss":  # whose experts' products have no float64
            model = model.double()
        model.set_attn_implementation(attention)
        for parameter in model.parameters():
            parameter.requires_grad_()
        inputs = torch.arange(60)[None] * 7 % 60 + 3
        more = {"decoder_input_ids": inputs[:, :40]} if kind == "t5" else {}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses.append([])
        with torch.enable_grad():
            for _ in range(5):
                loss = (model(input_ids=inputs, **more).last_hidden_state - 0.1).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses[-1].append(float(loss.detach()))
    assert losses[0][-1] < 0.99 * losses[0][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4 if kind == "gpt_oss" else 1e-6)


def test_pytorchs_own_sample_inputs() -> None:
    """Samples of scaled_dot_product_attention: values, and gradients of all tensors that require one."""
    for package in ("expecttest", "setuptools"):  # which PyTorch's samples import
        pytest.importorskip(package)
    from torch.testing._internal.common_methods_invocations import op_db

    name = "nn.functional.scaled_dot_product_attention"
    (op,) = (each for each in op_db if each.name == name)
    seen = 0
    for sample in op.sample_inputs("cpu", torch.float64, requires_grad=True):
        options = dict(sample.kwargs)
        if options.pop("dropout_p"):
            continue
        arrays = (sample.input, *sample.args)
        learned = [x for x in (*arrays, options.get("attn_mask")) if x is not None]
        found = at.torch.attention(*arrays, **options)
        want = torch.nn.functional.scaled_dot_product_attention(*arrays, **options)
        torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-13)
        weights = torch.randn_like(want)
        gradients = (torch.autograd.grad((weights * x).sum(), learned) for x in (found, want))
        for got, exact in zip(*gradients, strict=True):
            torch.testing.assert_close(got, exact, rtol=1e-10, atol=1e-12)
        seen += 1
    assert seen >= 10


def test_minilm_is_tuned_as_with_its_own_attention(minilm: str) -> None:
    """Sentences of two topics are pushed apart: ten steps of the same losses from published weights."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm)
    texts = ["a cat sleeps", "dogs chase the ball", "the stock market fell", "banks raise their rates today"]
    inputs = tokenizer(texts, return_tensors="pt", padding=True)
    signs = torch.tensor([1.0, 1.0, -1.0, -1.0])
    losses = []
    for attention in ("eager", at.torch.register()):
        model = AutoModel.from_pretrained(minilm, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0)
        model.set_attn_implementation(attention)
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        losses.append([])
        for _ in range(10):
            rows = torch.nn.functional.normalize(model(**inputs).last_hidden_state[:, 0], dim=-1)
            loss = -(rows @ rows.T * signs * signs[:, None]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(float(loss.detach()))
    assert losses[0][-1] < losses[0][0] - 0.01
    np.testing.assert_allclose(losses[1], losses[0], rtol=0, atol=1e-4)
