# SPDX-License-Identifier: BSD-3-Clause
"""Mistakes in calls on NumPy arrays; tests/conformance/refusals.py has those of every front end."""

# ruff: noqa: E501  # a case is one line: call, error, message

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest
from cases import random_inputs

Q, K, V = random_inputs(1, batch=(2,), heads=4, n_queries=5, n_keys=7, head_dim=8)


def call(query: Any = Q, key: Any = K, value: Any = V, **options: Any) -> Any:
    return at.attention(query, key, value, **options)


class Unreadable:
    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("on a device")


# fmt: off
CASES: list[tuple[Any, type[Exception], str]] = [
    # types of the arrays
    (lambda: call(Q, K, V.astype(complex)), TypeError, "value must be float64, float32, float16 or bfloat16, got complex128"),
    (lambda: call(Q.astype(object)), TypeError, "query must be float64, float32, float16 or bfloat16, got object"),
    (lambda: call(Q.astype(np.longdouble)), TypeError, f"query must be float64, float32, float16 or bfloat16, got {np.dtype(np.longdouble)}"),
    (lambda: call([[1, 2]]), TypeError, "query must be float64, float32, float16 or bfloat16, got int64; use np.asarray(query, np.float32)"),
    (lambda: call(attn_mask=[[1, 0]]), TypeError, "attn_mask must be bool or float, got int64; np.asarray(attn_mask, bool) if nonzero = take part"),
    (lambda: call(attn_mask=np.array([[1, 0]])), TypeError, "attn_mask must be bool or float, got int64; attn_mask.astype(bool) if nonzero = take part"),
    (lambda: call(Q, K, None), TypeError, "value must be an array, got None; attention_statistics works without a value"),
    (lambda: call([[1.0], [1.0, 2.0]]), TypeError, "query cannot be read as an array on the CPU, got list: its rows have different lengths"),
    (lambda: call(Unreadable()), TypeError, "query cannot be read as an array on the CPU, got Unreadable: on a device"),
    (lambda: call(np.ma.masked_array(Q)), TypeError, "query is a masked array, whose mask would be lost"),
    (lambda: call(causal=np.ma.masked_array(1)), ValueError, "causal must be 'top_left', 'bottom_right' or an integer, got masked_array"),
    # options
    (lambda: call(layout=np.array(["bhsd", "bshd"])), ValueError, "layout must be one of 'bhsd', 'bshd', got an array of shape (2,) and type <U4"),
    (lambda: at.merge_states(3), TypeError, "states must be AttentionState objects, got 3"),
    # masks and lengths
    (lambda: call(key_lengths=np.array(2**64 - 1, np.uint64)), ValueError, "key_lengths must be between 0 and the number of keys, 7, got 18446744073709551615"),
    (lambda: call(distance_bias=lambda t: np.ones(3)), ValueError, "distance_bias must return one number for each of 11 distances"),
    (lambda: call(distance_bias=["a"] * 10), TypeError, "distance_bias must be numbers"),
    # scale
    (lambda: call(scale=at.laws.LogN), TypeError, "scale must be a number, an array of numbers, a law or its name, got <class"),
    (lambda: call(scale="log"), ValueError, "did you mean 'log_n'? the name of a law must be one of 'standard'"),
    # out
    (lambda: call(out=[1.0]), TypeError, "out must be a NumPy array, got list"),
    (lambda: call(out=np.empty((2, 4, 5, 7), np.float32)), ValueError, "out must have the shape of the output, (2, 4, 5, 8), got (2, 4, 5, 7)"),
    (lambda: call(out=np.empty((2, 4, 5, 8))), TypeError, "out must have the type of the output, float32, got float64"),
    (lambda: call(out=np.empty((2, 4, 5, 8), ">f4")), TypeError, "out must have the type of the output, float32, got >f4"),
    (lambda: call(out=np.broadcast_to(np.float32(0), (2, 4, 5, 8))), ValueError, "out must be writable, got a read-only array"),
    (lambda: call(out=Q), ValueError, "out must not overlap query, which is read while out is written"),
    (lambda: call(K, Q, V[:, :, :5], out=V), ValueError, "out must not overlap value, which is read while out is written"),
    (lambda: call(out=np.lib.stride_tricks.as_strided(np.empty(8, np.float32), (2, 4, 5, 8), (0, 0, 0, 4))), ValueError, "out must not overlap itself, got strides (0, 0, 0, 4)"),
    (lambda: call(out=np.zeros(1281, np.uint8)[1:].view(np.float32).reshape(2, 4, 5, 8)), ValueError, "out must be aligned to its item size"),
    (lambda: at.attention_statistics(Q, K, out=np.empty((2, 4, 5, 8), np.float32)), ValueError, "out is for the output, which needs a value; got out without value"),
]
# fmt: on


@pytest.mark.parametrize(("make", "error", "message"), CASES, ids=[case[2][:40] for case in CASES])
def test_mistakes_are_explained(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        make()
    assert type(raised.value) is error
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    "options",
    [
        {"is_causal": True, "causal": "top_left"},
        {"is_causal": np.True_},
        {"window": [2, 1]},
        {"window": (np.int64(2), None)},
        {"window": (2**70, 2**64)},
        {"num_threads": np.int32(1)},
        {"scale": np.float16(0.5)},
        {"softcap": np.float32(20)},
        {"attn_mask": np.ones((1, 1, 2, 1, 1, 7), bool)},
    ],
)
def test_what_is_not_a_mistake(options: dict[str, Any]) -> None:
    assert call(**options).shape == (2, 4, 5, 8)


def test_out_may_share_a_buffer_without_sharing_elements() -> None:
    buffer = np.zeros((2, 4, 7, 32), np.float32)
    buffer[..., :24] = np.concatenate([K, K, V], -1)
    q, k, v, out = (buffer[..., i : i + 8] for i in (0, 8, 16, 24))
    want = at.attention(K, K, V)
    at.attention(q, k, v, out=out)
    np.testing.assert_array_equal(out, want)


def test_out_whose_overlap_is_too_hard_to_tell_is_refused() -> None:
    space = np.zeros(2**22, np.float32)
    shape = (5, 5, 3, 3, 2, 2, 2, 3)
    strides = [4 * step for step in (20641, 24658, 25658, 26327, 29450, 32717, 36597, 38858)]
    wild = np.lib.stride_tricks.as_strided(space, shape, strides)
    out = np.lib.stride_tricks.as_strided(space[1631:], shape, strides)
    with pytest.raises(np.exceptions.TooHardError):
        np.shares_memory(wild, out, max_work=10_000)
    with pytest.raises(ValueError, match="out must not overlap query"):
        at.attention(wild, wild.copy(), wild.copy(), out=out)


@pytest.mark.parametrize("n", [2**45, 2**60, 2**62 - 1])
def test_a_result_that_does_not_fit_is_a_memory_error(n: int) -> None:
    few = np.zeros((1, 1), np.float16)
    query = np.lib.stride_tricks.as_strided(few, (n, 1), (0, 2))
    heads = np.lib.stride_tricks.as_strided(few, (n // 2**4, 2, 1), (0, 0, 2))
    for call in (
        lambda: at.attention(query, few, few),
        lambda: at.attention_entropy(query, few),
        lambda: at.entropy_curve(query, few, [1.0, 2.0]),
        lambda: at.attention(query, few, np.zeros((1, 8), np.float16)),
        lambda: at.attention_statistics(heads, few, statistics=("entropy",)),
    ):
        with pytest.raises(MemoryError):
            call()
