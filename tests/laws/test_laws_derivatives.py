# SPDX-License-Identifier: BSD-3-Clause
"""Derivatives of scales by the parameters of their laws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from attnscale import laws

N = np.array([1.0, 2.0, 30.0, 63.9, 64.1, 500.0, 5000.0, 1e6])
#: Laws that cover all parameters, and their learnable parameters.
LEARNED: list[tuple[laws.Law, tuple[str, ...]]] = [
    (laws.Constant(0.3), ("value",)),
    (laws.PerHead([0.5, 2.0, 3.0]), ("values",)),
    (laws.PerHead(0.5), ("values",)),
    (laws.LogN(base=64), ("base",)),
    (laws.LogN(base=64, floor=40), ("base",)),
    (laws.LogNFromTraining(train_length=64), ("train_length",)),
    (laws.Kappa(kappa=1.2), ("kappa",)),
    (laws.get("qwen_log_n(train_length=64)"), ("train_length",)),
    (laws.GrokTemperature(length=64), ("length",)),
    (laws.SSMax(s=0.5, b=0.1), ("s", "b")),
    (laws.SSMax(s=[0.5, 0.7], b=0.1, floor=2), ("s", "b")),
    (laws.get("asentmax(delta=0.3, beta=0.4, gamma=1.5)"), ("delta", "beta", "gamma")),
    (laws.get("llama4_temperature(floor=64)"), ("a",)),
    (laws.get("ministral_temperature(length=64)"), ("beta",)),
    (laws.get("beam_temperature(length=64)"), ("exponent", "length")),
    (laws.get("inkling_temperature(floor=64)"), ("alpha",)),
    (laws.get("inkling_temperature(floor=64, over_head_dim=True)"), ("alpha",)),
    (laws.SelectiveTemperature(0.2), ("strength",)),
    (laws.SelectiveTemperature([0.2, 0.01]), ("strength",)),
    (laws.LogPower(), ("power", "base")),
    (laws.LogPower(power=1.3, base=64), ("power", "base")),
    (laws.NoPETemperature(0.3, train_length=64), ("slope", "train_length")),
    (laws.NoPETemperature([0.3, 0.7, -0.1], train_length=64), ("slope", "train_length")),
    (laws.get("info_scale(train_length=64)"), ("train_length",)),
    (laws.QKNormScale(64), ("train_length",)),
    (laws.SwinV2(theta=2.5), ("theta",)),
    (laws.SwinV2(theta=[1.0, 5.0, 3.0]), ("theta",)),
    (laws.NormSoftmax(gamma=1.5), ("gamma",)),
    (laws.Annealed(n0=64), ("n0",)),
    (laws.Annealed(n0=64, least=0.8), ("n0",)),
    (laws.Annealed(n0=64, variance=[0.5, 3.0]), ("n0",)),
    (laws.VarianceInvariant(n0=64), ("n0",)),
    (laws.VarianceInvariant(n0=64, least=0.8), ("n0",)),
    (laws.Retrieval(gap=4.0), ("gap",)),
    (laws.Retrieval(gap=4.0, least=2.0), ("gap",)),
    (1.5 * laws.LogN(base=64), ("amplitude", "base")),
    (laws.get("[0.5, 2] * ssmax(s=0.3, b=0.2)"), ("amplitude", "s", "b")),
]


def moved(law: laws.Law, name: str, by: float) -> Any:
    """Scale of the law with a parameter (of every head) times a factor."""
    holder: Any = law
    if isinstance(law, laws.Scaled) and name != "amplitude":
        return replace(law, law=replace(law.law, **{name: getattr(law.law, name) * by}))  # type: ignore[type-var]
    value = getattr(holder, name)
    larger = tuple(each * by for each in value) if isinstance(value, tuple) else value * by
    return replace(holder, **{name: larger})


@pytest.mark.parametrize(("law", "names"), LEARNED, ids=str)
@pytest.mark.parametrize("head_dim", [16, 128])
def test_derivatives_are_those_of_the_scale(law: laws.Law, names: tuple[str, ...], head_dim: int) -> None:
    n = N[law.meaning.least <= N]
    found = law.derivatives(n, head_dim)
    assert tuple(found) == names
    scale = np.asarray(law.scale(n, head_dim))
    for name, derivative in found.items():
        holder: Any = law.law if isinstance(law, laws.Scaled) and name != "amplitude" else law
        value = np.asarray(getattr(holder, name))
        value = value[:, None] if value.ndim else value
        step = 1e-5
        more, less = (np.asarray(moved(law, name, 1 + sign * step).scale(n, head_dim)) for sign in (1, -1))
        expected = (more - less) / (2 * step * value)
        assert np.shape(derivative) == scale.shape
        np.testing.assert_allclose(derivative, expected, rtol=1e-6, atol=1e-9)


def test_of_a_number_it_is_a_number() -> None:
    found = laws.SSMax(s=0.5).derivatives(1024, 64)
    assert {name: type(each) for name, each in found.items()} == {"s": float, "b": float}


def test_by_the_outer_of_two_amplitudes() -> None:
    law = 2.0 * (3.0 * laws.LogN(base=64))
    assert law.derivatives(64**2, 16) == {
        "amplitude": 1.5,
        "base": 2 * (3.0 * laws.LogN(base=64)).derivatives(64**2, 16)["base"],
    }


@pytest.mark.parametrize(
    "name", ["standard", "unscaled", "natural_log_n", "mup", "entropy_invariant", "sparsity_invariant"]
)
def test_laws_without_parameters_to_learn_have_none(name: str) -> None:
    assert laws.get(name).derivatives(1024, 64) == {}
