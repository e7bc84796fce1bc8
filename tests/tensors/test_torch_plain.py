# SPDX-License-Identifier: BSD-3-Clause
"""Plain calls on tensors, which the core reads by DLPack: the same numbers as by any other way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attnscale as at
import pytest

from tests.declarations import check_declarations

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch

#: What attnscale declares of DLPack, and the same in the header that comes with PyTorch.
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
    "major_version": "DLPACK_MAJOR_VERSION",
}


def test_the_declarations_are_those_of_the_installed_pytorch(tmp_path: Path) -> None:
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
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)
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


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_are_those_of_a_call_with_threads(is_causal: bool) -> None:
    tensors = [random(2, 3, n, 8).requires_grad_() for n in (5, 7, 7)]
    grad = random(1, 1, 5, 1).expand(2, 3, 5, 8)

    def gradients(**options: Any) -> Any:
        return torch.autograd.grad(
            at.torch.attention(*tensors, is_causal=is_causal, **options), tensors, grad
        )

    found = gradients()
    for ours, theirs in zip(found, gradients(num_threads=1), strict=True):
        assert torch.equal(ours, theirs)


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


def test_negative_tensors_are_no_plain_ones() -> None:
    """PyTorch stores some with the opposite sign."""
    x = torch.complex(random(2, 4, 8), random(2, 4, 8)).conj().imag
    assert x.is_neg()
    found = at.torch.attention(x, x, x)
    assert torch.equal(found, at.torch.attention(*[x.resolve_neg()] * 3))
