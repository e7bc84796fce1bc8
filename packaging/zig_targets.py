# SPDX-License-Identifier: BSD-3-Clause
"""Targets of `zig c++`, and their options for CMake and ccache.

zig contains the headers and the stubs of every glibc, musl, the libraries of macOS and of mingw, and libc++
as source: one package of the package index compiles for all of them.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from dataclasses import dataclass
from importlib.metadata import files, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

# By default zig checks for undefined behaviour, keeps frame pointers and writes debug information, which
# takes an eighth of the time and six sevenths of an object.
_FLAGS = ("-fno-sanitize=undefined", "-g0", "-fomit-frame-pointer")


@dataclass(frozen=True)
class Target:
    """A target of zig, its names in CMake, and the names of its wheel, if one is built."""

    triple: str
    system: str
    processor: str
    platform_tag: str | None = None
    abi_suffix: str | None = None

    def ext_suffix(self, digits: str) -> str:
        """The suffix of extension modules for a CPython, such as 311 or 314t, on this target."""
        return f".cpython-{digits}-{self.abi_suffix}.so"


WHEELS = (
    Target("x86_64-linux-gnu.2.28", "Linux", "x86_64", "manylinux_2_28_x86_64", "x86_64-linux-gnu"),
    Target("aarch64-linux-gnu.2.28", "Linux", "aarch64", "manylinux_2_28_aarch64", "aarch64-linux-gnu"),
    Target("x86_64-linux-musl", "Linux", "x86_64", "musllinux_1_2_x86_64", "x86_64-linux-musl"),
)
PORTS = (
    Target("aarch64-macos", "Darwin", "arm64", abi_suffix="darwin"),
    Target("x86_64-windows-gnu", "Windows", "AMD64"),
)
WASM = Target("wasm32-wasi", "WASI", "wasm32")
#: The WebAssembly module, beside the JavaScript files that read it; ignored by git.
WASM_MODULE = ROOT / "python" / "attnscale" / "_wasm" / "attnscale.wasm.gz"


def variables() -> dict[str, str]:
    """The environment of a build with zig."""
    cache = str(ROOT / "build" / "zig" / "cache")
    return {**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "CCACHE_COMPILERTYPE": "clang"}


def zig() -> Path:
    """The program of the package ziglang."""
    found = [path for path in files("ziglang") or () if path.name in ("zig", "zig.exe")]
    return Path(str(found[0].locate()))


def compiler_of(target: Target) -> Path:
    """`write_compiler` for the zig of the package ziglang, in build/zig."""
    return write_compiler(target, zig(), version("ziglang"), ROOT / "build" / "zig")


def cmake(
    source: Path, folder: Path, defines: dict[str, str], environment: dict[str, str], *targets: str
) -> None:
    """Configure and build, all or these targets alone."""
    options = [f"-D{name}={value}" for name, value in defines.items()]
    command = ["cmake", "-S", source, "-B", folder, "-G", "Ninja", "--log-level=WARNING", *options]
    subprocess.run(command, env=environment, check=True)
    chosen = ["--target", *targets] if targets else []
    subprocess.run(["cmake", "--build", folder, *chosen], env=environment, check=True)


def write_compiler(target: Target, zig: Path, version: str, folder: Path) -> Path:
    """Write a single-word compiler command for the target, with `ar` and `ranlib` beside it.

    Its text includes the version of zig, for ccache.
    """
    folder.mkdir(parents=True, exist_ok=True)
    commands = {"ar": "ar", "ranlib": "ranlib"}
    commands[f"c++-{target.triple}"] = shlex.join(("c++", "-target", target.triple, *_FLAGS))
    for name, command in commands.items():
        program = folder / name
        text = f'#!/bin/sh\n# ziglang {version}\nexec {shlex.quote(str(zig))} {command} "$@"\n'
        if not program.exists() or program.read_text() != text:
            program.write_text(text)
            program.chmod(0o755)
    return folder / f"c++-{target.triple}"


def cmake_defines(target: Target, compiler: Path, source: Path) -> dict[str, str]:
    """CMake definitions for a target, in addition to the options of the build."""
    return {
        "CMAKE_TOOLCHAIN_FILE": str(source / "cmake" / "zig.cmake"),
        "ATTNSCALE_ZIG_CXX": str(compiler),
        "ATTNSCALE_ZIG_SYSTEM": target.system,
        "ATTNSCALE_ZIG_PROCESSOR": target.processor,
    }
