# SPDX-License-Identifier: BSD-3-Clause
"""Laws in the core: values against NumPy, names and refusals against Python."""

from __future__ import annotations

import dataclasses
import re

import attnscale as at
import numpy as np
import pytest
from attnscale.laws import _base, _registry
from attnscale.reference import law_multiplier as multiplier
from cases import compiled as _core
from test_laws import EXAMPLES

#: Laws that are missing in C++, without a closed form of one number for each parameter, and the reason.
ELSEWHERE = {
    "per_head": "one number a head: a scale for each head",
    "entropy_invariant": "the solution of an equation: a table of multipliers",
    "adaptive_temperature": "a polynomial of any degree: a table of multipliers",
}

#: Examples with one number for each parameter, which C++ reads, and spellings that are not the shortest.
SPELLINGS = [
    *("constant(value=0.3)", "0.125", "constant(value=-2)"),
    *(law.spelling for law in EXAMPLES if isinstance(law, _base.ClosedForm) and law._in_core),
]
SPELLINGS = [each for each in SPELLINGS if "channels" not in each]


#: Laws with one number for each head, which have no spelling in C++.
BY_HEAD = [
    at.laws.SSMax(s=[0.4, 0.5, 0.6], b=0.1),
    at.laws.SSMax(s=0.3, b=[0.1, -2.0, 7.0], floor=3),
    at.laws.SSMax(s=[0.4, 0.5, 0.6], b=[2.0]),
    at.laws.ASEntmax(1, [0.5, 0.7, 2.0], [1, -1, 0.5]),
    at.laws.Annealed(variance=[0.5, 4.0, 1.0]),
    at.laws.SwinV2(theta=[1.0, 9.0, -1.0], most=50),
    at.laws.SelectiveTemperature([0.01, 0.5, 0.0]),
    at.laws.NoPETemperature([0.1, 0.3, -0.2], train_length=100),
]


def test_every_law_is_there_or_has_a_reason() -> None:
    assert [*_core.law_names()] == [name for name in at.laws.names() if name not in ELSEWHERE]
    assert {at.laws.get(each).name for each in SPELLINGS} == {*_core.law_names()}
    for name in (*_core.law_names(), *ELSEWHERE):
        is_closed = issubclass(_registry.class_of(name) or object, _base.ClosedForm)
        assert is_closed == (name not in ELSEWHERE), name


@pytest.mark.parametrize("name", _core.law_names())
def test_parameters_have_the_same_names_and_order(name: str) -> None:
    found = [each.name for each in dataclasses.fields(_registry.class_of(name)) if each.name != "channels"]  # type: ignore[arg-type]
    assert _core.law_parameters(name) == found


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_values_meaning_and_spelling(spelling: str) -> None:
    law = at.laws.get(spelling)
    assert _core.law_identity(spelling) == (law.spelling, law.n_means)
    n = np.r_[max(law.meaning.least, 1) : 70, 511, 512, 513, 4096.0, 1e6, 1e12]
    for head_dim in (1, 64, 192):
        expected = multiplier(law, n, head_dim)
        np.testing.assert_allclose(law.multiplier(n, head_dim), expected, rtol=4e-15, atol=1e-300)
        expected = expected / np.sqrt(head_dim)
        np.testing.assert_allclose(law.scale(n, head_dim), expected, rtol=4e-15, atol=1e-300)


@pytest.mark.parametrize("law", BY_HEAD, ids=repr)
def test_one_number_a_head(law: at.laws.Law) -> None:
    n = np.random.default_rng(5).integers(2, 5000, (2, 3, 4)).astype(float)
    views = (n, n[:, :1], n[0], n[0, :1], n[0, 0], n[0, 0, 0], n[:, :, :0], n[:, ::-1])
    for counts in (*views, np.asfortranarray(n)):
        expected = multiplier(law, counts, 64)
        found = law.multiplier(counts, 64)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=4e-15)
    with pytest.raises(ValueError, match=r"^n must fit the parameters' 3 heads, got 2 of them$"):
        law.multiplier(n[0, :2], 64)


def test_heads_that_do_not_fit_each_other() -> None:
    with pytest.raises(
        ValueError, match=r"^parameters with one number per head must have the same length, got 2 and 3$"
    ):
        at.laws.SSMax(s=[1, 2], b=[1, 2, 3]).multiplier(5, 64)


def test_the_quantile_keeps_its_digits_at_both_ends() -> None:
    """Values where keys / n is near 1/2, and where it is tiny."""
    law = at.laws.SparsityInvariant(n0=2001.0, keys=1000.0)
    n = np.r_[2000 + 10.0 ** np.arange(-6, 4), 10.0 ** np.arange(5, 300, 7)]
    np.testing.assert_allclose(law.multiplier(n, 64), multiplier(law, n, 64), rtol=4e-15)


def test_counts_of_any_memory() -> None:
    law, n = at.laws.LogN(), np.arange(1.0, 25).reshape(2, 3, 4)
    expected = np.log(n) / np.log(512)
    for counts in (n, np.asfortranarray(n), n[::-1, :, ::-2], n.astype(np.int32), n.tolist(), n[:0]):
        wanted = np.log(np.asarray(counts, float)) / np.log(512)
        np.testing.assert_allclose(law.multiplier(counts, 64), wanted, rtol=4e-15)
    np.testing.assert_array_equal(n, np.arange(1.0, 25).reshape(2, 3, 4))
    assert law.multiplier(n, 64).shape == expected.shape


@pytest.mark.parametrize(
    "spelling",
    [
        *("log_n(base=1)", "log_n(floor=0.5)", "log_n(bas=3)", "kappa", "kappa()", "log_n(", "log_n(512)"),
        *("constant(value=1e999)", "layer_index(layer=-1)", "yarn(factor=0)", "yarn(factor=4, mscale=-1)"),
        *("retrieval(gap=4, weight=1)", "sparsity_invariant(n0=2)", "qk_norm_scale(train_length=1)"),
    ],
)
def test_refusals_say_what_pythons_do(spelling: str) -> None:
    """Messages are Python's without its "did you mean"."""
    with pytest.raises((ValueError, TypeError)) as python:
        at.laws.get(spelling)
    said = re.sub(r"^did you mean '\w+'\? ", "", str(python.value))
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        _core.law_identity(spelling)


def test_other_refusals() -> None:
    for spelling, said in {
        "log_m": "law must be one of 'standard', 'unscaled', ",
        "inkling_temperature(over_head_dim=1)": "over_head_dim must be True or False, got 1",
        "layer_index(layer=1.5)": "layer must be an integer, got 1.5",
        "log_n(base=0x10)": "base must be a number, got 0x10",
    }.items():
        with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
            _core.law_identity(spelling)
    wrong = {
        "n must be at least 1, got 0": ("log_n", (512.0, 1.0), np.zeros(1), 64, True),
        "head_dim must be at least 1, got 0": ("log_n", (512.0, 1.0), np.ones(1), 0, False),
        "head_dim must be an integer, got 64.5": ("log_n", (512.0, 1.0), np.ones(1), 64.5, False),
        "law 'log_n' has 2 parameters, got 1": ("log_n", (512.0,), np.ones(1), 64, False),
        "base must be greater than 1, got 1": ("log_n", (1.0, 1.0), np.ones(1), 64, False),
    }
    for said, arguments in wrong.items():
        with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
            _core.law_values(*arguments)
