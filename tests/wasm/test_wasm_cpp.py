# SPDX-License-Identifier: BSD-3-Clause
"""The C++ tests as WebAssembly, in wasmtime."""

from __future__ import annotations

import pytest

from tests.conformance.in_wasm import PROGRAM, run_program

FOLDER = PROGRAM.parent

pytestmark = [
    pytest.mark.maintainer,
    pytest.mark.skipif(not FOLDER.exists(), reason="the tests are not built: make wasm"),
]


@pytest.mark.parametrize("program", ["attnscale_tests", "attnscale_column_major_tests"])
def test_passes(program: str) -> None:
    status, out, err = run_program(FOLDER / program)
    assert status == 0, f"{status}\n{out}{err}"
    assert "Status: SUCCESS" in out
