# SPDX-License-Identifier: BSD-3-Clause
"""at.torch.replace_attention."""

from __future__ import annotations

import copy
from typing import Any

import attnscale as at
import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("fixed_seed")]


def encoder(**options: Any) -> Any:
    return torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(16, 4, 24, batch_first=True, **options), 2
    )


def attentions(model: Any) -> list[Any]:
    return [each for each in model.modules() if isinstance(each, torch.nn.MultiheadAttention)]


def test_the_model_computes_what_it_did() -> None:
    model, x = encoder().eval(), torch.randn(2, 5, 16)
    want = model(x)
    found = at.torch.replace_attention(model)
    assert found is model
    assert all(type(each) is at.torch.nn.MultiheadAttention for each in attentions(model))
    torch.testing.assert_close(model(x), want, rtol=1e-5, atol=1e-5)


def test_parameters_names_mode_and_dropout_stay() -> None:
    model = encoder(dropout=0.25).eval()
    before, state = dict(model.named_parameters()), copy.deepcopy(model.state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    at.torch.replace_attention(model)
    after = dict(model.named_parameters())
    assert before.keys() == after.keys()
    assert all(after[name] is x for name, x in before.items())
    assert not any(each.training for each in model.modules())
    assert [each.dropout for each in attentions(model)] == [0.25, 0.25]
    model.load_state_dict(state)
    x = torch.randn(2, 5, 16)
    model(x).square().sum().backward()
    optimiser.step()
    name = "layers.0.self_attn.in_proj_weight"
    assert not torch.equal(model.state_dict()[name], state[name])  # the optimizer has hold of them


def test_options_go_to_each_module() -> None:
    model = encoder()
    options = {"law": "ssmax", "learnable_law": ("s",), "learnable_scale": "head", "normalizer": "softmax_n"}
    at.torch.replace_attention(model, statistics=["entropy"], rotary_base=100.0, **options)
    model(torch.randn(2, 5, 16))
    first, second = attentions(model)
    for each in (first, second):
        assert each.law.name == "ssmax"
        assert each.normalizer.name == "softmax_n"
        assert each.rotary_base == 100.0
        assert each.rows.entropy.shape == (2, 4, 5)
    assert first.scale_factor is not second.scale_factor
    assert "layers.1.self_attn.law_parameters.s" in dict(model.named_parameters())


def test_a_model_that_is_one_and_one_that_is_there_twice() -> None:
    alone = torch.nn.MultiheadAttention(16, 4, dtype=torch.float64, kdim=8, vdim=8, add_bias_kv=True)
    calls: list[int] = []
    alone.register_forward_hook(lambda *_: calls.append(1))
    found = at.torch.replace_attention(alone, learnable_scale="head")
    assert type(found) is at.torch.nn.MultiheadAttention
    assert type(alone) is torch.nn.MultiheadAttention
    assert found.scale_factor.dtype == torch.float64
    x, y = torch.randn(3, 2, 16, dtype=torch.float64), torch.randn(5, 2, 8, dtype=torch.float64)
    want = alone(x, y, y)
    torch.testing.assert_close(found(x, y, y), want)
    assert len(calls) == 2  # its hooks stay
    assert not alone._forward_pre_hooks

    shared = torch.nn.MultiheadAttention(16, 4)
    model = torch.nn.ModuleList([shared, torch.nn.ModuleDict({"again": shared})])
    at.torch.replace_attention(model)
    assert model[0] is model[1]["again"]
    assert type(model[0]) is at.torch.nn.MultiheadAttention


def test_modules_of_this_package_stay() -> None:
    own = at.torch.nn.MultiheadAttention(16, 4, law="log_n")
    model = torch.nn.ModuleList([own, torch.nn.MultiheadAttention(16, 4)])
    at.torch.replace_attention(model, law="ssmax")
    assert model[0] is own
    assert own.law.name == "log_n"
    assert model[1].law.name == "ssmax"


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_model_in_operations_of_pytorch(dropout: float) -> None:
    """Plain operations agree with the kernels, with or without dropout, and have second derivatives."""
    torch.manual_seed(0)
    model, x = encoder(dropout=dropout).double(), torch.randn(1, 3, 16, dtype=torch.float64)
    found = []
    for backend in ("core", "torch"):
        each = at.torch.replace_attention(copy.deepcopy(model), backend=backend, statistics=["entropy"])
        assert {module.backend for module in attentions(each)} == {backend}
        torch.manual_seed(1)
        found += [each(x), *(module.rows.entropy for module in attentions(each))]
    half = len(found) // 2
    torch.testing.assert_close(found[half:], found[:half])
    module = attentions(each)[0].eval()
    call = lambda x: module(x, x, x)  # noqa: E731
    assert torch.autograd.gradgradcheck(call, x.clone().requires_grad_(), fast_mode=True, atol=1e-4)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # shapes are parts of what is recorded
def test_torch_jit_trace_is_refused_in_one_line_but_of_operations_of_pytorch() -> None:
    x = torch.randn(2, 5, 16)
    model = at.torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    with pytest.raises(RuntimeError, match=r"torch\.jit\.trace cannot record the kernels") as error:
        torch.jit.trace(model, (x, x, x))
    assert "\n" not in str(error.value)
    plain = at.torch.replace_attention(torch.nn.MultiheadAttention(16, 4, batch_first=True), backend="torch")
    traced = torch.jit.trace(plain.eval(), (x, x, x))
    torch.testing.assert_close(traced(x, x, -x), plain(x, x, -x))
    x[0, 2] = torch.nan  # the trace does not assume finite numbers
    torch.testing.assert_close(traced(x, x, x), plain(x, x, x), equal_nan=True)


def test_refused() -> None:
    class Derived(torch.nn.MultiheadAttention):
        pass

    plain = torch.nn.MultiheadAttention(16, 4)
    model = torch.nn.ModuleList([plain, Derived(16, 4)])
    for given, options, error, message in (
        (None, {}, TypeError, "model must be a torch.nn.Module, got None"),
        (torch.nn.Linear(2, 2), {}, ValueError, "must have a torch.nn.MultiheadAttention, got Linear"),
        (model, {}, TypeError, r"not a class derived from it, got .*Derived at 1"),
        (encoder(), {"law": "lag_n"}, ValueError, "lag_n"),
        (encoder(), {"dropout": 0.1}, TypeError, "dropout"),
        (encoder(), {"backend": "flash"}, ValueError, "backend must be one of 'auto', 'core', 'torch', got"),
    ):
        with pytest.raises(error, match=message):
            at.torch.replace_attention(given, **options)
    assert model[0] is plain
