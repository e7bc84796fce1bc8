# SPDX-License-Identifier: BSD-3-Clause
"""The examples of all docstrings run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import sys

import attnscale
import pytest

MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages(attnscale.__path__, "attnscale.")
    if not name.endswith(("__main__", "._core", "._types"))
)


@pytest.mark.parametrize("name", ["attnscale", *MODULES])
def test_examples_run(name: str) -> None:
    if name.startswith("attnscale.plot"):
        pytest.importorskip("matplotlib")
    if name.startswith("attnscale.jax"):
        pytest.importorskip("jax")
    if name.startswith("attnscale.torch"):
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    if name.startswith("attnscale.torch._triton"):
        pytest.importorskip("triton")
    importlib.import_module(name)
    # The module: the attribute attnscale.attention is the function.
    module = sys.modules[name]
    results = doctest.testmod(module)
    assert results.failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    module = sys.modules["attnscale.exact.forward"]
    assert {test.name.split(".")[-1] for test in finder.find(module) if test.examples} == {
        "attention",
        "attention_statistics",
        "attention_entropy",
    }
