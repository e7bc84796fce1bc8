# SPDX-License-Identifier: BSD-3-Clause
"""Records that go to the core: it reads every field by its name and no other, and enums by their names."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attnscale import _call, _core, normalizers, variants

HEADER = Path(__file__).parents[2] / "cpp" / "include" / "attnscale" / "detail" / "linear_form.hpp"
records, ScoreForm = variants._linear_form, _call.distance.ScoreForm
ROWS = np.ones((3, 4))
PROJECTED = records.LinearForm("projected", projection=np.ones((4, 2)))
#: Fields of LinearForm that say how Python makes what the core reads.
OF_PYTHON = {"max_length", "function"}


class Watched:
    """A record that remembers which of its fields were read."""

    def __init__(self, record: Any) -> None:
        self.record, self.read = record, set()

    def __getattr__(self, name: str) -> Any:
        self.read.add(name)
        return getattr(self.record, name)


def linear(form: Any) -> Watched:
    call = Watched(records.LinearCall(form, query=ROWS, key=ROWS, value=ROWS, out=np.empty((3, 4))))
    _core.linear(call)
    return call


def linear_gradient(form: Any) -> Watched:
    gradients = {name: np.empty((3, 4)) for name in ("query_out", "key_out", "value_out")}
    call = Watched(records.LinearGradientCall(form, query=ROWS, key=ROWS, value=ROWS, grad=ROWS, **gradients))
    _core.linear_gradient(call)
    return call


@pytest.mark.parametrize("run", [linear, linear_gradient])
def test_calls_of_linear_attention(run: Callable[[Any], Watched]) -> None:
    form = Watched(PROJECTED)
    call = run(form)
    assert call.read == set(type(call.record)._fields)
    assert form.read == {each.name for each in fields(records.LinearForm)} - OF_PYTHON


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(AttributeError, match="'object' object has no attribute 'query'"):
        _core.linear(object())


def test_score_forms_and_rules() -> None:
    form = Watched(ScoreForm())
    call = _core.CoreCall(ROWS, ROWS, None, None, None, form, True, 1)
    assert form.read == set(ScoreForm._fields)
    read = set()
    for kind in ("softmax", "sigmoid", "relu"):  # whose rows have each a number of another kind
        rule = Watched(normalizers._base.Rule(kind, bias=0.0, factor=1.0))
        call.attend(ROWS, np.empty((3, 4)), (), 1.0, rule)
        read |= rule.read
    assert read == set(normalizers._base.Rule._fields)


@pytest.mark.skipif(not HEADER.exists(), reason="not a source tree")
@pytest.mark.parametrize("enum", ["feature_map", "linear_norm"])
def test_names_of_enumerators(enum: str) -> None:
    body = re.search(rf"enum class {enum} : int {{\n(.*?)\n}};", HEADER.read_text("utf-8"), re.DOTALL)
    assert body is not None
    found = tuple(re.findall(r"^  (\w+),? +///<", body[1], re.MULTILINE))
    assert getattr(_core, f"{enum}_names") == found
    assert len(found) == len(body[1].splitlines())


def test_a_name_that_no_enumerator_has() -> None:
    with pytest.raises(ValueError, match=r"^there is no map Elu$"):
        linear(records.LinearForm("Elu"))
    with pytest.raises(ValueError, match=r"^there is no norm sum$"):
        linear(records.LinearForm("elu", "sum"))
