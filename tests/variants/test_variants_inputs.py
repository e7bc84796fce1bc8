# SPDX-License-Identifier: BSD-3-Clause
"""Arrays as they come: byte order, alignment and types, and numbers that are infinite or leave the type.

What attention takes every family takes. Where it is silent they are: such numbers show in the result.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import variants as V
from cases import case, rows_are_lost

CALLS: dict[str, Callable[..., Any]] = {
    "attention": at.attention,
    "elu": V.linear_attention,
    "relu": lambda q, k, v: V.linear_attention(q, k, v, feature_map="relu"),
    "efficient": V.efficient_attention,
    "scaling": lambda q, k, v: V.efficient_attention(q, k, v, normalization="scaling"),
    "efficient weights": lambda q, k, v: V.efficient_attention_weights(q, k),
    "global maps": lambda q, k, v: V.global_maps(q, k, v).values,
    "performer": lambda q, k, v: V.performer_attention(q, k, v, features=8, rng=0),
    "cosformer": lambda q, k, v: V.cosformer_attention(q, k, v, max_length=16),
    "linformer": lambda q, k, v: V.linformer_attention(q, k, v, np.full((3, q.shape[-2]), 2.0)),
    "local and global": lambda q, k, v: V.local_global_attention(q, k, v, radius=2, global_tokens=1),
    "ssd": lambda q, k, v: V.ssd(q, k, v, -np.ones(q.shape[-2])),
    "ssd state": lambda q, k, v: V.SsdState().update(k, v, -np.ones(q.shape[-2])).read(q),
    "elu state": lambda q, k, v: V.LinearState().update(k, v).read(q),
    "efficient state": lambda q, k, v: V.EfficientState().update(k, v).read(q),
    "merged states": lambda q, k, v: V.LinearState().update(k, v).merge(V.LinearState().update(k, v)).read(q),
    "kattention": lambda q, k, v: V.kattention(v, np.ones((3, 4)), np.ones((3, 4)), np.ones(3)),
    "kattention heads": lambda q, k, v: V.kattention_heads(q, k, v, bias=np.full(4, 2.0)),
    "differential": lambda q, k, v: V.differential_attention(q, k, k, q, v, lam=0.5),
    "hybrid": lambda q, k, v: V.hybrid(q, k, v, ["exact", "linear"]),
    "relay": lambda q, k, v: V.relay_attention(q[0], k[0], v[0]).output,
    "relay energy": lambda q, k, v: np.asarray(V.relay_energy(v, np.ones((8, 8)), kind="residual")),
    "relay gradient": lambda q, k, v: V.relay_energy_gradient(v, np.ones((8, 8)), kind="residual"),
    "relay message": lambda q, k, v: V.relay_message(q[0], k[0], v[0]),
    "f1": lambda q, k, v: V.score_functions.f1(q, v, np.ones((3, 4)), np.ones((3, 4))),
    "f2": lambda q, k, v: V.score_functions.f2(q, v, np.ones((3, 4)), np.ones((3, 4))),
    "f3": lambda q, k, v: V.score_functions.f3(q, v, np.ones((3, 4)), np.ones((3, 4))),
    "f4": lambda q, k, v: V.score_functions.f4(q, v, np.ones((3, 4)), np.ones((3, 4)), np.ones(3)),
    "f5": lambda q, k, v: V.score_functions.f5(q, v, np.ones((3, 4)), np.ones(3)),
    "f6": lambda q, k, v: V.score_functions.f6(
        q, v, np.ones((3, 4)), np.ones((3, 4)), np.ones(3), np.ones(3)
    ),
    "rotary": lambda q, k, v: V.apply_rotary(v),
    "rotary score": lambda q, k, v: V.rotary_score(q, k, [0, 1, 2]),
    "jacobian": lambda q, k, v: V.attention_jacobian_norms(v, np.eye(4), np.eye(4)),
    "positive features": lambda q, k, v: V.positive_features(v, np.ones((8, 4))),
}
TYPES = ("float64", "float32", "float16")
NUMBERS = {"infinity": np.inf, "NaN": np.nan, "huge": None, "huge and negative": None}


@rows_are_lost
@pytest.mark.parametrize("name", CALLS)
def test_no_family_passes_on_warnings_of_numpy(name: str) -> None:
    for dtype, place, number in product(TYPES, range(3), NUMBERS):
        arrays = np.random.default_rng(7).standard_normal((3, 2, 8, 4)).astype(dtype)
        largest = np.finfo(dtype).max
        bad = NUMBERS[number]
        arrays[place, 0, 3:5] = bad if bad is not None else largest if number == "huge" else -largest
        with case(dtype, ("query", "key", "value")[place], number):
            found = CALLS[name](*arrays)  # a warning is an error in these tests
            assert isinstance(found, np.ndarray)
            if bad is not None and place == 2 and name not in ("efficient weights", "rotary score"):
                assert not np.isfinite(
                    found
                ).all()  # it is in the first head, and every call reads that value


@pytest.mark.parametrize("name", CALLS)
def test_a_foreign_byte_order_changes_nothing(name: str) -> None:
    for dtype in TYPES:
        arrays = np.random.default_rng(8).standard_normal((3, 2, 8, 4)).astype(dtype)
        swapped = arrays.astype(arrays.dtype.newbyteorder())
        with case(dtype):
            found, wanted = CALLS[name](*swapped), CALLS[name](*arrays)
            assert found.dtype == wanted.dtype
            assert found.dtype.isnative
            np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", CALLS)
def test_misaligned_arrays_change_nothing(name: str) -> None:
    for dtype in TYPES:
        arrays = np.random.default_rng(9).standard_normal((3, 2, 8, 4)).astype(dtype)
        shifted = np.zeros(arrays.nbytes + 1, np.uint8)[1:].view(dtype).reshape(arrays.shape)
        assert not shifted.flags.aligned
        shifted[:] = arrays
        with case(dtype):
            np.testing.assert_array_equal(CALLS[name](*shifted), CALLS[name](*arrays))


def _of_weights(order: str) -> list[np.ndarray[Any, Any]]:
    q, k, v = np.random.default_rng(10).standard_normal((3, 8, 4)).astype(order + "f8")
    w, b = np.random.default_rng(11).standard_normal((3, 4)).astype(order + "f8"), np.ones(3, order + "f8")
    scores = V.score_functions
    return [
        V.kattention(q, w, w, b),
        V.kattention_heads(q, k, v, bias=np.ones(4, order + "f8")),
        V.attention_jacobian_norms(q, w, w, w),
        scores.f4(q, v, w, w, b),
        scores.f5(q, v, w, b),
        V.positive_features(q, w),
        V.performer_attention(q, k, v, projection=w),
        V.linformer_attention(q, k, v, np.ones((2, 8), order + "f8")),
        V.linear_attention(q, k, v, feature_map=(abs(q), abs(k))),
    ]


def test_weights_of_a_foreign_byte_order_change_nothing() -> None:
    for found, wanted in zip(_of_weights(">"), _of_weights("<"), strict=True):
        np.testing.assert_array_equal(found, wanted)


STATES: dict[str, Callable[[], Any]] = {
    "elu": V.LinearState,
    "relu": lambda: V.LinearState(feature_map="relu"),
    "squares": lambda: V.LinearState(feature_map=np.square),
    "efficient": V.EfficientState,
    "scaling": lambda: V.EfficientState(normalization="scaling"),
    "performer": lambda: V.PerformerState(V.performer_projection(8, 4, rng=0)),
    "cosformer": lambda: V.CosformerState(max_length=16),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_read_by_any_float_type(name: str) -> None:
    q, k, v = np.random.default_rng(12).standard_normal((3, 2, 8, 4)).astype("float16")
    wanted = STATES[name]().update(k.astype("float64"), v.astype("float64")).read(q.astype("float64"))
    for of_keys, of_query in product(TYPES, TYPES):
        with case("keys", of_keys, "query", of_query):
            found = STATES[name]().update(k.astype(of_keys), v.astype(of_keys)).read(q.astype(of_query))
            assert found.dtype == of_query
            rtol, atol = 4 * np.finfo(of_query).eps, 1e-3 if "16" in of_query else 1e-5
            np.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)


def test_a_state_without_heads_is_read() -> None:
    none = np.zeros((0, 8, 4))
    assert V.LinearState(enable_gqa=True).update(none, none).read(none).shape == (0, 8, 4)


def test_a_bias_is_added_in_the_type_of_the_call() -> None:
    q, k, v = np.random.default_rng(13).standard_normal((3, 2, 8, 4))
    narrow, bias = q.astype(np.float32), np.full(4, 1 / 3, np.float32)
    found = V.kattention_heads(narrow, k, v, bias=bias)
    wanted = V.kattention_heads(narrow.astype(np.float64), k, v, bias=bias.astype(np.float64))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["read of a state", "kattention", "linformer"])
def test_numbers_beyond_16_bits_are_infinite(name: str) -> None:
    q, k, v = np.random.default_rng(14).uniform(1, 2, (3, 2, 8, 4)).astype(np.float32)
    q, most = q.astype(np.float16), np.full_like(v, 1e6)
    if name == "read of a state":
        assert np.isposinf(V.LinearState().update(k, most).read(q)).all()
    elif name == "kattention":
        scale, rule = np.full((2, 8), 3e4), at.normalizers.ReLU("n")
        k, v = (0.01 * k).astype(np.float16), np.full(v.shape, 6e4, np.float16)
        assert np.isposinf(V.kattention_heads(q, k, v, scale=scale, normalizer=rule)).all()
    else:
        large = np.full(v.shape, 6e4, np.float16)
        assert np.isposinf(V.linformer_attention(q, k.astype(np.float16), large, np.ones((3, 8)))).all()
