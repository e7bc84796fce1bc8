# SPDX-License-Identifier: BSD-3-Clause
"""Compiled and exported models: recorded as ever, and this package's modules in one graph of any length."""

from __future__ import annotations

import warnings
from typing import Any

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.models.spellings import WIDTH, fused, heads, masks, products  # noqa: E402
from tests.tensors.test_torch_rows import LAWS  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.slow,  # the import of the compiler alone takes seconds
    pytest.mark.usefixtures("_seed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the compiler, about other parts of PyTorch
]

BATCH, N = 2, 5


@pytest.fixture
def _seed() -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()


# ---- watched


EXPORTED = (
    *(products.Matmul, products.Folded, products.EinsumHeadsBehind, products.LogSoftmax, heads.OneKeyHead),
    *(heads.GroupedByRepeating, masks.Causal, masks.Padded, masks.Fused, fused.Sdpa, fused.SdpaCausal),
)


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "not strict"])
@pytest.mark.parametrize("kind", EXPORTED, ids=lambda kind: kind.__name__)
def test_an_exported_program_is_recorded(kind: Any, strict: bool) -> None:
    """Its graph calls no module; its rows are those of the model that was exported."""
    model = kind()
    model.keep = lambda weights: weights  # a graph keeps nothing
    args, kwargs = model.inputs(BATCH, N)
    with torch.no_grad():
        (right,) = model.right(*args, **kwargs)
        program = torch.export.export(model, args, kwargs, strict=strict).module()
        plain = program(*args, **kwargs)
        with at.torch.record(program) as log:
            output = program(*args, **kwargs)
    torch.testing.assert_close(output, plain, rtol=0, atol=1e-6)
    assert [*log.modules] == [""]
    real = np.ones(log.rows[""].shape, bool) if right.real is None else right.real.numpy()
    np.testing.assert_array_equal(log.rows[""], real)
    found, wanted = (
        np.moveaxis(np.asarray(x), 1, -1)[real] for x in (log["entropy"][""], right.entropy().detach())
    )
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)


class Layers(nn.Module):
    """Two layers of which one is compiled."""

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.first, self.second = kind(), kind()
        self.second.keep = lambda weights: weights
        self.second.compile(backend="eager")

    def forward(self, x: Any) -> Any:
        x = x + self.first(x)
        return x + self.second(x)


@pytest.mark.parametrize(
    "kind", [products.Matmul, fused.Sdpa, products.ByHand], ids=lambda kind: kind.__name__
)
def test_a_part_that_was_compiled_is_recorded(kind: Any) -> None:
    model, x = Layers(kind), torch.randn(BATCH, N, WIDTH)
    with torch.no_grad():
        plain = model(x)
        with at.torch.record(model) as log:
            output = model(x)
        again = model(x)
        wanted = [model.first.right(x)[0], model.second.right(x + model.first(x))[0]]
    torch.testing.assert_close(output, plain, rtol=0, atol=1e-6)
    torch.testing.assert_close(again, plain, rtol=0, atol=1e-6)
    assert [*log.modules] == ["first", "second"]
    for name, right in zip(log.modules, wanted, strict=True):
        np.testing.assert_allclose(log["entropy"][name], right.entropy(), rtol=0, atol=1e-5)


def test_a_function_that_was_compiled_is_recorded() -> None:
    """A function that a model calls is compiled, and no module."""

    class Model(products.Matmul):
        attend = staticmethod(
            torch.compile(lambda q, k, v: (q @ k.mT * 0.5).softmax(-1) @ v, backend="eager", dynamic=False)
        )

        def forward(self, x: Any) -> Any:
            return self.joined(self.attend(*self.split(x)))

    model, x = Model(), torch.randn(BATCH, N, WIDTH)
    with torch.no_grad():
        model(x)
        with at.torch.record(model) as log:
            model(x)
        q, k = (model.four(layer, x) for layer in (model.to_q, model.to_k))
    wanted = torch.special.entr((q @ k.mT * 0.5).softmax(-1)).sum(-1)
    np.testing.assert_allclose(log["entropy"][""], wanted, rtol=0, atol=1e-5)


# ---- this package's modules in a graph


class Attention(nn.Module):
    """Self-attention by this package's module, of tokens as many as they are."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        module = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.attention = at.torch.replace_attention(module, **options)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x, need_weights=False)[0]


class Function(nn.Module):
    """Attention by this package's function."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Any) -> Any:
        q = x.unflatten(-1, (4, -1)).transpose(1, 2)
        return at.torch.attention(q, q, q, **self.options)


def check_compiled(model: nn.Module) -> None:
    """Compare a graph without breaks to the module, at a new length too."""
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend="eager")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n in (6, 9, 4):
            x = torch.randn(BATCH, n, WIDTH)
            torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=1e-6)


@pytest.mark.parametrize("law", ["log_n(base=16)", *LAWS])
def test_a_law_compiles_for_any_length(law: str) -> None:
    check_compiled(Attention(law=law))


@pytest.mark.parametrize(
    "options",
    [
        {"law": 0.3},
        {"law": at.laws.LogN(base=16)},
        {"law": "log_n(base=16)", "learnable_scale": "head"},
        {"law": "log_n(base=16)", "statistics": ["entropy"]},
        {"law": "log_n(base=16)", "backend": "torch"},
        {"law": "ssmax", "learnable_law": ("s",)},
        {"law": "ssmax(s=0.5)", "learnable_law": ("s",)},
        {"normalizer": "softmax_n(n=0.5)"},
        {"rotary_base": 100.0},
    ],
    ids=str,
)
def test_options_of_the_module_compile_for_any_length(options: dict[str, Any]) -> None:
    check_compiled(Attention(**options))


@pytest.mark.parametrize(
    "options",
    [
        {"scale": 0.3},
        {"scale": at.laws.LogN(base=16)},
        {"scale": at.laws.SSMax(s=0.3)},
        {"scale": "log_n(base=16)"},
        {"softcap": 2.5},
        {"normalizer": at.normalizers.SoftmaxN(0.5)},
        {"normalizer": at.normalizers.Entmax(1.3)},
        {"window": (2, 0)},
    ],
    ids=str,
)
def test_options_of_the_function_compile_for_any_length(options: dict[str, Any]) -> None:
    check_compiled(Function(**options))


def test_a_law_has_its_gradients_in_a_graph() -> None:
    model = Attention(law="log_n(base=16)")
    compiled = torch.compile(model, dynamic=True, fullgraph=True, backend="aot_eager")
    for n in (6, 9):
        x = torch.randn(BATCH, n, WIDTH)
        found = [torch.autograd.grad(f(x).square().sum(), [*model.parameters()]) for f in (compiled, model)]
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
