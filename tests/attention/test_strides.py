# SPDX-License-Identifier: BSD-3-Clause
"""Memory layouts: any strides, broadcast, negative, misaligned, and without needless copies."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable
from typing import Any

import attnscale as at
import numpy as np
import pytest
from cases import FLOAT_TYPES, STATISTICS, case, dtype_of, random_inputs, same


def among_nan(x: np.ndarray, width: int, step: int = 1) -> np.ndarray:
    """A view of x in a wider array, whose other elements are NaN (True in a mask)."""
    view = np.full((*x.shape[:-1], width), np.nan).astype(x.dtype)[..., : step * x.shape[-1] : step]
    view[...] = x
    return view


def misaligned(x: np.ndarray) -> np.ndarray:
    raw = np.zeros(x.nbytes + 1, np.uint8)
    view = raw[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    return view


def packed(x: np.ndarray) -> np.ndarray:
    """A field of a packed record, whose strides are not multiples of the item size."""
    records = np.zeros(x.shape, np.dtype([("tag", np.uint8), ("x", x.dtype)]))
    records["x"] = x
    return records["x"]


LAYOUTS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "fortran": np.asfortranarray,
    "padded rows": lambda x: among_nan(x, x.shape[-1] + 3),
    "every other column": lambda x: among_nan(x, 2 * x.shape[-1], 2),
    "columns backwards": lambda x: x[..., ::-1].copy()[..., ::-1],
    "rows backwards": lambda x: x[..., ::-1, :].copy()[..., ::-1, :],
    "all backwards": lambda x: x[::-1, ::-1, ::-1].copy()[::-1, ::-1, ::-1],
    "heads inside": lambda x: x.swapaxes(0, 1).copy().swapaxes(0, 1),
    "transposed": lambda x: x.swapaxes(1, 2).copy().swapaxes(1, 2),
    "misaligned": misaligned,
    "packed": packed,
}


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize("head_dim", [16, 21])
def test_layouts_do_not_change_a_bit(dtype: str, head_dim: int) -> None:
    arrays = random_inputs(1, n_queries=35, n_keys=70, head_dim=head_dim, dtype=dtype)
    want = at.attention_statistics(*arrays, statistics=STATISTICS, is_causal=True)
    for name, changed in itertools.product(LAYOUTS, ((0,), (1,), (2,), (0, 1, 2))):
        views = [LAYOUTS[name](x) if i in changed else x for i, x in enumerate(arrays)]
        for view in views:
            view.flags.writeable = False
        seen = at.attention_statistics(*views, statistics=STATISTICS, is_causal=True)
        with case(name, changed):
            same(seen, want, ("output", *STATISTICS))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("kind", ["bool", "float32", "float16", "float64", ">f4"])
def test_layouts_of_masks(name: str, kind: str) -> None:
    q, k, v = random_inputs(2, n_queries=35, n_keys=70)
    rng = np.random.default_rng(2)
    mask = rng.random((2, 35, 70)) < 0.5 if kind == "bool" else rng.standard_normal((2, 35, 70)).astype(kind)
    both = (mask, LAYOUTS[name](mask))
    want, seen = (at.attention_statistics(q, k, v, attn_mask=x, statistics=STATISTICS) for x in both)
    same(seen, want, ("output", *STATISTICS))


@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_broadcast_views_of_inputs(axes: tuple[int, ...]) -> None:
    arrays = random_inputs(3, n_queries=20, n_keys=20)
    narrow = [x[tuple(slice(0, 1) if axis in axes else slice(None) for axis in range(3))] for x in arrays]
    views = [np.broadcast_to(n, x.shape) for n, x in zip(narrow, arrays, strict=True)]
    copies = [x.copy() for x in views]
    np.testing.assert_array_equal(at.attention(*views), at.attention(*copies))
    np.testing.assert_array_equal(at.attention_entropy(*views[:2]), at.attention_entropy(*copies[:2]))


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
def test_out_of_any_strides(dtype: str) -> None:
    q, k, v = random_inputs(4, n_queries=35, value_dim=21, dtype=dtype)
    want = at.attention(q, k, v)
    for name in ("fortran", "padded rows", "every other column", "all backwards", "heads inside"):
        out = LAYOUTS[name](np.zeros_like(want))
        assert at.attention(q, k, v, out=out) is out
        np.testing.assert_array_equal(out, want, err_msg=name)


def test_extents_of_one_may_have_any_stride() -> None:
    q, k, v = random_inputs(5, heads=1, n_queries=1, n_keys=1, head_dim=1)
    odd = [np.lib.stride_tricks.as_strided(x, x.shape, (7, 3, 5)) for x in (q, k, v)]
    np.testing.assert_array_equal(at.attention(*odd), v)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_no_copy_of_strided_inputs(dtype: str) -> None:
    x = np.zeros((2, 40, 3, 2000, 16), dtype_of(dtype))
    q, k, v = (x[:, :, i, ::-2, ::-1] for i in range(3))
    out = np.empty((2, 40, 1000, 16), x.dtype)
    options = {"num_threads": 1, "out": out, "key_lengths": 1, "window": (0, 0)}
    at.attention(q, k, v, **options)
    tracemalloc.start()
    at.attention(q, k, v, **options)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < q.nbytes // 20


def test_offsets_beyond_32_bits() -> None:
    """Two heads 2^31 elements apart: 4 GiB of address space, of which a few pages are touched."""
    try:
        space = np.zeros(2**31 + 4096, np.float16)
    except MemoryError:
        pytest.skip("no address space")
    q, k, v = random_inputs(6, n_queries=8, n_keys=8, head_dim=8, dtype="float16")
    far = np.lib.stride_tricks.as_strided(space, (2, 8, 8), (2**32, 16, 2))
    far[...] = q
    np.testing.assert_array_equal(at.attention(far, k, v), at.attention(q, k, v))
    far[...] = v
    np.testing.assert_array_equal(at.attention(q, k, far), at.attention(q, k, v))
    rows = np.lib.stride_tricks.as_strided(space, (2, 8), (2**32, 2))
    rows[...] = k[0, :2]
    np.testing.assert_array_equal(at.attention(q[0], rows, v[0, :2]), at.attention(q[0], k[0, :2], v[0, :2]))


def test_scale_and_lengths_of_any_strides() -> None:
    q, k, v = random_inputs(7, batch=(3,))
    scale = np.random.default_rng(7).uniform(0, 1, (17, 2, 3))
    lengths = np.array([30, 1, 20, 1, 5, 1], np.int32)[::-2]
    seen: Any = at.attention(q, k, v, scale=packed(scale).T, key_lengths=lengths)
    want = at.attention(q, k, v, scale=scale.T.copy(), key_lengths=[int(n) for n in lengths])
    np.testing.assert_array_equal(seen, want)
