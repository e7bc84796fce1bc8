# SPDX-License-Identifier: BSD-3-Clause
"""ATTNSCALE_SIMD forces a level; `make check` runs the tests that are marked `levels` at each."""

from __future__ import annotations

import os
import subprocess
import sys

import attnscale as at
import pytest
from attnscale import _core


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
    level = at.simd_level()
    assert level == os.environ.get("ATTNSCALE_SIMD", level)
    # Without a wish it is the last one, but where a CPU has avx512_bf16 and is no faster with it.
    assert "ATTNSCALE_SIMD" in os.environ or level in _core.available_simd_levels()[-2:]


def test_an_emulated_level_is_in_use_only_if_it_is_asked_for() -> None:
    code = "import attnscale as at; print(at.simd_level())"
    given = {name: value for name, value in os.environ.items() if name != "ATTNSCALE_SIMD"}
    done = subprocess.run([sys.executable, "-c", code], env=given, capture_output=True, text=True, check=True)
    assert not done.stdout.startswith("emulated")
