# SPDX-License-Identifier: BSD-3-Clause
"""Gradients on the threads of the core: the same bits, and as exact in chunks as in one piece."""

from __future__ import annotations

import numpy as np
import pytest
from attnscale import variants as av
from cases import random_inputs
from test_variants_gradients import FAMILIES, MASKS, NAMES, twin

pytestmark = pytest.mark.levels


def arrays(n_queries, n_keys, dtype="float32", heads=2, spread=1.0):
    q, k, v = random_inputs(
        1,
        heads=heads,
        n_queries=n_queries,
        n_keys=n_keys,
        head_dim=8,
        value_dim=5,
        dtype=dtype,
        spread=spread,
    )
    return q, k, v, np.random.default_rng(2).standard_normal((heads, n_queries, 5)).astype(q.dtype)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("size", [(3300, 3300), (2100, 4200), (4200, 2100)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_same_bits_on_any_number_of_threads(name, mask, size, dtype):
    inputs = arrays(*size, dtype=dtype, spread=2.0)
    variant, options, _ = FAMILIES[name]
    one, *others = (
        av.gradients(variant, *inputs, **options, **mask, num_threads=threads) for threads in (1, 2, 3, 8)
    )
    for other in others:
        for each in NAMES:
            np.testing.assert_array_equal(getattr(other, each), getattr(one, each))
    if dtype == "float32":
        exact = av.gradients(variant, *(x.astype(np.float64) for x in inputs), **options, **mask)
        for each in NAMES:
            want = getattr(exact, each)
            np.testing.assert_allclose(getattr(one, each), want, rtol=0, atol=2e-4 * abs(want).max())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_chunks_are_joined(name, mask):
    """More rows than a chunk has, whose keys grow now and then."""
    q, k, v, g = arrays(1080, 1050, "float64", heads=1, spread=20.0)
    k[:, ::400] += 60
    variant, options, _ = FAMILIES[name]
    found = av.gradients(variant, q, k, v, g, **options, **mask)
    expected = twin(variant, q, k, v, g, **options, **mask)
    largest = max(abs(expected[each]).max() for each in NAMES)
    for each in NAMES:
        np.testing.assert_allclose(getattr(found, each), expected[each], rtol=0, atol=1e-11 * largest)


def test_chunks_of_ssd_are_joined_on_any_number_of_threads():
    q, k, v, g = arrays(1100, 1100, "float64", heads=1)
    a = -np.random.default_rng(3).exponential(0.01, (1, 1100))
    a[:, ::300] = -3.0
    one, *others = (av.gradients("ssd", q, k, v, g, log_decay=a, num_threads=t) for t in (1, 2, 3, 8))
    expected = twin("ssd", q, k, v, g, log_decay=a)
    for each in (*NAMES, "log_decay"):
        for other in others:
            np.testing.assert_array_equal(getattr(other, each), getattr(one, each))
        want = expected[each]
        np.testing.assert_allclose(getattr(one, each), want, rtol=0, atol=1e-12 * abs(want).max())


@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_bits_for_one_head_as_for_many(name):
    inputs = arrays(150, 150, heads=40)
    variant, options, _ = FAMILIES[name]
    whole = av.gradients(variant, *inputs, **options, is_causal=True, num_threads=3)
    for head in (0, 17, 39):
        alone = av.gradients(variant, *(x[head] for x in inputs), **options, is_causal=True)
        for each in NAMES:
            np.testing.assert_array_equal(getattr(whole, each)[head], getattr(alone, each))
