# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's fused layers, nested tensors and transforms: the model computes as ever, or a warning says so."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import attnscale as at
import numpy as np
import pytest
from versions import written_for

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tests.models.spellings import HEADS, WIDTH, Spelling  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fixed_seed"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings(
        "ignore:.*torch.jit.script:DeprecationWarning"
    ),  # of PyTorch's own decompositions
]

BATCH, N = 2, 5
NAME = "self_attn"


def listed(log: Any) -> dict[str, str]:
    return dict(getattr(log, "unmeasured", {}))


class AdaptedAttention(nn.MultiheadAttention):
    """Weights of the input with a change of low rank, added during the pass."""

    def __init__(self) -> None:
        super().__init__(WIDTH, HEADS, batch_first=True)
        self.down, self.up = nn.Parameter(torch.randn(3 * WIDTH, 2)), nn.Parameter(torch.randn(2, WIDTH))

    def changed(self) -> Any:
        return self.in_proj_weight + self.down @ self.up

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        own, changed = self.in_proj_weight, self.changed()
        del self.in_proj_weight
        self.in_proj_weight = changed
        try:
            return super().forward(*args, **kwargs)
        finally:
            del self.in_proj_weight
            self.in_proj_weight = own


class AdaptedLinear(nn.Linear):
    """A layer with a change of low rank beside it."""

    def __init__(self, given: int, made: int) -> None:
        super().__init__(given, made)
        self.down, self.up = nn.Parameter(torch.randn(given, 2)), nn.Parameter(torch.randn(2, made))

    def forward(self, x: Any) -> Any:
        return super().forward(x) + x @ self.down @ self.up


class AdaptedNorm(nn.LayerNorm):
    def forward(self, x: Any) -> Any:
        return super().forward(x) * 2


def layer() -> Any:
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True).eval()


def with_attention() -> Any:
    model = layer()
    model.self_attn = AdaptedAttention()
    return model.eval()


def with_linear() -> Any:
    model = layer()
    model.linear1 = AdaptedLinear(WIDTH, 32)
    return model.eval()


def with_norm() -> Any:
    model = layer()
    model.norm1 = AdaptedNorm(WIDTH)
    return model.eval()


def with_parametrization() -> Any:
    class Twice(nn.Module):
        def forward(self, x: Any) -> Any:
            return 2 * x

    model = layer()
    torch.nn.utils.parametrize.register_parametrization(model.self_attn, "in_proj_weight", Twice())
    return model


def stack() -> Any:
    return nn.TransformerEncoder(with_attention(), 2, enable_nested_tensor=False).eval()


def entropy_of(weight: Any, bias: Any, x: Any) -> Any:
    """Entropy of each row, (batch, heads, n), of nn.MultiheadAttention with these weights of the input."""
    made = functional.linear(x.double(), weight.double(), bias.double())
    q, k, _ = made.unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
    return torch.special.entr((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)).sum(-1)


def passed(model: Any, x: Any) -> tuple[Any, Any, Any, list[str]]:
    """The output without a watch, the log, the output beside it, and the warnings."""
    with torch.no_grad():
        plain = model(x)
        with warnings.catch_warnings(record=True) as caught, at.torch.record(model) as log:
            warnings.simplefilter("always")
            output = model(x)
    return plain, log, output, [str(each.message) for each in caught]


@pytest.mark.parametrize("made", [layer, with_parametrization], ids=lambda made: made.__name__)
def test_a_layer_that_its_fast_path_computes_whole_is_recorded_without_a_word(made: Any) -> None:
    model, x = made(), torch.randn(BATCH, N, WIDTH)
    plain, log, output, said = passed(model, x)
    assert not said
    torch.testing.assert_close(output, plain, rtol=0, atol=1e-5)
    wanted = entropy_of(model.self_attn.in_proj_weight, model.self_attn.in_proj_bias, x).detach()
    np.testing.assert_allclose(log["entropy"][NAME], wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "made", [with_attention, with_linear, with_norm, stack], ids=lambda made: made.__name__
)
def test_modules_that_the_fast_path_skips_are_skipped_or_reported(made: Any) -> None:
    """PyTorch's operator for a whole layer takes parameters alone, and runs no module of another class."""
    model, x = made(), torch.randn(BATCH, N, WIDTH)
    plain, log, output, said = passed(model, x)
    names = [name for name, each in model.named_modules() if isinstance(each, nn.MultiheadAttention)]
    assert [*log.modules] == names
    attention = model.get_submodule(names[0])
    if torch.allclose(output, plain, rtol=0, atol=1e-5):
        weight = attention.in_proj_weight
    else:
        assert any("TransformerEncoderLayer" in each for each in said)
        weight = attention.changed() if isinstance(attention, AdaptedAttention) else attention.in_proj_weight
    wanted = entropy_of(weight, attention.in_proj_bias, x).detach()
    np.testing.assert_allclose(log["entropy"][names[0]], wanted, rtol=0, atol=1e-5)


def test_an_adapter_is_reported_once() -> None:
    model, x = with_attention(), torch.randn(BATCH, N, WIDTH)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught, at.torch.record(model):
        warnings.simplefilter("always")
        for _ in range(3):
            model(x)
    assert len(caught) <= 1


# ---- tensors of several lengths


class OfSeveralLengths(Spelling):
    """Fused attention of jagged tensors, heads behind tokens before they are swapped."""

    def forward(self, texts: Any) -> Any:
        q, k, v = (
            each(texts).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for each in (self.to_q, self.to_k, self.to_v)
        )
        return self.to_out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2))


class WrittenOut(OfSeveralLengths):
    """Products and a softmax of jagged tensors."""

    def forward(self, texts: Any) -> Any:
        q, k, v = (each(texts) for each in (self.to_q, self.to_k, self.to_v))
        rows = [functional.softmax(a @ b.mT, -1) @ c for a, b, c in zip(q, k, v, strict=True)]
        return self.to_out(torch.nested.as_nested_tensor(rows, layout=torch.jagged))


class Beside(nn.Module):
    """A layer of several lengths, and a measured one."""

    def __init__(self, kind: type[Spelling]) -> None:
        super().__init__()
        self.ragged, self.dense = kind(), nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, texts: Any, x: Any) -> Any:
        return self.ragged(texts), self.dense(x, x, x)[0]


def texts_of(*lengths: int) -> tuple[Any, Any]:
    parts = [torch.randn(n, WIDTH) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged), parts


def entropies_of_texts(module: Spelling, parts: Any) -> list[Any]:
    """Entropies of the rows of each text, (heads, n)."""
    return [module.right(each[None])[0].entropy()[0] for each in parts]


@pytest.mark.parametrize("grad", [False, True], ids=["no gradient", "gradient"])
def test_jagged_tensors_are_measured_or_listed_and_the_pass_goes_on(grad: bool) -> None:
    model, x = Beside(OfSeveralLengths), torch.randn(BATCH, N, WIDTH)
    texts, parts = texts_of(3, 5, 1)
    with torch.set_grad_enabled(grad):
        plain = model(texts, x)
        with at.torch.record(model) as log:
            output = model(texts, x)
    for one, other in zip(output[0], plain[0], strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
    torch.testing.assert_close(output[1], plain[1], rtol=0, atol=1e-6)
    assert "dense" in log.modules
    assert sorted({*log.modules, *listed(log)}) == ["dense", "ragged"]
    if "ragged" in listed(log):
        assert "nested" in listed(log)["ragged"] or "jagged" in listed(log)["ragged"]
        return
    rows, real = log["entropy"]["ragged"], log.rows["ragged"]
    for text, wanted in enumerate(entropies_of_texts(model.ragged, parts)):
        found = np.asarray(rows)[text][:, np.asarray(real)[text]]
        np.testing.assert_allclose(found, wanted.detach(), rtol=0, atol=1e-5)


@written_for("torch>=2.13")  # PyTorch 2.6 unflattens no jagged tensors there
def test_jagged_tensors_in_inference_mode_are_listed_and_the_pass_goes_on() -> None:
    """There, a linear layer of a tensor of another type is left to that type."""
    model, x = Beside(OfSeveralLengths), torch.randn(BATCH, N, WIDTH)
    with torch.inference_mode():
        texts, _ = texts_of(3, 5, 1)
        plain = model(texts, x)
        with at.torch.record(model) as log:
            output = model(texts, x)
    torch.testing.assert_close(output[0].values(), plain[0].values(), rtol=0, atol=1e-6)
    assert log.modules == ("dense",)
    assert "nested" in listed(log)["ragged"]


def test_jagged_tensors_alone_are_recorded_or_explained() -> None:
    """A model that has nothing else is recorded, or told of in words."""
    model = OfSeveralLengths()
    texts, _ = texts_of(3, 5)
    with torch.no_grad():
        try:
            with at.torch.record(model) as log:
                model(texts)
            said = [*log.modules, *listed(log)]
        except (ValueError, NotImplementedError) as error:
            said = [""] if "nested" in str(error) or "jagged" in str(error) else [str(error)]
    assert said == [""]


def test_rows_of_jagged_tensors_that_are_written_out() -> None:
    """Text by text, which are calls like any other."""
    model = WrittenOut()
    texts, parts = texts_of(3, 5)
    with torch.no_grad(), at.torch.record(model) as log:
        model(texts)
    assert [*log.modules] == ["", "#1"]
    for name, part in zip(log.modules, parts, strict=True):
        q, k = (model.four(each, part[None], 1) for each in (model.to_q, model.to_k))
        wanted = torch.special.entr((q @ k.mT).softmax(-1)).sum(-1).detach()
        np.testing.assert_allclose(log["entropy"][name], wanted, rtol=0, atol=1e-5)


# ---- transforms


class Written(Spelling):
    """Written-out attention of one text, (n, channels)."""

    def parts(self, x: Any) -> Any:
        layers = self.to_q, self.to_k, self.to_v
        return (each(x).unflatten(-1, (HEADS, -1)).transpose(0, 1) for each in layers)

    def forward(self, x: Any) -> Any:
        q, k, v = (
            each(x).unflatten(-1, (HEADS, -1)).transpose(0, 1) for each in (self.to_q, self.to_k, self.to_v)
        )
        return self.to_out(((q @ k.mT * self.scale).softmax(-1) @ v).transpose(0, 1).flatten(1))


class WithFused(Written):
    def forward(self, x: Any) -> Any:
        q, k, v = (
            each(x).unflatten(-1, (HEADS, -1)).transpose(0, 1) for each in (self.to_q, self.to_k, self.to_v)
        )
        return self.to_out(functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1))


def mapped(model: Any, x: Any) -> Any:
    return torch.func.vmap(model)(x)


def mapped_over_parameters(model: Any, x: Any) -> Any:
    """An ensemble of one member."""
    stacked, buffers = torch.func.stack_module_state([model])

    def run(parameters: Any, given: Any) -> Any:
        return torch.func.functional_call(model, parameters, (given,))

    return torch.stack([torch.func.vmap(run, in_dims=(0, None))((stacked, buffers), each)[0] for each in x])


def derived(model: Any, x: Any) -> Any:
    """A derivative in one direction."""
    return torch.stack([torch.func.jvp(model, (each,), (torch.ones_like(each),))[1] for each in x])


def gradients(model: Any, x: Any) -> Any:
    return torch.func.vmap(torch.func.grad(lambda each: model(each).square().sum()))(x)


TRANSFORMS = (mapped, mapped_over_parameters, derived, gradients)


# Warnings of PyTorch 2.15 about the model's own call: vmap of the fused operator, and the jvp of the softmax.
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", [Written, WithFused], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "transform", [mapped, mapped_over_parameters, derived, gradients], ids=lambda f: f.__name__
)
def test_under_a_transform_rows_are_measured_or_listed(transform: Any, kind: type[Spelling]) -> None:
    """The pass goes on with its own output; measured rows are right."""
    if transform is derived and kind is WithFused:
        pytest.skip("PyTorch has no such derivative on the CPU")
    model, x = kind(), torch.randn(BATCH, N, WIDTH)
    both = nn.ModuleDict({"mapped": model, "dense": nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)})
    plain = transform(model, x)
    with torch.no_grad() if transform is mapped else torch.enable_grad(), at.torch.record(both) as log:
        output = transform(model, x)
        both["dense"](x, x, x)
    torch.testing.assert_close(output, plain, rtol=0, atol=1e-6)
    there = {name for one in log.passes for name in one}
    assert "dense" in log.modules
    assert any(name.startswith("mapped") for name in {*there, *listed(log)})
    wanted = torch.cat([each.entropy() for each in model.right(x)]).detach().numpy()
    rows = [
        np.ravel(arrays["entropy"])
        for one in log.passes
        for name, arrays in one.items()
        if name.startswith("mapped")
    ]
    if rows:
        np.testing.assert_allclose(np.sort(np.concatenate(rows)), np.sort(wanted.ravel()), rtol=0, atol=1e-5)


def test_a_copy_of_the_model_is_not_recorded() -> None:
    model, x = Written(), torch.randn(N, WIDTH)
    other = copy.deepcopy(model)
    with torch.no_grad(), at.torch.record(model) as log:
        other(x)
        model(x)
    assert len(log) == 1


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=["strided", "jagged"])
@pytest.mark.parametrize("kind", ["encoder", "layer"])
def test_nested_tensors_of_pytorchs_own_layers_pass_through(kind: str, layout: Any) -> None:
    """Nested tensors run unrecorded, and their module is listed."""
    if (kind, layout) == ("encoder", torch.jagged):
        pytest.skip("the encoder takes strided ones alone")
    one = layer()
    model = nn.TransformerEncoder(one, 2).eval() if kind == "encoder" else one
    both = nn.ModuleDict({"nested": model, "dense": nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)})
    texts = torch.nested.nested_tensor([torch.randn(n, WIDTH) for n in (3, 5)], layout=layout)
    x = torch.randn(BATCH, N, WIDTH)
    with torch.no_grad():
        try:
            plain = model(texts)
        except Exception as error:
            pytest.skip(f"PyTorch does not take them: {error}")
        with at.torch.record(both) as log:
            output = model(texts)
            both["dense"](x, x, x)
    for one_text, other in zip(output.unbind(), plain.unbind(), strict=True):
        torch.testing.assert_close(one_text, other, rtol=0, atol=0)
    assert "dense" in log.modules
    assert any(name.startswith("nested") and "nested" in why for name, why in log.unmeasured.items())


SAMPLED = [*(("nearest", 1.1), ("bilinear", 1.3), ("bicubic", 0.7), ("area", 0.6), ("nearest-exact", 2.5))]


@pytest.mark.parametrize(("mode", "scale"), SAMPLED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operators_made_of_others_keep_every_bit_in_inference_mode(
    mode: str, scale: float, dtype: Any
) -> None:
    """A decomposition in Python may round otherwise, or choose another pixel."""

    class Resized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend, self.run = Written(), nn.GRU(9, 4, batch_first=True)

        def forward(self, x: Any, image: Any) -> Any:
            image = functional.interpolate(image, scale_factor=scale, mode=mode)
            return self.attend(x), image, self.run(image[:, 0, :, :9])[0] if dtype is torch.float32 else image

    model = Resized().to(dtype)
    x, image = torch.randn(N, WIDTH, dtype=dtype), torch.randn(1, 2, 13, 16, dtype=dtype)
    with torch.inference_mode():
        plain = model(x, image)
        with at.torch.record(model) as log:
            output = model(x, image)
    assert log.modules == ("attend",)
    for one, other in zip(output[:2], plain[:2], strict=True):
        assert torch.equal(one, other)
    # PyTorch's own kernel of a GRU adds in another order where any mode of dispatch is active.
    torch.testing.assert_close(output[2], plain[2], rtol=0, atol=1e-6)
