# SPDX-License-Identifier: BSD-3-Clause
"""The C++ API in WebAssembly as a backend: the program of in_cpp.py, in wasmtime."""

from __future__ import annotations

import atexit
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

from .backends import Backend
from .in_cpp import InCpp

PROGRAM = Path(__file__).parents[2] / "build" / "wasm-tests" / "cpp" / "tests" / "attnscale_conformance"


class InWasm(InCpp):
    """A backend that starts one instance for each call."""

    # Combinations of options are C++ code that in_cpp.py tests too.
    is_thorough = values_are_thorough = False

    def ask(self, call: str) -> tuple[int, str, str]:
        return run_program(PROGRAM, call)


def run_program(program: Path, stdin: str = "") -> tuple[int, str, str]:
    """Exit status, output and errors of a program in wasmtime, in an instance of its own."""
    wasmtime, engine, module = _compiled(program)
    with tempfile.TemporaryDirectory() as name:
        paths = [Path(name) / stream for stream in ("stdin", "stdout", "stderr")]
        paths[0].write_text(stdin)
        store, wasi = wasmtime.Store(engine), wasmtime.WasiConfig()
        wasi.argv = [program.name]
        wasi.stdin_file, wasi.stdout_file, wasi.stderr_file = paths
        store.set_wasi(wasi)
        linker = wasmtime.Linker(engine)
        linker.define_wasi()
        status, trapped = 0, ""
        try:
            linker.instantiate(store, module).exports(store)["_start"](store)
        except wasmtime.ExitTrap as ended:
            status = ended.code
        except wasmtime.Trap as trap:
            status, trapped = -1, str(trap)
        del store  # which closes the files
        return status, paths[1].read_text(), paths[2].read_text() + trapped


@lru_cache(maxsize=1)
def _compiled(program: Path) -> Any:
    import wasmtime

    engine = wasmtime.Engine()
    return wasmtime, engine, wasmtime.Module.from_file(engine, str(program))


def backends() -> dict[str, Backend]:
    """The backend, if its program is built."""
    return {"WebAssembly": InWasm()} if PROGRAM.exists() else {}


# wasmtime does not free them after Python has unloaded its functions.
atexit.register(_compiled.cache_clear)
