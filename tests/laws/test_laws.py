# SPDX-License-Identifier: BSD-3-Clause
"""Scale laws: golden values, parameters, registry."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import laws
from attnscale.laws import *  # noqa: F403  # so that every repr evaluates

MEASURED = ("adaptive_temperature", "critical_scale", "norm_softmax")
EXAMPLES: list[laws.Law] = [
    laws.Standard(),
    laws.Unscaled(),
    laws.Constant(144**-0.5),
    laws.Constant(-1e-05),
    laws.PerHead([0.5, 2.0]),
    laws.PerHead(1.5),
    laws.LogN(),
    laws.LogN(base=1024, floor=16),
    laws.LogN(base=10, floor=2),
    laws.LogNFromTraining(8192),
    laws.LogNFromTraining(100),
    laws.NaturalLogN(),
    laws.Kappa(2.5),
    laws.SSMax(),
    laws.SSMax(s=[0.4, 0.5, 0.6], b=0.1),
    laws.SSMax(floor=2),
    laws.SSMax(s=0.1, b=0.5, floor=3),
    laws.MuP(),
    laws.LayerIndex(3),
    laws.DisentangledScale(3),
    laws.LatentScale(6144, 1536),
    laws.LatentScale(6144, 512, channels="all"),
    laws.QwenLogN(8192),
    laws.QwenLogN(64),
    laws.GrokTemperature(1024),
    laws.GrokTemperature(64),
    laws.ASEntmax(1, 0.5, 2),
    laws.ASEntmax(1, 0.2, 1.5),
    laws.ASEntmax(1, [0.5, 0.7], [1, -1]),
    laws.Llama4Temperature(),
    laws.Llama4Temperature(0.3, floor=8),
    laws.MinistralTemperature(),
    laws.MinistralTemperature(0.2, 100),
    laws.MinistralTemperature(length=50),
    laws.BeamTemperature(),
    laws.InklingTemperature(),
    laws.InklingTemperature(floor=20),
    laws.InklingTemperature(over_head_dim=True),
    laws.InklingTemperature(0.3, 100, over_head_dim=True),
    laws.SelectiveTemperature(0.1),
    laws.SelectiveTemperature([0.01, 0.5]),
    laws.LogPower(),
    laws.LogPower(power=0, base=2),
    laws.LogPower(power=2.5, base=300),
    laws.NoPETemperature(0.3),
    laws.NoPETemperature(-0.1, train_length=50),
    laws.NoPETemperature([0.3, 0.2], train_length=512),
    laws.YaRN(16),
    laws.YaRN(0.5),
    laws.YaRN(4, mscale=0, mscale_all_dim=1),
    laws.YaRN(40, mscale=0.8, mscale_all_dim=0.5, slope=0.2),
    laws.YaRN(16, attention_factor=1.5),
    laws.YaRN(40, mscale=0.707, mscale_all_dim=1.2, slope=0.1, channels="all"),
    laws.YaRN(40, mscale=0.707),
    laws.MLAYaRN(40, 0.707),
    laws.LongRoPE(512, 64),
    laws.LongRoPE(512, 64, attention_factor=1.2),
    laws.LongRoPE(4096, 32, attention_factor=1.1, channels="all"),
    laws.InfoScale(512),
    laws.Annealed(),
    laws.Annealed(64, least=1),
    laws.Annealed(64, variance=2.5),
    laws.Annealed(64, least=0.5, variance=2),
    laws.Annealed(variance=[0.5, 4]),
    laws.EntropyInvariant(),
    laws.EntropyInvariant(64, "gaussian", 0.5),
    laws.SparsityInvariant(),
    laws.SparsityInvariant(64, keys=3, least=0.5),
    laws.VarianceInvariant(),
    laws.VarianceInvariant(64, least=1),
    laws.VarianceInvariant(least=0.1),
    laws.Retrieval(4.624),
    laws.Retrieval(2.0, weight=0.9, least=1),
    laws.Retrieval(4.0, weight=0.9, least=0.5),
    laws.ScaleInvariant(),
    laws.ScaleInvariant(3),
    laws.AdaptiveTemperature(),
    laws.AdaptiveTemperature(threshold=1),
    laws.CriticalScale(),
    laws.NormSoftmax(),
    laws.NormSoftmax(gamma=2, least=0.5),
    laws.QKNormScale(512),
    laws.SwinV2(),
    laws.SwinV2(theta=9, most=50),
    laws.SwinV2(theta=[1.0, 9.0], most=50),
    laws.LSSA(),
]


@pytest.mark.parametrize(
    ("law", "n", "head_dim", "multiplier"),
    [
        (laws.Standard(), 32768, 64, 1.0),
        (laws.Unscaled(), 32768, 64, 8.0),
        (laws.Constant(144**-0.5), 32768, 128, 0.9428090415820634),
        (laws.PerHead(1.5), 7, 64, 1.5),
        (laws.LogN(), 512, 64, 1.0),
        (laws.LogN(), 32768, 64, 15 / 9),
        (laws.LogN(), 1, 64, 0.0),
        (laws.LogN(base=512, floor=16), 3, 64, 4 / 9),
        (laws.LogNFromTraining(8192), 32768, 64, 1.1538461538461537),  # as Qwen's, beyond 8192
        (laws.LogNFromTraining(8192), 8000, 64, 1.0),
        (laws.NaturalLogN(), 1024, 64, 6.931471805599453),
        (laws.Kappa(8.0), 1024, 64, 6.931471805599453),
        (laws.SSMax(), 1024, 64, 0.43 * 6.931471805599453),
        (laws.SSMax(s=1, b=-2), 1, 64, -2.0),
        (laws.SSMax(s=1, floor=2), 1, 64, 0.6931471805599453),
        (laws.MuP(), 32768, 64, 0.125),
        (laws.LayerIndex(0), 32768, 64, 1.0),
        (laws.LayerIndex(3), 32768, 64, 0.25),
        (laws.DisentangledScale(3), 32768, 64, 0.5773502691896258),
        (laws.LatentScale(6144, 1536), 1, 192, 2.0),
        (laws.QwenLogN(8192), 8192, 128, 1.0),
        (laws.GrokTemperature(1024), 1024, 128, 1.0),
        (laws.GrokTemperature(1024), 1024**2, 128, 2.0),
        (laws.GrokTemperature(1024), 0, 128, 1.0),
        (laws.Llama4Temperature(), 8191, 128, 1.0),
        (laws.MinistralTemperature(), 0, 128, 1.0),
        (laws.MinistralTemperature(), 16383, 128, 1.0),
        (laws.BeamTemperature(), 2048 * 1023, 128, 2.0),
        (laws.InklingTemperature(), 128000, 128, 1.0),
        (laws.InklingTemperature(floor=1000), 1000 * math.e**10, 128, 2.0),
        (laws.InklingTemperature(over_head_dim=True), 5, 64, 0.125),
        (laws.SelectiveTemperature(0.5), 1, 64, 1.0),
        (laws.SelectiveTemperature(0.5), 1024, 64, 1 + 5 * math.log(2)),
        (laws.LogPower(), 4096, 64, 1.0),
        (laws.LogPower(), 16384, 64, math.sqrt(7 / 6)),  # 1.0801 in Lumina 2
        (laws.LogPower(power=2), 64, 64, 0.25),
        (laws.LogPower(power=0.5), 1, 64, 0.0),
        (laws.LogPower(power=0), 1, 64, 1.0),
        (laws.NoPETemperature(0.25), 0, 64, 1.0),
        (laws.NoPETemperature(0.25), 2048, 64, 1.0),
        (laws.NoPETemperature(0.25), 16384, 64, 1 + 0.75 * math.log(2)),
        (laws.YaRN(1), 5, 64, 1.0),
        (laws.YaRN(0.5), 5, 64, 1.0),
        (laws.YaRN(16, attention_factor=1.0), 5, 64, 1.0),
        (laws.YaRN(40, mscale=1, mscale_all_dim=1), 5, 64, 1.0),
        (laws.MLAYaRN(1, 1), 5, 64, 1.0),
        (laws.MLAYaRN(40, 0), 5, 64, 1.0),
        (laws.LongRoPE(4096, 1), 5, 64, 1.0),
        (laws.LongRoPE(512, 64), 5, 64, 15 / 9),
        (laws.InfoScale(512), 512, 64, 1.0),
        (laws.InfoScale(512), 1, 64, 0.0),
        (laws.ScaleInvariant(), 0, 64, 1.0),
        (laws.ASEntmax(1, 0.5, 2), 2, 64, 1 + 0.5 * 0.6931471805599453**2),
        (laws.AdaptiveTemperature(), 3.0, 64, 2.25),
        (laws.AdaptiveTemperature(), 0.5, 64, 1.0),
        (laws.Annealed(), 512, 64, 1.0),
        (laws.Annealed(), 310, 64, 0.0),
        (laws.Annealed(least=1), 310, 64, 1.0),
        (laws.SparsityInvariant(), 512, 64, 1.0),
        (laws.SparsityInvariant(), 2, 64, 0.0),
        (laws.SparsityInvariant(least=0.5), 1, 64, 0.5),
        (laws.VarianceInvariant(), 512, 64, 1.0),
        (laws.VarianceInvariant(), 188, 64, 0.0),
        (laws.Retrieval(3), 1, 64, 0.0),
        (laws.Retrieval(3), 91, 64, 3.0),
        (laws.CriticalScale(), 2.5, 64, 2.5),
        (laws.NormSoftmax(gamma=3), 1.5, 64, 2.0),
        (laws.NormSoftmax(least=0.25), 0, 64, 4.0),
        (laws.QKNormScale(2), 512, 64, 0.125),
        (laws.QKNormScale(2**10), 512, 16, (10 + math.log2(1023)) / 4),
        (laws.SwinV2(), 49, 64, 10 / 8),
        (laws.SwinV2(theta=9), 49, 64, 100 / 8),
        (laws.SwinV2(theta=9, most=20), 49, 16, 5.0),
        (laws.LSSA(), 1, 64, 0.0),
        (laws.LSSA(), 1024, 64, 60 * math.log(2) ** 2 / 8),
    ],
)
def test_golden_values(law: laws.Law, n: int, head_dim: int, multiplier: float) -> None:
    assert law.multiplier(n, head_dim) == pytest.approx(multiplier, rel=1e-14)
    assert law.scale(n, head_dim) == pytest.approx(multiplier / math.sqrt(head_dim), rel=1e-14)
    assert isinstance(law.scale(n, head_dim), float)


@pytest.mark.parametrize(
    ("law", "n", "multiplier"),
    [
        (laws.QwenLogN(8192), 32768, 1.153846),
        (laws.Llama4Temperature(), 32768, 1.160944),  # i = n - 1, counted as i + 1
        (laws.MinistralTemperature(), 32767, 1.069315),  # i = n - 1
        (laws.YaRN(64), 1, 2.004740),
        (laws.YaRN(64, slope=0.07), 1, (0.07 * math.log(64) + 1) ** 2),
        (laws.YaRN(32), 1, 1.8133),  # gpt-oss: m = 1.3466
        (laws.YaRN(16), 1, 1.6313902),
        (laws.LongRoPE(512, 64), 1, 1.666667),
        (laws.ScaleInvariant(10), 32768, 4.146065),
        (laws.MLAYaRN(40, 1.0), 1, 1.873854),
        (laws.InfoScale(512), 1024, 1.049),
        (laws.InfoScale(512), 1048576, 1.409),
        (laws.Annealed(), 4096, 2.271),
        (laws.Annealed(), 1048576, 4.031),
        (laws.EntropyInvariant(), 1024, 1.58696),
        (laws.EntropyInvariant(), 4096, 2.43330),
        (laws.EntropyInvariant(), 32768, 3.47118),
        (laws.EntropyInvariant(), 1048576, 5.0405),
        (laws.EntropyInvariant(model="gaussian"), 32768, 3.168),
        (laws.SparsityInvariant(), 16384, 1.3314),
        (laws.VarianceInvariant(), 4096, 1.7548),
        (laws.VarianceInvariant(), 1048576, 2.9368),
        (laws.Retrieval(0.578 * 8), 512, 1.640),
        (laws.Retrieval(0.578 * 8), 32768, 3.858),
    ],
    ids=repr,
)
def test_values_of_the_literature(law: laws.Law, n: int, multiplier: float) -> None:
    digits = min(len(str(multiplier).split(".")[1]), 7)
    assert law.multiplier(n, 64) == pytest.approx(multiplier, abs=0.51 * 10**-digits)


def test_the_factor_of_yarn_before_it_is_squared() -> None:
    assert laws.YaRN(64).attention_scaling == pytest.approx(1.415888, abs=5e-7)
    assert laws.YaRN(16).attention_scaling == pytest.approx(1.2772588722, abs=5e-11)
    assert laws.YaRN(32).attention_scaling == pytest.approx(1.3466, abs=5e-5)
    # mscale alone, or 0, has no effect.
    for one in ({"mscale": 0.7}, {"mscale_all_dim": 0.7}, {"mscale": 0.7, "mscale_all_dim": 0}):
        assert laws.YaRN(64, **one).attention_scaling == laws.YaRN(64).attention_scaling
    both = laws.YaRN(40, mscale=0.707, mscale_all_dim=1.0).attention_scaling
    assert both == pytest.approx((0.0707 * math.log(40) + 1) / (0.1 * math.log(40) + 1), rel=1e-15)


def test_longrope_is_log_n_at_the_extended_length() -> None:
    """LongRoPE's factor squared, 1 + ln s / ln L, is log_L(s L)."""
    extended = laws.LogN(base=512).multiplier(64 * 512, 64)
    assert extended == pytest.approx(laws.LongRoPE(512, 64).multiplier(1, 64), rel=1e-15)


def test_the_selective_temperature_as_its_authors_write_it() -> None:
    """The factor is 1 + exp(-exp(x)) ln(row length), x = 1.5 at the start, as of SSMax with b = 1."""
    rows = np.arange(1, 41)
    s = np.random.default_rng(5).standard_normal((1, 40, 40))
    weights = np.exp(s * (1 + math.exp(-math.exp(1.5)) * np.log(rows))[:, None])
    weights = np.tril(weights) / np.tril(weights).sum(-1, keepdims=True)
    law = laws.SelectiveTemperature(math.exp(-math.exp(1.5)))
    # The score is q . k / sqrt(40): the query is the row of scores, the keys are unit vectors.
    q, k = s * math.sqrt(40), np.eye(40)[None]
    np.testing.assert_allclose(at.attention(q, k, k, scale=law, is_causal=True), weights, atol=1e-6)
    same = laws.SSMax(s=law.strength, b=1)
    np.testing.assert_array_equal(law.multiplier_at(rows, 64), same.multiplier_at(rows, 64))


def test_a_nope_temperature_of_one_over_ln_of_its_length_is_the_rule_of_grok() -> None:
    i = np.r_[0, 1, 511:515, 4096, 10**6]
    law, grok = laws.NoPETemperature(1 / math.log(512), train_length=512), laws.GrokTemperature(512)
    np.testing.assert_allclose(law.multiplier(i, 64), grok.multiplier(i, 64), rtol=1e-14)


def test_scale_invariant_in_the_notation_of_its_paper() -> None:
    t = np.array([0.0, 1.0, 10.0, 32768.0])
    law = laws.ScaleInvariant(tau=10)
    alpha = beta = math.exp(0.5)
    squared = 2 * (np.log(t / 10 + 1) - math.log(alpha) + beta / alpha)
    np.testing.assert_allclose(law.factor(t), np.sqrt(squared), rtol=1e-15)
    np.testing.assert_allclose(law.bias(t), -squared + beta / alpha, atol=1e-14)
    assert law.bias(32768) == pytest.approx(-16.189855, abs=5e-7)
    np.testing.assert_array_equal(law.factor(t), law.multiplier(t, 64))


@pytest.mark.parametrize("law", EXAMPLES, ids=repr)
def test_laws_are_their_twins(law: laws.Law) -> None:
    """test_core_laws.py compares laws of the core to the last digits."""
    n = np.array([2, 3, 5.5, 6, 100, 512, 8191, 8192, 8193, 16383, 16384, 16385, 32768, 2**20], float)
    invariant = law.name == "entropy_invariant"  # interpolated, and slow to solve
    for head_dim in (2, 64) if invariant else (2, 64, 192):
        n = n[[2, 4, 6, 13]] if invariant and n.size > 4 else n
        twin = at.reference.law_multiplier(law, n, head_dim)
        rtol = 1e-8 if invariant else 1e-12
        np.testing.assert_allclose(law.multiplier(n, head_dim), twin, rtol=rtol, atol=1e-14)


@pytest.mark.parametrize("d", [2, 64, 192])
def test_rearranged_formulas_are_those_of_the_sources(d: int) -> None:
    n = np.array([2, 3, 100, 512, 8192, 32768, 2**20], float)
    gap, noise = 4.624, np.log(n * 0.3 / 0.7)
    for law, written in {
        laws.InfoScale(512): np.sqrt((1 - n ** (-2 / d)) / (1 - 512 ** (-2 / d))),
        laws.BeamTemperature(): (1 + n / 2048) ** 0.1,
        laws.NoPETemperature(0.3): np.where(n >= 2048, 0.3 * np.log(n / 2048) + 1, 1),
        laws.Annealed(64, variance=2.5): np.sqrt(np.maximum(0, 1 + 2 * np.log(n / 64) / 2.5)),
        laws.VarianceInvariant(64): np.sqrt(np.maximum(0, 1 + np.log(n / 64))),
        laws.Retrieval(gap, weight=0.3): np.maximum(0, gap - np.sqrt(np.maximum(0, gap**2 - 2 * noise))),
        laws.QKNormScale(512): np.log2(512**2 - 512) / d**0.5,
    }.items():
        np.testing.assert_allclose(law.multiplier(n, d) * np.ones_like(n), written, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("law", EXAMPLES, ids=repr)
def test_laws_are_values(law: laws.Law) -> None:
    twin = eval(repr(law))
    assert twin == law
    assert hash(twin) == hash(law)
    assert law != laws.Constant(123.0)
    assert laws.from_json(law.to_json()) == law
    assert laws.from_dict(law.to_dict()) == law
    assert json.loads(law.to_json()) == law.to_dict()
    with pytest.raises(dataclasses.FrozenInstanceError):
        law.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("law", EXAMPLES, ids=repr)
def test_shapes(law: laws.Law) -> None:
    by_head = [x for x in dataclasses.astuple(law) if isinstance(x, tuple) and law.n_means != "row entropy"]
    heads = max(map(len, by_head), default=0)
    lead = (heads,) if heads else ()
    n = np.array([2, 3, 700])
    for values in (law.multiplier(n, 64), law.scale(n, 64)):
        assert values.shape == (*lead, 3)
        assert values.dtype == np.float64
    assert np.shape(law.scale(700, 64)) == ((heads, 1) if heads else ())
    np.testing.assert_allclose(np.asarray(law.scale(n, 64)) * 8, law.multiplier(n, 64), rtol=1e-15)
    last = np.asarray(law.scale(n, 64))[..., -1:]
    np.testing.assert_array_equal(last, np.reshape(law.scale(700, 64), (*lead, 1)))


@pytest.mark.parametrize("law", EXAMPLES, ids=repr)
def test_explanations_are_complete(law: laws.Law) -> None:
    text = laws.explain(law)
    assert text == law.explain()
    assert text.startswith(f"{law.name}: {law!r}")
    on_one_line = " ".join(text.split())
    for part in (law.formula, law.n_means, law.source, law.used_by, law.remark, *law.config_keys):
        assert " ".join(part.split()) in on_one_line
    assert "" not in (law.formula, law.source, law.used_by)
    assert ("channels" in text.split("  source")[0].split("\n", 1)[1]) == (law.channels != "all")
    assert ("  layers" in text) == (law.layers != "all")
    assert law.n_means in laws.MEANINGS_OF_N


def test_explanations_of_limits() -> None:
    assert "slows the growth" in laws.explain("log_n")
    for word in ("infinite", "median"):  # not the mean
        assert word in laws.explain("critical_scale")


@pytest.mark.parametrize("law", [laws.QKNormScale(512), laws.SwinV2(), laws.SwinV2([0.3, 7.0])], ids=repr)
def test_laws_of_the_cosine_multiply_it(law: laws.Law) -> None:
    """Scales for q and k of length sqrt(head_dim); for length 1 they are head_dim times as large."""
    q, k, v = np.random.default_rng(3).standard_normal((3, 2, 20, 16))
    rms = at.attention(q, k, v, scale=law, qk_norm="rms")
    factor = np.asarray(law.scale(20, 16))[..., None] * 16
    unit = [each / np.linalg.norm(each, axis=-1, keepdims=True) for each in (q, k)]
    cosine = factor * (unit[0] @ unit[1].swapaxes(1, 2))
    weights = np.exp(cosine - cosine.max(-1, keepdims=True))
    np.testing.assert_allclose(rms, weights @ v / weights.sum(-1, keepdims=True), atol=1e-5)
    assert factor.max() < 100 + 1e-9


def test_position_gives_n_to_the_laws_that_count_positions() -> None:
    law = laws.LogNFromTraining(10)
    np.testing.assert_array_equal(law.multiplier(1, 64, position=[0, 99]), law.multiplier([1, 100], 64))
    assert laws.LogN().multiplier(512, 64, position=3) == 1.0
    i = np.array([0, 16383, 16384])
    ministral = laws.MinistralTemperature()
    np.testing.assert_array_equal(ministral.multiplier(1, 64, position=i), ministral.multiplier(i, 64))
    entmax = laws.ASEntmax(1, 1, 1)
    np.testing.assert_array_equal(entmax.multiplier(2, 64, position=i), entmax.multiplier(i + 2, 64))


@pytest.mark.parametrize(
    ("name", "lengths"),
    [
        ("base", {"log_n", "log_power"}),
        ("n0", {"annealed", "entropy_invariant", "sparsity_invariant", "variance_invariant"}),
        ("length", {"grok_temperature", "ministral_temperature", "beam_temperature"}),
        ("train_length", {"log_n_from_training", "qwen_log_n", "nope_temperature", "longrope", "info_scale"}),
    ],
)
def test_a_law_names_its_length(name: str, lengths: set[str]) -> None:
    """A law of a shorter training length is larger at the same n."""
    named = {law.name: law for law in reversed(EXAMPLES) if law.length_parameter == name}  # the first of each
    assert named.keys() == lengths
    for law in named.values():
        shorter = dataclasses.replace(law, **{name: getattr(law, name) / 4})
        assert np.all(shorter.multiplier(2**20, 64) > law.multiplier(2**20, 64))


def test_n_of_a_causal_query() -> None:
    offsets = {
        type(law).__name__: law.n_of_position(7) - 7
        for law in EXAMPLES
        if law.n_means[:3] != "row" and law.n_means != "query-key distance"
    }
    offsets["NaturalLogN"] = laws.NaturalLogN().n_of_position(7) - 7
    zero = dict.fromkeys(("GrokTemperature", "MinistralTemperature", "NoPETemperature"), 0)
    for name, offset in offsets.items():
        assert offset == zero.get(name, 2 if name == "ASEntmax" else 1), name
    for law in (laws.ScaleInvariant(), *(laws.get(name) for name in MEASURED)):
        with pytest.raises(ValueError, match=f"law '{law.name}' has no n at a position: its n is "):
            law.n_of_position(7)


def test_channel_factors() -> None:
    m2 = laws.YaRN(16).multiplier(1, 8)
    np.testing.assert_array_equal(laws.YaRN(16).channel_factors(8, 2), [m2, m2, 1, 1, 1, 1, 1, 1])
    np.testing.assert_array_equal(laws.YaRN(16).channel_factors(4, slice(-2, None)), [1, 1, m2, m2])
    np.testing.assert_array_equal(laws.YaRN(16).channel_factors(3, [True, False, True]), [m2, 1, m2])
    np.testing.assert_array_equal(laws.LogN().channel_factors(3, 3, n=512**2), [2, 2, 2])


def test_names_and_get() -> None:
    ours = "standard unscaled constant per_head mup layer_index disentangled_scale latent_scale log_n "
    ours += "log_power log_n_from_training natural_log_n kappa qwen_log_n grok_temperature ssmax asentmax "
    ours += "llama4_temperature ministral_temperature beam_temperature inkling_temperature "
    ours += "selective_temperature nope_temperature yarn mla_yarn longrope info_scale annealed "
    ours += "entropy_invariant sparsity_invariant variance_invariant retrieval "
    ours += "scale_invariant adaptive_temperature critical_scale norm_softmax qk_norm_scale swin_v2 lssa"
    assert laws.names() == tuple(ours.split())
    assert laws.get("log_n", base=64) == laws.LogN(base=64)
    assert laws.get("constant", value=2) == laws.Constant(2.0)
    law = laws.SSMax()
    assert laws.get(law) is law


def test_registered_functions_are_laws() -> None:
    @laws.register("affine", n_means="row size")
    def affine(n: Any, head_dim: int, *, slope: float, offset: float = 1.0) -> Any:
        """slope * n + offset"""
        return slope * n + offset

    assert "affine" in laws.names()
    assert affine(2, 64, slope=3.0) == 7.0  # unchanged
    with pytest.raises(TypeError, match="needs slope"):
        laws.get("affine")
    law = laws.get("affine", slope=0.5)
    assert law == eval(repr(law))
    assert law == laws.from_json(law.to_json())
    assert law.scale(4, 64) == 3.0
    assert law.multiplier(4, 64) == 24.0
    assert law.n_means == "row size"
    assert "slope * n + offset" in law.explain()
    q, k = np.ones((2, 4, 1))
    rows = at.attention_statistics(q, k, scale=law, is_causal=True, statistics=("max_score",))
    np.testing.assert_allclose(rows.max_score, [1.5, 2.0, 2.5, 3.0], rtol=1e-15)

    @laws.register("affine")
    def replacement(n: Any, head_dim: int) -> Any:
        return 1.0

    assert laws.get("affine").scale(9, 64) == 1.0
    assert laws.get("affine").n_means == "visible keys"


def test_every_law_is_public() -> None:
    classes = {type(law) for law in EXAMPLES}
    assert {cls.__name__ for cls in classes} <= set(laws.__all__)
    assert {cls.name for cls in classes} == set(laws.names())


def test_the_invariant_law_keeps_entropy() -> None:
    n = np.array([600, 5000, 100000])
    for law in (laws.EntropyInvariant(), laws.EntropyInvariant(64), laws.EntropyInvariant(model="gaussian")):
        kept = at.theory.expected_entropy(n, law.multiplier(n, 64), model=law.model)
        np.testing.assert_allclose(kept, at.theory.expected_entropy(law.n0, 1, model=law.model), atol=1e-7)
    # The first order nearly keeps it, log_512 n does not.
    annealed = at.theory.expected_entropy(n, laws.Annealed().multiplier(n, 64))
    log_n = at.theory.expected_entropy(n, laws.LogN().multiplier(n, 64))
    start = at.theory.expected_entropy(512, 1)
    assert (annealed - start > [0.009, 0.3, 1.1]).all()
    assert (log_n - annealed > [0.1, 1.2, 2.5]).all()


def test_rows_that_are_too_short_for_the_entropy_get_equal_weights() -> None:
    shortest = math.exp(at.theory.expected_entropy(512, 1))  # 314.9
    law = laws.EntropyInvariant()
    np.testing.assert_array_equal(law.multiplier([1, 2, shortest * (1 - 1e-12)], 64), [0, 0, 0])
    assert 0 < law.multiplier(shortest + 0.1, 64) < 0.05
    assert (np.diff(law.multiplier(np.arange(315, 3000), 64)) > 0).all()


def test_every_length_of_a_causal_row() -> None:
    q, k = np.random.default_rng(1).standard_normal((2, 12, 700, 16))
    q, k = (4 * x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    rows = at.attention_entropy(q, k, scale=laws.EntropyInvariant(64), is_causal=True).mean(0)
    wanted = at.theory.expected_entropy(64, 1, head_dim=16)
    np.testing.assert_allclose(rows[:20], np.log(np.arange(1, 21)), atol=1e-12)
    # 1200 rows each, which share keys.
    np.testing.assert_allclose(rows[100:].reshape(6, 100).mean(-1), wanted, atol=0.1)
