# SPDX-License-Identifier: BSD-3-Clause
"""What laws and their registry refuse, and what they say."""

from __future__ import annotations

import math
from typing import Any

import pytest
from attnscale import laws


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: laws.LogN(base=1), ValueError, "base must be greater than 1, got 1"),
        (lambda: laws.LogN(floor=0.5), ValueError, "floor must be at least 1, got 0.5"),
        (lambda: laws.LogN(base="e"), TypeError, "base must be a number, got 'e'"),
        (lambda: laws.LogN(base=math.inf), ValueError, "base must be finite, got inf"),
        (lambda: laws.LogNFromTraining(1), ValueError, "train_length must be greater than 1, got 1"),
        (lambda: laws.Kappa(math.nan), ValueError, "kappa must be finite, got nan"),
        (lambda: laws.Constant(True), TypeError, "value must be a number, got True"),
        (lambda: laws.SSMax(s=[]), ValueError, "s must be a number or one number a head, got shape (0,)"),
        (
            lambda: laws.SSMax(b=[[1.0]]),
            ValueError,
            "b must be a number or one number a head, got shape (1, 1)",
        ),
        (lambda: laws.PerHead([1.0, math.nan]), ValueError, "values must be finite, got nan"),
        (lambda: laws.PerHead(None), TypeError, "values must be a number, got None"),
        (lambda: laws.LogN().scale(0, 64), ValueError, "n must be at least 1, got 0.0"),
        (lambda: laws.LogN().scale([3, math.nan], 64), ValueError, "n must be at least 1, got nan"),
        (lambda: laws.LogN().scale([3, math.inf], 64), ValueError, "n must be finite, got inf"),
        (lambda: laws.get("mup").multiplier(math.inf, 64), ValueError, "n must be finite, got inf"),
        (lambda: laws.LogN().scale(5, 0), ValueError, "head_dim must be at least 1, got 0"),
        (lambda: laws.QwenLogN(0), ValueError, "train_length must be greater than 1, got 0"),
        (lambda: laws.GrokTemperature(1), ValueError, "length must be greater than 1, got 1"),
        (lambda: laws.GrokTemperature(9).scale(-1, 8), ValueError, "n must be at least 0, got -1.0"),
        (lambda: laws.LayerIndex(-1), ValueError, "layer must be at least 0, got -1"),
        (lambda: laws.LayerIndex(1.5), TypeError, "layer must be an integer, got 1.5"),
        (lambda: laws.LayerIndex(True), TypeError, "layer must be an integer, got True"),
        (lambda: laws.DisentangledScale(0), ValueError, "terms must be at least 1, got 0"),
        (lambda: laws.LatentScale(0, 5), ValueError, "hidden must be greater than 0, got 0"),
        (lambda: laws.LatentScale(5, -1), ValueError, "rank must be greater than 0, got -1"),
        (
            lambda: laws.LatentScale(5, 1, "rotated"),
            ValueError,
            "channels must be one of 'latent', 'all', got",
        ),
        (lambda: laws.QKNormScale(1), ValueError, "train_length must be at least 2, got 1"),
        (lambda: laws.SwinV2(most=0), ValueError, "most must be greater than 0, got 0"),
        (lambda: laws.NormSoftmax(least=0), ValueError, "least must be greater than 0, got 0"),
        (lambda: laws.SSMax(floor=0), ValueError, "floor must be at least 1, got 0"),
        (
            lambda: laws.ASEntmax(1, [], 1),
            ValueError,
            "beta must be a number or one number a head, got shape",
        ),
        (lambda: laws.ASEntmax(1, 1, 1).scale(1, 8), ValueError, "n must be at least 2, got 1.0"),
        (lambda: laws.Llama4Temperature(floor=0), ValueError, "floor must be greater than 0, got 0"),
        (lambda: laws.Llama4Temperature(a=math.nan), ValueError, "a must be finite, got nan"),
        (lambda: laws.MinistralTemperature(length=-5), ValueError, "length must be greater than 0, got -5"),
        (lambda: laws.BeamTemperature(length=0), ValueError, "length must be greater than 0, got 0"),
        (lambda: laws.InklingTemperature(floor=0), ValueError, "floor must be greater than 0, got 0"),
        (
            lambda: laws.InklingTemperature(over_head_dim=1),
            TypeError,
            "over_head_dim must be True or False, got 1",
        ),
        (lambda: laws.SelectiveTemperature(math.inf), ValueError, "strength must be finite, got inf"),
        (
            lambda: laws.NoPETemperature(0.3, train_length=0),
            ValueError,
            "train_length must be greater than 0, got 0",
        ),
        (lambda: laws.NoPETemperature([]), ValueError, "slope must be a number or one number a head, got sh"),
        (lambda: laws.YaRN(0), ValueError, "factor must be greater than 0, got 0"),
        (lambda: laws.YaRN(-2), ValueError, "factor must be greater than 0, got -2"),
        (lambda: laws.YaRN(None), TypeError, "factor must be a number, got None"),
        (
            lambda: laws.YaRN(2, attention_factor=-1),
            ValueError,
            "attention_factor must be at least 0, got -1",
        ),
        (
            lambda: laws.YaRN(2, channels="latent"),
            ValueError,
            "channels must be one of 'rotated', 'all', got",
        ),
        (lambda: laws.MLAYaRN(0, 1), ValueError, "factor must be greater than 0, got 0"),
        (lambda: laws.LongRoPE(1, 2), ValueError, "train_length must be greater than 1, got 1"),
        (lambda: laws.LongRoPE(9, 0), ValueError, "factor must be greater than 0, got 0"),
        (lambda: laws.InfoScale(1), ValueError, "train_length must be greater than 1, got 1"),
        (lambda: laws.Annealed(0.5), ValueError, "n0 must be at least 1, got 0.5"),
        (lambda: laws.Annealed(variance=0), ValueError, "variance must be greater than 0, got 0"),
        (lambda: laws.EntropyInvariant(1), ValueError, "n0 must be at least 2, got 1"),
        (
            lambda: laws.EntropyInvariant(model="cube"),
            ValueError,
            "model must be one of 'sphere', ",
        ),
        (lambda: laws.EntropyInvariant(least=-1), ValueError, "least must be at least 0, got -1"),
        (lambda: laws.ScaleInvariant(0), ValueError, "tau must be greater than 0, got 0"),
        (lambda: laws.ScaleInvariant().bias(-1), ValueError, "distance must be at least 0, got -1.0"),
        (
            lambda: laws.AdaptiveTemperature(coefficients=3),
            ValueError,
            "coefficients must be numbers along one",
        ),
        (lambda: laws.LogN().n_of_position(-1), ValueError, "position must be at least 0, got -1.0"),
        (lambda: laws.LogN().n_of_position(2**63 - 1), ValueError, "position must be at most 2^53"),
        (lambda: laws.from_json("{"), ValueError, "a stored law is JSON, got '{': "),
        (
            lambda: laws.from_json("[]"),
            TypeError,
            "a stored law is a mapping with 'name' and 'parameters', got []",
        ),
        (
            lambda: laws.from_dict({"nam": 1}),
            ValueError,
            "a stored law has the entries 'name' and 'parameters', got",
        ),
        (
            lambda: laws.from_dict({"name": "log_n", "parameters": 3}),
            TypeError,
            "the parameters of a stored law",
        ),
        (lambda: laws.from_dict({"name": "no"}), ValueError, "the name of a law must be one of"),
        (lambda: laws.get("sqrt"), ValueError, "the name of a law must be one of 'standard', 'unscaled'"),
        (lambda: laws.get("log"), ValueError, "did you mean 'log_n'? the name of a law must be one of"),
        (
            lambda: laws.get("ssmax(0.4)"),
            ValueError,
            "a law is written NAME or NAME(parameter=value, ...), got 'ssmax(0.4)'",
        ),
        (
            lambda: laws.get("log_n(base=512, base=3)"),
            ValueError,
            "law 'log_n' must have each parameter once, got 'base' twice",
        ),
        (lambda: laws.get("ssmax(a=1)"), TypeError, "law 'ssmax' has no parameter 'a'"),
        (
            lambda: laws.get("ssmax(s=1)", s=2),
            TypeError,
            "parameters stand in the name or beside it, got 'ssmax(s=1)' and ['s']",
        ),
        (lambda: laws.get("kappa"), TypeError, "law 'kappa' needs kappa: 'kappa(kappa=...)'"),
        (
            lambda: laws.get("log_n", bas=2),
            TypeError,
            "did you mean 'base'? law 'log_n' has no parameter 'bas'; its parameters: base, floor",
        ),
        (
            lambda: laws.get("standard", s=2),
            TypeError,
            "law 'standard' has no parameter 's'; its parameters: none",
        ),
        (lambda: laws.get(True), TypeError, "a law is a Law, a number, a name or a spelling such as"),
        (lambda: laws.get("nan"), ValueError, "value must be finite, got nan"),
        (lambda: laws.get(0.5, s=3), TypeError, "parameters go with a law's name, got 0.5 and ['s']"),
        (
            lambda: laws.CriticalScale().multiplier_at(512, 64),
            ValueError,
            "law 'critical_scale' has no n at a position: its n is sup over t > 0 of",
        ),
        (lambda: laws.LogN().multiplier_at([3, 0], 64), ValueError, "n_keys must be at least 1, got 0.0"),
        (lambda: laws.get(laws.LogN(), base=3), TypeError, "parameters go with a law's name, got LogN"),
        (
            lambda: laws.register("log_n"),
            ValueError,
            "name must not be one of this package's laws, got 'log_n'",
        ),
        (lambda: laws.register(""), ValueError, "name must not be empty"),
        (lambda: laws.register("x", n_means="all"), ValueError, "n_means must be one of 'visible keys'"),
        (
            lambda: laws.register("x")(lambda n: n),
            TypeError,
            "a law is a function (n, head_dim, *, parameters), got",
        ),
    ],
)
def test_mistakes_are_explained(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        make()
    assert str(raised.value).startswith(message)
