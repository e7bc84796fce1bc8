# SPDX-License-Identifier: BSD-3-Clause
"""Scale laws: golden values, parameters, registry."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import attnscale as at
import numpy as np
import pytest
from attnscale import laws
from attnscale.laws import *  # noqa: F403  # so that every repr evaluates

EXAMPLES: list[laws.Law] = [
    laws.Standard(),
    laws.Unscaled(),
    laws.Constant(144**-0.5),
    laws.PerHead([0.5, 2.0]),
    laws.PerHead(1.5),
    laws.LogN(),
    laws.LogN(base=1024, floor=16),
    laws.LogNFromTraining(8192),
    laws.NaturalLogN(),
    laws.Kappa(2.5),
    laws.SSMax(),
    laws.SSMax(s=[0.4, 0.5, 0.6], b=0.1),
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
    ],
)
def test_golden_values(law: laws.Law, n: int, head_dim: int, multiplier: float) -> None:
    assert law.multiplier(n, head_dim) == pytest.approx(multiplier, rel=1e-14)
    assert law.scale(n, head_dim) == pytest.approx(multiplier / math.sqrt(head_dim), rel=1e-14)
    assert isinstance(law.scale(n, head_dim), float)


def test_longrope_is_log_n_at_the_training_length() -> None:
    """LongRoPE's factor squared, 1 + ln s / ln L, is log_L(s L)."""
    assert laws.LogN(base=512).multiplier(64 * 512, 64) == pytest.approx(1.666667, abs=5e-7)


@pytest.mark.parametrize("law", EXAMPLES, ids=repr)
def test_laws_are_values(law: laws.Law) -> None:
    twin = eval(repr(law))
    assert twin == law
    assert hash(twin) == hash(law)
    assert law != laws.Constant(123.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        law.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("law", EXAMPLES, ids=repr)
def test_shapes(law: laws.Law) -> None:
    heads = max((len(x) for x in dataclasses.astuple(law) if isinstance(x, tuple)), default=0)
    lead = (heads,) if heads else ()
    n = np.array([1, 2, 700])
    for values in (law.multiplier(n, 64), law.scale(n, 64)):
        assert values.shape == (*lead, 3)
        assert values.dtype == np.float64
    assert np.shape(law.scale(700, 64)) == ((heads, 1) if heads else ())
    np.testing.assert_allclose(np.asarray(law.scale(n, 64)) * 8, law.multiplier(n, 64), rtol=1e-15)
    np.testing.assert_array_equal(
        np.asarray(law.scale(n, 64))[..., -1:], np.reshape(law.scale(700, 64), (*lead, 1))
    )


@pytest.mark.parametrize("law", EXAMPLES, ids=repr)
def test_explanations_are_complete(law: laws.Law) -> None:
    text = laws.explain(law)
    assert text == law.explain()
    assert text.startswith(f"{law.name}: {law!r}")
    for part in (law.formula, law.n_means, law.source, law.used_by):
        assert len(part) > 0
        assert part in text
    assert law.n_means in laws.MEANINGS_OF_N


def test_why_log_n_is_not_enough() -> None:
    assert "slows the growth" in laws.explain("log_n")


def test_position_gives_n_to_the_laws_that_count_positions() -> None:
    law = laws.LogNFromTraining(10)
    np.testing.assert_array_equal(law.multiplier(1, 64, position=[0, 99]), law.multiplier([1, 100], 64))
    assert laws.LogN().multiplier(512, 64, position=3) == 1.0


def test_names_and_get() -> None:
    assert laws.names()[:9] == (
        "standard",
        "unscaled",
        "constant",
        "per_head",
        "log_n",
        "log_n_from_training",
        "natural_log_n",
        "kappa",
        "ssmax",
    )
    assert laws.get("log_n", base=64) == laws.LogN(base=64)
    assert laws.get("constant", value=2) == laws.Constant(2.0)
    law = laws.SSMax()
    assert laws.get(law) is law


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
        (lambda: laws.LogN().scale(5, 0), ValueError, "head_dim must be at least 1, got 0"),
        (lambda: laws.get("log"), ValueError, "the name of a law must be one of 'standard', 'unscaled'"),
        (lambda: laws.get("kappa"), TypeError, "law 'kappa' needs kappa: laws.get('kappa', kappa=...)"),
        (
            lambda: laws.get("log_n", bas=2),
            TypeError,
            "law 'log_n' has no parameter 'bas'; its parameters: base, floor",
        ),
        (
            lambda: laws.get("standard", s=2),
            TypeError,
            "law 'standard' has no parameter 's'; its parameters: none",
        ),
        (lambda: laws.get(3), TypeError, "a law is a Law or the name of one, got 3"),
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
    assert {cls.name for cls in classes} <= set(laws.names())
