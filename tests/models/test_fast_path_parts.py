# SPDX-License-Identifier: BSD-3-Clause
"""PyTorch's fused transformer modules under a watch, against PyTorch with and without a mode."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn.modules.module import register_module_forward_hook  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from tests.tensors.recording import Watch, fast_path  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("_seed"),
    pytest.mark.filterwarnings("ignore:Converting mask without torch.bool"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:Support for mismatched"),
]

N, LENGTH, WIDTH, HEADS = 2, 6, 16, 4


@pytest.fixture
def _seed() -> None:
    torch.manual_seed(0)


class Mode(TorchFunctionMode):
    """A mode like a watch's that changes nothing and counts calls."""

    seen = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        return function(*args, **(kwargs or {}))


class LowRank(nn.Linear):
    """An adapter as in peft: the weight of the replaced layer, and B A beside it."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__(base.in_features, base.out_features)
        self.weight, self.bias = base.weight, base.bias
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / 4)
        self.b = nn.Parameter(torch.randn(base.out_features, rank) / 4)

    def forward(self, x: Any) -> Any:
        return super().forward(x) + x @ self.a.T @ self.b.T


class AroundAttention(nn.Module):
    """An adapter as in peft for nn.MultiheadAttention: B A is added to out_proj while the module runs."""

    def __init__(self, base: nn.MultiheadAttention) -> None:
        super().__init__()
        self.base, self.adapter = base, LowRank(base.out_proj)

    def __getattr__(self, name: str) -> Any:
        return super().__getattr__(name) if name in ("base", "adapter") else getattr(self.base, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        own, added = self.base.out_proj.weight, self.adapter.b @ self.adapter.a
        self.base.out_proj.weight = nn.Parameter(own + added)
        try:
            return self.base(*args, **kwargs)
        finally:
            self.base.out_proj.weight = own


def layer_of(**options: Any) -> Any:
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 24, **{"batch_first": True, **options}).eval()


def adapted(where: str, **options: Any) -> Any:
    layer = layer_of(**options)
    if where == "self_attn":
        layer.self_attn = AroundAttention(layer.self_attn)
    elif where == "out_proj":
        layer.self_attn.out_proj = LowRank(layer.self_attn.out_proj)
    else:
        layer.linear1 = LowRank(layer.linear1)
    return layer.eval()


def padding(length: int = LENGTH) -> Any:
    hidden = torch.zeros(N, length, dtype=torch.bool)
    hidden[1, 4:] = True
    return hidden


def future() -> Any:
    return torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)


def as_numbers(hidden: Any) -> Any:
    return torch.zeros(hidden.shape).masked_fill(hidden, -torch.inf)


def tokens(**options: Any) -> Any:
    return torch.randn(N, LENGTH, WIDTH, **options)


def both(module: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """The output without a mode, and with one."""
    unwatched = module(*args, **kwargs)
    with Mode():
        return unwatched, module(*args, **kwargs)


def difference(one: Any, other: Any, hidden: Any = None) -> float:
    found = (one - other).abs()
    return (found if hidden is None else found[~hidden]).max().item()


# ---- differences ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("where", ["self_attn", "linear1"])
def test_an_adapter_that_the_fused_layer_ignores(where: str, norm_first: bool) -> None:
    layer, x, hidden = adapted(where, norm_first=norm_first), tokens(), padding()
    with torch.no_grad():
        for kwargs in ({}, {"src_mask": future()}, {"src_key_padding_mask": hidden}):
            unwatched, watched = both(layer, x, **kwargs)
            found = fast_path.parts(layer, (x,), kwargs, watched)
            assert found == pytest.approx(difference(unwatched, watched, kwargs.get("src_key_padding_mask")))
            assert found > 0.05
            assert fast_path.parts(layer, (), {"src": x, **kwargs}, unwatched) is None


def test_an_adapter_that_no_path_of_pytorch_uses() -> None:
    layer, x = adapted("out_proj"), tokens()
    with torch.no_grad():
        watched = both(layer, x)[1]
        plain = layer_of()
        plain.load_state_dict(layer.state_dict(), strict=False)
        torch.testing.assert_close(watched, plain(x))
        assert fast_path.parts(layer, (x,), {}, watched) is None


def test_a_mask_of_numbers_hides_keys_from_the_fused_layer() -> None:
    layer, x = layer_of(dropout=0.0), tokens()
    place = torch.arange(LENGTH, dtype=torch.float)
    alibi = -0.25 * (place[:, None] - place).abs()
    with torch.no_grad():
        unwatched, watched = both(layer, x, src_mask=alibi)
        torch.testing.assert_close(unwatched, layer(x, src_mask=alibi != 0))
        assert fast_path.parts(layer, (x, alibi), {}, watched) == pytest.approx(
            difference(unwatched, watched)
        )
        assert fast_path.parts(layer, (x, alibi), {}, watched) > 0.05
        torch.testing.assert_close(watched, layer.train()(x, src_mask=alibi))


def test_a_row_whose_keys_are_all_hidden() -> None:
    layer, x, hidden = layer_of(), tokens(), future()
    hidden[2] = True
    with torch.no_grad():
        unwatched, watched = both(layer, x, src_mask=hidden)
        assert unwatched.isnan().any() != watched.isnan().any()
        assert fast_path.parts(layer, (x, hidden), {}, watched) == math.inf
        assert fast_path.parts(layer, (x, hidden), {}, unwatched) is None


# ---- rounding ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"activation": "gelu"}], ids=str)
def test_the_layer_itself(options: dict[str, Any], dtype: Any) -> None:
    for std, size in ((None, 1.0), (0.3, 1.0), (0.3, 30.0)):
        layer = layer_of(**options)
        for parameter in layer.parameters() if std else ():
            nn.init.normal_(parameter, std=std)
        layer, x = layer.to(dtype), (size * tokens()).to(dtype)
        masks = ({}, {"src_mask": future()}, {"src_mask": as_numbers(future()).to(dtype)})
        hidden = (
            {},
            {"src_key_padding_mask": padding()},
            {"src_key_padding_mask": as_numbers(padding()).to(dtype)},
        )
        with torch.no_grad():
            for kwargs in ({**one, **other} for one in masks for other in hidden):
                watched = both(layer, x, **kwargs)[1]
                assert fast_path.parts(layer, (x,), kwargs, watched) is None, (std, size, kwargs)


@pytest.mark.parametrize("more", [{}, {"need_weights": False}, {"average_attn_weights": False}], ids=str)
def test_attention_itself(more: dict[str, Any]) -> None:
    module, x = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval(), tokens()
    with torch.no_grad():
        for masks in ({}, {"attn_mask": future()}, {"key_padding_mask": padding()}):
            kwargs = {**masks, **more}
            watched = both(module, x, x, x, **kwargs)[1]
            assert fast_path.parts(module, (x, x, x), kwargs, watched) is None
            output, weights = watched
            hidden = masks.get("key_padding_mask", torch.zeros(N, LENGTH, dtype=torch.bool))
            for wrong in (output, weights):
                if wrong is not None:
                    rows = wrong if wrong.dim() == 3 else wrong.transpose(1, 2)
                    rows[hidden] += 1.0  # padding may be anything
                    assert fast_path.parts(module, (x, x, x), kwargs, watched) is None
                    rows[0, 1] += 0.5
                    assert fast_path.parts(module, (x, x, x), kwargs, watched) == pytest.approx(0.5, abs=1e-5)
                    rows[0, 1] -= 0.5


# ---- where nothing is fused ----------------------------------------------------------------------------


@pytest.mark.parametrize("why", [
    *("training", "batch_first", "bias", "heads", "unbatched", "gradients", "a hook", "a hook inside"),
    *("another mode", "another forward", "switched off", "activation"),
])  # fmt: skip
def test_no_fused_path(why: str) -> None:
    """The watched output, in which the adapter counts, is the other one, too."""
    options = {
        "batch_first": {"batch_first": False},
        "bias": {"bias": False},
        "activation": {"activation": torch.tanh},
    }
    layer, x = adapted("linear1", **options.get(why, {})), tokens()
    if why == "heads":
        layer.self_attn.num_heads, layer.self_attn.head_dim = 1, WIDTH
    layer.train(why == "training")
    layer.dropout.p = layer.dropout1.p = layer.dropout2.p = layer.self_attn.dropout = 0.0
    x = x[0] if why == "unbatched" else x
    if "hook" in why:
        (layer if why == "a hook" else layer.norm2).register_forward_hook(lambda *_: None)
    if why == "another forward":
        own = layer.forward
        layer.forward = lambda *args, **kwargs: own(*args, **kwargs)
    try:
        torch.backends.mha.set_fastpath_enabled(why != "switched off")
        with torch.set_grad_enabled(why == "gradients"), Mode() if why == "another mode" else nullcontext():
            unwatched, watched = both(layer, x)
            if why != "another forward":
                torch.testing.assert_close(unwatched, watched)
            assert fast_path.parts(layer, (x,), {}, watched) is None
            assert fast_path.parts(layer, (x,), {}, watched + 1) is None
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_attention_to_another_tensor_or_with_numbers_for_a_mask() -> None:
    module, x = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval(), tokens()
    with torch.no_grad():
        for args, kwargs in (((x, x.clone(), x), {}), ((x, x, x), {"attn_mask": as_numbers(future())})):
            output, weights = module(*args, **kwargs)
            assert fast_path.parts(module, args, kwargs, (output + 1, weights)) is None


def test_tensors_with_operations_of_their_own() -> None:
    class Own(torch.Tensor):
        pass

    layer, x = adapted("linear1"), tokens().as_subclass(Own)
    with torch.no_grad():
        assert fast_path.parts(layer, (x,), {}, layer(x)) is None


def test_other_modules_cost_nothing() -> None:
    x = tokens()
    with Mode() as mode, torch.no_grad():
        for module in (nn.Linear(WIDTH, WIDTH), nn.TransformerDecoderLayer(WIDTH, HEADS, 24).eval()):
            before = mode.seen
            assert fast_path.parts(module, (x,), {}, x) is None
            assert fast_path.with_padding_cut(module, (x,), {}, x) is None
            assert mode.seen == before


# ---- while a model is watched --------------------------------------------------------------------------


def test_a_watch_keeps_layers_fused() -> None:
    """Hooks of the watch keep no layer from being fused, no hook runs, and no operator is seen."""
    model = nn.Sequential(adapted("self_attn"), layer_of(), adapted("linear1"))
    x, calls, ran, found = tokens(), [], Counter(), {}
    with torch.no_grad():
        parted = [difference(*both(model[0], x))]

    def ask(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        ran[module] += 1
        if module in (*model,):
            found[module] = fast_path.parts(module, args, kwargs, output)

    handle = register_module_forward_hook(lambda module, args, output: ask(module, args, {}, output))
    try:
        with (
            torch.no_grad(),
            Watch(model, calls.append),
            pytest.warns(UserWarning, match="while it is watched"),
        ):
            model(x)
    finally:
        handle.remove()
    assert len(calls) == 3
    assert set(ran.values()) == {1}
    assert found[model[0]] == pytest.approx(parted[0])
    assert found[model[1]] is None
    assert found[model[2]] > 0.05


# ---- padding of an encoder -----------------------------------------------------------------------------


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("number", [False, True])
def test_the_padding_of_an_encoder(number: bool, norm: bool) -> None:
    last = nn.LayerNorm(WIDTH)
    nn.init.normal_(last.bias)
    model = nn.TransformerEncoder(layer_of(), 2, last if norm else None).eval()
    x, hidden = tokens(), padding()
    kwargs = {"src_key_padding_mask": as_numbers(hidden) if number else hidden}
    with torch.no_grad():
        unwatched, watched = both(model, x, **kwargs)
        assert difference(unwatched, watched) > 0.05
        found = fast_path.with_padding_cut(model, (x,), kwargs, watched)
    torch.testing.assert_close(found, unwatched, rtol=1e-5, atol=1e-5)
    assert torch.equal(found[~hidden], watched[~hidden])


@pytest.mark.parametrize("why", ["no padding", "a mask", "in front", "gradients", "training", "not wanted"])
def test_an_encoder_that_cuts_nothing_off(why: str) -> None:
    model = nn.TransformerEncoder(layer_of(dropout=0.0), 2, enable_nested_tensor=why != "not wanted").eval()
    model.train(why == "training")
    x, hidden = tokens(), padding().flip(1) if why == "in front" else padding()
    kwargs = {} if why == "no padding" else {"src_key_padding_mask": hidden}
    kwargs |= {"mask": future()} if why == "a mask" else {}
    with torch.set_grad_enabled(why == "gradients"):
        unwatched, watched = both(model, x, **kwargs)
        torch.testing.assert_close(unwatched, watched, equal_nan=True)
        assert fast_path.with_padding_cut(model, (x,), kwargs, watched) is None
