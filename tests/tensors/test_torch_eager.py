# SPDX-License-Identifier: BSD-3-Clause
"""Plain calls on tensors go to the kernels directly; every other call goes through PyTorch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import attnscale as at
import pytest

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]


def rows(*shape: int) -> Any:
    return torch.randn(*(shape or (2, 5, 4)), generator=torch.Generator().manual_seed(sum(shape)))


def takes_the_operator(output: Any) -> bool:
    """Whether the operator of PyTorch made this output, which requires grad."""
    return type(output.grad_fn).__name__ == "OperatorBackward"


def call(*given: Any, **options: Any) -> Any:
    given = given or (rows(),) * 3
    return at.torch.attention_statistics(*given, statistics=("lse", "argmax"), **options)


def profiled() -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as found:
        call()
    assert "attnscale::attend" in {event.key for event in found.key_averages()}


def watched() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    names: list[str] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(str(func))
            return func(*args, **(kwargs or {}))

    with Watch():
        call()
    assert "attnscale.attend.default" in names


def negated() -> None:
    x = torch.complex(rows(), rows()).conj().imag
    assert x.is_neg()
    got, want = call(x, x, x), call(x.resolve_neg(), x.resolve_neg(), x.resolve_neg())
    for each, exact in zip(got, want, strict=True):
        assert each is None or torch.equal(each, exact)
    assert takes_the_operator(call(x, x, rows().requires_grad_()).output)


def of_a_subclass() -> None:
    class Own(torch.Tensor):
        pass

    x = rows().as_subclass(Own)
    assert type(call(x, x, x).output) is Own
    assert takes_the_operator(call(x, x, rows().requires_grad_()).output)


def with_tangents() -> None:
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        found = call(forward_ad.make_dual(rows(), rows()), rows(), rows())
    assert torch.equal(found.output, call(rows(), rows(), rows()).output)


def with_a_default_device() -> None:
    with torch.device("cpu"):
        assert takes_the_operator(call(rows().requires_grad_(), rows(), rows()).output)


def without_numbers() -> None:
    x = rows().to("meta").requires_grad_()
    found = call(x, x, x).output
    assert found.is_meta
    assert takes_the_operator(found)


def transformed() -> None:
    x = rows(3, 2, 5, 4)
    found = torch.func.vmap(lambda x: call(x, x, x).output)(x)
    torch.testing.assert_close(found, torch.stack([call(each, each, each).output for each in x]))


OTHERS: list[Callable[[], None]] = [
    *(profiled, watched, with_tangents, negated, of_a_subclass, with_a_default_device),
    *(without_numbers, transformed),
]


@pytest.mark.parametrize("other", OTHERS)
def test_a_call_that_pytorch_has_more_to_do_with_takes_the_operator(other: Callable[[], None]) -> None:
    other()


def test_a_plain_call_takes_no_operator() -> None:
    x, key = rows().requires_grad_(), torch.nn.Parameter(rows())
    assert not takes_the_operator(call(x, key, rows()).output)
    with torch.autocast("cpu", torch.bfloat16):
        found = call(x, key, rows()).output
    assert found.dtype == torch.bfloat16
    assert not takes_the_operator(found)
    with torch.inference_mode():
        call()


def test_sparse_and_nested_tensors_are_refused_as_pytorch_refuses_them() -> None:
    for made in (rows().to_sparse(), torch.nested.nested_tensor([rows(5, 4), rows(3, 4)])):
        with pytest.raises((NotImplementedError, RuntimeError, TypeError)):
            call(made, made, made)


@pytest.mark.parametrize("asked", [(), ("lse",), ("argmax", "entropy"), ("score_variance", "n_visible")])
@pytest.mark.parametrize("with_value", [False, True], ids=["rows alone", "with a value"])
def test_both_ways_have_the_same_bits(asked: tuple[str, ...], with_value: bool) -> None:
    found = []
    for way in (nullcontext(), torch.device("cpu")):
        q, k, v = (rows(2, n, 4).requires_grad_() for n in (5, 7, 7))
        bias = rows(5, 7).requires_grad_()
        value = v if with_value else None
        with way:
            result = at.torch.attention_statistics(q, k, value, statistics=asked, attn_mask=bias, causal=2)
        there = [x for x in result if x is not None]
        assert [x.requires_grad for x in there] == [x.is_floating_point() for x in there]
        loss = sum(x.square().sum() for x in there if x.requires_grad)
        if isinstance(loss, torch.Tensor):
            loss.backward()
        found.append([*result, q.grad, k.grad, v.grad, bias.grad])
    for mine, other in zip(*found, strict=True):
        assert (mine is None) == (other is None)
        assert mine is None or torch.equal(mine, other)


def test_a_batch_of_gradients_is_a_loop_of_them() -> None:
    x = rows().requires_grad_()
    output = call(x, x, x).output
    given = rows(3, *output.shape)
    batch = torch.autograd.grad(output, x, given, is_grads_batched=True, retain_graph=True)[0]
    for each, got in zip(given, batch, strict=True):
        torch.testing.assert_close(got, torch.autograd.grad(output, x, each, retain_graph=True)[0])


def test_what_changes_after_the_forward_pass_is_noticed() -> None:
    x = rows().requires_grad_()
    key = rows()
    output = at.torch.attention(x, key, key)
    key.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("is_causal", 1, TypeError, "is_causal must be True or False, got 1"),
        ("enable_gqa", 0, TypeError, "enable_gqa must be True or False, got 0"),
        ("softcap", "2", TypeError, "softcap must be a number, got '2'"),
        ("layout", ["bhsd"], ValueError, r"layout must be .*got \['bhsd'\]"),
        ("num_threads", 2.0, TypeError, "num_threads must be an integer, got 2.0"),
        ("normalizer", 3, (TypeError, ValueError), "normalizer|unknown"),
    ],
)
def test_an_option_is_read_anew_after_one_that_is_equal_to_it(
    name: str, value: Any, error: Any, message: str
) -> None:
    """True is 1 and 2 is 2.0 for a cache that asks no further."""
    x = rows()
    for equal in ({"is_causal": True}, {"enable_gqa": False}, {"softcap": 2.0}, {"num_threads": 2}):
        at.torch.attention(x, x, x, **equal)
    with pytest.raises(error, match=message):
        at.torch.attention(x, x, x, **{name: value})
