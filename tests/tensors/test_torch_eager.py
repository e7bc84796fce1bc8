# SPDX-License-Identifier: BSD-3-Clause
"""Plain calls on tensors go to the kernels directly; every other call goes through PyTorch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attnscale as at
import pytest

torch = pytest.importorskip("torch")

from attnscale.torch import _functional  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]


def rows(*shape: int) -> Any:
    return torch.randn(*(shape or (2, 5, 4)), generator=torch.Generator().manual_seed(sum(shape)))


@pytest.fixture
def operators(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Filled with a 1 for each call that takes the operator."""
    seen: list[int] = []
    run = _functional.run

    def counted(*given: Any) -> Any:
        seen.append(1)
        return run(*given)

    monkeypatch.setattr(_functional, "run", counted)
    return seen


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


def with_tangents() -> None:
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        call(forward_ad.make_dual(rows(), rows()), rows(), rows())


def negated() -> None:
    x = torch.complex(rows(), rows()).conj().imag
    assert x.is_neg()
    got, want = call(x, x, x), call(x.resolve_neg(), x.resolve_neg(), x.resolve_neg())
    for each, exact in zip(got, want, strict=True):
        assert each is None or torch.equal(each, exact)


def of_a_subclass() -> None:
    class Own(torch.Tensor):
        pass

    x = rows().as_subclass(Own)
    assert type(call(x, x, x).output) is Own


def with_a_default_device() -> None:
    with torch.device("cpu"):
        call()


def without_numbers() -> None:
    x = rows().to("meta")
    assert call(x, x, x).output.is_meta


def transformed() -> None:
    torch.func.vmap(lambda x: call(x, x, x).output)(rows(3, 2, 5, 4))


OTHERS: list[Callable[[], None]] = [
    *(profiled, watched, with_tangents, negated, of_a_subclass, with_a_default_device),
    *(without_numbers, transformed),
]


@pytest.mark.parametrize("other", OTHERS)
def test_a_call_that_pytorch_has_more_to_do_with_takes_the_operator(
    other: Callable[[], None], operators: list[int]
) -> None:
    other()
    assert operators


@pytest.mark.parametrize("learns", [False, True], ids=["without gradients", "with gradients"])
def test_a_plain_call_takes_no_operator(learns: bool, operators: list[int]) -> None:
    x = rows().requires_grad_(learns)
    found = call(x, torch.nn.Parameter(rows()) if learns else rows(), rows())
    with torch.inference_mode():
        call()
    with torch.autocast("cpu", torch.bfloat16):
        assert call().output.dtype == torch.bfloat16
    if learns:
        found.output.sum().backward()
    assert not operators


def test_sparse_and_nested_tensors_are_refused_as_pytorch_refuses_them(operators: list[int]) -> None:
    for made in (rows().to_sparse(), torch.nested.nested_tensor([rows(5, 4), rows(3, 4)])):
        with pytest.raises((NotImplementedError, RuntimeError, TypeError)):
            call(made, made, made)
    assert operators


@pytest.mark.parametrize("asked", [(), ("lse",), ("argmax", "entropy"), ("score_variance", "n_visible")])
@pytest.mark.parametrize("with_value", [False, True], ids=["rows alone", "with a value"])
def test_both_ways_have_the_same_bits(
    asked: tuple[str, ...],
    with_value: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for way in ("eager", "operator"):
        if way == "operator":
            monkeypatch.setattr(_functional, "is_eager", lambda *_: False)
        q, k, v = (rows(2, n, 4).requires_grad_() for n in (5, 7, 7))
        bias = rows(5, 7).requires_grad_()
        result = at.torch.attention_statistics(
            q, k, v if with_value else None, statistics=asked, attn_mask=bias, causal=2
        )
        there = [x for x in result if x is not None]
        assert [x.requires_grad for x in there] == [x.is_floating_point() for x in there]
        loss = sum(x.square().sum() for x in there if x.requires_grad)
        if isinstance(loss, torch.Tensor):
            loss.backward()
        found.append([*result, q.grad, k.grad, v.grad, bias.grad])
    for mine, other in zip(*found, strict=True):
        assert (mine is None) == (other is None)
        assert mine is None or torch.equal(mine, other)


def test_a_batch_of_gradients_is_a_loop_of_them(operators: list[int]) -> None:
    x = rows().requires_grad_()
    output = call(x, x, x).output
    given = rows(3, *output.shape)
    batch = torch.autograd.grad(output, x, given, is_grads_batched=True, retain_graph=True)[0]
    for each, got in zip(given, batch, strict=True):
        torch.testing.assert_close(got, torch.autograd.grad(output, x, each, retain_graph=True)[0])
    assert not operators


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
