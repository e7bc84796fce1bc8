# SPDX-License-Identifier: BSD-3-Clause
"""Random models with one mistake planted in one layer, and with none: the mistake is named, or nothing."""

from __future__ import annotations

import attnscale as at
import numpy as np
import pytest

from tests.comparison.planted import (
    FAMILIES,
    PLANTS,
    another,
    families_of,
    layers_of,
    quantised,
    random_model,
)

KINDS = list(PLANTS)


@pytest.mark.parametrize("number", range(50))
def test_a_planted_cause_is_named(number: int) -> None:
    """Half of the pairs have bfloat16 on one side; most have two implementations of attention."""
    rng = np.random.default_rng([2026, number])
    kind = KINDS[number % len(KINDS)]
    first = random_model(rng, str(rng.choice(families_of(kind))))
    second = another(rng, first)
    layer = int(rng.choice(layers_of(kind, second)))
    planted = PLANTS[kind](rng, second, layer)
    if number // len(KINDS) % 2:
        (first if rng.random() < 0.5 else second).model.bfloat16()
    found = at.compare(first.model, second.model)
    assert found.cause is not None, found
    assert (found.cause.kind, found.cause.layer) == (kind, layer), found
    assert found.cause.fit is None or found.cause.fit > 0.6
    if kind == "scale":
        assert found.cause.factor == pytest.approx(planted, rel=0.01)
    if kind == "one head":
        assert found.cause.heads == (planted,)


def test_plants_meet_most_families() -> None:
    drawn = set()
    for number in range(50):
        rng = np.random.default_rng([2026, number])
        drawn.add(str(rng.choice(families_of(KINDS[number % len(KINDS)]))))
    assert drawn == {*FAMILIES}


ROUNDINGS = {
    "bfloat16": lambda model: model.bfloat16(),
    "float16": lambda model: model.half(),
    "8 bits": lambda model: quantised(model, 8),
    "4 bits": lambda model: quantised(model, 4),
    "float32": lambda model: model,
}


@pytest.mark.parametrize("number", range(20))
def test_rounding_is_no_cause(number: int) -> None:
    rng = np.random.default_rng([2027, number])
    name = list(ROUNDINGS)[number % len(ROUNDINGS)]
    first = random_model(rng, FAMILIES[number % len(FAMILIES)])
    second = ROUNDINGS[name](another(rng, first).model)
    found = at.compare(first.model, second)
    assert found.cause is None, found
    assert found.noise.said in (f"rounding as of {name}", "none")
    assert (found.noise.said == "none") <= (name == "float32")
