# SPDX-License-Identifier: BSD-3-Clause
"""torch.func.vmap: as a loop over the samples, and per-sample gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attnscale as at
import pytest

torch = pytest.importorskip("torch")

from tests.tensors import operators  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default"), pytest.mark.usefixtures("fixed_seed")]

SAMPLES = 4


def draw(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64)


def check(function: Callable[..., Any], in_dims: tuple[Any, ...], *tensors: Any) -> None:
    """Values and gradients of every sample, by all tensors, are those of a loop."""
    samples = [
        [x if dim is None else x.select(dim, i) for x, dim in zip(tensors, in_dims, strict=True)]
        for i in range(SAMPLES)
    ]

    def loss(*given: Any) -> Any:
        return sum(x.sin().sum() for x in function(*given))

    each = tuple(range(len(tensors)))
    differentiate = torch.func.grad(loss, argnums=each)
    found = torch.func.vmap(function, in_dims)(*tensors)
    gradients = torch.func.vmap(differentiate, in_dims)(*tensors)
    for i, given in enumerate(samples):
        for got, want in zip(found, function(*given), strict=True):
            torch.testing.assert_close(got[i], want, rtol=1e-12, atol=1e-13)
        for got, want in zip(gradients, differentiate(*given), strict=True):
            torch.testing.assert_close(got[i], want, rtol=1e-11, atol=1e-12)
    # The other order: a gradient of the sum over all samples.
    whole = torch.func.grad(lambda *x: torch.func.vmap(loss, in_dims)(*x).sum(), argnums=each)(*tensors)
    for got, own, dim in zip(whole, gradients, in_dims, strict=True):
        want = own.sum(0) if dim is None else own.movedim(0, dim)
        torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


def attend(**options: Any) -> Callable[..., Any]:
    def call(q: Any, k: Any, v: Any) -> tuple[Any, ...]:
        rows = at.torch.attention_statistics(q, k, v, **options)
        return rows.output, rows.lse, rows.entropy

    return call


@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (None, 1, -1), (2, 0, None)], ids=str)
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
def test_over_queries_keys_and_values(lead: tuple[int, ...], layout: str, in_dims: tuple[Any, ...]) -> None:
    tensors = []
    for n, dim in zip((9, 11, 11), in_dims, strict=True):
        x = draw(*lead, n, 5)
        x = x.transpose(-3, -2) if layout == "bshd" and lead else x
        tensors.append(x if dim is None else torch.stack([x + i for i in range(SAMPLES)], dim))
    function = attend(layout=layout, causal="bottom_right")
    check(function, in_dims, *tensors)
    seen = operators.taken(lambda: torch.func.vmap(function, in_dims)(*tensors))
    assert len(seen) == 1  # of the core, whatever the number of samples


def test_leading_axes_of_different_number() -> None:
    check(attend(), (0, 0, None), draw(SAMPLES, 3, 9, 5), draw(SAMPLES, 2, 1, 7, 5), draw(7, 6))


def test_shared_heads() -> None:
    function = attend(enable_gqa=True, scale="log_n")
    check(function, (0, None, 0), draw(SAMPLES, 6, 9, 5), draw(2, 9, 5), draw(SAMPLES, 2, 9, 5))


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)], ids=str)
def test_over_scales_and_masks(lead: tuple[int, ...]) -> None:
    q, k, v = (draw(*lead, 9, 5) for _ in range(3))

    def call(scale: Any, mask: Any) -> tuple[Any, ...]:
        return (at.torch.attention(q, k, v, scale=scale, attn_mask=mask),)

    for scale, mask in (((), (9, 9)), ((9,), (9,)), ((*lead[-1:], 1), (*lead, 9, 9))):
        check(call, (0, 1), draw(SAMPLES, *scale), draw(mask[0], SAMPLES, *mask[1:]))
        check(call, (None, 0), draw(*scale), draw(SAMPLES, *mask))
        check(call, (0, None), draw(SAMPLES, *scale), draw(*mask))
    assert len(operators.taken(lambda: torch.func.vmap(call)(draw(SAMPLES), draw(SAMPLES, 9, 9)))) == 1


def test_over_lengths_and_documents() -> None:
    q = draw(2, 3, 9, 5)
    lengths = torch.tensor([[9, 3], [1, 0], [5, 5], [2, 8]])
    documents = torch.tensor([0, 0, 1, 1, 1, 2, 2, 2, 2]).expand(SAMPLES, 2, 9)

    def call(lengths: Any, documents: Any) -> Any:
        return at.torch.attention(q, q, q, key_lengths=lengths, document_ids=documents, is_causal=True)

    want = torch.stack([call(*each) for each in zip(lengths, documents, strict=True)])
    torch.testing.assert_close(torch.func.vmap(call)(lengths, documents), want)
    assert len(operators.taken(lambda: torch.func.vmap(call)(lengths, documents))) == 1
    of_one = torch.func.vmap(lambda n: at.torch.attention(q, q, q, key_lengths=n))(lengths)
    torch.testing.assert_close(of_one[1], at.torch.attention(q, q, q, key_lengths=lengths[1]))


def test_over_sinks_tables_and_laws_sample_by_sample() -> None:
    k, v = draw(3, 9, 5), draw(3, 9, 5)

    def call(logits: Any, table: Any, s: Any, q: Any) -> tuple[Any, ...]:
        scale = at.torch.Learned("ssmax", s=s)
        options = {"normalizer": at.torch.Sink(logits), "distance_bias": table}
        return (at.torch.attention(q, k, v, scale=scale, **options),)

    tensors = draw(SAMPLES, 3), draw(SAMPLES, 3, 9), draw(SAMPLES, 3), draw(SAMPLES, 3, 9, 5)
    check(call, (0, 0, 0, 0), *tensors)
    check(call, (None, None, None, 0), *(x[0] for x in tensors[:3]), tensors[3])


def test_over_a_bias_and_an_alpha_sample_by_sample() -> None:
    k, v, q = draw(3, 9, 5), draw(3, 9, 5), draw(SAMPLES, 3, 9, 5)

    def with_bias(bias: Any, q: Any) -> tuple[Any, ...]:
        return (at.torch.attention(q, k, v, normalizer=at.torch.Sigmoid(bias)),)

    def with_alpha(alpha: Any, q: Any) -> tuple[Any, ...]:
        return (at.torch.attention(q, k, v, normalizer=at.torch.Entmax(alpha)),)

    bias, alpha = draw(SAMPLES, 3), torch.linspace(1.3, 1.9, SAMPLES, dtype=torch.float64)
    check(with_bias, (0, 0), bias, q)
    check(with_bias, (None, 0), bias[0], q)
    check(with_alpha, (0, 0), alpha, q)
    check(with_alpha, (None, 0), alpha[0], q)


def test_gradients_of_a_module_by_sample() -> None:
    module = at.torch.nn.MultiheadAttention(
        *(8, 2), batch_first=True, law="ssmax", learnable_law="s", statistics=["entropy"], dtype=torch.float64
    )
    parameters = {name: x.detach() for name, x in module.named_parameters()}

    def loss(parameters: Any, x: Any) -> Any:
        options = {"need_weights": False, "is_causal": True}
        output, _ = torch.func.functional_call(module, parameters, (x, x, x), options)
        return output.square().sum()

    x = draw(SAMPLES, 7, 8)
    found = torch.func.vmap(torch.func.grad(loss), (None, 0))(parameters, x)
    for i in range(SAMPLES):
        want = torch.func.grad(loss)(parameters, x[i])
        for name, gradient in want.items():
            torch.testing.assert_close(found[name][i], gradient, rtol=1e-10, atol=1e-12)


def test_a_jacobian_and_a_vmap_in_a_vmap() -> None:
    q, k, v = (draw(2, 4, 3) for _ in range(3))
    found = torch.func.jacrev(lambda q: at.torch.attention(q, k, v))(q)
    want = torch.autograd.functional.jacobian(lambda q: at.torch.attention(q, k, v), q)
    torch.testing.assert_close(found, want)
    x = draw(2, SAMPLES, 5, 3)
    inner = torch.func.vmap(lambda x: at.torch.attention(x, x, x))
    torch.testing.assert_close(torch.func.vmap(inner)(x), at.torch.attention(x, x, x))


def test_the_other_families() -> None:
    def call(q: Any, k: Any, v: Any, decay: Any) -> tuple[Any, ...]:
        both = at.torch.differential_attention(q, k, k, q, v, lam=0.3)
        return at.torch.ssd(q, k, v, decay), at.torch.linear_attention(q, k, v), both

    decay = -draw(SAMPLES, 2, 6).square()
    check(call, (0, None, 0, 0), draw(SAMPLES, 2, 6, 4), draw(2, 6, 4), draw(SAMPLES, 2, 6, 3), decay)


def test_no_samples() -> None:
    q = draw(0, 2, 9, 5)
    assert torch.func.vmap(lambda x: at.torch.attention(x, x, x))(q).shape == q.shape
    with pytest.raises(ValueError, match="vmap needs at least one sample"):
        torch.func.vmap(lambda x: at.torch.linear_attention(x, x, x))(q)


def test_compiled() -> None:
    q, k, v = (draw(SAMPLES, 2, 9, 5) for _ in range(3))
    function = torch.func.vmap(lambda *x: at.torch.attention(*x, is_causal=True))
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), function(q, k, v))
