# SPDX-License-Identifier: BSD-3-Clause
"""Arrays that are not in memory: dask arrays stay lazy by heads, and what is read as a whole is said."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest

da = pytest.importorskip("dask.array")

LOG_N = at.laws.get("log_n")
WHOLE = np.random.default_rng(4).standard_normal((3, 2, 4, 30, 8)).astype(np.float32)


def lazy(chunks: tuple[int, ...] = (1, 2, 30, 8), arrays: Any = WHOLE) -> list[Any]:
    return [da.from_array(array, chunks) for array in arrays]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": "log_n", "is_causal": True, "window": (5, 0)},
        {"scale": at.laws.get("log_n"), "softcap": 2.0},
    ],
)
def test_blocks_of_heads_stay_lazy(dtype: str, options: dict[str, Any]) -> None:
    arrays = WHOLE.astype(dtype)
    entropy = at.attention_entropy(*lazy(arrays=arrays[:2]), **options)
    output = at.attention(*lazy(arrays=arrays), **options)
    assert isinstance(entropy, da.Array)
    assert (entropy.chunks, output.chunks) == (((1, 1), (2, 2), (30,)), ((1, 1), (2, 2), (30,), (8,)))
    for found, whole in (
        (entropy, at.attention_entropy(*arrays[:2], **options)),
        (output, at.attention(*arrays, **options)),
    ):
        assert found.dtype == whole.dtype
        np.testing.assert_array_equal(found.compute(), whole)


def test_nothing_is_computed_before_it_is_asked_for() -> None:
    def fail(block: Any) -> Any:
        pytest.fail("computed")

    query = da.zeros((2, 3, 4), chunks=(1, 3, 4)).map_blocks(fail, dtype=np.float64, meta=np.zeros((0, 0, 0)))
    assert at.attention_entropy(query, query).shape == (2, 3)


@pytest.mark.parametrize(
    "options", [{"scale": "no law"}, {"is_causal": 3}, {"softcap": -1.0}, {"num_threads": 0}, {"window": -1}]
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any]) -> None:
    (name,) = options
    query, key, value = lazy()
    with pytest.raises((TypeError, ValueError), match="law" if name == "scale" else name):
        at.attention_entropy(query, key, **options)
    with pytest.raises((TypeError, ValueError), match="law" if name == "scale" else name):
        at.attention(query, key, value, **options)


def test_what_is_not_of_one_head_each_is_attended_as_a_whole() -> None:
    query, key, value = lazy()
    expected = at.attention(*WHOLE, is_causal=True)
    mask = np.tri(30, dtype=bool)
    for found in (
        at.attention(query, key, value.rechunk((1, 2, 10, 8)), is_causal=True),
        at.attention(query.rechunk((2, 2, 30, 8)), key, value, is_causal=True),
        at.attention(query, WHOLE[1], value, is_causal=True),
        at.attention(query, key, value, attn_mask=mask),
        at.attention_statistics(query, key, value, is_causal=True).output,
    ):
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6)
    sinks = at.normalizers.Sink(np.arange(4.0))
    found = at.attention(query, key, value, normalizer=sinks)
    np.testing.assert_array_equal(found, at.attention(*WHOLE, normalizer=sinks))


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, slice(0, 4)), {}, r"the same last dimension \(head_dim\), got 8 and 4"),
        ((0, slice(0, 8)), {"bad": 1}, "unexpected keyword argument 'bad'"),
    ],
)
def test_errors_come_at_once(arguments: Any, options: Any, message: str) -> None:
    query, key, _ = lazy()
    with pytest.raises((ValueError, TypeError), match=message):
        at.attention_entropy(query, key[..., arguments[1]], **options)


class Stored:
    """An array of zarr, as far as a call sees one."""

    shape, dtype, nbytes = (2, 30, 8), np.dtype("float32"), 1 << 40

    def __array__(self, *_: Any, **__: Any) -> Any:
        return WHOLE[0, 0, :2]


Stored.__module__ = "zarr.core.array"


def test_an_array_that_is_read_as_a_whole_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    query = WHOLE[0, 0, :2]
    with pytest.warns(
        UserWarning, match=r"^key is an array of zarr, and all of its 1024 GiB are read"
    ) as said:
        at.attention_entropy(query, Stored())
    assert said[0].filename == __file__
    monkeypatch.setattr("attnscale._base.checks._LARGE", 1 << 24)
    large = da.zeros((1, 1, 1 << 16, 64), dtype=np.float32)
    with pytest.warns(UserWarning, match=r"^key is an array of dask, and all of its 0.02 GiB are read"):
        at.attention_entropy(np.zeros((1, 1, 1, 64), np.float32), large)
    xarray = pytest.importorskip("xarray")
    named = xarray.DataArray(large, dims=("batch", "head", "key", "channel"))
    one = xarray.DataArray(np.zeros((1, 1, 1, 64), np.float32), dims=("batch", "head", "query", "channel"))
    with pytest.warns(UserWarning, match="^key is an array of dask"):
        at.attention_entropy(one, named)
