# SPDX-License-Identifier: BSD-3-Clause
"""The tests that are marked `levels`, again at every SIMD level that this machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import attnscale as at
import pytest
from attnscale import _core

TESTS = Path(__file__).resolve().parents[1]

OTHERS = [level for level in _core.available_simd_levels() if level != at.simd_level()]


@pytest.mark.skipif("ATTNSCALE_SIMD" in os.environ, reason="this run is itself at a forced level")
@pytest.mark.parametrize("level", OTHERS)
def test_numeric_tests_at_level(level: str) -> None:
    tests = TESTS.rglob("test_*.py")  # only those with the mark are collected: others import PyTorch
    files = [str(file) for file in tests if "pytest.mark.levels" in file.read_text(encoding="utf-8")]
    options = ["-q", "--tb=short", "--no-header", "-p", "no:cacheprovider", "-m", "levels"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        env={**os.environ, "ATTNSCALE_SIMD": level},
        capture_output=True,
        text=True,
        check=False,
        cwd=TESTS.parent,
    )
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("level", _core.available_simd_levels())
def test_the_forced_level_is_the_one_in_use(level: str) -> None:
    code = "import attnscale as at; print(at.simd_level())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "ATTNSCALE_SIMD": level},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == level


@pytest.mark.levels
def test_this_run_is_at_the_level_it_asked_for() -> None:
    assert at.simd_level() == os.environ.get("ATTNSCALE_SIMD", _core.available_simd_levels()[-1])
