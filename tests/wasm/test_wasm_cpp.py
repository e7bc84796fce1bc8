# SPDX-License-Identifier: BSD-3-Clause
"""The C++ tests as WebAssembly, in wasmtime."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "build" / "wasm-tests" / "cpp" / "tests"

pytestmark = [
    pytest.mark.maintainer,
    pytest.mark.skipif(not FOLDER.exists(), reason="the tests are not built: make wasm"),
]


@pytest.mark.parametrize("program", ["attnscale_tests", "attnscale_column_major_tests"])
def test_passes(program: str, tmp_path: Path) -> None:
    import wasmtime

    engine = wasmtime.Engine()
    store, wasi = wasmtime.Store(engine), wasmtime.WasiConfig()
    wasi.argv = [program]
    wasi.stdout_file = wasi.stderr_file = said = tmp_path / "said"
    store.set_wasi(wasi)
    linker = wasmtime.Linker(engine)
    linker.define_wasi()
    started = linker.instantiate(store, wasmtime.Module.from_file(engine, str(FOLDER / program)))
    status: int | str = 0
    try:
        started.exports(store)["_start"](store)
    except wasmtime.ExitTrap as ended:
        status = ended.code
    except wasmtime.Trap as trap:
        status = str(trap)
    assert status == 0, f"{status}\n{said.read_text()}"
    assert "Status: SUCCESS" in said.read_text()
