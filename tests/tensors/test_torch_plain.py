# SPDX-License-Identifier: BSD-3-Clause
"""Plain calls on tensors go to the kernels directly, which read them by DLPack; others take an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from importlib import import_module
from pathlib import Path
from typing import Any

import attnscale as at
import numpy as np
import pytest

from tests.cases import SMOOTH
from tests.declarations import check_declarations

torch = pytest.importorskip("torch")
EAGER, FUNCTIONAL = (import_module(f"attnscale.torch.{name}") for name in ("_eager", "_functional"))

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("default")]
#: Other versions of PyTorch lend no tensors, and Python reads every call.
LENDS = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
lends = pytest.mark.skipif(not LENDS, reason="this PyTorch lends no tensors by DLPack")

#: DLPack's structs as attnscale declares them, and in the header that comes with PyTorch.
STRUCTS = {
    ("data_type", "DLDataType"): "code bits lanes",
    ("tensor", "DLTensor"): "data device n_axes=ndim type=dtype shape strides byte_offset",
    ("version", "DLPackVersion"): "major minor",
    ("managed_tensor", "DLManagedTensorVersioned"): (
        "made_by=version context=manager_ctx deleter flags described=dl_tensor"
    ),
    ("functions", "DLPackExchangeAPI"): (
        "offered=header.version earlier=header.prev_api allocate=managed_tensor_allocator "
        "lend_managed=managed_tensor_from_py_object_no_sync to_object=managed_tensor_to_py_object_no_sync "
        "lend=dltensor_from_py_object_no_sync current_stream=current_work_stream"
    ),
}
NUMBERS = {
    "cpu": "kDLCPU",
    "integer": "kDLInt",
    "floating": "kDLFloat",
    "brain_floating": "kDLBfloat",
    "boolean": "kDLBool",
    "major_version": "DLPACK_MAJOR_VERSION",
}


@lends
def test_the_declarations_agree_with_the_installed_pytorch(tmp_path: Path) -> None:
    include = Path(torch.__file__).parent / "include"
    structs = {pair: fields for pair, fields in STRUCTS.items() if pair[0] != "tensor"}
    # The device of a tensor is a struct of two numbers there.
    structs["tensor", "DLTensor"] = STRUCTS["tensor", "DLTensor"].replace("device ", "")
    check_declarations(
        tmp_path,
        own=("dlpack_abi.hpp", "attnscale::bindings::dlpack"),
        theirs=(str(include), "ATen/dlpack.h"),
        structs=structs,
        numbers=NUMBERS,
    )


def random(*shape: int, dtype: Any = None) -> Any:
    made = torch.randn(*(shape or (2, 5, 4)), generator=torch.Generator().manual_seed(sum(shape)))
    return made.to(dtype or torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n_keys", [3, 5, 9])
def test_numbers_are_those_of_a_call_with_threads(dtype: Any, is_causal: bool, n_keys: int) -> None:
    """A number of threads makes a call one that Python reads."""
    query = random(2, 3, 5, 8, dtype=dtype)
    key, value = random(2, 3, n_keys, 8, dtype=dtype), random(2, 3, n_keys, 4, dtype=dtype)
    call = {"is_causal": is_causal, "scale": 0.7, "statistics": ("entropy", "argmax", "lse")}
    found = at.torch.attention_statistics(query, key, value, **call)
    wanted = at.torch.attention_statistics(query, key, value, num_threads=1, **call)
    for name in ("output", "entropy", "argmax", "lse"):
        ours, theirs = getattr(found, name), getattr(wanted, name)
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    assert torch.equal(at.torch.attention(query, key, value, is_causal=is_causal, scale=0.7), wanted.output)


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions of the core and of Python that read calls, in order."""
    if not LENDS:
        pytest.skip("this PyTorch lends no tensors by DLPack")
    seen: list[str] = []
    names = ("attend_tensors", "differentiate_tensors", "read_call")
    for module, name in [*((EAGER, name) for name in names), (FUNCTIONAL, "read_call")]:
        own = getattr(module, name)

        def noted(*given: Any, name: str = name, own: Any = own) -> Any:
            found = own(*given)
            if found is not None:
                seen.append(name)
            return found

        monkeypatch.setattr(module, name, noted)
    return seen


MASK, BIAS = random(5, 7) > 0, random(2, 1, 5, 7)
#: Options of calls of 2 x 3 heads, 5 queries and 7 keys; tensors of floats get gradients.
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "lengths of NumPy": {"window": (2, 0), "key_lengths": np.array([4, 7]), "scale": at.laws.LogN(base=16)},
    "lengths of PyTorch": {
        "causal": "bottom_right",
        "key_lengths": torch.tensor([5, 7]),
        "scale": "log_n",
    },
    "documents": {"document_ids": torch.tensor([0, 0, 1, 1, 1, 2, 2]), "softcap": 2},
    "a mask": {"attn_mask": MASK, "softcap": 2.5},
    "a mask and a law": {"attn_mask": MASK[:, :1] | MASK, "scale": "log_n"},
    "a bias": {"attn_mask": BIAS},
    "a bias that hides": {"attn_mask": BIAS.masked_fill(~MASK, float("-inf")), "is_causal": True},
    "scales": {"scale": random(3, 1), "attn_mask": BIAS},
    "scales of another type": {"scale": random(5, dtype=torch.float64)},
    "one scale": {"scale": torch.tensor(0.4), "softcap": 3.0},
    "a sink": {"normalizer": at.normalizers.Sink([0.1, 2, -1]), "attn_mask": MASK},
    "a learned sink": {"normalizer": torch.tensor(0.4), "attn_mask": BIAS},
    "a learned sink a head": {"normalizer": random(3), "scale": random(3, 1)},
    "a learned sink a row": {"normalizer": random(3, 5, dtype=torch.float64), "softcap": 2.0},
    "a softmax with a constant": {"normalizer": at.normalizers.SoftmaxN(3.0)},
}


def learnable(options: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """The options with copies of their tensors of floats that require grad, and these copies."""
    copied = {
        name: x.clone().requires_grad_() if torch.is_tensor(x) and x.is_floating_point() else x
        for name, x in options.items()
    }
    others = [x for x in copied.values() if torch.is_tensor(x) and x.requires_grad]
    if torch.is_tensor(copied.get("normalizer")):
        copied["normalizer"] = at.torch.Sink(copied["normalizer"])
    return copied, others


@pytest.mark.parametrize(
    ("of_output", "asked"),
    [(True, ()), *((True, (name,)) for name in SMOOTH), (True, ("n_visible", *SMOOTH)), (False, SMOOTH)],
)
@pytest.mark.parametrize("name", OPTIONS)
def test_gradients_are_those_of_a_call_with_threads(
    ways: list[str], name: str, of_output: bool, asked: tuple[str, ...]
) -> None:
    options, others = learnable(OPTIONS[name])
    tensors = [random(2, 3, n, 8).requires_grad_() for n in (5, 7, 7)]
    grad, factors = random(1, 1, 5, 1).expand(2, 3, 5, 8), [random(3, 1), random(2, 3, 5), torch.tensor(0.5)]

    def gradients(**more: Any) -> Any:
        found = at.torch.attention_statistics(*tensors, statistics=asked, **options, **more)
        rows = [getattr(found, each) for each in asked if each in SMOOTH]
        given = [factors[i % 3].expand_as(x) for i, x in enumerate(rows)]
        outputs = [found.output, *rows] if of_output else rows
        return torch.autograd.grad(
            outputs, [*tensors, *others], [grad, *given] if of_output else given, materialize_grads=True
        )

    found = gradients()
    assert ways == ["attend_tensors", "differentiate_tensors"]
    for ours, theirs in zip(found, gradients(num_threads=1), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("of_mask", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("asked", [(), ("entropy",)])
def test_gradients_of_other_types_are_those_of_a_call_with_threads(
    ways: list[str], dtype: Any, of_mask: Any, asked: tuple[str, ...]
) -> None:
    tensors = [random(2, 3, n, 8, dtype=dtype).requires_grad_() for n in (5, 7, 7)]
    mask = random(3, 5, 7, dtype=of_mask).requires_grad_()

    def gradients(**more: Any) -> Any:
        found = at.torch.attention_statistics(*tensors, statistics=asked, attn_mask=mask, **more)
        loss = found.output.float().square().sum()
        return torch.autograd.grad(loss + found.entropy.sum() if asked else loss, [*tensors, mask])

    found = gradients()
    rounds_twice = dtype == torch.float64 and of_mask.itemsize == 2  # left to Python
    assert ways == ["attend_tensors", "read_call" if rounds_twice else "differentiate_tensors"]
    for ours, theirs in zip(found, gradients(num_threads=1), strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def test_large_halves_are_rounded_by_python(ways: list[str]) -> None:
    x = random(2**12, 17, dtype=torch.bfloat16).requires_grad_()
    torch.autograd.grad(at.torch.attention(x, x[:4], x[:4]).float().sum(), x)
    assert ways == ["attend_tensors", "read_call"]


def test_gradients_of_large_masks_are_computed_by_python(ways: list[str]) -> None:
    x, mask = random(260, 8), random(260, 260).requires_grad_()
    found = torch.autograd.grad(at.torch.attention(x, x, x, attn_mask=mask).square().sum(), mask)[0]
    assert ways == ["attend_tensors", "read_call"]
    again = at.torch.attention(x, x, x, attn_mask=mask, num_threads=1)
    assert torch.equal(torch.autograd.grad(again.square().sum(), mask)[0], found)


def test_a_call_under_autocast_is_plain(ways: list[str]) -> None:
    tensors = [random(2, 3, n, 8).requires_grad_() for n in (5, 7, 7)]

    def gradients(**more: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            found = at.torch.attention(*tensors, is_causal=True, **more)
        assert found.dtype == torch.bfloat16
        return torch.autograd.grad(found.float().square().sum(), tensors)

    found = gradients()
    assert ways == ["attend_tensors", "differentiate_tensors"]
    for ours, theirs in zip(found, gradients(num_threads=1), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_groups_of_heads_are_those_of_a_call_with_threads(ways: list[str], layout: str) -> None:
    shapes = [(2, 6, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8)]
    tensors = [random(*shape) for shape in shapes]
    tensors = [(x.transpose(1, 2) if layout == "bshd" else x).requires_grad_() for x in tensors]

    def gradients(**more: Any) -> Any:
        call = {"enable_gqa": True, "layout": layout, "attn_mask": MASK, **more}
        found = at.torch.attention_statistics(*tensors, statistics=("entropy",), **call)
        return torch.autograd.grad(found.output.square().sum() - found.entropy.mean(), tensors)

    found = gradients()
    assert ways == ["attend_tensors", "differentiate_tensors"]
    for ours, theirs in zip(found, gradients(num_threads=1), strict=True):
        assert torch.equal(ours, theirs)


def test_a_changed_mask_is_noticed() -> None:
    mask, x = random(5, 5), random().requires_grad_()
    output = at.torch.attention(x, x, x, attn_mask=mask)
    mask.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_the_mask_that_was_saved_is_read(ways: list[str]) -> None:
    """Hooks may keep copies of saved tensors, as those that move them to another memory."""
    mask, x = random(5, 5), random().requires_grad_()
    wanted = torch.autograd.grad(at.torch.attention(x, x, x, attn_mask=mask).sum(), x)[0]
    with torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone):
        output = at.torch.attention(x, x, x, attn_mask=mask)
    mask.zero_()
    assert torch.equal(torch.autograd.grad(output.sum(), x)[0], wanted)
    assert ways == ["attend_tensors", "differentiate_tensors"] * 2


def test_strides_of_a_view_are_followed() -> None:
    query, key, value = random(4, 6, 2, 8).transpose(1, 2).split([1, 1, 2])
    found = at.torch.attention(query, key, value[::2])
    own = [x.contiguous() for x in (query, key, value[::2])]
    assert torch.equal(found, at.torch.attention(*own, num_threads=1))


def test_results_own_their_memory() -> None:
    """An output outlives its inputs, and may be written to and grown in place."""
    found = at.torch.attention(random(1, 4, 8), random(1, 4, 8), random(1, 4, 8))
    copy = found.clone()
    for _ in range(50):
        at.torch.attention(random(1, 4, 8), random(1, 5, 8), random(1, 5, 8))
    assert torch.equal(found, copy)
    assert torch.equal(found.add_(1), copy + 1)


# ---- which way a call takes -------------------------------------------------------------------------


def takes_the_operator(output: Any) -> bool:
    """Whether the operator of PyTorch made this output, which requires grad."""
    return type(output.grad_fn).__name__ == "OperatorBackward"


def call(*given: Any, **options: Any) -> Any:
    given = given or (random(),) * 3
    return at.torch.attention_statistics(*given, statistics=("lse", "argmax"), **options)


def profiled() -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as found:
        call()
    assert "attnscale::attend" in {event.key for event in found.key_averages()}


def watched() -> None:
    from tests.tensors import operators

    assert "attnscale.attend.default" in {str(operator) for operator, _ in operators.taken(call)}


def negated() -> None:
    x = torch.complex(random(), random()).conj().imag
    assert x.is_neg()
    got, want = call(x, x, x), call(x.resolve_neg(), x.resolve_neg(), x.resolve_neg())
    for each, exact in zip(got, want, strict=True):
        assert each is None or torch.equal(each, exact)
    assert takes_the_operator(call(x, x, random().requires_grad_()).output)


def of_a_subclass() -> None:
    class Own(torch.Tensor):
        pass

    x = random().as_subclass(Own)
    assert type(call(x, x, x).output) is Own
    assert takes_the_operator(call(x, x, random().requires_grad_()).output)


def with_tangents() -> None:
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        found = call(forward_ad.make_dual(random(), random()), random(), random())
    assert torch.equal(found.output, call(random(), random(), random()).output)


def with_a_default_device() -> None:
    with torch.device("cpu"):
        assert takes_the_operator(call(random().requires_grad_(), random(), random()).output)


def without_numbers() -> None:
    x = random().to("meta").requires_grad_()
    found = call(x, x, x).output
    assert found.is_meta
    assert takes_the_operator(found)


def transformed() -> None:
    x = random(3, 2, 5, 4)
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
    x, key = random().requires_grad_(), torch.nn.Parameter(random())
    assert not takes_the_operator(call(x, key, random()).output)
    with torch.autocast("cpu", torch.bfloat16):
        found = call(x, key, random()).output
    assert found.dtype == torch.bfloat16
    assert not takes_the_operator(found)
    with torch.inference_mode():
        call()


def test_sparse_and_nested_tensors_are_refused_as_pytorch_refuses_them() -> None:
    for made in (random().to_sparse(), torch.nested.nested_tensor([random(5, 4), random(3, 4)])):
        with pytest.raises((NotImplementedError, RuntimeError, TypeError)):
            call(made, made, made)


@pytest.mark.parametrize(
    "asked", [(), ("lse",), ("argmax", "entropy"), ("score_variance", "n_visible", "support")]
)
@pytest.mark.parametrize("with_value", [False, True], ids=["rows alone", "with a value"])
def test_both_ways_have_the_same_bits(asked: tuple[str, ...], with_value: bool) -> None:
    found = []
    for way in (nullcontext(), torch.device("cpu")):
        q, k, v = (random(2, n, 4).requires_grad_() for n in (5, 7, 7))
        bias = random(5, 7).requires_grad_()
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
    x = random().requires_grad_()
    output = call(x, x, x).output
    given = random(3, *output.shape)
    batch = torch.autograd.grad(output, x, given, is_grads_batched=True, retain_graph=True)[0]
    for each, got in zip(given, batch, strict=True):
        torch.testing.assert_close(got, torch.autograd.grad(output, x, each, retain_graph=True)[0])


def test_changes_after_the_forward_pass_are_noticed() -> None:
    x = random().requires_grad_()
    key = random()
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
    """A cache that compares by equality takes True for 1 and 2 for 2.0."""
    x = random()
    for equal in ({"is_causal": True}, {"enable_gqa": False}, {"softcap": 2.0}, {"num_threads": 2}):
        at.torch.attention(x, x, x, **equal)
    with pytest.raises(error, match=message):
        at.torch.attention(x, x, x, **{name: value})


# ---- denormal numbers, which PyTorch may take for zero: all threads do as the calling one does -------

DENORMAL = np.float32(1e-40)


@pytest.fixture
def flushed() -> Iterator[None]:
    """The calling thread takes denormal numbers for zero."""
    if not torch.set_flush_denormal(True):
        pytest.skip("PyTorch cannot make this CPU flush denormal numbers")
    yield
    torch.set_flush_denormal(False)


def outputs(num_threads: int) -> np.ndarray:
    """Means of equal denormal values, over more rows than one thread is given at a time."""
    query = np.zeros((64, 256, 16), np.float32)
    return at.attention(query, query, np.full_like(query, DENORMAL), num_threads=num_threads)


def test_two_threads_flush_what_one_flushes(flushed: None) -> None:
    assert (outputs(1) == 0).all()
    assert (outputs(2) == 0).all()


def test_threads_that_began_under_flushing_compute_as_others_do(flushed: None) -> None:
    outputs(2)
    torch.set_flush_denormal(False)
    assert (outputs(1) > 0).all()
    assert (outputs(2) > 0).all()


@lends
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_stay_where_a_model_split_them(dtype: torch.dtype) -> None:
    """The output joins its heads without a copy; numbers are those of separate heads, bit for bit."""
    generator = torch.Generator().manual_seed(0)
    channels = torch.randn(2, 7, 3, 4, 16, generator=generator).to(dtype)
    inside = [x.requires_grad_() for x in channels.permute(2, 0, 3, 1, 4).unbind(0)]
    apart = [x.detach().contiguous().requires_grad_() for x in inside]
    grad = torch.randn(2, 4, 7, 16, generator=generator).to(dtype)
    output, separate = (at.torch.attention(*each, is_causal=True) for each in (inside, apart))
    assert output.transpose(1, 2).is_contiguous()
    assert separate.is_contiguous()
    assert torch.equal(output, separate)
    for found, wanted in zip(
        torch.autograd.grad(output, inside, grad), torch.autograd.grad(separate, apart, grad), strict=True
    ):
        assert found.transpose(1, 2).is_contiguous()
        assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("name", "given"),
    [("key_lengths", torch.tensor([3, 5])), ("document_ids", torch.tensor([0, 0, 1, 1, 1]))],
)
def test_changed_integers_are_noticed(ways: list[str], name: str, given: Any) -> None:
    """The backward pass needs the numbers of the forward pass, and PyTorch sees that they have changed."""
    x = random(2, 3, 5, 8).requires_grad_()
    integers = given.clone()
    output = at.torch.attention(x, x, x, **{name: integers})
    assert ways == ["attend_tensors"]
    (kept,) = torch.autograd.grad(output.sum(), x, retain_graph=True)
    integers.fill_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
    separate = at.torch.attention(x, x, x, num_threads=1, **{name: given.clone()})
    assert torch.equal(kept, torch.autograd.grad(separate.sum(), x)[0])


def test_a_class_is_not_a_normalizer() -> None:
    x = random()
    for options in ({}, {"num_threads": 1}):
        with pytest.raises(TypeError, match="normalizer must be a name or"):
            at.torch.attention(x, x, x, normalizer=at.normalizers.Softmax, **options)
