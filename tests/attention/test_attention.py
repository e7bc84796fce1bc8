# SPDX-License-Identifier: BSD-3-Clause
"""attention, attention_statistics and attention_entropy against the float64 twin."""

from __future__ import annotations

from dataclasses import fields

import attnscale as at
import numpy as np
import pytest
from cases import EDGES, STATISTICS, case, check, random_inputs, same

pytestmark = pytest.mark.levels


@pytest.mark.parametrize("n", EDGES)
@pytest.mark.parametrize("is_causal", [False, True])
def test_sizes(n: int, is_causal: bool) -> None:
    for n_queries, n_keys in ((n, n), (n, 65), (33, n), (1, n), (16, n)):
        check(*random_inputs(n, n_queries=n_queries, n_keys=n_keys, head_dim=24), is_causal=is_causal)


@pytest.mark.parametrize(
    "head_dim", [0, 1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 80, 128, 130, 257]
)
def test_head_dims(head_dim: int) -> None:
    for value_dim in (head_dim, 5):
        inputs = random_inputs(head_dim, n_queries=19, n_keys=70, head_dim=head_dim, value_dim=value_dim)
        check(*inputs)
        check(*inputs, causal="bottom_right")


@pytest.mark.parametrize("value_dim", [0, 1, 3, 4, 5, 16, 17, 48, 63, 64, 65, 96, 129, 260])
def test_value_dims(value_dim: int) -> None:
    check(*random_inputs(value_dim, n_queries=35, n_keys=67, head_dim=8, value_dim=value_dim))


@pytest.mark.parametrize("n", [1000, 2049])
def test_many_tiles(n: int) -> None:
    inputs = random_inputs(n, heads=1, n_queries=70, n_keys=n, head_dim=16, value_dim=8)
    check(*inputs)
    check(*inputs, causal="bottom_right")


@pytest.mark.parametrize("n_queries", [1, 2, 4, 15, 16, 17])
def test_decoding_splits_keys(n_queries: int) -> None:
    inputs = random_inputs(n_queries, heads=2, n_queries=n_queries, n_keys=9000, head_dim=16, value_dim=4)
    check(*inputs)
    check(*inputs, causal="bottom_right", window=(5000, None))


@pytest.mark.parametrize("group", [2, 8, 12])
@pytest.mark.parametrize("n_keys", [1, 70, 9000])
def test_decoding_reads_shared_keys_once_and_changes_no_bit(group: int, n_keys: int) -> None:
    """Heads of one query that share keys are rows of one block; the bits are those of unshared keys."""
    q, k, v = random_inputs(group, batch=(2,), heads=3, n_queries=1, n_keys=n_keys, head_dim=64)
    rng = np.random.default_rng(group)
    q = rng.standard_normal((2, 3 * group, 1, 64), np.float32)
    own = [np.repeat(x, group, -3) for x in (k, v)]
    lengths = np.array([n_keys, n_keys // 2])
    results = [each.name for each in fields(at.AttentionStatistics)]
    for options in (
        {"statistics": results[1:]},
        {"scale": rng.random((3 * group, 1)), "key_lengths": lengths},
        {
            "normalizer": at.normalizers.Sink(rng.random(3 * group)),
            "causal": "bottom_right",
            "window": (50, None),
        },
        {"attn_mask": rng.random((2, 3 * group, 1, n_keys)) < 0.5, "normalizer": "entmax15"},
        {"attn_mask": rng.standard_normal((1, n_keys)), "layout": "bshd"},
        {"normalizer": "sigmoid", "softcap": 2.0},
    ):
        swapped = options.get("layout") == "bshd"
        query, key, value, *others = (x.swapaxes(-3, -2) if swapped else x for x in (q, k, v, *own))
        for threads in (1, 2):
            found = at.attention_statistics(
                query, key, value, enable_gqa=True, num_threads=threads, **options
            )
            wanted = at.attention_statistics(query, *others, num_threads=threads, **options)
            with case(list(options)):
                same(found, wanted, vars(wanted))


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_out_is_filled_and_returned(layout: str) -> None:
    q, k, v = random_inputs(12, batch=(2,), heads=3)
    if layout == "bshd":
        q, k, v = (x.swapaxes(-3, -2) for x in (q, k, v))
    want = at.attention(q, k, v, layout=layout)
    out = np.full_like(want, np.nan)
    assert at.attention(q, k, v, layout=layout, out=out) is out
    np.testing.assert_array_equal(out, want)
    wide = np.full((*want.shape[:-1], 2 * want.shape[-1]), np.nan, np.float32)
    view = wide[..., ::-2]
    rows = at.attention_statistics(q, k, v, layout=layout, out=view)
    assert rows.output is view
    np.testing.assert_array_equal(view, want)
    assert np.isnan(wide[..., ::2]).all()


def test_inputs_are_not_written() -> None:
    q, k, v = random_inputs(13)
    arrays = [q, k, v, np.random.default_rng(0).standard_normal((17, 33))]
    copies = [x.copy() for x in arrays]
    for array in arrays:
        array.flags.writeable = False
    at.attention_statistics(q, k, v, attn_mask=arrays[3], softcap=3.0)
    for array, copy in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("threads", [2, 3, 4, 7])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_do_not_depend_on_threads(threads: int, dtype: str) -> None:
    for shape in ({"n_queries": 200, "n_keys": 300}, {"n_queries": 3, "n_keys": 20000, "heads": 1}):
        q, k, v = random_inputs(14, head_dim=32, dtype=dtype, **shape)
        for options in ({}, {"causal": "bottom_right"}, {"attn_mask": np.arange(k.shape[-2]) % 3 > 0}):
            one, many = (
                at.attention_statistics(q, k, v, statistics=STATISTICS, num_threads=n, **options)
                for n in (1, threads)
            )
            same(one, many, ("output", *STATISTICS))
