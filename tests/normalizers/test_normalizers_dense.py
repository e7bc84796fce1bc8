# SPDX-License-Identifier: BSD-3-Clause
"""Rows where most keys are candidates: all of their scores are kept."""

from __future__ import annotations

import attnscale as at
import numpy as np
import pytest
from attnscale import normalizers as N
from attnscale import reference
from cases import case, dtype_of, mask_cases, random_inputs
from test_normalizers import check

pytestmark = pytest.mark.levels

DENSE = (N.Sparsemax(), N.Entmax(1.5), N.Entmax(1.2), N.Entmax(1.3), N.Entmax(3), N.TopK(300))
MASKS = mask_cases(2, 2, 21, 700)
FEW_MASKS = mask_cases(2, 4, 5, 300)


@pytest.mark.parametrize("normalizer", DENSE, ids=repr)
def test_every_mask(normalizer: N.Normalizer) -> None:
    q, _, _ = random_inputs(1, batch=(2,), n_queries=21, n_keys=1, dtype="float64")
    _, k, v = random_inputs(2, batch=(2,), heads=1, n_queries=1, n_keys=700, dtype="float64")
    for mask, options in MASKS.items():
        with case(mask):
            check(normalizer, q / 100, k, v, enable_gqa=True, **options)


@pytest.mark.parametrize("normalizer", [N.Sparsemax(), N.Entmax(1.3), N.TopK(30)], ids=repr)
def test_a_handful_of_queries_under_every_mask(normalizer: N.Normalizer) -> None:
    q, _, _ = random_inputs(9, batch=(2,), heads=4, n_queries=5, n_keys=1, dtype="float64")
    _, k, v = random_inputs(10, batch=(2,), n_queries=1, n_keys=300, dtype="float64")
    for mask, options in FEW_MASKS.items():
        with case(mask):
            for spread in (1, 0.01):
                check(normalizer, spread * q, k, v, enable_gqa=True, **options)
            check(normalizer, q, k, v, enable_gqa=True, **{**options, "scale": -0.5})


@pytest.mark.parametrize("alpha", [1.04, 1.1, 1.15, 1.25, 4 / 3, 1.4, 1.7, 1.999, 2.2, 2.5, 4])
@pytest.mark.parametrize("spread", [0.02, 1, 4])
def test_every_kind_of_power(alpha: float, spread: float) -> None:
    # 1 / (alpha - 1) whole, half and neither; lists and kept scores.
    for n_keys in (200, 900):
        q, k, v = random_inputs(3, heads=1, n_queries=33, n_keys=n_keys, dtype="float64", spread=spread)
        check(N.Entmax(alpha), q, k, v)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("normalizer", DENSE, ids=repr)
def test_16_bit_storage(normalizer: N.Normalizer, dtype: str) -> None:
    q, k, v = random_inputs(4, n_queries=20, n_keys=800, dtype=dtype, spread=0.05)
    got = at.attention(q, k, v, normalizer=normalizer)
    wide = [x.astype(np.float32) for x in (q, k, v)]
    wanted = at.attention(*wide, normalizer=normalizer).astype(dtype_of(dtype))
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("n_keys", [300, 900])
def test_ties_keep_the_first_keys(n_keys: int) -> None:
    q, k, v = random_inputs(5, n_queries=40, n_keys=n_keys, dtype="float64")
    k = np.round(4 * k) / 4  # many scores are equal
    q = np.round(2 * q)
    for normalizer in (
        N.TopK(n_keys // 3),
        N.TopK(n_keys - 1),
        N.TopK(n_keys + 1),
        N.Sparsemax(),
        N.Entmax(1.2),
    ):
        check(normalizer, q, k, v, scale=2.0**-9)
    first = at.attention(q, k, v, scale=0.0, normalizer=N.TopK(250))
    np.testing.assert_allclose(
        first, np.broadcast_to(v[:, None, :250].mean(2), first.shape), rtol=1e-12, atol=1e-13
    )


def test_more_keys_than_one_sum_takes() -> None:
    for dtype in ("float32", "float64"):
        q, k, v = random_inputs(6, n_queries=3, n_keys=13000, dtype=dtype, spread=0.1)
        for normalizer in (N.Sparsemax(), N.Entmax(1.2), N.TopK(5000)):
            check(normalizer, q, k, v, scale=0.001)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("normalizer", DENSE, ids=repr)
def test_bad_numbers_reach_the_rows_that_see_them(normalizer: N.Normalizer, bad: float) -> None:
    for n_queries in (3, 70):
        for broken, row in (("query", 1), ("key", 638), ("value", 639)):
            inputs = random_inputs(7, n_queries=n_queries, n_keys=640, spread=0.05)
            arrays = dict(zip(("query", "key", "value"), inputs, strict=True))
            arrays[broken][0, row, 3] = bad
            with np.errstate(all="ignore"):
                truth = reference.attention(**arrays, normalizer=normalizer, causal="bottom_right")
            got = at.attention(**arrays, normalizer=normalizer, causal="bottom_right")
            np.testing.assert_array_equal(np.isfinite(got), np.isfinite(truth))


def test_neighbours_of_another_kind() -> None:
    # Dense rows beside sparse rows, rows without keys and NaN rows, in one vector of rows.
    q, k, v = random_inputs(8, n_queries=64, n_keys=1000, spread=0.02)
    q[:, ::3] *= 200
    mask = np.ones((64, 1000), bool)
    mask[5] = False
    mask[7, 500:] = False
    q[:, 9] = np.nan
    for normalizer in DENSE:
        got = at.attention(q, k, v, attn_mask=mask, normalizer=normalizer)
        with np.errstate(all="ignore"):
            truth = reference.attention(q, k, v, attn_mask=mask, normalizer=normalizer)
        assert np.isnan(got[:, 9]).all()
        np.testing.assert_allclose(got, truth, atol=1e-2 if normalizer == N.Entmax(3) else 3e-5)
        assert not got[:, 5].any()
