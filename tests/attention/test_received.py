# SPDX-License-Identifier: BSD-3-Clause
"""attention_received, against the columns of the written-out matrix."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from cases import case, close, machine_epsilon, mask_cases, random_inputs, remembering

REDUCTIONS = ("sum", "mean", "max")
NORMALIZERS = (
    *("softmax", "softmax_1", "sigmoid", "softpick", "sparsemax", "relu(divide='sum')"),
    *("entmax(alpha=1.5)", "top_k(k=3)", "squared_relu(divide='sum')"),
)


def check(q: Any, k: Any, **options: Any) -> None:
    """Compare all reductions with the twin, within 8 eps (4 + largest score) times the largest column."""
    eps = machine_epsilon(q, k)
    with remembering():
        size = np.abs(reference.scores(q, k, **{n: x for n, x in options.items() if n != "normalizer"})[0])
        size = np.where(np.isfinite(size), size, 0).max(initial=0)
    for reduce in REDUCTIONS:
        found = at.attention_received(q, k, reduce=reduce, **options)
        wanted = reference.attention_received(q, k, reduce=reduce, **options)
        assert found.dtype == (np.float64 if eps < 1e-10 else np.float32)
        most = np.nanmax(wanted, initial=1)
        close(found, wanted, 8 * eps * (4 + size) * most, reduce)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("n_queries", [1, 9, 70])  # few queries, one block, several
def test_columns_under_every_mask_and_option(n_queries: int, dtype: str) -> None:
    q, k, _ = random_inputs(1, batch=(2,), n_queries=n_queries, n_keys=75, dtype=dtype)
    for name, options in mask_cases(2, 2, n_queries, 75).items():
        with case(name):
            check(q, k, **options)


@pytest.mark.parametrize("normalizer", NORMALIZERS)
def test_columns_under_every_normalizer(normalizer: str) -> None:
    for n_queries, n_keys in ((3, 40), (140, 300)):
        q, k, _ = random_inputs(2, n_queries=n_queries, n_keys=n_keys, dtype="float64")
        check(q, k, normalizer=normalizer, causal="bottom_right")
        check(q, k, normalizer=normalizer, window=(20, 5), softcap=2.0)


def test_heads_that_share_a_key_have_a_number_each() -> None:
    q, k, _ = random_inputs(3, n_queries=20, n_keys=30, heads=6, kv_heads=2, dtype="float64")
    check(q, k, enable_gqa=True, is_causal=True)
    options = {"enable_gqa": True, "is_causal": True}
    swapped = at.attention_received(q.swapaxes(-3, -2), k.swapaxes(-3, -2), layout="bshd", **options)
    np.testing.assert_array_equal(swapped, at.attention_received(q, k, **options))
    assert swapped.shape == (*q.shape[:-2], 30)


def test_sums_are_the_gradient_of_values_that_all_weigh_alike() -> None:
    q, k, _ = random_inputs(4, n_queries=50, n_keys=60, dtype="float64")
    ones, value = (np.ones((*x.shape[:-1], 1)) for x in (q, k))
    gradient = at.attention_gradients(q, k, value, ones, is_causal=True).value
    np.testing.assert_allclose(at.attention_received(q, k, is_causal=True), gradient[..., 0], rtol=1e-13)


def test_blocks_of_queries_add_up() -> None:
    q, k, _ = random_inputs(5, n_queries=40, n_keys=40, dtype="float64")
    parts = [at.attention_received(q[..., i : i + 10, :], k, causal=i) for i in range(0, 40, 10)]
    np.testing.assert_allclose(sum(parts), at.attention_received(q, k, is_causal=True), rtol=1e-13)


def test_statistics_of_the_same_call_are_not_computed_again() -> None:
    q, k, _ = random_inputs(6, n_queries=30, n_keys=30)
    rows = at.attention_statistics(q, k, is_causal=True)
    found = at.attention_received(q, k, is_causal=True, forward=rows)
    np.testing.assert_array_equal(found, at.attention_received(q, k, is_causal=True))
    twice = at.AttentionStatistics(lse=rows.lse + np.log(2, dtype=np.float32))  # a wrong lse shows
    half = at.attention_received(q, k, is_causal=True, forward=twice)
    np.testing.assert_allclose(half, found / 2, rtol=1e-5)


def test_the_number_of_threads_changes_no_bit() -> None:
    q, k, _ = random_inputs(7, n_queries=500, n_keys=300)
    one = at.attention_received(q, k, num_threads=1)
    for threads in (2, 3):
        np.testing.assert_array_equal(at.attention_received(q, k, num_threads=threads), one)


def test_a_nan_reaches_the_keys_that_its_row_sees_and_no_other() -> None:
    for normalizer in ("softmax", "sigmoid", "sparsemax"):
        for n_queries in (4, 100):
            q, k, _ = random_inputs(8, n_queries=n_queries, n_keys=n_queries, dtype="float64")
            options = {"normalizer": normalizer, "is_causal": True}
            assert np.isfinite(at.attention_received(q[..., :-1, :], k, **options)).all()
            q[..., -1, 0] = np.nan
            for reduce in REDUCTIONS:
                found = at.attention_received(q, k, reduce=reduce, key_lengths=3, **options)
                seen = np.broadcast_to(np.arange(n_queries) < 3, found.shape)
                np.testing.assert_array_equal(np.isnan(found), seen)


def test_nothing_to_receive() -> None:
    for n_queries, n_keys in ((0, 3), (3, 0), (0, 0)):
        q, k, _ = random_inputs(9, n_queries=n_queries, n_keys=n_keys)
        for reduce in REDUCTIONS:
            assert not at.attention_received(q, k, reduce=reduce).any()
            assert at.attention_received(q, k, reduce=reduce).shape == (*q.shape[:-2], n_keys)
    q, k, _ = random_inputs(9, n_queries=3, n_keys=4)
    assert not at.attention_received(q, k, key_lengths=0).any()


def test_scores_whose_sum_has_no_inverse() -> None:
    """Denormal scores have the weights of their multiples."""
    q, k = np.array([[1.0]], np.float32), np.array([[3e-39], [1e-39], [-1.0]], np.float32)
    for rule, wanted in (("relu", [0.75, 0.25, 0]), ("squared_relu", [0.9, 0.1, 0])):
        found = at.attention_received(q, k, scale=1.0, normalizer=f"{rule}(divide='sum')")
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_axes_with_names() -> None:
    xarray = pytest.importorskip("xarray")
    q, k, _ = random_inputs(10, n_queries=5, n_keys=7)
    query = xarray.DataArray(q, dims=("head", "query", "channel"))
    key = xarray.DataArray(k, dims=("head", "key", "channel"), coords={"key": list("abcdefg")})
    dims = {"heads": "head", "sequence": ("query", "key"), "channels": "channel"}
    found = at.attention_received(query, key, dims=dims)
    assert found.dims == ("head", "key")
    assert list(found.coords["key"].values) == list("abcdefg")
    np.testing.assert_array_equal(found.values, at.attention_received(q, k))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"reduce": "median"}, ValueError, "reduce must be one of 'sum', 'mean', 'max', got 'median'"),
        ({"forward": 3}, TypeError, "forward must be an AttentionStatistics, got 3"),
        (
            {"forward": at.AttentionStatistics(lse=np.zeros((1, 2)))},
            ValueError,
            "forward must be of the same call, with rows (2, 3, 5), got lse (1, 2)",
        ),
        ({"mask": 3}, TypeError, "unexpected keyword argument 'mask'; did you mean 'attn_mask'?"),
    ],
)
def test_bad_input(options: dict[str, Any], error: type[Exception], message: str) -> None:
    q, k = np.zeros((2, 3, 5, 4)), np.zeros((2, 3, 6, 4))
    with pytest.raises(error) as caught:
        at.attention_received(q, k, **options)
    assert message in str(caught.value)
