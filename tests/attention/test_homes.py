# SPDX-License-Identifier: BSD-3-Clause
"""Results are arrays of the query's library, on the query's device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attnscale as at
import numpy as np
import pytest
from cases import random_inputs

#: Modules of libraries, and their functions that make an array from one of NumPy.
LIBRARIES = {"torch": "from_numpy", "jax.numpy": "asarray", "array_api_strict": "asarray"}

pytestmark = [pytest.mark.torch, pytest.mark.jax, pytest.mark.filterwarnings("default")]


@pytest.fixture(params=LIBRARIES)
def make(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    found: Callable[[Any], Any] = getattr(pytest.importorskip(request.param), LIBRARIES[request.param])
    return found


def check(found: Any, want: np.ndarray, like: Any) -> None:
    assert type(found) is type(like)
    np.testing.assert_array_equal(np.asarray(found), want)


def test_arrays_come_back_as_what_they_were(make: Callable[[Any], Any]) -> None:
    arrays = random_inputs(3, batch=(2,), heads=2)
    q, k, v = map(make, arrays)
    check(at.attention(q, k, v, is_causal=True), at.attention(*arrays, is_causal=True), q)
    check(at.attention(q, k, v, layout="b h n d"), at.attention(*arrays), q)
    swapped = [x.swapaxes(1, 2) for x in arrays]
    seen = at.attention(*(make(np.ascontiguousarray(x)) for x in swapped), layout="bshd")
    check(seen, at.attention(*swapped, layout="bshd"), q)
    check(at.attention_entropy(q, k, scale="log_n"), at.attention_entropy(*arrays[:2], scale="log_n"), q)
    check(at.attention_weights(q, k), at.attention_weights(*arrays[:2]), q)


def test_statistics_and_what_is_made_of_them(make: Callable[[Any], Any]) -> None:
    arrays = random_inputs(4, batch=(2,), heads=2)
    q, k, v = map(make, arrays)
    names = ("entropy", "lse", "argmax")
    rows, want = (at.attention_statistics(*x, statistics=names) for x in ((q, k, v), arrays))
    for name in ("output", *names, "effective_keys"):
        check(getattr(rows, name), getattr(want, name), q)
    assert rows.table().splitlines()[1:] == want.table().splitlines()[1:]
    assert rows.table().startswith("AttentionStatistics: rows (2, 2, ")
    found, gradients = (
        at.attention_gradients(*x, 2 * each.output, grad_entropy=1.0, forward=each, scale="ssmax(s=0.4)")
        for x, each in (((q, k, v), rows), (arrays, want))
    )
    for name in ("query", "key", "value"):
        check(getattr(found, name), getattr(gradients, name), q)
    assert type(found.law["s"]) is type(q)


def test_states_merge(make: Callable[[Any], Any]) -> None:
    arrays = random_inputs(5, heads=2, n_keys=12)
    q = make(arrays[0])
    parts = [[np.ascontiguousarray(x[:, at_ : at_ + 6]) for x in arrays[1:]] for at_ in (0, 6)]
    ours = at.merge_states(at.attention_state(q, make(k), make(v)) for k, v in parts)
    want = at.merge_states(at.attention_state(arrays[0], k, v) for k, v in parts)
    for name in ("output", "lse", "mean_score", "entropy"):
        check(getattr(ours, name), getattr(want, name), q)
    assert repr(ours).splitlines()[0] == repr(want).splitlines()[0].replace("float32", str(q.dtype))


def test_the_query_says_which_library(make: Callable[[Any], Any]) -> None:
    arrays = random_inputs(6)
    q, k, v = map(make, arrays)
    assert type(at.attention(arrays[0], k, v)) is np.ndarray
    assert type(at.attention(q, *arrays[1:])) is type(q)
    out = np.empty_like(arrays[2], shape=at.attention(*arrays).shape)
    assert at.attention(q, k, v, out=out) is out
    np.testing.assert_array_equal(out, at.attention(*arrays))


def test_results_that_compute_keep_arrays_of_numpy(make: Callable[[Any], Any]) -> None:
    q, k, _ = map(make, random_inputs(7))
    assert type(at.solve_scale(q, k, 1.0).scale) is np.ndarray
    assert type(at.entropy_curve(q, k, [0.5, 1.0]).entropy) is np.ndarray


# ---- arrays on a device -------------------------------------------------------------------------


class OnADevice:
    """An array of a library of this module, which DLPack places on a Metal device."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 8, 0

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise AssertionError("the numbers were copied to the CPU in silence")

    def __array_namespace__(self, api_version: Any = None) -> Any:
        class Namespace:
            @staticmethod
            def from_dlpack(x: Any) -> OnADevice:
                return OnADevice(x)

        return Namespace


def test_arrays_on_a_device_are_attended_by_pytorch_and_stay_there() -> None:
    pytest.importorskip("torch")
    arrays = random_inputs(8, heads=2)
    q, k, v = map(OnADevice, arrays)
    mask = np.tril(np.ones((arrays[0].shape[-2], arrays[1].shape[-2]), bool))
    output = at.attention(q, k, v, attn_mask=OnADevice(mask))
    assert isinstance(output, OnADevice)
    np.testing.assert_allclose(output.data.numpy(), at.attention(*arrays, attn_mask=mask), rtol=1e-6)
    assert isinstance(at.attention_entropy(q, k), OnADevice)
    rows = at.attention_statistics(q, k, v, statistics=("lse", "argmax"))
    assert isinstance(rows, at.AttentionStatistics)
    argmax = at.attention_statistics(*arrays, statistics="argmax").argmax
    np.testing.assert_array_equal(rows.argmax.data, argmax)
    with pytest.raises(ValueError, match="out must be None for arrays on a device"):
        at.attention(q, k, v, out=np.empty(3))
    unread = "cannot be read as an array on the CPU, got OnADevice: it is on a"
    with pytest.raises(TypeError, match=f"query {unread}"):
        at.attention_weights(q, k)
    with pytest.raises(TypeError, match=f"key {unread}"):
        at.attention(arrays[0], k, v)


def test_tensors_on_a_device_stay_there() -> None:
    torch = pytest.importorskip("torch")
    import other_device

    arrays = random_inputs(9, heads=2)
    q, k, v = (other_device.there(torch.from_numpy(x)) for x in arrays)
    output = at.attention(q, k, v, is_causal=True)
    assert output.device == q.device
    np.testing.assert_allclose(output.cpu(), at.attention(*arrays, is_causal=True), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"must be on the device of query, elsewhere:0, got one on cpu"):
        at.attention(q, k.cpu(), v)
    said = r"query requires grad, .*; attnscale\.torch\.attention keeps the grad"
    with pytest.raises(TypeError, match=said):
        at.attention(q.requires_grad_(), k, v)
