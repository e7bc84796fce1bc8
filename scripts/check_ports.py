# SPDX-License-Identifier: BSD-3-Clause
"""Compile the C++ library for systems that are not at hand, and link the programs of cpp/examples with it.

    python scripts/check_ports.py          # macOS on arm64 and Windows on x86-64; warnings are errors

Nothing is run. The Python extension is not compiled: that takes headers of a Python for these systems, and
there are none here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from build_wheels import last_change, run_build, unpack, zig
from zig_targets import PORTS, ROOT, Target, cmake_defines, write_compiler

WORK = ROOT / "build" / "ports"
MAGIC = {"Darwin": b"\xcf\xfa\xed\xfe", "Windows": b"MZ"}


def main() -> None:
    """Compile and link, for each port."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=[each.triple for each in PORTS], help="only this target of zig")
    options = parser.parse_args()
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(ROOT / "build" / "zig" / "cache")}
    environment.setdefault("SOURCE_DATE_EPOCH", last_change())
    run_build("--sdist", ROOT, WORK, environment)
    source = unpack(next(WORK.glob("attnscale-*.tar.gz")), WORK / "source")
    variables = {"CCACHE_COMPILERTYPE": "clang", "CCACHE_BASEDIR": str(source)}
    for target in PORTS:
        if options.target not in (None, target.triple):
            continue
        programs = build(target, source, environment | variables)
        print(f"{target.triple}: linked {', '.join(path.name for path in programs)}")


def build(target: Target, source: Path, environment: dict[str, str]) -> list[Path]:
    """The programs, which are of the target's format."""
    compiler = write_compiler(target, zig(), version("ziglang"), ROOT / "build" / "zig")
    folder = WORK / target.triple
    shared = cmake_defines(target, compiler, source) | {"CMAKE_COMPILE_WARNING_AS_ERROR": "ON"}
    library = {
        "ATTNSCALE_BUILD_TESTS": "OFF",
        "ATTNSCALE_KERNEL_OPTIONS": "-O1",  # half of the time; what a compiler says of the code is the same
        "CMAKE_INSTALL_PREFIX": str(folder / "prefix"),
    }
    cmake(source, folder / "library", shared | library, environment)
    subprocess.run(
        ["cmake", "--install", folder / "library"], env=environment, check=True, stdout=subprocess.DEVNULL
    )
    user = {"CMAKE_PREFIX_PATH": str(folder / "prefix"), "CMAKE_BUILD_TYPE": "Release"}
    cmake(source / "cpp" / "examples", folder / "examples", shared | user, environment)
    suffix = ".exe" if target.system == "Windows" else ""
    programs = [
        folder / "examples" / f"{path.stem}{suffix}" for path in (source / "cpp/examples").glob("*.cpp")
    ]
    for program in programs:
        if program.read_bytes()[:4][: len(MAGIC[target.system])] != MAGIC[target.system]:
            sys.exit(f"{program} is no program of {target.system}")
    return sorted(programs)


def cmake(source: Path, folder: Path, defines: dict[str, str], environment: dict[str, str]) -> None:
    options = [f"-D{name}={value}" for name, value in defines.items()]
    command = ["cmake", "-S", source, "-B", folder, "-G", "Ninja", "--log-level=WARNING", *options]
    subprocess.run(command, env=environment, check=True)
    subprocess.run(["cmake", "--build", folder], env=environment, check=True)


if __name__ == "__main__":
    main()
