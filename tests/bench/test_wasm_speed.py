# SPDX-License-Identifier: BSD-3-Clause
"""Table and figure of the WebAssembly module's speed, from the stored ratios."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "docs" / "_measured"
SCRIPT = ROOT / "benchmarks" / "wasm.py"


def test_the_table_is_that_of_the_stored_ratios(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = json.loads((MEASURED / "wasm.json").read_text(encoding="utf-8"))
    script = runpy.run_path(str(SCRIPT))
    assert (MEASURED / "wasm.md").read_text(encoding="utf-8") == script["table"](found)
    script["draw"](found, tmp_path / "wasm.svg")
    assert (tmp_path / "wasm.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_the_module_is_as_fast_as_was_asked() -> None:
    """The forward pass has half the speed of equally wide vectors and is eight times plain JavaScript."""
    found = json.loads((MEASURED / "wasm.json").read_text(encoding="utf-8"))
    assert list(found["ratios"]) == ["Node", "Chromium"]
    for cases in found["ratios"].values():
        for dtype in ("float32", "float64"):
            forward = cases[f"{dtype} 1024"]["output"]
            assert forward["share"] >= 0.5
            assert forward["times"] >= 8


def test_a_ratio_is_of_the_shortest_time_of_each() -> None:
    rounds = [{"float32 8": {"output": 3.0, "plain": 5.0}}, {"float32 8": {"output": 2.0, "plain": 7.0}}]
    assert runpy.run_path(str(SCRIPT))["least"](rounds) == {"float32 8": {"output": 2.0, "plain": 5.0}}
