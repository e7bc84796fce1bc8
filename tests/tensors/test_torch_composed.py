# SPDX-License-Identifier: BSD-3-Clause
"""Relay nodes and differential attention on tensors: values and gradients of the functions on arrays."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("fixed_seed")]


def draw(*shape: int, dtype: Any = torch.float64) -> Any:
    return torch.randn(shape, dtype=dtype).requires_grad_()


def arrays(*tensors: Any) -> list[Any]:
    return [x.detach().numpy() for x in tensors]


@pytest.mark.parametrize("with_value", [False, True])
def test_relay_nodes_as_on_arrays(with_value: bool) -> None:
    x, centres = draw(2, 30, 8), draw(2, 5, 8)
    value = draw(2, 30, 6) if with_value else None
    nodes = at.torch.relay_attention(x, centres, value)
    assert nodes.output is not None
    given = [*arrays(x, centres), arrays(value)[0] if value is not None else None]
    want = at.variants.relay_attention(*given)
    for name in ("output", "lse", "entropy", "mean_score"):
        np.testing.assert_allclose(getattr(nodes, name).detach().numpy(), getattr(want, name), rtol=1e-12)
    weights = torch.randn_like(nodes.output)
    (weights * nodes.output).sum().backward()
    truth = at.variants.gradients("relay_attention", *given, weights.numpy())
    np.testing.assert_allclose(x.grad.numpy(), truth.query, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(centres.grad.numpy(), truth.key, rtol=1e-12, atol=1e-13)
    if value is not None:
        np.testing.assert_allclose(value.grad.numpy(), truth.value, rtol=1e-12, atol=1e-13)


def two_maps(dtype: Any = torch.float64) -> tuple[Any, ...]:
    return (*(draw(2, 3, 9, 8, dtype=dtype) for _ in range(4)), draw(2, 3, 9, 5, dtype=dtype))


@pytest.mark.parametrize("lam_shape", [(), (9,), (3, 1), (2, 1, 9), (2, 3, 9)], ids=str)
@pytest.mark.parametrize("options", [{}, {"is_causal": True, "scale": "log_n"}], ids=str)
def test_differential_attention_as_on_arrays(lam_shape: tuple[int, ...], options: dict[str, Any]) -> None:
    given, lam = two_maps(), draw(*lam_shape)
    found = at.torch.differential_attention(*given, lam=lam, **options)
    q1, k1, q2, k2, v = arrays(*given)
    share = lam.detach().numpy()
    want = at.variants.differential_attention(q1, k1, q2, k2, v, lam=share, **options)
    np.testing.assert_array_equal(found.detach().numpy(), want)
    weights = torch.randn_like(found)
    (weights * found).sum().backward()
    truth = at.variants.gradients(
        "differential_attention", (q1, q2), (k1, k2), v, weights.numpy(), lam=share, **options
    )
    named = {"query": (0, 2), "key": (1, 3)}
    for name, places in named.items():
        for place, exact in zip(places, getattr(truth, name), strict=True):
            np.testing.assert_allclose(given[place].grad.numpy(), exact, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(given[4].grad.numpy(), truth.value, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(lam.grad.numpy(), truth.lam, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("lam_shape", [(), (9,), (3, 1), (2, 3, 9)], ids=str)
def test_the_other_layout(lam_shape: tuple[int, ...]) -> None:
    given, lam = two_maps(), draw(*lam_shape)
    want = at.torch.differential_attention(*given, lam=lam)
    swapped = [x.transpose(1, 2) for x in given]
    found = at.torch.differential_attention(*swapped, lam=lam, layout="bshd")
    torch.testing.assert_close(found.transpose(1, 2), want)


def test_a_law_and_a_sink_of_both_maps_learn() -> None:
    given = [x.detach() for x in two_maps()]
    lam, s, logits = draw(3, 1), draw(3), draw(3)

    def call(lam: Any, s: Any, logits: Any) -> Any:
        scale = at.torch.Learned("ssmax", s=s)
        sink = at.torch.Sink(logits)
        return at.torch.differential_attention(*given, lam=lam, scale=scale, normalizer=sink)

    assert torch.autograd.gradcheck(call, (lam, s, logits))


def test_compiled_and_under_transforms() -> None:
    given, lam = two_maps(), draw(3, 1)

    def loss(*given: Any) -> Any:
        output = at.torch.differential_attention(*given[:5], lam=given[5], is_causal=True)
        nodes = at.torch.relay_attention(given[0], given[1])
        return output.square().sum() + nodes.output.sum() + nodes.entropy.sum()

    want = torch.autograd.grad(loss(*given, lam), (*given, lam))
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(*given, lam), (*given, lam))
    plain = [x.detach() for x in (*given, lam)]
    functional = torch.func.grad(loss, argnums=tuple(range(6)))(*plain)
    for got, other, exact in zip(found, functional, want, strict=True):
        torch.testing.assert_close(got, exact)
        torch.testing.assert_close(other, exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_difference_is_taken_before_the_output_is_rounded(dtype: Any) -> None:
    given = two_maps(dtype)
    found = at.torch.differential_attention(*given, lam=0.9)
    assert found.dtype == dtype
    exact = at.torch.differential_attention(*(x.detach().double() for x in given), lam=0.9)
    torch.testing.assert_close(found.double(), exact, rtol=torch.finfo(dtype).eps, atol=2e-6)
    found.sum().backward()
    assert {x.grad.dtype for x in given} == {dtype}


def test_autocast_picks_the_type() -> None:
    given = two_maps(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = at.torch.differential_attention(*given, lam=0.9)
    narrow = (x.detach().bfloat16() for x in given)
    assert torch.equal(found, at.torch.differential_attention(*narrow, lam=0.9))


@pytest.mark.parametrize(("change", "message"), [
    ({"lam": "0.8"}, "lam must be a number or a tensor, got '0.8'"),
    ({"lam": torch.ones(2)}, r"lam must broadcast to .* n_queries\) = \(2, 3, 9\), got shape \(2,\)"),
    ({"lam": torch.ones(1, 2, 3, 9)}, r"got shape \(1, 2, 3, 9\)"),
    ({"query2": torch.zeros(2, 3, 4, 8)}, "both maps must have the same heads and queries"),
])  # fmt: skip
def test_refused(change: dict[str, Any], message: str) -> None:
    names = ("query1", "key1", "query2", "key2", "value")
    given = {**dict(zip(names, two_maps(torch.float32), strict=True)), "lam": 0.5}
    with pytest.raises((TypeError, ValueError), match=message):
        at.torch.differential_attention(**{**given, **change})
