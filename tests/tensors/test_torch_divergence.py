# SPDX-License-Identifier: BSD-3-Clause
"""attention_divergence on tensors: its values are those on arrays, its gradients those of the formula."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.conformance.backends import in_blocks  # noqa: E402

pytestmark = pytest.mark.torch


def draw(*shape: int, seed: int = 0) -> Any:
    rng = np.random.default_rng([seed, *shape])
    return torch.from_numpy(rng.standard_normal(shape)).requires_grad_()


def tensors(heads: int = 2, n: int = 9, m: int = 11) -> list[Any]:
    """Query and key of two attentions, (batch, heads, n, dim)."""
    shapes = ((n, 8), (m, 8), (n, 5), (m, 5))
    return [draw(2, heads, *shape, seed=i) for i, shape in enumerate(shapes)]


def log_weights(q: Any, k: Any, scale: Any, softcap: float | None, mask: Any) -> Any:
    s = scale * (q @ k.mT)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    return (
        s.masked_fill(~mask, -torch.inf).log_softmax(-1)
        if mask.dtype == torch.bool
        else (s + mask).log_softmax(-1)
    )


def written_out(arrays: list[Any], options: dict[str, Any]) -> Any:
    q, k, other_q, other_k = arrays
    mask = options.get("attn_mask", torch.ones(1, 1, dtype=torch.bool))
    if options.get("is_causal"):
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    scales = options.get("scale", q.shape[-1] ** -0.5), options.get("other_scale", other_q.shape[-1] ** -0.5)
    own = log_weights(q, k, scales[0], options.get("softcap"), mask)
    other = log_weights(other_q, other_k, scales[1], options.get("other_softcap"), mask)
    hidden = torch.isneginf(own)
    return (own.exp() * (own.masked_fill(hidden, 0) - other.masked_fill(hidden, 0))).sum(-1)


LOWEST = torch.finfo(torch.float32).min
OPTIONS: dict[str, Any] = {
    "plain": dict,
    "causal": lambda: {"is_causal": True},
    "mask": lambda: {"attn_mask": torch.rand(9, 11, generator=torch.Generator().manual_seed(0)) < 0.6},
    "mask of 0 and -inf": lambda: {"attn_mask": torch.zeros(9, 11, dtype=torch.float64).triu(1).fill_(0)},
    "scales": lambda: {"scale": draw(2, 1), "other_scale": draw(2, 9, seed=1)},
    "softcap": lambda: {"softcap": 2.0},
    "other softcap": lambda: {"softcap": 2.0, "other_softcap": 1.5, "is_causal": True},
    "mask of low numbers": lambda: {
        "attn_mask": torch.zeros(9, 11).index_fill(1, torch.tensor([3, 5]), LOWEST)
    },
    "bias": lambda: {"attn_mask": draw(9, 11)},
}


def wide(options: dict[str, Any]) -> dict[str, Any]:
    """The options with scales as they broadcast to scores."""
    return {n: x[..., None] if n.endswith("scale") else x for n, x in options.items()}


@pytest.mark.parametrize("around", [nullcontext, in_blocks], ids=["a block", "blocks"])
@pytest.mark.parametrize("name", OPTIONS)
def test_values_and_gradients_agree_with_the_formula(name: str, around: Any) -> None:
    arrays, options = tensors(), OPTIONS[name]()
    learned = [*arrays, *(x for x in options.values() if isinstance(x, torch.Tensor) and x.requires_grad)]
    want = written_out(arrays, wide(options))
    weights = torch.rand(want.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for backend in ("core", "torch"):
        with around():
            found = at.torch.attention_divergence(*arrays, **options, backend=backend)
        torch.testing.assert_close(found, want, rtol=1e-10, atol=1e-12)
        with around():
            got = torch.autograd.grad((weights * found).sum(), learned)
        exact = torch.autograd.grad((weights * want).sum(), learned, retain_graph=True)
        for one, other in zip(got, exact, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_values_are_those_on_arrays() -> None:
    arrays = [x.detach().float() for x in tensors(n=20, m=20)]
    mask, other = (torch.rand(20, 20, generator=torch.Generator().manual_seed(i)) < 0.9 for i in (0, 1))
    for options in (
        {"is_causal": True, "other_scale": "log_n"},
        {"attn_mask": mask, "other_attn_mask": other},
        {"window": (3, 2), "other_softcap": 2.0},
        {"attn_mask": mask, "other_attn_mask": torch.zeros(20, 20)},
        {"key_lengths": torch.tensor([0, 7])},
    ):
        found = at.torch.attention_divergence(*arrays, **options)
        given = {n: x.numpy() if isinstance(x, torch.Tensor) else x for n, x in options.items()}
        wanted = at.attention_divergence(*(x.numpy() for x in arrays), **given)
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found.numpy(), wanted, atol=4e-6)
        assert not (found < 0).any()


def test_one_other_head_for_all_and_heads_that_share_keys() -> None:
    q, k, other_q, other_k = draw(2, 4, 9, 8), draw(2, 2, 11, 8), draw(2, 1, 9, 5), draw(2, 1, 11, 5)
    repeated = [q, k.repeat_interleave(2, 1), other_q.expand(2, 4, 9, 5), other_k.expand(2, 4, 11, 5)]
    want = written_out(repeated, {})
    exact = torch.autograd.grad(want.square().sum(), [q, k, other_q, other_k])
    for layout in ("bhsd", "bshd"):
        given = [x if layout == "bhsd" else x.transpose(1, 2) for x in (q, k, other_q, other_k)]
        found = at.torch.attention_divergence(*given, enable_gqa=True, layout=layout)
        torch.testing.assert_close(found, want.detach(), rtol=1e-10, atol=1e-12)
        got = torch.autograd.grad(found.square().sum(), [q, k, other_q, other_k])
        for one, other in zip(got, exact, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_hidden_keys_are_infinite_and_take_no_gradient() -> None:
    arrays = tensors(n=5, m=5)
    causal = torch.ones(5, 5, dtype=torch.bool).tril()
    low = torch.zeros(5, 5).masked_fill(~causal, LOWEST)
    for options in ({}, {"other_softcap": 2.0}):
        found = at.torch.attention_divergence(*arrays, other_attn_mask=causal, **options)
        by_numbers = at.torch.attention_divergence(*arrays, other_attn_mask=low, **options)
        torch.testing.assert_close(by_numbers, found, rtol=0, atol=0)
        assert torch.isinf(found[..., :-1]).all()
        assert torch.isfinite(found[..., -1]).all()
        for gradient in torch.autograd.grad(found.sum(), arrays):
            assert torch.isfinite(gradient).all()
        alone = torch.autograd.grad(
            at.torch.attention_divergence(*arrays, other_attn_mask=causal, **options)[..., -1].sum(), arrays
        )
        assert alone[0][..., -1, :].abs().max() > 0


def test_rounding_below_zero_is_cut_off_and_keeps_the_gradient() -> None:
    """The divergence of equal attentions is rounding, but keeps all rows."""
    q, k = (x.detach().float() for x in tensors(n=100, m=100)[:2])
    other = q.clone().requires_grad_()
    found = at.torch.attention_divergence(q, k, other, k)
    assert (found >= 0).all()
    (gradient,) = torch.autograd.grad(found.sum(), other)
    assert (gradient != 0).any(-1).double().mean() > 0.9
    assert (found == 0).double().mean() > 0.2
    assert gradient.abs().max() < 1e-5


def test_an_indexer_learns_the_weights_of_a_head() -> None:
    torch.manual_seed(0)
    q, k = torch.randn(2, 1, 60, 8)
    index = torch.randn(2, 1, 60, 8).requires_grad_()
    optimizer = torch.optim.Adam([index], lr=0.1)
    losses = []
    for _ in range(40):
        loss = at.torch.attention_divergence(q, k, index[0], index[1], is_causal=True).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.1 * losses[0]


def test_autocast_leaves_the_types_alone() -> None:
    arrays = [x.detach().float() for x in tensors()]
    with torch.autocast("cpu", torch.bfloat16):
        found = at.torch.attention_divergence(*arrays)
    torch.testing.assert_close(found, at.torch.attention_divergence(*arrays), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"other_key": None}, TypeError, "other_key must be a tensor, got None"),
        (
            {"other_key": torch.zeros(2, 2, 7, 5)},
            ValueError,
            "other_key must have as many keys as key, got 7 and 11",
        ),
        ({"other_query": torch.zeros(2, 2, 8, 5)}, ValueError, "as many queries as query, got 8 and 9"),
        ({"other_query": torch.zeros(3, 2, 9, 5)}, ValueError, "must broadcast, got shapes (2, 2, 9, 8), "),
        (
            {"other_query": torch.zeros(2, 2, 9, 4)},
            ValueError,
            "of other_query and other_key: query and key must",
        ),
        ({"softcap": 0.0}, ValueError, "softcap must be greater than 0"),
        ({"other_scal": 1.0}, TypeError, "did you mean 'other_scale'?"),
    ],
)
def test_bad_input(change: dict[str, Any], error: type[Exception], message: str) -> None:
    names = ("query", "key", "other_query", "other_key")
    given = dict(zip(names, (x.detach() for x in tensors()), strict=True)) | change
    with pytest.raises(error) as caught:
        at.torch.attention_divergence(**given)
    assert message in str(caught.value)
