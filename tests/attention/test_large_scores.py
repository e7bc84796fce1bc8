# SPDX-License-Identifier: BSD-3-Clause
"""Scores whose rounding alone is a large number: the row is one-hot, and its neighbours see nothing of it."""

from __future__ import annotations

import attnscale as at
import numpy as np
import pytest
from cases import random_inputs

pytestmark = pytest.mark.levels

SIZES = [("float32", 1e9), ("float32", 1e20), ("float32", 1e34), ("float64", 1e18), ("float64", 1e200)]


@pytest.mark.parametrize("n_queries", [3, 70])
@pytest.mark.parametrize(("dtype", "size"), SIZES)
@pytest.mark.parametrize("normalizer", ["softmax", at.normalizers.Sink(0.0), "softpick"], ids=repr)
def test_rows_are_one_hot(normalizer: object, dtype: str, size: float, n_queries: int) -> None:
    q, k, v = random_inputs(11, n_queries=n_queries, n_keys=300, head_dim=16, value_dim=5, dtype=dtype)
    products = np.einsum("...id,...jd->...ij", q.astype(np.float64), k.astype(np.float64))
    for scale in (size, -size):
        best = (np.sign(scale) * products).argmax(-1)
        output = at.attention(q, k, v, scale=scale, normalizer=normalizer)
        np.testing.assert_array_equal(output, np.take_along_axis(v, best[..., None], -2))


@pytest.mark.parametrize(("dtype", "size"), SIZES)
def test_statistics_and_curve(dtype: str, size: float) -> None:
    q, k, _ = random_inputs(12, n_queries=70, n_keys=300, head_dim=16, dtype=dtype)
    products = np.einsum("...id,...jd->...ij", q.astype(np.float64), k.astype(np.float64))
    scales = [size, -size, size / 2]
    curve = at.entropy_curve(q, k, scales)
    for index, scale in enumerate(scales):
        top = (scale * products).max(-1)
        rows = at.attention_statistics(q, k, scale=scale, statistics=("lse", "entropy", "max_weight"))
        np.testing.assert_allclose(rows.lse, top, rtol=1e-5)
        np.testing.assert_allclose(curve.lse[..., index], top, rtol=1e-5)
        np.testing.assert_allclose(curve.mean[..., index], top / scale, rtol=1e-5)
        assert not rows.entropy.any()
        assert not curve.entropy[..., index].any()
        np.testing.assert_allclose(rows.max_weight, 1)


@pytest.mark.parametrize(("dtype", "size"), SIZES)
def test_neighbours_keep_their_bits(dtype: str, size: float) -> None:
    q, k, v = random_inputs(13, n_queries=70, n_keys=300, head_dim=16, dtype=dtype)
    scale = np.where(np.arange(70) % 3 == 1, size, 0.25)
    names = ("lse", "entropy")
    mixed = at.attention_statistics(q, k, v, scale=scale, statistics=names)
    alone = at.attention_statistics(q, k, v, scale=0.25, statistics=names)
    for name in ("output", *names):
        ordinary = np.arange(70) % 3 != 1
        np.testing.assert_array_equal(
            getattr(mixed, name)[:, ordinary], getattr(alone, name)[:, ordinary], err_msg=name
        )
