# SPDX-License-Identifier: BSD-3-Clause
"""Results have the bits that pins.json has for the SIMD level in use."""

from __future__ import annotations

import attnscale as at
import pytest

from . import pins


@pytest.mark.levels
@pytest.mark.filterwarnings("ignore:rows of the result are NaN")
def test_results_have_their_bits() -> None:
    wanted = pins.pinned(at.simd_level())
    if wanted is None:
        pytest.skip(f"no pins for {at.simd_level()}; python -m tests.conformance.pins --write adds them")
    assert len(wanted) > 100
    assert {name: pins.bits(name) for name in wanted} == wanted
