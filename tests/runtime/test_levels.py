# SPDX-License-Identifier: BSD-3-Clause
"""The numeric tests again, at every SIMD level that this machine has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import attnscale as at
import pytest
from attnscale import _core

HERE = Path(__file__).parent

# What depends on the kernels. The level in use is tested by the run that we are in.
NUMERIC = (
    "attention",
    "masks",
    "statistics",
    "scale",
    "state",
    "curve",
    "solve",
    "distance",
    "dtypes",
    "normalizers",
    "normalizers_sparse",
    "strides",
    "promises",
    "properties",
    "variants_linear",
)

OTHERS = [level for level in _core.available_simd_levels() if level != at.simd_level()]


@pytest.mark.skipif("ATTNSCALE_SIMD" in os.environ, reason="this run is itself at a forced level")
@pytest.mark.parametrize("level", OTHERS)
def test_numeric_tests_at_level(level: str) -> None:
    files = [str(HERE / f"test_{name}.py") for name in NUMERIC]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--tb=short", "--no-header", "-p", "no:cacheprovider", *files],
        env={**os.environ, "ATTNSCALE_SIMD": level},
        capture_output=True,
        text=True,
        check=False,
        cwd=HERE.parent,
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


def test_this_run_is_at_the_level_it_asked_for() -> None:
    assert at.simd_level() == os.environ.get("ATTNSCALE_SIMD", _core.available_simd_levels()[-1])
