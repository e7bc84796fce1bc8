# SPDX-License-Identifier: BSD-3-Clause
"""at.torch.nn.MultiheadAttention beside torch.nn.MultiheadAttention."""

from __future__ import annotations

import copy
from typing import Any

import attnscale as at
import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("fixed_seed")]


def pair(**options: Any) -> tuple[Any, Any]:
    """PyTorch's module and ours with the same parameters."""
    theirs = torch.nn.MultiheadAttention(32, 4, **options)
    for parameter in theirs.parameters():  # biases are zeros at first
        torch.nn.init.normal_(parameter, std=0.2)
    ours = at.torch.nn.MultiheadAttention(32, 4, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def check(theirs: Any, ours: Any, *inputs: Any, **options: Any) -> None:
    """Outputs, weights and all gradients agree."""
    found, weights = ours(*inputs, **options)
    want, exact = theirs(*inputs, **options)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-6)
    if exact is not None:
        torch.testing.assert_close(weights, exact, rtol=1e-5, atol=1e-6)
    for module, output in ((ours, found), (theirs, want)):
        module.zero_grad()
        output.sin().sum().backward()
    gradients = {name: x.grad for name, x in theirs.named_parameters()}
    for name, x in ours.named_parameters():
        torch.testing.assert_close(x.grad, gradients[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [
    {},
    {"batch_first": True},
    {"bias": False},
    {"add_bias_kv": True, "add_zero_attn": True},
    {"kdim": 20, "vdim": 24, "batch_first": True},
], ids=lambda options: ", ".join(options) or "none")  # fmt: skip
def test_options_of_the_constructor(options: dict[str, Any]) -> None:
    theirs, ours = pair(**options)
    query = torch.randn(5, 5, 32)
    key = torch.randn(5, 5, options.get("kdim", 32))
    value = torch.randn(5, 5, options.get("vdim", 32))
    check(theirs, ours, query, key, value)
    check(theirs, ours, query[0], key[0], value[0], average_attn_weights=False)


def test_masks() -> None:
    theirs, ours = pair(batch_first=True, add_zero_attn=True)
    x = torch.randn(2, 7, 32)
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 4:] = True
    bias = torch.randn(2 * 4, 7, 7)
    check(theirs, ours, x, x, x, attn_mask=future)
    check(theirs, ours, x, x, x, attn_mask=future, key_padding_mask=padding)
    check(theirs, ours, x, x, x, attn_mask=bias, need_weights=False)
    check(theirs, ours, x, x, x, attn_mask=bias, key_padding_mask=padding.float() * -5)
    check(theirs, ours, x[1], x[1], x[1], key_padding_mask=padding[1])


def test_masks_hide_by_low_numbers() -> None:
    """As by True: where masks of two types are added, with dropout, and in rows without keys."""
    theirs, ours = pair(batch_first=True)
    x = torch.randn(2, 7, 32)
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 4:] = True

    def low(mask: Any, dtype: Any) -> Any:
        return torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, torch.finfo(dtype).min)

    check(theirs, ours, x, x, x, attn_mask=low(future, torch.float32), need_weights=False)
    check(theirs, ours, x, x, x, attn_mask=low(future, torch.float32), key_padding_mask=low(padding, x.dtype))
    padding[0] = True
    dropping = at.torch.nn.MultiheadAttention(32, 4, batch_first=True, dropout=0.4)
    for module in (ours, dropping):
        found = []
        for given in (future, low(future, torch.float16), low(future, torch.bfloat16)):
            torch.manual_seed(5)
            masks = {
                "attn_mask": given,
                "key_padding_mask": padding if given is future else low(padding, x.dtype),
            }
            found.append(module(x, x, x, **masks)[0])
        torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
        torch.testing.assert_close(found[2], found[0], rtol=0, atol=0)


def test_causal_with_and_without_the_mask() -> None:
    theirs, ours = pair(batch_first=True)
    x = torch.randn(2, 7, 32)
    future = torch.ones(7, 7, dtype=torch.bool).triu(1)
    check(theirs, ours, x, x, x, attn_mask=future, is_causal=True, need_weights=False)
    alone, _ = ours(x, x, x, is_causal=True, need_weights=False)
    torch.testing.assert_close(alone, theirs(x, x, x, attn_mask=future)[0], rtol=1e-5, atol=1e-6)


def test_an_encoder_layer_does_not_pass_by_it() -> None:
    """Its fast path of inference computes plain softmax attention from the weights."""
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    other = copy.deepcopy(layer)
    other.self_attn = at.torch.nn.MultiheadAttention(32, 4, batch_first=True)
    other.self_attn.load_state_dict(layer.self_attn.state_dict())
    x = torch.randn(2, 7, 32)
    with torch.no_grad():
        torch.testing.assert_close(other(x), layer(x), rtol=1e-5, atol=1e-5)
        other.self_attn.law = at.laws.get(2.0)
        assert (other(x) - layer(x)).abs().max() > 0.1


def test_a_law_a_learned_scale_and_rotary_positions() -> None:
    options = {"law": "ssmax(s=1)", "learnable_scale": "head", "rotary_base": 10000.0, "batch_first": True}
    module = at.torch.nn.MultiheadAttention(32, 4, statistics=("entropy",), **options)
    x = torch.randn(2, 9, 32)
    output, _ = module(x, x, x, need_weights=False)
    (output.square().mean() + module.rows.entropy.mean()).backward()
    assert module.scale_factor.shape == module.scale_factor.grad.shape == (4,)
    assert bool((module.scale_factor.grad != 0).all())
    with torch.no_grad():
        shifted = module(x, x, x, need_weights=False)[0]
        again = module(x.roll(1, dims=1), x.roll(1, dims=1), x.roll(1, dims=1), need_weights=False)[0]
    assert not torch.allclose(shifted.roll(1, dims=1), again, atol=1e-4)  # positions matter


def test_parameters_of_the_law_learn() -> None:
    options = {"law": "ssmax(s=0.5, floor=2)", "learnable_law": ("s", "b"), "batch_first": True}
    module = at.torch.nn.MultiheadAttention(32, 4, learnable_scale="head", **options)
    learned = {name: x for name, x in module.named_parameters() if name.startswith("law_parameters")}
    assert {name: x.tolist() for name, x in learned.items()} == {
        "law_parameters.s": [0.5] * 4,
        "law_parameters.b": [0.0] * 4,
    }
    x = torch.randn(2, 9, 32)
    other = at.torch.nn.MultiheadAttention(32, 4, law=options["law"], batch_first=True)
    other.load_state_dict(module.state_dict(), strict=False)
    torch.testing.assert_close(module(x, x, x)[0], other(x, x, x)[0])
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = module(x, x, x, need_weights=False, is_causal=True)[0].square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]
    assert all((x - first).abs().min() > 0 for x, first in zip(learned.values(), (0.5, 0.0), strict=True))
    assert not torch.allclose(module(x, x, x)[1], other(x, x, x)[1])  # the weights follow


def test_a_parameter_that_is_one_number_for_all_heads() -> None:
    module = at.torch.nn.MultiheadAttention(32, 4, law="log_n(base=8)", learnable_law="base")
    assert module.law_parameters["base"].shape == ()
    assert set(at.torch.nn.MultiheadAttention(32, 4).state_dict()) == set(
        torch.nn.MultiheadAttention(32, 4).state_dict()
    )


def test_rotary_products_depend_on_distances_alone() -> None:
    from attnscale.torch.nn._multihead import rotate

    q, k = torch.randn(2, 8, dtype=torch.float64)
    rows = rotate(q.expand(12, 8), 10000.0) @ rotate(k.expand(12, 8), 10000.0).T
    for distance in (-5, 0, 3):
        diagonal = rows.diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    torch.testing.assert_close(rows[0, 0], q @ k)


def test_compiled() -> None:
    module = at.torch.nn.MultiheadAttention(
        *(32, 4),
        batch_first=True,
        law="ssmax",
        learnable_scale="head",
        learnable_law=("s",),
        statistics=("entropy",),
        rotary_base=1e4,
    )
    x = torch.randn(2, 9, 32)
    want = module(x, x, x, need_weights=False)[0]
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    found = compiled(x, x, x, need_weights=False)[0]
    torch.testing.assert_close(found, want)
    found.sum().backward()
    assert module.scale_factor.grad is not None
    assert module.law_parameters["s"].grad is not None


@pytest.mark.parametrize(("options", "message"), [
    ({"learnable_scale": "row"}, "learnable_scale must be 'head' or None, got 'row'"),
    ({"learnable_law": ("s",)}, "law 'standard' has a gradient of"),
    ({"rotary_base": 0.5}, "rotary_base must be above 1 and head_dim even, got 0.5 and 8"),
    ({"law": "log_m"}, "log_m"),
    ({"normalizer": "softmin"}, "softmin"),
    ({"statistics": ("entropie",)}, "entropie"),
])  # fmt: skip
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        at.torch.nn.MultiheadAttention(32, 4, **options)
