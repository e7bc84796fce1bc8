# SPDX-License-Identifier: BSD-3-Clause
"""Meanings of n in laws, one object for each."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import attnscale as at
import numpy as np
import pytest
from attnscale import laws, reference
from attnscale.laws._meaning import meaning_of
from cases import mask_cases, random_inputs

# Meaning: (least, n - i of a causal query, method of a call and n where it returns 10).
MEANINGS = {
    "visible keys": (1, 1, ("visible_keys", 10)),
    "row size": (1, 1, ("row_sizes", 10)),
    "query position": (0, 0, ("positions", 10)),
    "query position + 1": (1, 1, ("positions", 11)),
    "query position + 2": (2, 2, ("positions", 12)),
    "query-key distance": (0, None, None),
    "row entropy": (0, None, ("row_entropies", 10)),
    "row gaps": (0, None, ("row_gaps", 10)),
    "row spread": (0, None, ("row_spreads", 10)),
    "not used": (1, 1, ("", 1)),
}
COUNTED = [name for name, (_, offset, _) in MEANINGS.items() if offset is not None]


def test_every_meaning_is_here() -> None:
    assert list(laws.MEANINGS_OF_N) == list(MEANINGS)


@pytest.mark.parametrize("name", MEANINGS)
def test_what_a_meaning_says_of_itself(name: str) -> None:
    least, offset, _ = MEANINGS[name]
    meaning = meaning_of(name)
    assert (meaning.name, meaning.description) == (name, laws.MEANINGS_OF_N[name])
    assert (meaning.least, meaning.at_position) == (least, offset)
    assert meaning.is_used == (name != "not used")
    assert meaning.is_position == name.startswith("query position")
    assert meaning.is_distance == (name == "query-key distance")
    assert meaning.measures_the_row == (name in ("row entropy", "row gaps", "row spread"))
    with pytest.raises(AttributeError):
        meaning.least = 7  # type: ignore[misc]


@pytest.mark.parametrize("name", [name for name in MEANINGS if name != "query-key distance"])
def test_a_meaning_asks_a_call_for_one_thing(name: str) -> None:
    asked, n = MEANINGS[name][2] or ("", 0)
    call = SimpleNamespace(**{asked: lambda: np.array([10])})
    assert np.all(meaning_of(name).of(call) == n)


def test_a_row_has_many_distances() -> None:
    with pytest.raises(ValueError, match="a row has no one n where n is positions between the query and"):
        meaning_of("query-key distance").of(SimpleNamespace())


def test_a_law_has_the_meaning_that_it_names() -> None:
    assert laws.LogN().meaning is meaning_of("visible keys")
    assert laws.get("grok_temperature", length=9).meaning.at_position == 0


@pytest.mark.parametrize("name", COUNTED)
def test_attention_counts_what_the_meaning_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laws._registry, "_functions", {})
    laws.register("count", n_means=name)(lambda n, head_dim: 0 * head_dim + n / 100)
    for masks, options in mask_cases(2, 2, 21, 30).items():
        q, k, _ = random_inputs(3, batch=(2,), n_queries=21, n_keys=30, dtype="float64")
        options["scale"] = "count"
        seen, want = at.attention_entropy(q, k, **options), reference.attention_entropy(q, k, **options)
        np.testing.assert_allclose(seen, want, atol=1e-11, err_msg=masks)


def test_nothing_asks_for_the_name_of_a_meaning() -> None:
    """No other file compares names of meanings, so a new meaning is written in one place."""
    for path in Path(at.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            asked = node.func if isinstance(node, ast.Call) else node
            parts = [asked] if isinstance(asked, ast.Compare) else []
            parts += [asked.value] if isinstance(asked, ast.Attribute) and asked.attr == "startswith" else []
            seen = [each for part in parts for each in ast.walk(part) if isinstance(each, ast.Attribute)]
            assert not any(each.attr == "n_means" for each in seen), f"{path}:{node.lineno}"
