# SPDX-License-Identifier: BSD-3-Clause
"""Types in, types out, and everything that can be read as an array."""

from __future__ import annotations

import array
import importlib.util
import itertools
import subprocess
import sys
from typing import Any

import attnscale as at
import numpy as np
import pytest
from cases import FLOAT_TYPES, STATISTICS, case, check, dtype_of, random_inputs, same

pytestmark = pytest.mark.levels


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize("n", [1, 15, 16, 17, 64, 65, 130])
def test_every_type_against_the_twin(dtype: str, n: int) -> None:
    for head_dim in (16, 33):
        check(*random_inputs(n, n_queries=n, n_keys=n, head_dim=head_dim, dtype=dtype), is_causal=True)
        check(*random_inputs(n, n_queries=3, n_keys=n, head_dim=head_dim, dtype=dtype), window=(20, 3))


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
def test_results_have_the_callers_type(dtype: str) -> None:
    q, k, v = random_inputs(1, dtype=dtype)
    rows = at.attention_statistics(q, k, v, statistics=STATISTICS)
    assert rows.output.dtype == dtype_of(dtype)
    number = np.float64 if dtype == "float64" else np.float32
    for name in STATISTICS:
        wanted = np.int64 if name in ("n_visible", "argmax") else number
        assert getattr(rows, name).dtype == wanted, name


@pytest.mark.parametrize("query", FLOAT_TYPES)
def test_mixed_types_promote(query: str) -> None:
    q = random_inputs(2, dtype=query)[0]
    known = [name for name in FLOAT_TYPES if name != "bfloat16" or importlib.util.find_spec("ml_dtypes")]
    typed = {name: random_inputs(2, dtype=name)[1:] for name in known}
    for key, value in itertools.product(known, repeat=2):
        with case(key, value):
            k, v = typed[key][0], typed[value][1]
            rows = check(q, k, v, causal="bottom_right")
            # NumPy has no common type for float16 and bfloat16; here it is float32.
            both = {query, key, value} >= {"float16", "bfloat16"}
            kinds = [np.dtype(np.float32) if both and x.itemsize == 2 else x.dtype for x in (q, k, v)]
            assert rows.output.dtype == np.result_type(*kinds)
            assert rows.lse.dtype == (np.float64 if "float64" in (query, key, value) else np.float32)


def test_a_bias_or_scale_of_another_type_does_not_promote() -> None:
    q, k, v = random_inputs(3)
    bias = np.zeros((17, 33))
    assert at.attention(q, k, v, attn_mask=bias, scale=np.ones((2, 17))).dtype == np.float32


def test_16_bit_arithmetic_is_float32() -> None:
    q, k, v = random_inputs(4, dtype="float16", n_keys=100)
    wide = [x.astype(np.float32) for x in (q, k, v)]
    np.testing.assert_array_equal(at.attention_entropy(q, k), at.attention_entropy(*wide[:2]))
    np.testing.assert_array_equal(at.attention(q, k, v), at.attention(*wide).astype(np.float16))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_output_rounds_to_nearest_even_and_keeps_specials(dtype: str) -> None:
    kind = dtype_of(dtype)
    # One key of weight 1: the output is the value, rounded once.
    values = np.array([0.0, -0.0, 1.0, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-8, 65504.0, 65519.0, 65520.0, 7e4])
    values = np.concatenate([values, -values, [2**-24, 2**-25, 1.5 * 2**-24, 2**-14, 3e38, np.inf, -np.inf]])
    values = values.astype(np.float32)
    q = np.zeros((1, 1), kind)
    out = np.empty((1, values.size), kind)
    with np.errstate(over="ignore"):
        want = values.astype(kind)
    at.attention(q, q, want[None], out=out)
    np.testing.assert_array_equal(out[0], want)
    # Two equal halves: the mean of neighbours is a tie.
    neighbours = np.arange(0x3C00, 0x3C20, dtype=np.uint16).view(kind)
    pairs = np.stack([neighbours[:-1], neighbours[1:]])
    mean = pairs.astype(np.float32).mean(0).astype(kind)
    seen = at.attention(q, np.zeros((2, 1), kind), pairs)[0]
    np.testing.assert_array_equal(seen, mean)
    nan = np.array([[np.nan, 1.0]], kind)
    assert np.isnan(at.attention(q, q, nan).astype(np.float32)).tolist() == [[True, False]]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_foreign_byte_order(dtype: str) -> None:
    q, k, v = random_inputs(5, dtype=dtype)
    swapped = [x.astype(x.dtype.newbyteorder()) for x in (q, k, v)]
    seen = at.attention(*swapped)
    assert seen.dtype == dtype
    np.testing.assert_array_equal(seen, at.attention(q, k, v))


def test_sequences_buffers_and_subclasses() -> None:
    q, k, v = (x.astype(np.float64)[0] for x in random_inputs(6, heads=1))
    want = at.attention(q, k, v)
    np.testing.assert_array_equal(at.attention(q.tolist(), k.tolist(), v.tolist()), want)
    np.testing.assert_array_equal(at.attention(memoryview(q), memoryview(k), memoryview(v)), want)
    flat = array.array("d", q.ravel())
    np.testing.assert_array_equal(at.attention(memoryview(flat).cast("B").cast("d", q.shape), k, v), want)
    seen = at.attention(q.view(np.recarray), k, v)
    assert type(seen) is np.ndarray
    np.testing.assert_array_equal(seen, want)


class Foreign:
    """An array of another library, which has DLPack only."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.data.__dlpack_device__()


def test_dlpack_arrays_are_read_in_place() -> None:
    q, k, v = random_inputs(7)
    np.testing.assert_array_equal(at.attention(Foreign(q), Foreign(k), Foreign(v)), at.attention(q, k, v))
    np.testing.assert_array_equal(
        at.attention_entropy(Foreign(q[:, ::2]), Foreign(k)), at.attention_entropy(q[:, ::2], k)
    )


def test_masks_and_lengths_may_be_sequences() -> None:
    q, k, v = random_inputs(8, batch=(2,), n_keys=3)
    mask = [True, False, True]
    np.testing.assert_array_equal(
        at.attention(q, k, v, attn_mask=mask, key_lengths=[1, 2]),
        at.attention(q, k, v, attn_mask=np.array(mask), key_lengths=np.array([1, 2], np.uint8)),
    )


def test_ml_dtypes_is_not_imported() -> None:
    code = "import attnscale, sys; assert not {'ml_dtypes', 'torch'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("wide", range(3))
def test_qk_norm_is_computed_in_the_type_of_the_call(wide: int) -> None:
    """One float64 array makes all arithmetic float64, also the lengths of float32 queries and keys."""
    arrays = list(random_inputs(51, head_dim=129))
    arrays[wide] = arrays[wide].astype(np.float64)
    doubles = [x.astype(np.float64) for x in arrays]
    for norm in ("l2", "rms"):
        seen, want = (at.attention_statistics(*each, qk_norm=norm) for each in (arrays, doubles))
        same(seen, want, ("lse", "output"), rtol=1e-15, atol=1e-15)


def test_bfloat16_tensors_are_read_in_place() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    q, k, v = random_inputs(12, dtype="bfloat16")
    tensors = [torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) for x in (q, k, v)]
    output = at.attention(*tensors)
    assert output.dtype == torch.bfloat16
    np.testing.assert_array_equal(output.view(torch.int16), at.attention(q, k, v).view(np.int16))
    strided = tensors[0].mT.contiguous().mT
    np.testing.assert_array_equal(at.attention_entropy(strided, tensors[1]), at.attention_entropy(q, k))
    with pytest.raises(ValueError, match="out must not overlap query"):  # the memory of the tensor
        at.attention(*tensors, out=q)
    said = r"query requires grad, .*; attnscale\.torch\.attention_entropy keeps"
    with pytest.raises(TypeError, match=said):
        at.attention_entropy(tensors[0].requires_grad_(), tensors[1])


def test_bfloat16_tensors_without_ml_dtypes_name_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    x = torch.zeros(1, 2, 3, dtype=torch.bfloat16)
    said = r"query is a tensor of bfloat16.*pip install ml_dtypes.*query.float\(\)"
    with pytest.raises(TypeError, match=said):
        at.attention_entropy(x, x)
