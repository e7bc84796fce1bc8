# SPDX-License-Identifier: BSD-3-Clause
"""distance_scale and distance_bias: tables over the distance between query and key."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from cases import random_inputs, same

SHAPES = [(1, 1), (1, 33), (3, 70), (8, 100), (9, 40), (70, 70), (130, 333), (200, 20)]


def compare(q: Any, k: Any, v: Any, **options: Any) -> None:
    rows = at.attention_statistics(q, k, v, statistics=("lse", "entropy", "argmax"), **options)
    wanted = reference.attention_statistics(q, k, v, **options)
    same(rows, wanted, ("output", "lse", "entropy"), atol=1e-12 if q.dtype == np.float64 else 2e-5)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("n_queries", "n_keys"), SHAPES)
def test_tables_of_both_kinds(n_queries: int, n_keys: int, dtype: str) -> None:
    q, k, v = random_inputs(n_queries, n_queries=n_queries, n_keys=n_keys, dtype=dtype)
    rng = np.random.default_rng(0)
    table = rng.uniform(0.5, 2, (q.shape[-3], n_queries + n_keys))
    compare(q, k, v, distance_scale=table)
    compare(q, k, v, distance_bias=table)
    compare(q, k, v, distance_scale=table, distance_bias=-table, is_causal=True, softcap=3.0)
    compare(q, k, v, distance_bias=lambda t: np.sin(t + 0.3), causal="bottom_right")
    compare(q, k, v, distance_bias=table, window=(5, 3))


def test_decoding_splits_the_keys() -> None:
    q, k, v = random_inputs(6, n_queries=2, n_keys=40000, dtype="float64")
    compare(q, k, v, distance_bias=lambda t: -1e-3 * np.abs(t), causal="bottom_right")


def test_curves_take_the_tables() -> None:
    q, k, _ = random_inputs(7, n_queries=50, n_keys=60, dtype="float64")
    table = np.linspace(1, 2, 110)
    options = {"distance_scale": table, "distance_bias": -table, "is_causal": True}
    curve, twin = (each.entropy_curve(q, k, [0.1, 0.4], **options) for each in (at, reference))
    np.testing.assert_allclose(curve.entropy, twin.entropy, atol=1e-12)


def test_a_function_of_distances_on_two_axes_with_a_key_length() -> None:
    q, k, v = random_inputs(21, heads=None)
    options = {"key_lengths": 20, "causal": "bottom_right", "distance_bias": lambda t: -0.1 * np.abs(t)}
    alone = at.attention(q, k[:20], v[:20], **{**options, "key_lengths": None})
    np.testing.assert_allclose(at.attention(q, k, v, **options), alone, rtol=1e-6, atol=1e-6)
