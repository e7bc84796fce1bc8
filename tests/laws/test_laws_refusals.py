# SPDX-License-Identifier: BSD-3-Clause
"""Refusals of laws and their registry, and their messages."""

from __future__ import annotations

import math
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import laws

VALUES = [
    (lambda: laws.LogN(base=1), "base must be greater than 1, got 1"),
    (lambda: laws.LogN(floor=0.5), "floor must be at least 1, got 0.5"),
    (lambda: laws.LogN(base=math.inf), "base must be finite, got inf"),
    (lambda: laws.LogNFromTraining(1), "train_length must be greater than 1, got 1"),
    (lambda: laws.Kappa(math.nan), "kappa must be finite, got nan"),
    (lambda: laws.SSMax(s=[]), "s must be a number or one number a head, got shape (0,)"),
    (lambda: laws.SSMax(b=[[1.0]]), "b must be a number or one number a head, got shape (1, 1)"),
    (lambda: laws.PerHead([1.0, math.nan]), "values must be finite, got nan"),
    (lambda: laws.LogN().scale(0, 64), "n must be at least 1, got 0.0"),
    (lambda: laws.LogN().scale([3, math.nan], 64), "n must be at least 1, got nan"),
    (lambda: laws.LogN().scale([3, math.inf], 64), "n must be finite, got inf"),
    (lambda: laws.get("mup").multiplier(math.inf, 64), "n must be finite, got inf"),
    (lambda: laws.LogN().scale(5, 0), "head_dim must be at least 1, got 0"),
    (lambda: laws.QwenLogN(0), "train_length must be greater than 1, got 0"),
    (lambda: laws.GrokTemperature(1), "length must be greater than 1, got 1"),
    (lambda: laws.GrokTemperature(9).scale(-1, 8), "n must be at least 0, got -1.0"),
    (lambda: laws.LayerIndex(-1), "layer must be at least 0, got -1"),
    (lambda: laws.DisentangledScale(0), "terms must be at least 1, got 0"),
    (lambda: laws.LatentScale(0, 5), "hidden must be greater than 0, got 0"),
    (lambda: laws.LatentScale(5, -1), "rank must be greater than 0, got -1"),
    (lambda: laws.LatentScale(5, 1, "rotated"), "channels must be one of 'latent', 'all', got"),
    (lambda: laws.QKNormScale(1), "train_length must be at least 2, got 1"),
    (lambda: laws.SwinV2(most=0), "most must be greater than 0, got 0"),
    (lambda: laws.NormSoftmax(least=0), "least must be greater than 0, got 0"),
    (lambda: laws.SSMax(floor=0), "floor must be at least 1, got 0"),
    (lambda: laws.ASEntmax(1, [], 1), "beta must be a number or one number a head, got shape"),
    (lambda: laws.ASEntmax(1, 1, 1).scale(1, 8), "n must be at least 2, got 1.0"),
    (lambda: laws.Llama4Temperature(floor=0), "floor must be greater than 0, got 0"),
    (lambda: laws.Llama4Temperature(a=math.nan), "a must be finite, got nan"),
    (lambda: laws.MinistralTemperature(length=-5), "length must be greater than 0, got -5"),
    (lambda: laws.BeamTemperature(length=0), "length must be greater than 0, got 0"),
    (lambda: laws.InklingTemperature(floor=0), "floor must be greater than 0, got 0"),
    (lambda: laws.SelectiveTemperature(math.inf), "strength must be finite, got inf"),
    (lambda: laws.LogPower(power=-0.5), "power must be at least 0, got -0.5"),
    (lambda: laws.LogPower(base=1), "base must be greater than 1, got 1"),
    (lambda: laws.NoPETemperature(0.3, train_length=0), "train_length must be greater than 0, got 0"),
    (lambda: laws.NoPETemperature([]), "slope must be a number or one number a head, got sh"),
    (lambda: laws.YaRN(0), "factor must be greater than 0, got 0"),
    (lambda: laws.YaRN(-2), "factor must be greater than 0, got -2"),
    (lambda: laws.YaRN(2, attention_factor=-1), "attention_factor must be at least 0, got -1"),
    (lambda: laws.YaRN(2, channels="latent"), "channels must be one of 'rotated', 'all', got"),
    (lambda: laws.MLAYaRN(0, 1), "factor must be greater than 0, got 0"),
    (lambda: laws.LongRoPE(1, 2), "train_length must be greater than 1, got 1"),
    (lambda: laws.LongRoPE(9, 0), "factor must be greater than 0, got 0"),
    (lambda: laws.InfoScale(1), "train_length must be greater than 1, got 1"),
    (lambda: laws.Annealed(0.5), "n0 must be at least 1, got 0.5"),
    (lambda: laws.Annealed(variance=0), "variance must be greater than 0, got 0"),
    (lambda: laws.EntropyInvariant(1), "n0 must be at least 2, got 1"),
    (lambda: laws.EntropyInvariant(model="cube"), "model must be one of 'sphere', "),
    (lambda: laws.EntropyInvariant(least=-1), "least must be at least 0, got -1"),
    (lambda: laws.ScaleInvariant(0), "tau must be greater than 0, got 0"),
    (lambda: laws.ScaleInvariant().bias(-1), "distance must be at least 0, got -1.0"),
    (lambda: laws.AdaptiveTemperature(coefficients=3), "coefficients must be numbers along one"),
    (lambda: laws.LogN().n_of_position(-1), "position must be at least 0, got -1.0"),
    (lambda: laws.LogN().n_of_position(2**63 - 1), "position must be at most 2^53"),
    (lambda: laws.from_json("{"), "a stored law is JSON, got '{': "),
    (lambda: laws.from_dict({"nam": 1}), "a stored law has the entries 'name' and 'parameters', got"),
    (lambda: laws.from_dict({"name": "no"}), "the name of a law must be one of"),
    (lambda: laws.get("sqrt"), "the name of a law must be one of 'standard', 'unscaled'"),
    (lambda: laws.get("log"), "did you mean 'log_n'? the name of a law must be one of"),
    (lambda: laws.get("ssmax(0.4)"), "a law is written NAME or NAME(parameter=value, ...), got 'ssmax(0.4)'"),
    (
        lambda: laws.get("log_n(base=512, base=3)"),
        "law 'log_n' must have each parameter once, got 'base' twice",
    ),
    (lambda: laws.get("nan"), "value must be finite, got nan"),
    (
        lambda: laws.CriticalScale().multiplier_at(512, 64),
        "law 'critical_scale' has no n at a position: its n is sup over t > 0 of",
    ),
    (lambda: laws.LogN().multiplier_at([3, 0], 64), "n_keys must be at least 1, got 0.0"),
    (lambda: laws.register("log_n"), "name must not be one of this package's laws, got 'log_n'"),
    (lambda: laws.register(""), "name must not be empty"),
    (lambda: laws.register("x", n_means="all"), "n_means must be one of 'visible keys'"),
    (lambda: laws.SparsityInvariant(2), "n0 must be greater than 2, got 2"),
    (lambda: laws.SparsityInvariant(keys=0), "keys must be greater than 0, got 0"),
    (lambda: laws.VarianceInvariant(0), "n0 must be at least 1, got 0"),
    (lambda: laws.Retrieval(0), "gap must be greater than 0, got 0"),
    (lambda: laws.Retrieval(4, weight=1), "weight must be in (0, 1), got 1"),
]
KINDS = [
    (lambda: laws.LogN(base="e"), "base must be a number, got 'e'"),
    (lambda: laws.Constant(True), "value must be a number, got True"),
    (lambda: laws.PerHead(None), "values must be a number, got None"),
    (lambda: laws.LayerIndex(1.5), "layer must be an integer, got 1.5"),
    (lambda: laws.LayerIndex(True), "layer must be an integer, got True"),
    (lambda: laws.InklingTemperature(over_head_dim=1), "over_head_dim must be True or False, got 1"),
    (lambda: laws.YaRN(None), "factor must be a number, got None"),
    (lambda: laws.from_json("[]"), "a stored law is a mapping with 'name' and 'parameters', got []"),
    (lambda: laws.from_dict({"name": "log_n", "parameters": 3}), "the parameters of a stored law"),
    (lambda: laws.get("ssmax(a=1)"), "law 'ssmax' has no parameter 'a'"),
    (
        lambda: laws.get("ssmax(s=1)", s=2),
        "parameters stand in the name or beside it, got 'ssmax(s=1)' and ['s']",
    ),
    (lambda: laws.get("kappa"), "law 'kappa' needs kappa: 'kappa(kappa=...)'"),
    (
        lambda: laws.get("log_n", bas=2),
        "did you mean 'base'? law 'log_n' has no parameter 'bas'; its parameters: base, floor",
    ),
    (lambda: laws.get("standard", s=2), "law 'standard' has no parameter 's'; its parameters: none"),
    (lambda: laws.get(True), "a law is a Law, a number, a name or a spelling such as"),
    (lambda: laws.get(0.5, s=3), "parameters go with a law's name, got 0.5 and ['s']"),
    (lambda: laws.get(laws.LogN(), base=3), "parameters go with a law's name, got LogN"),
    (lambda: laws.register("x")(lambda n: n), "a law is a function (n, head_dim, *, parameters), got"),
]


@pytest.mark.parametrize(
    ("make", "message", "error"),
    [*((*each, ValueError) for each in VALUES), *((*each, TypeError) for each in KINDS)],
)
def test_mistakes_are_explained(make: Any, message: str, error: type[Exception]) -> None:
    with pytest.raises(error) as raised:
        make()
    assert str(raised.value).startswith(message)


MASKED = np.ma.masked_array([3.0, 5.0], [False, True])


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("n", lambda: laws.LogN().multiplier(MASKED, 64)),
        ("n", lambda: laws.LogN().scale(MASKED, 64)),
        ("n", lambda: laws.SSMax().derivatives(MASKED, 64)),
        ("n_keys", lambda: laws.LogN().multiplier_at(MASKED, 64)),
        ("position", lambda: laws.LogN().n_of_position(MASKED)),
        ("position", lambda: laws.Llama4Temperature().multiplier(1, 64, position=MASKED)),
        ("distance", lambda: laws.get("scale_invariant").bias(MASKED)),
        ("distance", lambda: laws.get("scale_invariant").factor(MASKED)),
        ("scores", lambda: laws.CriticalScale.measure(MASKED)),
        ("scores", lambda: laws.NormSoftmax.measure(MASKED)),
    ],
)
def test_the_mask_of_an_array_is_not_dropped(name: str, call: Any) -> None:
    with pytest.raises(TypeError, match=f"^{name} is a masked array, whose mask would be lost; "):
        call()


def test_a_calibrator_drops_no_mask() -> None:
    query, key = np.random.default_rng(0).standard_normal((2, 2, 16, 4))
    model = at.LawCalibrator(n0=8, lengths=[8, 16], laws=["log_n"]).fit(query, key)
    with pytest.raises(TypeError, match="lengths is a masked array"):
        model.predict(MASKED)
