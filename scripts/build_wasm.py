# SPDX-License-Identifier: BSD-3-Clause
"""The core as a WebAssembly module, compressed: python/attnscale/_wasm/attnscale.wasm.gz.

    python scripts/build_wasm.py            # the module
    python scripts/build_wasm.py --tests    # and the program of tests/conformance

Run by the Python of build/wheel-tools, which has the compiler (`make wasm`).
"""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
from importlib.metadata import version
from pathlib import Path

from build_wheels import zig
from zig_targets import ROOT, WASM, WASM_MODULE, cmake_defines, write_compiler

FOLDER = ROOT / "build" / "wasm"
#: The page that carries the module pays for each byte.
MOST_BYTES = 200_000


def main() -> None:
    """Build, and say how large the module is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tests", action="store_true", help="build the program of tests/conformance, too")
    options = parser.parse_args()
    build(tests=options.tests)
    print(f"{WASM_MODULE.relative_to(ROOT)}: {WASM_MODULE.stat().st_size} bytes")


def build(*, tests: bool = False) -> Path:
    """The module, beside the files of Python that read it."""
    environment = dict(os.environ, ZIG_GLOBAL_CACHE_DIR=str(ROOT / "build" / "zig" / "cache"))
    environment |= {"CCACHE_COMPILERTYPE": "clang"}
    compiler = write_compiler(WASM, zig(), version("ziglang"), ROOT / "build" / "zig")
    headers = ROOT / "build" / "headers"
    defines = cmake_defines(WASM, compiler, ROOT) | {
        "CMAKE_BUILD_TYPE": "MinSizeRel",
        "CMAKE_COMPILE_WARNING_AS_ERROR": "ON",
        "ATTNSCALE_BUILD_TESTS": "ON" if tests else "OFF",
        "ATTNSCALE_KERNEL_OPTIONS": "-Os",  # as fast as -O2 here
        "ATTNSCALE_XSIMD_INCLUDE_DIR": str(ROOT / "build" / "xsimd-14.1"),
    }
    defines |= {f"ATTNSCALE_{name}_INCLUDE_DIR": str(headers) for name in ("XTL", "XTENSOR")}
    settings = [f"-D{name}={value}" for name, value in defines.items()]
    command = ["cmake", "-S", ROOT, "-B", FOLDER, "-G", "Ninja", "--log-level=WARNING", *settings]
    subprocess.run(command, env=environment, check=True)
    subprocess.run(["cmake", "--build", FOLDER], env=environment, check=True)
    built = gzip.compress((FOLDER / "cpp" / "wasm" / WASM_MODULE.stem).read_bytes(), 9, mtime=0)
    assert len(built) <= MOST_BYTES, f"{WASM_MODULE.name} has {len(built)} bytes"
    WASM_MODULE.write_bytes(built)
    return WASM_MODULE


if __name__ == "__main__":
    main()
