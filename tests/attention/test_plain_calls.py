# SPDX-License-Identifier: BSD-3-Clause
"""Plain calls on arrays, which the core reads itself: results are those of calls that Python reads.

Python reads a call that gives a number of threads.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import attnscale as at
import numpy as np
import pytest

from tests.cases import SMOOTH, STATISTICS, same

ARRAYS = ("query", "key", "value")
RESULTS = ("output", *STATISTICS)
#: Modules of the public functions, by the functions of the core that they call.
MODULES = {
    "attend_arrays": import_module("attnscale.exact.forward"),
    "differentiate_arrays": import_module("attnscale.exact.gradients"),
}


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A list with True for each call that the core took for a plain one, and False for each other."""
    seen: list[bool] = []
    for name, module in MODULES.items():
        own = getattr(module, name)

        def noted(*given: Any, own: Any = own) -> Any:
            found = own(*given)
            seen.append(found is not None)
            return found

        monkeypatch.setattr(module, name, noted)
    return seen


def random(*shape: int, dtype: Any = "float32") -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
@pytest.mark.parametrize("n_keys", [3, 5, 9])
def test_numbers_are_those_of_a_call_with_threads(
    plain: list[bool], dtype: str, is_causal: bool, leading: tuple[int, ...], n_keys: int
) -> None:
    query = random(*leading, 5, 8, dtype=dtype)
    key, value = random(*leading, n_keys, 8, dtype=dtype), random(*leading, n_keys, 4, dtype=dtype)
    call: dict[str, Any] = {"is_causal": is_causal, "scale": 0.7}
    found = at.attention_statistics(query, key, value, statistics=STATISTICS, **call)
    wanted = at.attention_statistics(query, key, value, statistics=STATISTICS, num_threads=1, **call)
    assert plain == [True, False]
    same(found, wanted, RESULTS)
    assert all(getattr(found, name).dtype == getattr(wanted, name).dtype for name in RESULTS)
    np.testing.assert_array_equal(at.attention(query, key, value, **call), wanted.output)
    np.testing.assert_array_equal(at.attention_entropy(query, key, **call), wanted.entropy)
    assert plain == [True, False, True, True]


#: Options of a call of 2 x 3 heads with 5 queries and 7 keys.
ROWS: dict[str, dict[str, Any]] = {
    "a window": {"window": (2, 1)},
    "an open side": {"causal": "top_left", "is_causal": True, "window": (2, None)},
    "an offset": {"causal": -2},
    "aligned at the end, lengths": {"causal": "bottom_right", "key_lengths": np.array([4, 0])},
    "one length": {"key_lengths": 3, "window": (1, 1)},
    "documents": {"document_ids": np.array([4, 4, 4, 7, 7, 9, 9]), "is_causal": True},
    "documents of each text": {"document_ids": np.arange(14).reshape(2, 7) // 3, "window": (1, 1)},
    "a law": {"scale": at.laws.LogN(base=16), "is_causal": True},
    "a law of positions": {"scale": "llama4_temperature(floor=2)", "causal": 1},
    "a law of no count": {"scale": "mup"},
    "a law, lengths and a window": {
        "scale": "ssmax(s=0.3, b=0.1)",
        "key_lengths": np.array([4, 6]),
        "window": (3, 0),
    },
    "a law and documents": {"scale": "log_n", "document_ids": np.array([0, 0, 0, 1, 1, 2, 2])},
    "a mask": {"attn_mask": random(5, 7) > 0},
    "a mask of each key": {"attn_mask": random(7) > 0, "causal": 2},
    "a mask of each text": {"attn_mask": random(2, 1, 1, 7) > 0, "window": (2, 2)},
    "a view of a mask": {"attn_mask": random(3, 7, 10)[..., ::2].swapaxes(1, 2) > 0},
    "a float mask": {"attn_mask": np.where(random(5, 7) > 0, random(5, 7), -np.inf)},
    "a float mask of zeros": {"attn_mask": np.zeros((3, 5, 7), np.float32)},
    "a float mask of 16 bits": {"attn_mask": random(2, 3, 5, 1, dtype="float16")},
    "a number as a mask": {"attn_mask": np.array(-0.5)},
    "a mask and a law": {"attn_mask": random(3, 1, 7) > 0, "scale": "log_n", "is_causal": True},
    "a float mask and a law of positions": {"attn_mask": random(5, 7), "scale": "ssmax(s=0.3)", "causal": 1},
    "a soft-cap": {"softcap": 2.5, "is_causal": True},
    "a whole soft-cap and a mask": {"softcap": 2, "attn_mask": random(5, 7) > 0},
    "a whole scale": {"scale": 1},
    "a scale a head": {"scale": random(3, 1)},
    "a scale a row": {"scale": random(2, 3, 5, dtype="float64"), "softcap": 3.0},
    "the same scale in an array": {"scale": np.array(0.3, np.float16)},
    "a softmax": {"normalizer": at.normalizers.Softmax()},
    "a constant beside the sum": {"normalizer": at.normalizers.SoftmaxN(2), "is_causal": True},
    "a sink": {"normalizer": at.normalizers.Sink(0.5), "attn_mask": random(5, 7) > 0},
    "a sink a head": {"normalizer": at.normalizers.Sink([0.5, -1, 2]), "key_lengths": np.array([0, 4])},
    "a sink a row": {"normalizer": at.normalizers.Sink(random(3, 5)), "softcap": 4.0},
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_rows_and_laws_are_those_of_a_call_with_threads(plain: list[bool], dtype: str, name: str) -> None:
    query, key = random(2, 3, 5, 8, dtype=dtype), random(2, 3, 7, 8, dtype=dtype)
    value, call = random(2, 3, 7, 4, dtype=dtype), ROWS[name]
    found = at.attention_statistics(query, key, value, statistics=STATISTICS, **call)
    wanted = at.attention_statistics(query, key, value, statistics=STATISTICS, num_threads=1, **call)
    same(found, wanted, RESULTS)
    assert plain == [True, False]
    if "scale" not in call and "normalizer" not in call:
        grad = random(2, 3, 5, 4, dtype=dtype)
        mine = at.attention_gradients(query, key, value, grad, **call)
        theirs = at.attention_gradients(query, key, value, grad, num_threads=1, **call)
        same(mine, theirs, ARRAYS)
        assert plain == [True, False, True, False]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n_keys", [3, 9])
def test_gradients_are_those_of_a_call_with_threads(
    plain: list[bool], dtype: str, is_causal: bool, n_keys: int
) -> None:
    query, grad = random(2, 5, 8, dtype=dtype), random(2, 5, 4, dtype=dtype)
    key, value = random(2, n_keys, 8, dtype=dtype), random(2, n_keys, 4, dtype=dtype)
    forward = at.attention_statistics(query, key, value, is_causal=is_causal)
    for saved in (None, forward):
        call: dict[str, Any] = {"is_causal": is_causal, "forward": saved}
        plain.clear()
        found = at.attention_gradients(query, key, value, grad, **call)
        wanted = at.attention_gradients(query, key, value, grad, num_threads=1, **call)
        assert plain == [True, False]
        same(found, wanted, ARRAYS)
        assert (found.scale, found.law, found.sink) == (wanted.scale, wanted.law, wanted.sink)


#: Shapes of query, key and value that share arrays, with their options.
SHARED: dict[str, tuple[Any, ...]] = {
    "groups of heads": ((2, 6, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4), {"enable_gqa": True}),
    "one head of keys": ((3, 5, 8), (1, 7, 8), (1, 7, 4), {"attn_mask": random(3, 5, 7) > 0}),
    "one text of keys": ((2, 3, 5, 8), (3, 7, 8), (1, 3, 7, 4), {"key_lengths": np.array([2, 7])}),
    "one query": ((5, 8), (3, 7, 8), (3, 7, 4), {"causal": "bottom_right"}),
    "a value of more texts": ((3, 5, 8), (3, 7, 8), (2, 3, 7, 4), {"scale": 0.3}),
    "heads last": ((2, 5, 6, 8), (2, 7, 3, 8), (2, 7, 3, 4), {"layout": "bshd", "enable_gqa": True}),
    "heads last, mask": (
        (2, 5, 3, 8),
        (2, 7, 3, 8),
        (2, 7, 3, 4),
        {"layout": "bshd", "attn_mask": random(5, 7)},
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_shared_arrays_are_those_of_a_call_with_threads(plain: list[bool], name: str) -> None:
    *shapes, call = SHARED[name]
    arrays = [random(*shape) for shape in shapes]
    found = at.attention_statistics(*arrays, statistics=STATISTICS, **call)
    wanted = at.attention_statistics(*arrays, statistics=STATISTICS, num_threads=1, **call)
    same(found, wanted, RESULTS)
    assert found.output is not None
    if "scale" in call:
        return
    for given in ({"forward": found, "grad_entropy": 0.3}, {"grad_lse": found.lse}):
        grad = found.output if "forward" in given else None
        mine = at.attention_gradients(*arrays, grad, **given, **call)
        theirs = at.attention_gradients(*arrays, grad, num_threads=1, **given, **call)
        same(mine, theirs, ARRAYS if grad is not None else ARRAYS[:2])
    assert plain == [True, False] * 3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_of_statistics_are_those_of_a_call_with_threads(
    plain: list[bool], dtype: str, saves: bool, name: str
) -> None:
    query, grad = random(2, 5, 8, dtype=dtype), random(2, 5, 4, dtype=dtype)
    key, value = random(2, 7, 8, dtype=dtype), random(2, 7, 4, dtype=dtype)
    call: dict[str, Any] = {"attn_mask": random(2, 1, 7, dtype=dtype), "softcap": 3.0}
    saved = at.attention_statistics(query, key, value, statistics=STATISTICS, **call) if saves else None
    of_rows = [
        0.5,
        -2,
        random(5, dtype="float64"),
        random(5, 2, dtype=dtype).T,
        random(2, 1, dtype="float16"),
    ]
    for rows in of_rows:
        given = {f"grad_{name}": rows, "forward": saved, "wanted": (*ARRAYS, "attn_mask"), **call}
        plain.clear()
        mine = at.attention_gradients(query, key, value, grad, **given)
        theirs = at.attention_gradients(query, key, value, grad, num_threads=1, **given)
        assert plain == [True, False]
        same(mine, theirs, (*ARRAYS, "attn_mask"))


def test_a_mask_of_zeros_and_ones_is_read_by_python(plain: list[bool]) -> None:
    mask = np.tril(np.ones((4, 4), np.float32))
    with pytest.warns(UserWarning, match="attn_mask is float and holds 0 and 1 only"):
        at.attention(*random(3, 4, 8), attn_mask=mask)
    assert plain == [False]


@pytest.mark.parametrize(("n", "is_plain"), [(60, True), (70, False)])
def test_large_masks_of_zeros_are_read_by_python(plain: list[bool], n: int, is_plain: bool) -> None:
    x, mask = random(n, 8), np.zeros((n, n), np.float32)
    found = at.attention(x, x, x, attn_mask=mask)
    assert plain == [is_plain]
    np.testing.assert_array_equal(found, at.attention(x, x, x, attn_mask=mask, num_threads=1))


def test_lost_rows_of_a_mask_have_their_reason(plain: list[bool]) -> None:
    with pytest.warns(UserWarning, match="attn_mask holds NaN or"):
        at.attention(*random(3, 4, 8), attn_mask=np.array([0.5, np.nan, 0, 0]))
    assert plain == [True]


def test_only_wanted_gradients_are_there(plain: list[bool]) -> None:
    x = random(2, 5, 8)
    found = at.attention_gradients(x, x, x, x, wanted=("value",))
    assert plain == [True]
    assert found.query is None
    assert found.value is not None


def test_strides_of_a_view_are_followed(plain: list[bool]) -> None:
    x = random(2, 8, 6, 4).swapaxes(1, 2)[:, ::2]
    found = at.attention(x, x[..., ::-1], x[:, :, ::-1])
    assert plain == [True]
    own = [np.ascontiguousarray(each) for each in (x, x[..., ::-1], x[:, :, ::-1])]
    np.testing.assert_array_equal(found, at.attention(*own, num_threads=1))


UNALIGNED = np.zeros(4 * 32 + 1, np.uint8)[1:].view("float32").reshape(4, 8)

NOT_PLAIN: dict[str, Any] = {
    "a multiple of a law": {"scale": "2 * log_n"},
    "a law with a number a head": {"scale": at.laws.SSMax(s=(0.3,))},
    "a law of what is measured": {"scale": "critical_scale"},
    "a law of the distance": {"scale": "scale_invariant"},
    "a law of Python": {"scale": at.laws.EntropyInvariant(8)},
    "a scale beyond the whole numbers of a float": {"scale": 2**53 + 1},
    "whole numbers as scales": {"scale": np.ones(4, int)},
    "a scale with an axis too many": {"scale": np.ones((1, 4))},
    "a mask of whole numbers": {"attn_mask": np.ones((4, 4), bool).tolist()},
    "a mask with an axis too many": {"attn_mask": np.ones((1, 4, 4), bool)},
    "a float mask in a foreign byte order": {"attn_mask": random(4, 4).astype(">f4")},
    "a sink with an axis too many": {"normalizer": at.normalizers.Sink(np.zeros((1, 4)))},
    "a sink by its text": {"normalizer": "softmax_1"},
    "is_causal of NumPy": {"is_causal": np.True_},
    "a window that is a list": {"window": [1, 0]},
    "a side of NumPy": {"window": (np.int64(1), 0)},
    "lengths of 32 bits": {"query": random(1, 1, 4, 8), "key_lengths": np.array([3], np.int32)}
    | {name: random(1, 1, 4, 8) for name in ("key", "value")},
    "another normalizer": {"normalizer": "sparsemax"},
    "an output": {"out": np.empty((4, 8), np.float32)},
    "a list": {"query": random(4, 8).tolist()},
    "a foreign byte order": {"query": random(4, 8).astype(">f4")},
    "an address between numbers": {"query": UNALIGNED},
    "another type": {"value": random(4, 8, dtype="float64")},
    "no queries": {"query": random(4, 8)[:0]},
    "no channels of a value": {"value": random(4, 8)[:, :0]},
}


@pytest.mark.parametrize("name", NOT_PLAIN)
def test_other_calls_are_read_by_python(plain: list[bool], name: str) -> None:
    given = {"query": random(4, 8), "key": random(4, 8), "value": random(4, 8), **NOT_PLAIN[name]}
    at.attention(**given)
    assert plain == [False]
