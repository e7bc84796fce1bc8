# SPDX-License-Identifier: BSD-3-Clause
"""Mistakes are answered with the argument, the rule and what was seen."""

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
    (lambda: call(Q.astype(int)), TypeError, "query must be float64, float32, float16 or bfloat16, got int64; use query.astype(np.float32)"),
    (lambda: call(Q, K > 0), TypeError, "key must be float64, float32, float16 or bfloat16, got bool; use key.astype(np.float32)"),
    (lambda: call(Q, K, V.astype(complex)), TypeError, "value must be float64, float32, float16 or bfloat16, got complex128"),
    (lambda: call(Q.astype(object)), TypeError, "query must be float64, float32, float16 or bfloat16, got object"),
    (lambda: call(Q.astype(np.longdouble)), TypeError, f"query must be float64, float32, float16 or bfloat16, got {np.dtype(np.longdouble)}"),
    (lambda: call([[1, 2]], [[1, 2]], [[1, 2]]), TypeError, "query must be float64, float32, float16 or bfloat16, got int64; use"),
    (lambda: call("text"), TypeError, "query must be float64, float32, float16 or bfloat16, got <U4"),
    (lambda: call(None), TypeError, "query must be an array, got None"),
    (lambda: call(Q, None), TypeError, "key must be an array, got None"),
    (lambda: call(attn_mask=np.ones((2, 7), bool)), ValueError, "attn_mask must broadcast to (..., heads, n_queries, n_keys) = (2, 4, 5, 7), got shape (2, 7); of (batch, n_keys): attn_mask[:, None, None, :]"),
    (lambda: call(Q, K, None), TypeError, "value must be an array, got None; attention_statistics works without a value"),
    (lambda: call([[1.0], [1.0, 2.0]]), TypeError, "query cannot be read as an array on the CPU, got list: "),
    (lambda: call(Unreadable()), TypeError, "query cannot be read as an array on the CPU, got Unreadable: on a device"),
    (lambda: call(np.ma.masked_array(Q)), TypeError, "query is a masked array, whose mask would be lost"),
    # shapes
    (lambda: call(Q[0, 0, 0]), ValueError, "query must have at least 2 axes (..., n, dim), got shape (8,)"),
    (lambda: call(Q, K[..., :3]), ValueError, "query and key must have the same last dimension (head_dim), got 8 and 3"),
    (lambda: call(Q, K, V[..., :3, :]), ValueError, "key and value must have the same number of keys, got 7 and 3"),
    (lambda: call(Q, K[:, :3], V[:, :3]), ValueError, "the numbers of heads must be equal or 1, got query 4, key 3, value 3"),
    (lambda: call(Q, K[:, :2], V[:, :2]), ValueError, "the numbers of heads must be equal or 1, got query 4, key 2, value 2. Pass enable_gqa=True to let groups of query heads share a key head"),
    (lambda: call(Q, K[:, :3], V[:, :3], enable_gqa=True), ValueError, "enable_gqa=True needs a number of query heads that is a multiple of the key heads, got 4 and 3"),
    (lambda: call(Q, K, V[:, :0], enable_gqa=True), ValueError, "enable_gqa=True needs a number of query heads that is a multiple of the value heads, got 4 and 0"),
    (lambda: call(Q[:, :2], K, V, enable_gqa=True), ValueError, "enable_gqa=True needs a number of query heads that is a multiple of the key heads, got 2 and 4"),
    (lambda: call(np.concatenate([Q, Q[:1]]), K, V), ValueError, "the batch axes must broadcast, got query (3,) and key (2,) and value (2,)"),
    # options
    (lambda: call(is_causal=True, causal="bottom_right"), ValueError, 'is_causal=True means causal="top_left"; causal="bottom_right" was also given. Pass one of them.'),
    (lambda: call(causal="lower"), ValueError, "causal must be 'top_left', 'bottom_right' or an integer, got 'lower'"),
    (lambda: call(causal=True), ValueError, "causal must be 'top_left', 'bottom_right' or an integer, got True; did you mean is_causal=True?"),
    (lambda: call(causal=1.0), ValueError, "causal must be 'top_left', 'bottom_right' or an integer, got 1.0"),
    (lambda: call(causal=2**70), ValueError, "causal must be between -2**60 and 2**60, got 1180591620717411303424"),
    (lambda: call(causal=3, is_causal=True), ValueError, 'is_causal=True means causal="top_left"; causal=3 was also given. Pass one of them.'),
    (lambda: call(causal=True), ValueError, "causal must be 'top_left', 'bottom_right' or an integer, got True"),
    (lambda: call(is_causal="yes"), TypeError, "is_causal must be True or False, got 'yes'"),
    (lambda: call(layout=np.array(["bhsd", "bshd"])), ValueError, "layout must be one of 'bhsd', 'bshd', got an array of shape (2,) and type <U4"),
    (lambda: call(is_causal=np.ones((2, 3))), TypeError, "is_causal must be True or False, got an array of shape (2, 3) and type float64"),
    (lambda: at.merge_states(3), TypeError, "states must be AttentionState objects, got 3"),
    (lambda: call(layout="bsdh"), ValueError, "did you mean 'bshd'? layout must be one of 'bhsd', 'bshd', got 'bsdh'"),
    (lambda: call(layout=None), ValueError, "layout must be one of 'bhsd', 'bshd', got None"),
    (lambda: call(normalizer="softmin"), ValueError, "did you mean 'softmax_n'? normalizer must be one of"),
    (lambda: call(softcap=0), ValueError, "softcap must be greater than 0, or None for no soft-cap, got 0"),
    (lambda: call(softcap=np.inf), ValueError, "softcap must be finite, got inf"),
    (lambda: call(softcap=1e-40), ValueError, "softcap must be between 1e-37 and 1e37, where float32 holds it and its inverse, got 1e-40"),
    (lambda: call(softcap=1e39), ValueError, "softcap must be between 1e-37 and 1e37, where float32 holds it and its inverse, got 1e+39"),
    (lambda: call(softcap="50"), TypeError, "softcap must be a number, got '50'"),
    (lambda: call(num_threads=0), ValueError, "num_threads must be at least 1, got 0"),
    (lambda: call(num_threads=1.5), TypeError, "num_threads must be an integer, got 1.5"),
    (lambda: call(num_threads=True), TypeError, "num_threads must be an integer, got True"),
    (lambda: call(window=3), TypeError, "window must be a pair (left, right), got 3"),
    (lambda: call(window=(1, 2, 3)), TypeError, "window must be a pair (left, right), got (1, 2, 3)"),
    (lambda: call(window=(-1, 0)), ValueError, "window left must be at least 0, or None for an open side, got -1"),
    (lambda: call(window=(1, 0.5)), TypeError, "window right must be an integer or None, got 0.5"),
    # masks and lengths
    (lambda: call(attn_mask=np.ones((5, 7), int)), TypeError, "attn_mask must be bool or float, got int64; attn_mask.astype(bool) if nonzero = take part"),
    (lambda: call(attn_mask=np.ones((5, 7), complex)), TypeError, "attn_mask must be bool or float, got complex128"),
    (lambda: call(attn_mask=np.ones((7, 5), bool)), ValueError, "attn_mask must broadcast to (..., heads, n_queries, n_keys) = (2, 4, 5, 7), got shape (7, 5)"),
    (lambda: call(attn_mask=np.ones((3, 2, 4, 5, 7), bool)), ValueError, "attn_mask must broadcast to (..., heads, n_queries, n_keys) = (2, 4, 5, 7), got shape (3, 2, 4, 5, 7)"),
    (lambda: call(attn_mask=np.ones((0, 7), bool)), ValueError, "attn_mask must broadcast to (..., heads, n_queries, n_keys) = (2, 4, 5, 7), got shape (0, 7)"),
    (lambda: call(key_lengths=8), ValueError, "key_lengths must be between 0 and the number of keys, 7, got 8"),
    (lambda: call(key_lengths=[3, -1]), ValueError, "key_lengths must be between 0 and the number of keys, 7, got -1"),
    (lambda: call(key_lengths=np.array(2**64 - 1, np.uint64)), ValueError, "key_lengths must be between 0 and the number of keys, 7, got 18446744073709551615"),
    (lambda: call(key_lengths=[1.0, 2.0]), TypeError, "key_lengths must be integers, got float64"),
    (lambda: call(key_lengths=[True, True]), TypeError, "key_lengths must be integers, got bool"),
    (lambda: call(key_lengths=[1, 2, 3]), ValueError, "key_lengths must broadcast to the batch shape (query.shape[:-3]) = (2,), got shape (3,)"),
    # scale
    (lambda: call(scale=np.nan), ValueError, "scale must be finite, got nan"),
    (lambda: call(scale=-np.inf), ValueError, "scale must be finite, got -inf"),
    (lambda: call(scale=[0.1, 0.2, 0.3, 0.4, np.nan]), ValueError, "scale must be finite, got an array with NaN or infinity"),
    (lambda: call(scale=True), TypeError, "scale must be a number, got True"),
    (lambda: call(scale=1j), TypeError, "scale must be a number, an array of numbers, a law or its name, got 1j"),
    (lambda: call(scale=at.laws.LogN), TypeError, "scale must be a number, an array of numbers, a law or its name, got <class"),
    (lambda: call(scale="log"), ValueError, "did you mean 'log_n'? the name of a law must be one of 'standard'"),
    (lambda: call(scale="kappa"), TypeError, "law 'kappa' needs kappa: 'kappa(kappa=...)'"),
    (lambda: call(scale=np.ones(4)), ValueError, "scale must broadcast to (..., heads, n_queries) = (2, 4, 5), got shape (4,); one scale a head is an array of shape (heads, 1)"),
    (lambda: call(scale=np.ones((2, 4, 5, 1))), ValueError, "scale must broadcast to (..., heads, n_queries) = (2, 4, 5), got shape (2, 4, 5, 1)"),
    (lambda: call(scale=at.laws.PerHead([1, 2, 3])), ValueError, "the scale of PerHead(values=(1.0, 2.0, 3.0)) must broadcast to (..., heads, n_queries) = (2, 4, 5), got shape (3, 1)"),
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
    # statistics
    (lambda: at.attention_statistics(Q, K, statistics=("lse", "entrpy")), ValueError, "did you mean 'entropy'? statistics must be among lse, entropy, max_score, mean_score, score_variance, concentration, n_visible, argmax, max_weight, sink_weight, support, renyi2, min_score; got 'entrpy'"),
    (lambda: at.attention_statistics(Q, K, statistics="output"), ValueError, "statistics must be among lse, entropy, "),
    (lambda: at.attention_statistics(Q, K, statistics=3), TypeError, "statistics must be names of statistics, got 3"),
    (lambda: at.attention_statistics(Q, K, statistics=[["lse"]]), TypeError, "statistics must be names of statistics, got [['lse']]"),
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


def test_options_are_keywords() -> None:
    with pytest.raises(TypeError, match="positional"):
        at.attention(Q, K, V, 0.5)  # type: ignore[misc]


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
    with pytest.raises(MemoryError):
        at.attention(query, few, few)
    with pytest.raises(MemoryError):
        at.attention_entropy(query, few)
    with pytest.raises(MemoryError):
        at.entropy_curve(query, few, [1.0, 2.0])
    with pytest.raises(MemoryError):
        at.attention(query, few, np.zeros((1, 8), np.float16))
    heads = np.lib.stride_tricks.as_strided(few, (n // 2**4, 2, 1), (0, 0, 2))
    with pytest.raises(MemoryError):
        at.attention_statistics(heads, few, statistics=("entropy",))
