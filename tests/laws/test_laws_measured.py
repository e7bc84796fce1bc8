# SPDX-License-Identifier: BSD-3-Clause
"""Attention with laws that measure the row, of the distance, and of some channels."""

from __future__ import annotations

import math
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import laws, reference
from cases import mask_cases, random_inputs

MEASURED = (
    *(laws.AdaptiveTemperature(), laws.AdaptiveTemperature(threshold=1.5), laws.CriticalScale()),
    *(laws.NormSoftmax(), laws.NormSoftmax(gamma=3)),
)


@pytest.mark.parametrize("law", MEASURED, ids=repr)
@pytest.mark.parametrize(("n_queries", "n_keys"), [(21, 40), (40, 21)])
def test_measured_laws_under_every_mask(law: laws.Law, n_queries: int, n_keys: int) -> None:
    for name, options in mask_cases(2, 2, n_queries, n_keys).items():
        q, k, v = random_inputs(3, batch=(2,), n_queries=n_queries, n_keys=n_keys, dtype="float64", spread=2)
        options = {**options, "scale": law}
        seen = at.attention_statistics(q, k, v, **options)
        want = reference.attention_statistics(q, k, v, **options)
        np.testing.assert_allclose(seen.entropy, want.entropy, atol=1e-10, err_msg=name)
        np.testing.assert_allclose(seen.output, want.output, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("law", MEASURED, ids=repr)
@pytest.mark.parametrize("options", [{"enable_gqa": True}, {"layout": "bshd"}], ids=str)
def test_measured_laws_with_groups_and_layouts(law: laws.Law, options: dict[str, Any]) -> None:
    kv_heads = 2 if "enable_gqa" in options else None
    q, k, v = random_inputs(4, batch=(2,), heads=4, kv_heads=kv_heads, dtype="float64")
    if "layout" in options:
        q, k, v = (np.ascontiguousarray(x.swapaxes(-3, -2)) for x in (q, k, v))
    seen = at.attention(q, k, v, scale=law, is_causal=True, **options)
    want = reference.attention(q, k, v, scale=law, is_causal=True, **options)
    np.testing.assert_allclose(seen, want, atol=1e-10)


def test_adaptive_temperature_is_two_passes() -> None:
    q, k, _ = random_inputs(5, n_keys=300, spread=2.0)
    entropy = at.attention_entropy(q, k).astype(np.float64)
    beta = laws.AdaptiveTemperature().multiplier(entropy, 16)
    assert (beta > 1).any()
    np.testing.assert_array_equal(
        at.attention_entropy(q, k, scale="adaptive_temperature"), at.attention_entropy(q, k, scale=beta / 4)
    )


def test_under_norm_softmax_every_row_has_one_spread() -> None:
    q, k, _ = random_inputs(5, n_queries=30, n_keys=300, dtype="float64", spread=2.0)
    factor = np.geomspace(0.1, 50, 30)[:, None]
    weights = at.attention_weights(q * factor, k, scale=laws.NormSoftmax(gamma=1.5))
    np.testing.assert_allclose(np.log(weights).std(-1), 1.5, rtol=1e-9)
    np.testing.assert_allclose(weights, at.attention_weights(q, k, scale="1.5 * norm_softmax"), rtol=1e-9)


def test_what_the_spread_counts() -> None:
    measure = laws.NormSoftmax.measure
    assert measure([7.0]) == 0
    assert measure([-np.inf, -np.inf]) == 0
    assert measure([-np.inf, 1.0, 4.0, -np.inf]) == 1.5
    assert measure(np.empty((2, 0))).tolist() == [0, 0]
    assert np.isnan(measure([[3.0, np.nan], [3.0, np.inf]])).all()
    assert measure([1e8, 1e8 + 2]) == 1  # centred first


def test_the_critical_scale_of_a_simplex() -> None:
    """One key with cosine q, n - 1 with cosine p: Lambda = ln n / (q - p)."""
    scores = np.full(1000, 0.2)
    scores[17] = 0.9
    assert laws.CriticalScale.measure(scores) == pytest.approx(math.log(1000) / 0.7, rel=1e-12)


def test_what_the_gaps_cannot_say() -> None:
    measure = laws.CriticalScale.measure
    assert measure([3.0]) == 0
    assert measure([3.0, -np.inf, -np.inf]) == 0
    assert measure([-np.inf, -np.inf]) == 0
    assert measure(np.empty((2, 0))).tolist() == [0, 0]
    assert measure([3.0, 3.0, 1.0]) == np.inf
    assert np.isnan(measure([3.0, np.nan]))
    rng = np.random.default_rng(6)
    s = rng.standard_normal((5, 200))
    by_definition = [
        max(math.log((top - row <= t).sum()) / t for t in top - row if t > 0)
        for row, top in zip(s, s.max(-1), strict=True)
    ]
    np.testing.assert_allclose(measure(s), by_definition, rtol=1e-13)


def test_rows_whose_top_keys_tie_are_nan_under_the_critical_scale() -> None:
    rng = np.random.default_rng(7)
    q, k, v = rng.integers(-9, 10, (3, 2, 30, 16)).astype(float)  # integers: exact products
    k[0, 20] = k[0, 3] = 2 * q[0, 5]
    products = np.sort(q @ k.swapaxes(-1, -2))
    tied = products[..., -1] == products[..., -2]
    assert tied[0, 5]
    rows = at.attention_statistics(q, k, v, scale="critical_scale")
    np.testing.assert_array_equal(np.isnan(rows.entropy), tied)


def test_a_nan_reaches_only_the_rows_that_see_it() -> None:
    for law in MEASURED:
        q, k, v = random_inputs(8, n_queries=33, dtype="float64")
        clean = at.attention(q, k, v, scale=law, is_causal=True)
        k[0, 10, 3] = np.nan
        output = at.attention(q, k, v, scale=law, is_causal=True)
        assert np.isnan(output[0, 10:]).all()
        np.testing.assert_array_equal(output[0, :10], clean[0, :10])
        np.testing.assert_array_equal(output[1], clean[1])


def test_gaps_do_not_depend_on_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, _ = random_inputs(9, batch=(3,), n_queries=50)
    whole = at.attention_entropy(q, k, scale="critical_scale", causal="bottom_right")
    monkeypatch.setattr("attnscale._call.measures._BLOCK", 1000)
    blocks = at.attention_entropy(q, k, scale="critical_scale", causal="bottom_right")
    np.testing.assert_allclose(blocks, whole, rtol=1e-5, atol=1e-6)


def test_empty_extents() -> None:
    for law in MEASURED:
        for shape in ((0, 4, 3), (2, 0, 3), (2, 4, 0)):
            q = k = v = np.zeros(shape)
            if law.name == "critical_scale" and shape == (2, 4, 0):
                continue  # all scores tie: no critical scale
            assert at.attention(q, k, v, scale=law).shape == shape
        assert at.attention(np.ones((1, 2, 3)), np.ones((1, 0, 3)), np.ones((1, 0, 3)), scale=law).sum() == 0


def test_scale_invariant() -> None:
    q, k, v = random_inputs(10, n_queries=20, n_keys=20, dtype="float64")
    law = laws.ScaleInvariant()
    distance = np.abs(np.arange(20)[:, None] - np.arange(20))
    raw = q @ k.swapaxes(-1, -2) / 4
    score = law.factor(distance) * raw + law.bias(distance)
    score = np.where(np.tri(20, dtype=bool), score, -np.inf)
    weights = np.exp(score - score.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(at.attention(q, k, v, scale=law, is_causal=True), weights @ v, atol=1e-13)
    twin = reference.attention(q, k, v, scale=law, is_causal=True)
    np.testing.assert_allclose(twin, weights @ v, atol=1e-13)
    # Distances count from the aligned position of the query.
    last = at.attention(q[:, -3:], k, v, scale="scale_invariant", causal="bottom_right")
    np.testing.assert_allclose(last, twin[:, -3:], atol=1e-13)
    with pytest.raises(ValueError, match="scale='scale_invariant' depends on distances in the whole"):
        at.attention_state(q, k, v, scale=law)


def test_laws_of_some_channels_say_what_to_do() -> None:
    q, k, v = random_inputs(11, dtype="float64")
    message = "law 'yarn' acts on the rotated channels only, and a scale on all. Multiply the query by"
    with pytest.raises(ValueError, match=message):
        at.attention(q, k, v, scale=laws.YaRN(16))
    with pytest.raises(ValueError, match="law 'latent_scale' acts on the latent channels only"):
        at.attention(q, k, v, scale=laws.LatentScale(64, 16))
    law = laws.YaRN(16)
    partial = at.attention(q * law.channel_factors(16, 4), k, v)
    m2 = law.multiplier(1, 16)
    raw = m2 * q[..., :4] @ k[..., :4].swapaxes(-1, -2) + q[..., 4:] @ k[..., 4:].swapaxes(-1, -2)
    weights = np.exp(raw / 4)
    np.testing.assert_allclose(partial, weights / weights.sum(-1, keepdims=True) @ v, atol=1e-12)
    np.testing.assert_allclose(
        at.attention(q * law.channel_factors(16, 16), k, v),
        at.attention(q, k, v, scale=laws.YaRN(16, channels="all")),
        atol=1e-13,
    )
