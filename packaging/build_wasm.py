# SPDX-License-Identifier: BSD-3-Clause
"""Build the core as a compressed WebAssembly module: python/attnscale/_wasm/attnscale.wasm.gz.

    python packaging/build_wasm.py                  # the module
    python packaging/build_wasm.py --conformance    # and the program of tests/conformance
    python packaging/build_wasm.py --tests          # and the C++ tests, in build/wasm-tests, too

Run it with the Python of build/wheel-tools, which has the compiler (`make wasm`).
"""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path

from zig_targets import ROOT, WASM, WASM_MODULE, cmake, cmake_defines, compiler_of, variables, zig

FOLDER = ROOT / "build" / "wasm"
#: Limit of the size: pages contain the module.
MOST_BYTES = 200_000


def main() -> None:
    """Build the module and print its size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    more = parser.add_mutually_exclusive_group()
    more.add_argument("--conformance", action="store_true", help="and the program of tests/conformance")
    more.add_argument("--tests", action="store_true", help="and all C++ tests")
    options = parser.parse_args()
    build(("attnscale_conformance",) if options.conformance else () if options.tests else None)
    print(f"{WASM_MODULE.relative_to(ROOT)}: {WASM_MODULE.stat().st_size} bytes")


def build(programs: tuple[str, ...] | None = None) -> Path:
    """Build the module beside the Python files that read it, and programs of the tests; () is all of them."""
    headers = ROOT / "build" / "headers"
    defines = cmake_defines(WASM, compiler_of(WASM), ROOT) | {
        "CMAKE_BUILD_TYPE": "MinSizeRel",
        "CMAKE_COMPILE_WARNING_AS_ERROR": "ON",
        "ATTNSCALE_BUILD_TESTS": "OFF",
        "ATTNSCALE_KERNEL_OPTIONS": "-Os",  # as fast as -O2 here
        "ATTNSCALE_XSIMD_INCLUDE_DIR": str(ROOT / "build" / "xsimd-newest" / "usr" / "include"),
    }
    defines |= {f"ATTNSCALE_{name}_INCLUDE_DIR": str(headers) for name in ("XTL", "XTENSOR", "DOCTEST")}
    cmake(ROOT, FOLDER, defines, variables())
    if programs is not None:
        libraries = zig().parent / "lib"
        defines |= {"ATTNSCALE_BUILD_TESTS": "ON", "ATTNSCALE_ZIG_LIBRARIES": str(libraries)}
        cmake(ROOT, FOLDER.with_name("wasm-tests"), defines, variables(), *programs)
    built = gzip.compress((FOLDER / "cpp" / "wasm" / WASM_MODULE.stem).read_bytes(), 9, mtime=0)
    assert len(built) <= MOST_BYTES, f"{WASM_MODULE.name} has {len(built)} bytes"
    WASM_MODULE.write_bytes(built)
    return WASM_MODULE


if __name__ == "__main__":
    main()
