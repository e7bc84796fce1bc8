# SPDX-License-Identifier: BSD-3-Clause
"""Cross-compile the C++ library, and link the programs of cpp/examples with it.

    python packaging/check_ports.py                              # macOS on arm64 and Windows on x86-64
    python packaging/check_ports.py --target x86_64-windows-gnu  # one of them

Warnings are errors. If Wine is installed, the examples for Windows are run, and the C++ tests are compiled
and run too if doctest's header is installed. Nothing is run for macOS; its extension module is compiled and
linked. One for Windows would need the pyconfig.h and the import library of a Python for Windows.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import pybind11
from build_wheels import build_archive, last_change, unpack
from pythons import RUNNING, copy_headers
from zig_targets import PORTS, ROOT, Target, cmake, cmake_defines, compiler_of, variables

WORK = ROOT / "build" / "ports"
MAGIC = {"Darwin": b"\xcf\xfa\xed\xfe", "Windows": b"MZ"}
DOCTEST = Path("/usr/include/doctest")
# These two tests examine the compiler and its objects: the first uses -fsyntax-only, which zig does not know.
NOT_OF_THE_PORT = r"^cpp\.(refused_expression|objects)$"


def main() -> None:
    """Compile and link each port, and run the programs that can run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", choices=[each.triple for each in PORTS], help="only this target of zig")
    options = parser.parse_args()
    environment = variables()
    environment.setdefault("SOURCE_DATE_EPOCH", last_change())
    build_archive(WORK, environment)
    source = unpack(next(WORK.glob("attnscale-*.tar.gz")), WORK / "source")
    environment |= {"CCACHE_BASEDIR": str(source), "WINEPREFIX": str(WORK / "wine"), "WINEDEBUG": "-all"}
    for target in PORTS:
        if options.target not in (None, target.triple):
            continue
        emulator = wine() if target.system == "Windows" else None
        programs = build(target, source, emulator, environment)
        print(f"{target.triple}: linked {', '.join(path.name for path in programs)}", flush=True)
        if emulator:
            run_programs(programs, emulator, environment)
            run_tests(WORK / target.triple / "library", environment)
        else:
            print(f"{target.triple}: nothing was run", flush=True)


def wine() -> Path | None:
    """The Wine program; Debian's package wine64 alone does not put it on the PATH."""
    found = (shutil.which("wine64"), shutil.which("wine"), shutil.which("wine64", path="/usr/lib/wine"))
    return next((Path(each) for each in found if each), None)


def build(target: Target, source: Path, emulator: Path | None, environment: dict[str, str]) -> list[Path]:
    """Build the programs, in the target's format."""
    folder = WORK / target.triple
    shared = cmake_defines(target, compiler_of(target), source) | {"CMAKE_COMPILE_WARNING_AS_ERROR": "ON"}
    library = {
        "ATTNSCALE_KERNEL_OPTIONS": "-O1",  # half of the time, with the same warnings
        "CMAKE_INSTALL_PREFIX": str(folder / "prefix"),
    }
    library |= tests(emulator) | (extension(target) if target.system == "Darwin" else {})
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
    modules = list((folder / "library").rglob("_core*.so"))
    assert len(modules) == (target.system == "Darwin")
    for binary in (*programs, *modules):
        if binary.read_bytes()[:4][: len(MAGIC[target.system])] != MAGIC[target.system]:
            sys.exit(f"{binary} is not of {target.system}")
    return sorted((*programs, *modules))


def tests(emulator: Path | None) -> dict[str, str]:
    """CMake options for the C++ tests, which are compiled only where they can run."""
    if emulator is None or not DOCTEST.exists():
        return {"ATTNSCALE_BUILD_TESTS": "OFF"}
    headers = WORK / "doctest"  # this header only: its folder also has the headers of this system
    shutil.copytree(DOCTEST, headers / "doctest", dirs_exist_ok=True)
    return {
        "ATTNSCALE_BUILD_TESTS": "ON",
        "ATTNSCALE_DOCTEST_INCLUDE_DIR": str(headers),
        "CMAKE_CROSSCOMPILING_EMULATOR": str(emulator),
    }


def extension(target: Target) -> dict[str, str]:
    """CMake options for the extension module: headers of this Python, whose sizes are checked."""
    return {
        "ATTNSCALE_BUILD_PYTHON": "ON",
        "Python_EXECUTABLE": sys.executable,
        "Python_INCLUDE_DIR": str(copy_headers(RUNNING, WORK / "python")),
        "PYTHON_MODULE_EXTENSION": target.ext_suffix(RUNNING.digits),
        "PYTHON_MODULE_DEBUG_POSTFIX": "",
        "pybind11_DIR": pybind11.get_cmake_dir(),
    }


def run_programs(programs: list[Path], emulator: Path, environment: dict[str, str]) -> None:
    """Run the examples, which end with an error if their numbers differ from the expected ones."""
    for program in programs:
        for level in ("", "baseline"):
            variables = environment | {"ATTNSCALE_SIMD": level}
            subprocess.run([emulator, program], env=variables, check=True)


def run_tests(folder: Path, environment: dict[str, str]) -> None:
    """Run the C++ tests of each level, if they were compiled."""
    if not DOCTEST.exists():
        print(f"no {DOCTEST}: the C++ tests are not run", flush=True)
        return
    command = ["ctest", "--test-dir", folder, "--output-on-failure", "-E", NOT_OF_THE_PORT]
    subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
