# SPDX-License-Identifier: BSD-3-Clause
"""Every kind of mask, alone and together."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from cases import FLOAT_TYPES, STATISTICS, case, check, dtype_of, mask_cases, random_inputs, remembering

pytestmark = pytest.mark.levels

SIZES = [(1, 1), (1, 40), (17, 33), (33, 17), (64, 64), (65, 130), (200, 129), (16, 700)]


@pytest.mark.parametrize("size", SIZES)
def test_against_the_twin(size: tuple[int, int]) -> None:
    n_queries, n_keys = size
    inputs = random_inputs(1, batch=(2,), heads=2, n_queries=n_queries, n_keys=n_keys, value_dim=9)
    with remembering():
        for name, options in mask_cases(2, 2, n_queries, n_keys).items():
            with case(name):
                check(*inputs, **options)


@pytest.mark.parametrize("right", [0, 1, 16, 64, 500, None])
def test_windows(right: int | None) -> None:
    inputs = random_inputs(4, heads=1, n_queries=150, n_keys=140, head_dim=8)
    with remembering():
        for left in (0, 1, 15, 16, 63, 64, 65, 500, None):
            for options in ({}, {"causal": "bottom_right"}):
                with case(left, options):
                    check(*inputs, window=(left, right), **options)


@pytest.mark.parametrize("causal", [None, "top_left", "bottom_right"])
def test_key_lengths(causal: Any) -> None:
    inputs = random_inputs(5, batch=(2,), n_queries=70, n_keys=140, head_dim=8)
    with remembering():
        for length in (0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 140):
            with case(length):
                check(*inputs, key_lengths=np.array([length, 140 - length]), causal=causal)


def low_masks(dtype: np.dtype[Any], n_queries: int, n_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """A mask that hides keys by numbers as low as half of the smallest one, and one that does so by -inf.

    Where there are more queries, the first one sees no key; none sees key 2.
    """
    rng = np.random.default_rng(3)
    hidden = rng.random((n_queries, n_keys)) < 0.3
    hidden[: int(n_queries > 1)], hidden[:, 2] = True, True
    lowest = np.nextafter(dtype.type(-np.inf), dtype.type(0))
    low = np.where(rng.random(hidden.shape) < 0.5, lowest, lowest / 2).astype(dtype)
    bias = rng.standard_normal(hidden.shape).astype(dtype)
    return np.where(hidden, low, bias), np.where(hidden, dtype.type(-np.inf), bias)


@pytest.mark.parametrize("dtype", FLOAT_TYPES)
@pytest.mark.parametrize("n_queries", [1, 17, 70])
def test_numbers_as_low_as_half_of_the_smallest_hide(n_queries: int, dtype: str) -> None:
    """The results are those of the mask with -inf, written out."""
    q, k, v = random_inputs(12, n_queries=n_queries, dtype="float64")
    low, infinite = low_masks(dtype_of(dtype), n_queries, 33)
    e = np.exp(q @ k.swapaxes(-1, -2) / 4 + infinite.astype(np.float64))
    total = e.sum(-1, keepdims=True)
    p = e / np.where(total == 0, 1, total)
    output = p @ v
    k[:, 2] = v[:, 2] = np.nan
    rows = at.attention_statistics(q, k, v, attn_mask=low, statistics=STATISTICS)
    np.testing.assert_allclose(rows.output, output, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(rows.entropy, -(p * np.log(np.where(p > 0, p, 1))).sum(-1), rtol=1e-12)
    np.testing.assert_array_equal(rows.n_visible, (e > 0).sum(-1))
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(rows.lse, np.log(total[..., 0]), rtol=1e-12, atol=1e-14)


#: Verbs that take a mask, as functions of query, key, value and options.
VERBS: dict[str, Any] = {
    "statistics": lambda q, k, v, **o: at.attention_statistics(q, k, v, statistics=STATISTICS, **o),
    "weights": lambda q, k, v, **o: at.attention_weights(q, k, **o),
    "received": lambda q, k, v, **o: at.attention_received(q, k, **o),
    "gradients": lambda q, k, v, **o: at.attention_gradients(
        q, k, v, np.ones_like(q), wanted=("query", "key", "value", "attn_mask"), **o
    ),
    "state": at.attention_state,
    "curve": lambda q, k, v, **o: at.entropy_curve(q, k, [0.1, 1.0], **o),
    "solve_scale": lambda q, k, v, *, attn_mask, **o: at.solve_scale(
        q, k, 1.5, attn_mask=np.where(attn_mask > -1e4, 0, attn_mask).astype(attn_mask.dtype), **o
    ),
    "divergence": lambda q, k, v, **o: at.attention_divergence(q, k, 2 * q, k, **o),
    "divergence of masks": lambda q, k, v, *, attn_mask, **o: at.attention_divergence(
        q, k, q, k, other_attn_mask=attn_mask, attn_mask=np.ones(attn_mask.shape, bool), **o
    ),
    **{
        name: lambda q, k, v, name=name, **o: at.attention_statistics(q, k, v, normalizer=name, **o)
        for name in ("sparsemax", "entmax", "top_k(k=3)", "sigmoid", "relu", "squared_relu", "softpick")
    },
    **{
        law: lambda q, k, v, law=law, **o: at.attention_statistics(q, k, v, scale=law, **o)
        for law in ("log_n", "adaptive_temperature", "critical_scale", "norm_softmax")
    },
}


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_hides_by_low_numbers(name: str) -> None:
    q, k, v = random_inputs(13, dtype="float32")
    for dtype in FLOAT_TYPES:
        low, infinite = low_masks(dtype_of(dtype), 17, 33)
        with case(dtype):
            found, wanted = (VERBS[name](q, k, v, attn_mask=mask) for mask in (low, infinite))
            fields = getattr(wanted, "__dataclass_fields__", [None])
            for field in fields:
                one, two = (x if field is None else getattr(x, field, None) for x in (found, wanted))
                np.testing.assert_array_equal(np.asarray(one), np.asarray(two), err_msg=str(field))
            if name == "gradients":
                assert (found.attn_mask[np.isneginf(infinite)] == 0).all()


def test_large_biases_hide_nothing() -> None:
    """The type of the mask decides: the smallest number of float16 is a bias in float32."""
    q, k, v = random_inputs(14, dtype="float64")
    lowest = {name: float(np.finfo(name).min) for name in ("float16", "float32", "float64")}
    for dtype, bias in (
        *(("float16", -32736.0), ("float32", lowest["float16"]), ("float32", lowest["float32"] / 2.001)),
        *(("float64", lowest["float32"]), ("float64", lowest["float64"] / 2.001)),
    ):
        mask = np.zeros((17, 33), dtype)
        mask[3], mask[4, 5:] = bias, bias
        rows = at.attention_statistics(q, k, v, attn_mask=mask, statistics=("n_visible", "entropy"))
        with case(dtype, bias):
            assert (rows.n_visible == 33).all()
            few = at.attention_entropy(q[:, 4:5], k[:, :5])
            np.testing.assert_allclose(rows.entropy[:, 4:5], few, rtol=1e-12)
            assert (rows.entropy[:, 3] > 1).all()


def test_a_mask_is_not_written_out() -> None:
    """It would take 4 TiB."""
    mask = np.broadcast_to(np.array([True, False]).repeat(2**19), (64, 2**22 // 1024, 1, 2**20))
    assert mask.size == 2**38
    q = np.zeros((64, 4096, 1, 0), np.float32)
    k = np.broadcast_to(np.zeros((1, 0), np.float32), (64, 4096, 2**20, 0))
    few = (x[:1, :2] for x in (q, k))
    rows = at.attention_statistics(*few, attn_mask=mask[:1, :2], statistics="n_visible", num_threads=1)
    np.testing.assert_array_equal(rows.n_visible, 2**19)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint64", "int8"])
def test_the_twin_reads_lengths_of_any_integer_type(dtype: str) -> None:
    """Lengths less queries are negative here, and would wrap in an unsigned type."""
    shape, law = (2, 4, 63, 7), at.laws.get("llama4_temperature")
    both = [{"key_lengths": np.array([7, 3], kind), "causal": "bottom_right"} for kind in (dtype, "int64")]
    short, wide = (reference.visible(shape, window=(100, None), **masks) for masks in both)
    np.testing.assert_array_equal(short, wide)
    assert not wide[0, :, :56].any()
    assert wide[0, 0, 56:].sum() == 28
    np.testing.assert_array_equal(*(reference.distances(shape, **masks) for masks in both))
    np.testing.assert_array_equal(*(reference.n_of_law(law, wide, **masks) for masks in both))


def test_a_float_mask_of_zeros_and_ones_is_most_likely_a_mistake() -> None:
    q, k, v = random_inputs(11)
    mask = (np.arange(33) % 3 > 0).astype(np.float32)
    told = r"attn_mask is float and holds 0 and 1 only.*attn_mask.astype\(bool\)"
    with pytest.warns(UserWarning, match=told) as seen:
        biased = at.attention(q, k, v, attn_mask=mask)
    assert seen[0].filename == __file__
    np.testing.assert_allclose(biased, reference.attention(q, k, v, attn_mask=mask), atol=1e-5)
    for said in (mask * 0, mask * 2, mask - 0.5, np.where(mask > 0, 0, -np.inf).astype(np.float32)):
        at.attention(q, k, v, attn_mask=said)  # warnings are errors here
    with pytest.warns(UserWarning, match=r"; np\.asarray\(attn_mask, bool\) hides the keys with 0"):
        at.attention(q, k, v, attn_mask=mask.tolist())
