# SPDX-License-Identifier: BSD-3-Clause
"""Random numbers, rows of scores and projections are the same bits at every level of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import test_projections
import test_random
import test_score_rows

MODULES = (test_random, test_score_rows, test_projections)

SCRIPT = """
import attnscale
import test_projections, test_random, test_score_rows
print(attnscale.simd_level(), *(each.digest() for each in (test_random, test_score_rows, test_projections)))
"""


@pytest.mark.parametrize("level", test_random._core.available_simd_levels())
def test_every_level_gives_the_same_bits(level: str) -> None:
    """Digests of three modules from one process, whose imports take most of the time."""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "ATTNSCALE_SIMD": level, "PYTHONPATH": f"{here}{os.pathsep}{here.parent}"},
        capture_output=True,
        text=True,
        check=True,
    )
    seen, *digests = done.stdout.split()
    assert seen == level
    for module, digest in zip(MODULES, digests, strict=True):
        assert digest == module.digest(), module.__name__
