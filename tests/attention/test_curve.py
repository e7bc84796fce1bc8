# SPDX-License-Identifier: BSD-3-Clause
"""entropy_curve: many scales in one pass."""

from __future__ import annotations

from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import reference
from cases import bounds, case, close, mask_cases, random_inputs, remembering, rows_are_lost, same

pytestmark = pytest.mark.levels

SCALES = np.array([0.0, 0.05, -0.3, 0.25, 1.0, 2.5])
FIELDS = ("entropy", "lse", "mean", "variance")


def check_curve(q: Any, k: Any, scales: Any = SCALES, **options: Any) -> at.EntropyCurve:
    curve = at.entropy_curve(q, k, scales, **options)
    with remembering():
        truth = reference.entropy_curve(q, k, scales, **options)
        rows = [reference.attention_statistics(q, k, scale=float(scale), **options) for scale in scales]
        every = [
            bounds(q, k, None, row, scale=float(scale), **options)
            for scale, row in zip(scales, rows, strict=True)
        ]
    eps = 2.0**-52 if q.dtype == np.float64 else 2.0**-23
    form = {name: options[name] for name in ("enable_gqa", "layout") if name in options}
    size = reference.dot_products(np.abs(q), np.abs(k), **form).max(-1, initial=0)
    for index, (scale, limits) in enumerate(zip(scales, every, strict=True)):
        close(curve.entropy[..., index], truth.entropy[..., index], limits.entropy, f"entropy at {scale}")
        close(curve.lse[..., index], truth.lse[..., index], limits.lse, f"lse at {scale}")
        # Products and weights are both rounded.
        sd = np.sqrt(truth.variance[..., index])
        d = 2 * eps * (1 + max(abs(scale), 1) * size) * (1 + sd)
        close(curve.mean[..., index], truth.mean[..., index], 4 * d + 8 * eps * sd, f"mean at {scale}")
        limit = d * 8 * (1 + sd) + 64 * eps * (1 + sd**2)
        close(curve.variance[..., index], truth.variance[..., index], limit, f"variance at {scale}")
    return curve


@pytest.mark.parametrize("n", [1, 3, 4, 15, 16, 17, 63, 64, 65, 129, 200])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sizes(n: int, dtype: str) -> None:
    for n_queries, n_keys in ((n, n), (7, n), (n, 5)):
        q, k, _ = random_inputs(n, n_queries=n_queries, n_keys=n_keys, head_dim=12, dtype=dtype)
        check_curve(q, k, is_causal=n % 2 == 0)


@pytest.mark.parametrize("n_scales", [0, 1, 2, 3, 15, 16, 17, 32, 65])
def test_numbers_of_scales(n_scales: int) -> None:
    q, k, _ = random_inputs(1)
    scales = np.linspace(-1, 1, n_scales)
    curve = check_curve(q, k, scales) if n_scales else at.entropy_curve(q, k, scales)
    for name in FIELDS:
        assert getattr(curve, name).shape == (2, 17, n_scales)
        assert getattr(curve, name).dtype == np.float32
    assert repr(curve).startswith(f"EntropyCurve: rows (2, 17), {n_scales} scales")
    np.testing.assert_array_equal(curve.scales, scales)
    assert curve.scales.dtype == np.float64


def test_masks() -> None:
    q, k, _ = random_inputs(2, batch=(2,), heads=2, n_queries=21, n_keys=70)
    for name, mask in mask_cases(2, 2, 21, 70).items():
        with case(name):
            check_curve(q, k, **{key: each for key, each in mask.items() if key != "scale"})


def test_grouped_queries_and_layout() -> None:
    q, k, _ = random_inputs(3, batch=(2,), heads=4, kv_heads=2)
    curve = check_curve(q, k, enable_gqa=True, causal="bottom_right")
    turned = (x.swapaxes(1, 2) for x in (q, k))
    swapped = at.entropy_curve(*turned, SCALES, enable_gqa=True, causal="bottom_right", layout="bshd")
    np.testing.assert_array_equal(swapped.entropy, curve.entropy)


def test_each_scale_is_what_attention_entropy_says() -> None:
    q, k, _ = random_inputs(4, n_keys=300, dtype="float64")
    curve = at.entropy_curve(q, k, SCALES, is_causal=True)
    for index, scale in enumerate(SCALES):
        entropy = at.attention_entropy(q, k, scale=scale, is_causal=True)
        np.testing.assert_allclose(curve.entropy[..., index], entropy, rtol=1e-12, atol=1e-12)


def test_derivatives() -> None:
    """T6: d lse / d scale = mean, d entropy / d scale = -scale * variance."""
    q, k, _ = random_inputs(5, dtype="float64")
    h = 1e-5
    curve = at.entropy_curve(q, k, [0.3 - h, 0.3, 0.3 + h])
    slope = (curve.lse[..., 2] - curve.lse[..., 0]) / (2 * h)
    np.testing.assert_allclose(slope, curve.mean[..., 1], rtol=1e-7, atol=1e-7)
    slope = (curve.entropy[..., 2] - curve.entropy[..., 0]) / (2 * h)
    np.testing.assert_allclose(slope, -0.3 * curve.variance[..., 1], rtol=1e-6, atol=1e-6)


def test_rows_without_keys_and_empty_extents() -> None:
    q, k, _ = random_inputs(6, n_queries=6, n_keys=4)
    curve = at.entropy_curve(q, k, SCALES, causal="bottom_right")
    assert np.isneginf(curve.lse[:, :2]).all()
    for name in ("entropy", "mean", "variance"):
        np.testing.assert_array_equal(getattr(curve, name)[:, :2], 0)
    assert at.entropy_curve(q, k[:, :0], SCALES).entropy.shape == (2, 6, 6)
    assert at.entropy_curve(q[:0], k[:0], SCALES).entropy.shape == (0, 6, 6)
    assert at.entropy_curve(q[:, :0], k, SCALES).entropy.shape == (2, 0, 6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_reaches_the_rows_that_see_it(bad: float) -> None:
    q, k, _ = random_inputs(7, n_queries=40, n_keys=40)
    k[0, 20, 3] = bad
    curve = at.entropy_curve(q, k, SCALES, is_causal=True)
    broken = np.zeros((2, 40), bool)
    broken[0, 20:] = True
    for name in FIELDS:
        seen = np.isnan(getattr(curve, name))
        np.testing.assert_array_equal(seen, np.broadcast_to(broken[..., None], seen.shape), err_msg=name)


@pytest.mark.parametrize("threads", [2, 3])
def test_results_do_not_depend_on_threads(threads: int) -> None:
    q, k, _ = random_inputs(8, n_queries=150, n_keys=500)
    one, many = (at.entropy_curve(q, k, SCALES, num_threads=n) for n in (1, threads))
    same(one, many, FIELDS)


def test_mistakes_are_explained() -> None:
    q, k, _ = random_inputs(9)
    mistakes: tuple[tuple[Any, type[Exception], str], ...] = (
        ([[1, 2]], ValueError, r"scales must have one axis, got shape \(1, 2\)"),
        ([1, np.nan], ValueError, "scales must be finite"),
        (["a"], TypeError, "scales must be numbers, got <U1"),
        ([True], TypeError, "scales must be numbers, got bool"),
    )
    for scales, error, message in mistakes:
        with pytest.raises(error, match=message):
            at.entropy_curve(q, k, scales)
    assert repr(at.entropy_curve(q, k, [1.0])).startswith("EntropyCurve: rows (2, 17), 1 scales\n")


@pytest.mark.parametrize("size", [1e14, 1e18, 1e-15])
@pytest.mark.parametrize("masked", [False, True])
def test_variance_whose_sum_does_not_fit_the_type(size: float, masked: bool) -> None:
    # At scale 0, 300 squares of 1e36 overflow where they are added up; their mean does not.
    q, k, _ = random_inputs(21, n_queries=70, n_keys=700, head_dim=4)
    q = (q * np.float32(size)).astype(np.float32)
    seen = np.random.default_rng(22).random((70, 700)) < (0.5 if masked else 2)
    products = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2)
    scales = [0.0, 0.01 / size]
    curve = at.entropy_curve(q, k, scales, attn_mask=seen if masked else None)
    for index, scale in enumerate(scales):
        weights = np.exp(scale * products) * seen
        weights /= weights.sum(-1, keepdims=True)
        mean = (weights * products).sum(-1, keepdims=True)
        variance = (weights * (products - mean) ** 2).sum(-1)
        np.testing.assert_allclose(curve.variance[..., index], variance, rtol=1e-4)


@rows_are_lost
def test_scores_below_the_type_give_nan() -> None:
    """A score that overflows float32 in base 2 makes its row NaN; the smaller scale stays right."""
    q, k = np.full((1, 2, 1), 1e19, np.float32), np.full((1, 1, 1), -1e19, np.float32)
    seen = np.array([[[True], [False]]])
    curve = at.entropy_curve(q, k, [1.0, 3.0], attn_mask=seen)
    for name in FIELDS:
        found = getattr(curve, name)
        assert np.isfinite(found[0, 0, 0])
        assert np.isnan(found[0, 0, 1])
        assert (found[0, 1] == (-np.inf if name == "lse" else 0)).all()  # sees no key
    np.testing.assert_allclose(curve.mean[0, 0, 0], -1e38, rtol=1e-6)
    rows = at.attention_statistics(q, k, scale=3.0, attn_mask=seen)
    assert np.isnan(rows.entropy[0, 0])


@pytest.mark.parametrize("masked", [False, True])
def test_products_near_the_end_of_the_type(masked: bool) -> None:
    """Their mean fits float32, their sum does not; the variance does not fit either and is infinite."""
    q, k, _ = random_inputs(23, n_queries=70, n_keys=300, head_dim=4)
    k = np.where(np.random.default_rng(24).random(k.shape) < 0.2, k * np.float32(1e37), k)
    seen = np.random.default_rng(25).random((70, 300)) < (0.5 if masked else 2)
    options = {"softcap": 5.0, "attn_mask": seen} if masked else {}
    scales = [0.0, 1.0] if masked else [0.0, 1e-37]
    curve = at.entropy_curve(q, k, scales, **options)
    products = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2)
    for index, scale in enumerate(scales):
        scores = 5 * np.tanh(scale * products / 5) if masked else scale * products
        weights = np.exp(scores) * seen
        weights /= weights.sum(-1, keepdims=True)
        mean = (weights * products).sum(-1)
        np.testing.assert_allclose(curve.mean[..., index], mean, atol=1e-4 * np.abs(products).max())
        np.testing.assert_array_equal(curve.variance[..., index], np.inf)


def test_a_far_key_without_weight_costs_no_variance() -> None:
    """The square of its distance overflows float64, but its weight is 0."""
    q, k = np.ones((1, 70, 1)), np.array([[[-1e300], [0.0], [1.0], [2.0]]])
    curve = at.entropy_curve(q, k, [1.0])
    alone = at.entropy_curve(q, k[:, 1:], [1.0])
    np.testing.assert_allclose(curve.mean, alone.mean)
    np.testing.assert_allclose(curve.variance, alone.variance)


@pytest.mark.parametrize("scale", [0.0, 0.5, -1e-100])
def test_one_key_has_no_variance(scale: float) -> None:
    """Even if the square of its product overflows."""
    curve = at.entropy_curve(np.full((1, 70, 1), 1e100), np.full((1, 1, 1), 1e100), [scale])
    np.testing.assert_allclose(curve.mean, 1e200)
    np.testing.assert_array_equal(curve.variance, 0)
