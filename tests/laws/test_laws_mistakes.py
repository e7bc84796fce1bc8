# SPDX-License-Identifier: BSD-3-Clause
"""Mistakes of published programs with laws: the right value, and the wrong one for reference."""

from __future__ import annotations

import math

import attnscale as at
import numpy as np
import pytest
from attnscale import laws


def test_causal_entropy_is_of_the_visible_keys() -> None:
    """entropix included the masked future, and took the variance along an axis of one entry."""
    q, k = np.random.default_rng(2).standard_normal((2, 1, 50, 16))
    rows = at.attention_statistics(q, k, is_causal=True, statistics=("entropy", "score_variance"))
    for i in (0, 1, 20, 49):
        alone = at.attention_entropy(q[:, i : i + 1], k[:, : i + 1])
        np.testing.assert_allclose(rows.entropy[:, i], alone[:, 0], atol=1e-12)
    assert (rows.entropy <= np.log(np.arange(1, 51)) + 1e-12).all()
    # Masked scores left at 0 count as keys: the first row would have ln 50 = 3.9 instead of 0.
    assert abs(rows.entropy[0, 0]) < 1e-12
    assert (rows.score_variance[0, 1:] > 0).all()


def test_info_scale_is_of_one_head() -> None:
    """The authors' T5 program takes d = heads * head_dim: 1.28752 for 1.25148 at n = 32768, 12 heads."""
    law = laws.InfoScale(512)
    assert law.multiplier(32768, 64) == pytest.approx(1.25148, abs=5e-6)
    assert law.multiplier(32768, 12 * 64) == pytest.approx(1.28752, abs=5e-6)


@pytest.mark.parametrize(
    ("law", "last_without", "first_with"),
    [
        (laws.QwenLogN(100), 99, 100),  # i + 1 > L
        (laws.GrokTemperature(100), 100, 101),  # i > T: one later
        (laws.Llama4Temperature(floor=100), 98, 99),  # floor((i + 1) / F) >= 1
        (laws.MinistralTemperature(length=100), 99, 100),  # floor(i / L) >= 1: one later
        (laws.InklingTemperature(floor=100), 99, 100),  # (i + 1) / floor > 1
        (laws.SelectiveTemperature(0.5), 0, 1),  # ln(i + 1): the first row has one key
        (laws.NoPETemperature(0.5, train_length=100), 100, 101),  # i > L: one later than Qwen's
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_off_by_one(law: laws.Law, last_without: int, first_with: int) -> None:
    """Families begin at different positions; a port of another family's rule is off by one."""
    assert law.multiplier(1, 64, position=last_without) == 1
    assert law.multiplier(1, 64, position=first_with) > 1
    q, k, v = np.random.default_rng(3).standard_normal((3, 1, 110, 8))
    rows = at.attention_statistics(q, k, v, scale=law, is_causal=True)
    standard = at.attention_statistics(q, k, v, is_causal=True)
    changed = np.abs(rows.lse - standard.lse)[0] > 1e-9
    assert int(changed.argmax()) == first_with


def test_the_smallest_n_of_each_family() -> None:
    assert laws.ASEntmax(0, 1, 1).multiplier(2, 64, position=0) == pytest.approx(math.log(2))  # i + 2
    assert laws.SSMax(s=1, floor=2).multiplier(1, 64) == pytest.approx(math.log(2))  # axolotl: max(i + 1, 2)
    assert laws.SSMax(s=1).multiplier(1, 64) == 0


def test_rules_that_engines_left_out() -> None:
    # vLLM issue 36880: use_logn_attn of Qwen ignored, 1 for 1.1538 at n = 32768.
    assert laws.QwenLogN(8192).multiplier(32768, 128) == pytest.approx(1.153846, abs=5e-7)
    # vLLM issue 48621: Ministral 3 without YaRN's factor ("27 %": 1.277 of cos and sin).
    assert laws.YaRN(16).attention_scaling == pytest.approx(1.2773, abs=5e-5)
    assert laws.YaRN(16).multiplier(1, 128) == pytest.approx(1.6314, abs=5e-5)
    # and without the temperature: 1 for 1.0693 from i = 16384 on.
    assert laws.MinistralTemperature().multiplier(1, 128, position=16384) == pytest.approx(1.0693, abs=5e-5)
    # vLLM pull request 48351: attention_factor dropped, 1.4159 used where 1 is configured.
    assert laws.YaRN(64, attention_factor=1.0).attention_scaling == 1
    assert laws.YaRN(64).attention_scaling == pytest.approx(1.4159, abs=5e-5)


def test_cosformer_has_a_length_that_stays() -> None:
    """The authors' program divides positions by the longer sequence: outputs of the past change as it grows.

    It also checks value_dim against the size of the keys, and its elu features are a function, not numbers.
    """
    rng = np.random.default_rng(4)
    q, k = rng.standard_normal((2, 2, 40, 8))
    v = rng.standard_normal((2, 40, 5))

    def outputs(n: int, max_length: int) -> np.ndarray:
        return at.variants.cosformer_attention(
            q[:, :n], k[:, :n], v[:, :n], max_length=max_length, is_causal=True
        )

    np.testing.assert_allclose(outputs(20, 64), outputs(40, 64)[:, :20], rtol=1e-12)
    assert np.abs(outputs(20, 20) - outputs(40, 40)[:, :20]).max() > 0.01
    weights = _elu_plus_1(q) @ _elu_plus_1(k).swapaxes(1, 2)
    expected = weights @ v / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(at.variants.linear_attention(q, k, v, feature_map="elu"), expected, rtol=1e-10)


def _elu_plus_1(x: np.ndarray) -> np.ndarray:
    return np.where(x > 0, x + 1, np.exp(x))
