# SPDX-License-Identifier: BSD-3-Clause
"""Families of linear time on tensors: against the same written out in PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attnscale as at
import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("fixed_seed")]

DIRECTIONS = torch.from_numpy(at.variants.performer_projection(16, 8, rng=0))


def draw(*shape: int, dtype: Any = torch.float64) -> Any:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def by_weights(weights: Any, v: Any, causal: bool) -> Any:
    weights = weights.tril() if causal else weights
    return weights / weights.sum(-1, keepdim=True) @ v


def linear(q: Any, k: Any, v: Any, causal: bool) -> Any:
    return by_weights((torch.nn.functional.elu(q) + 1) @ (torch.nn.functional.elu(k) + 1).mT, v, causal)


def efficient(q: Any, k: Any, v: Any, causal: bool) -> Any:
    if not causal:
        return q.softmax(-1) @ (k.softmax(-2).mT @ v)
    seen = torch.ones(q.shape[-2], k.shape[-2]).tril().bool()[..., None]
    own = k[..., None, :, :].masked_fill(~seen, -torch.inf).softmax(-2)  # (..., i, j, channel)
    return torch.einsum("...ic,...ijc,...jd->...id", q.softmax(-1), own, v)


def cosformer(q: Any, k: Any, v: Any, causal: bool) -> Any:
    i = torch.arange(q.shape[-2], dtype=torch.float64)
    angle = torch.pi / 2 * (i[:, None] - i) / 64
    return by_weights(q.relu() @ k.relu().mT * angle.cos(), v, causal)


def performer(q: Any, k: Any, v: Any, causal: bool) -> Any:
    def features(x: Any) -> Any:
        x = x * 8**-0.25
        return (x @ DIRECTIONS.mT - x.square().sum(-1, keepdim=True) / 2).exp()

    return by_weights(features(q) @ features(k).mT, v, causal)


CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], Callable[..., Any]]] = {
    "linear": (at.torch.linear_attention, {}, linear),
    "efficient": (at.torch.efficient_attention, {}, efficient),
    "cosformer": (at.torch.cosformer_attention, {"max_length": 64}, cosformer),
    "performer": (at.torch.performer_attention, {"projection": DIRECTIONS}, performer),
}


def same(found: Any, want: Any, learned: list[Any]) -> None:
    """Values and gradients."""
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-10)
    weights = torch.randn_like(want)
    gradients = (torch.autograd.grad((weights * x).sum(), learned, retain_graph=True) for x in (found, want))
    for got, exact in zip(*gradients, strict=True):
        torch.testing.assert_close(got, exact, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, causal: bool) -> None:
    function, options, written_out = CASES[name]
    q, k, v = draw(2, 3, 20, 8), draw(2, 3, 20, 8), draw(2, 3, 20, 5)
    if name == "cosformer":  # a row whose features are all 0 has no weights
        q, k = (x.detach().abs().requires_grad_() for x in (q, k))
    same(function(q, k, v, is_causal=causal, **options), written_out(q, k, v, causal), [q, k, v])


def test_features_of_ones_own_get_gradients() -> None:
    q, k, v = draw(3, 20, 8), draw(3, 20, 8), draw(3, 20, 5)
    found = at.torch.linear_attention(q, k, v, feature_map=(q.exp(), k.exp()), is_causal=True)
    same(found, by_weights(q.exp() @ k.exp().mT, v, True), [q, k, v])


def test_ssd_with_its_decays() -> None:
    q, k, v = draw(2, 3, 20, 8), draw(2, 3, 20, 8), draw(2, 3, 20, 5)
    a = draw(3, 20)
    decay = -a.exp()
    sums = decay.cumsum(-1)
    left = (sums[..., :, None] - sums[..., None, :]).tril().exp().tril()
    same(at.torch.ssd(q, k, v, decay), (left * (q @ k.mT)) @ v, [q, k, v, a])


def test_grouped_heads_the_other_layout_and_16_bits() -> None:
    q, k, v = draw(2, 20, 4, 8), draw(2, 20, 2, 8), draw(2, 20, 2, 5)
    found = at.torch.linear_attention(q, k, v, enable_gqa=True, layout="bshd")
    wide = [q.transpose(1, 2), *(x.transpose(1, 2).repeat_interleave(2, 1) for x in (k, v))]
    same(found, linear(*wide, False).transpose(1, 2), [q, k, v])
    half = [x.detach().bfloat16().requires_grad_() for x in (q, k, v)]
    at.torch.linear_attention(*half, enable_gqa=True, layout="bshd").sum().backward()
    assert all(x.grad.dtype == torch.bfloat16 for x in half)


@pytest.mark.parametrize("name", CASES)
def test_opcheck_and_compile(name: str) -> None:
    from attnscale.torch._variants import attend_variant

    function, options, _ = CASES[name]
    q, k, v = (draw(2, 3, 20, 8) for _ in range(3))
    kind = {"linear": "elu", "efficient": "softmax"}.get(name, "")
    projection, length = options.get("projection"), options.get("max_length")
    scale = 1.0 if name == "efficient" else None
    own = (None, projection, kind, scale, length)
    arguments = (f"{name}_attention", q, k, v, *own, "top_left", None, False, "bhsd", None)
    assert set(torch.library.opcheck(attend_variant, arguments).values()) == {"SUCCESS"}
    compiled = torch.compile(lambda *x: function(*x, **options), fullgraph=True, backend="aot_eager")
    same(compiled(q, k, v), function(q, k, v, **options), [q, k, v])
    first = torch.func.grad(lambda x: function(x, k.detach(), v.detach(), **options).square().sum())
    assert bool(first(q.detach()).isfinite().all())


def test_refused() -> None:
    q, k, v = (draw(3, 20, 8) for _ in range(3))
    with pytest.raises(ValueError, match="projection has no gradient"):
        at.torch.performer_attention(q, k, v, projection=DIRECTIONS.clone().requires_grad_())
    (first,) = torch.autograd.grad(at.torch.linear_attention(q, k, v).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        first.sum().backward()
