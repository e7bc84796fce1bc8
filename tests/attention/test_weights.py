# SPDX-License-Identifier: BSD-3-Clause
"""attention_weights: the matrix against the twin, and its largest size."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import normalizers as N
from attnscale import reference
from attnscale.exact import weights
from cases import bounds, case, mask_cases, random_inputs, remembering

TILE = weights._TILE
N_QUERIES, N_KEYS = 21, 2 * TILE + 9  # two tiles and a part of one
MASKS = mask_cases(2, 2, N_QUERIES, N_KEYS)

OPTIONS: dict[str, dict[str, Any]] = {
    **MASKS,
    "scale a row": {"scale": np.linspace(-0.5, 1.0, N_QUERIES)},
    "law": {"scale": "ssmax", "is_causal": True},
    "law of the row": {"scale": "adaptive_temperature"},
    "law of the distance": {"scale": "scale_invariant", "causal": "bottom_right"},
    "tables": {
        "distance_scale": np.linspace(1, 0.5, N_KEYS),
        "distance_bias": -0.01 * np.arange(N_KEYS) * np.ones((2, 1)),
    },
    "documents": {"document_ids": np.sort(np.arange(N_KEYS) % 4), "causal": N_KEYS - N_QUERIES},
    "qk_norm": {"qk_norm": "l2", "scale": 8.0},
    "SoftmaxN": {"normalizer": N.SoftmaxN(2.0), "is_causal": True},
    "Sink": {"normalizer": N.Sink([1.0, 30.0]), "key_lengths": np.array([0, N_KEYS])},
    "Sigmoid": {"normalizer": N.Sigmoid(-1.5)},
    "ReLU sum": {"normalizer": N.ReLU("sum"), "window": (30, 2)},
    "Softpick": {"normalizer": "softpick"},
    "Sparsemax": {"normalizer": "sparsemax", "attn_mask": MASKS["bias"]["attn_mask"]},
    "Entmax": {"normalizer": N.Entmax(1.2)},
    "TopK": {"normalizer": N.TopK(7), "causal": "bottom_right"},
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_matrix_is_that_of_the_twin(dtype: str) -> None:
    q, k, _ = random_inputs(3, batch=(2,), n_queries=N_QUERIES, n_keys=N_KEYS, dtype=dtype, spread=1.5)
    with remembering():
        for name, options in OPTIONS.items():
            with case(name):
                check_matrix(q, k, dtype, options)


def check_matrix(q: Any, k: Any, dtype: str, options: dict[str, Any]) -> None:
    found = at.attention_weights(q, k, **options)
    truth = reference.attention_weights(q, k, **options)
    assert found.dtype == q.dtype
    assert found.shape == truth.shape == (2, 2, N_QUERIES, N_KEYS)
    # The threshold of a sparse normalizer moves by as much as a score, or by a root of that.
    rtol, atol = (2e-5, 2e-6) if dtype == "float32" else (1e-11, 5e-13)
    np.testing.assert_allclose(found, truth, rtol=rtol, atol=atol)
    hidden = ~reference.scores(q, k, **{n: each for n, each in options.items() if n != "normalizer"})[1]
    assert (found[np.broadcast_to(hidden, found.shape)] == 0).all()


@pytest.mark.parametrize("n_keys", [0, 1, TILE - 1, TILE, TILE + 1, 2 * TILE])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_sizes_around_a_tile(n_keys: int, dtype: str) -> None:
    q, k, v = random_inputs(4, n_keys=n_keys, dtype=dtype)
    options = {"causal": n_keys - 9}
    found = at.attention_weights(q, k, **options)
    assert found.dtype == np.float32
    truth = reference.attention_statistics(q, k, v, **options)
    limit = bounds(q, k, None, truth, **options).relative_output[..., None] * truth.p
    assert (np.abs(found - truth.p) <= limit + 1e-12).all()


def test_layout_and_groups_of_heads() -> None:
    q, k, _ = random_inputs(5, heads=4, kv_heads=2, n_keys=N_KEYS)
    swapped = q.swapaxes(0, 1), k.swapaxes(0, 1)
    found = at.attention_weights(*swapped, layout="bshd", enable_gqa=True)
    np.testing.assert_array_equal(found, at.attention_weights(q, k, enable_gqa=True))
    np.testing.assert_allclose(found, reference.attention_weights(q, k, enable_gqa=True), atol=1e-6)
    np.testing.assert_array_equal(at.attention_weights(q[0], k[0]), at.attention_weights(q[:1], k[:1])[0])


@pytest.mark.parametrize("n_keys", [33, N_KEYS])
def test_rows_that_see_a_nan_are_nan_and_no_others(n_keys: int) -> None:
    q, k, _ = random_inputs(6, n_keys=n_keys)
    k[0, 20, 3] = np.nan
    found = at.attention_weights(q, k, causal=10)
    truth = reference.attention_weights(q, k, causal=10)
    np.testing.assert_array_equal(np.isnan(found).all(-1), np.isnan(truth).all(-1))
    np.testing.assert_array_equal(np.isnan(found).any(-1), np.isnan(found).all(-1))


def test_far_apart_tiles() -> None:
    """The mass of a row is in the last tile, whose weights differ from others by more than the type holds."""
    q, k, _ = random_inputs(7, n_keys=N_KEYS)
    k[:, -1] = 200 * q.mean(1) / np.abs(q.mean(1)).max()
    found, truth = at.attention_weights(q, k, scale=3.0), reference.attention_weights(q, k, scale=3.0)
    np.testing.assert_allclose(found, truth, atol=2e-4)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)


def test_a_matrix_beyond_the_limit_is_refused_before_any_work() -> None:
    q = np.broadcast_to(np.float32(0), (8, 2**17, 64))
    with pytest.raises(MemoryError, match=r"8 heads, 131072 queries and 131072 keys would take 512\.0 GiB"):
        at.attention_weights(q, q)
    q, k, _ = random_inputs(8)
    said = r"4\.4 KiB \(float32\), more than max_bytes, 4\.0 KiB.*max_bytes=4488"
    with pytest.raises(MemoryError, match=said):
        at.attention_weights(q, k, max_bytes=4096)
    assert at.attention_weights(q, k, max_bytes=4488).nbytes == 4488
    with pytest.raises(ValueError, match="max_bytes must be at least 1, got 0"):
        at.attention_weights(q, k, max_bytes=0)


def test_the_result_does_not_depend_on_threads() -> None:
    q, k, _ = random_inputs(9, batch=(3,), n_keys=N_KEYS)
    one, four = (at.attention_weights(q, k, num_threads=threads) for threads in (1, 4))
    np.testing.assert_array_equal(one, four)


def test_tiles_have_their_shares_where_scores_are_large() -> None:
    """Exact scores around 8192, where neighbouring float32 numbers are 2^-10 apart."""
    steps = np.round(np.random.default_rng(0).standard_normal(N_KEYS) * 16) / 16
    steps += np.repeat([0, -16, 8], [TILE, TILE, N_KEYS - 2 * TILE])
    q = np.stack([np.ones(8), np.arange(1, 9) / 64], axis=-1)
    k = np.stack([np.full(N_KEYS, 8192.0), steps], axis=-1)
    scores = q @ k.T
    want = np.exp(scores - scores.max(-1, keepdims=True))
    want /= want.sum(-1, keepdims=True)
    found = at.attention_weights(q.astype(np.float32), k.astype(np.float32), scale=1.0)
    edges = [0, TILE, 2 * TILE]
    shares = [np.add.reduceat(x, edges, axis=-1, dtype=np.float64) for x in (found, want)]
    np.testing.assert_allclose(*shares, rtol=1.5e-4)
