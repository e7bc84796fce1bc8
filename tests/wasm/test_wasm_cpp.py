# SPDX-License-Identifier: BSD-3-Clause
"""The C++ tests as WebAssembly, in wasmtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.in_wasm import PROGRAM, run_program

PROGRAMS = [PROGRAM.with_name(name) for name in ("attnscale_tests", "attnscale_column_major_tests")]

pytestmark = [
    pytest.mark.maintainer,
    pytest.mark.skipif(not PROGRAMS[0].exists(), reason="the tests are not built: make test-wasm"),
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_passes(program: Path) -> None:
    status, out, err = run_program(program)
    assert status == 0, f"{status}\n{out}{err}"
    assert "Status: SUCCESS" in out
