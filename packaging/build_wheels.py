# SPDX-License-Identifier: BSD-3-Clause
"""Build the source archive, and from it a wheel for each system of zig_targets.WHEELS and each of PYTHONS.

    python packaging/build_wheels.py dist            # all of them, into dist
    python packaging/build_wheels.py dist --again    # and again elsewhere without ccache: the same bytes?

The wheels contain the WebAssembly module, which build_wasm.py builds first; the source archive does not. Run
it with the Python of build/wheel-tools (filled by `make wheels` from packaging/wheel-tools.txt). The headers
of a Python serve for every target: cpp/bindings/module.cpp does not compile if a size in them differs from
the target's.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from pythons import PYTHONS, Python, copy_headers
from zig_targets import ROOT, WASM_MODULE, WHEELS, Target, cmake_defines, compiler_of, variables


def main() -> None:
    """Build, and print what was built."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="where the files go; what attnscale has there is removed")
    parser.add_argument("--again", action="store_true", help="build twice and compare")
    parser.add_argument("--target", help="only this target of zig, such as x86_64-linux-musl")
    parser.add_argument("--python", help="only this Python, such as 3.14t")
    options = parser.parse_args()
    pythons = [each for each in PYTHONS if options.python in (None, each.name)]
    if not pythons:
        parser.error(
            f"--python must be one of {', '.join(each.name for each in PYTHONS)}, got {options.python!r}"
        )
    targets = [each for each in WHEELS if options.target in (None, each.triple)]
    if not targets:
        parser.error(
            f"--target must be one of {', '.join(each.triple for each in WHEELS)}, got {options.target!r}"
        )
    pairs = [(target, python) for target in targets for python in pythons]
    build_all(options.out, ROOT / "build" / "wheels", pairs, {})
    if options.again:
        elsewhere = ROOT / "build" / "wheels-again"
        build_all(elsewhere / "dist", elsewhere / "work", pairs, {"CCACHE_DISABLE": "1"})
        compare(options.out, elsewhere / "dist")


def build_all(out: Path, work: Path, pairs: list[tuple[Target, Python]], changes: dict[str, str]) -> None:
    """The source archive and the wheels of these targets and Pythons, built in ``work``."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("attnscale-*"):
        old.unlink()
    for done in out.glob(".made-*"):  # by `make release`, of files that are no longer there
        shutil.rmtree(done)
    environment = variables() | changes
    environment.setdefault("SOURCE_DATE_EPOCH", last_change())
    build_archive(out, environment)
    source = unpack(next(out.glob("attnscale-*.tar.gz")), work / "source")
    # Files of an archive have its time, whenever they were changed: ninja would take old objects for new.
    for target in {target for target, _ in pairs}:
        shutil.rmtree(work / target.triple, ignore_errors=True)
    for target, python in pairs:
        build_wheel(target, python, source, work, out, environment)
    for path in sorted(out.glob("attnscale-*")):
        print(f"{path.stat().st_size / 1e6:6.2f} MB  {digest(path)}  {path.name}")


def last_change() -> str:
    """Unix time for archives: that of the last commit, or without git the start of 2026."""
    command = ("git", "log", "-1", "--format=%ct")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else "1767225600"


def run_build(kind: str, source: Path, out: Path, environment: dict[str, str], *options: str) -> None:
    command = [sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", out, *options, source]
    subprocess.run(command, env=environment, check=True)


def build_archive(out: Path, environment: dict[str, str]) -> None:
    """Build the source archive; the headers in it are removed from the tree, where a build would use them."""
    headers = ROOT / "third_party"
    was_there = headers.exists()
    run_build("--sdist", ROOT, out, environment)
    if not was_there:
        shutil.rmtree(headers)


def unpack(archive: Path, folder: Path) -> Path:
    """Unpack the source archive in place of old files."""
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(archive) as tar:
        # Python 3.11 has the filter from 3.11.4 on; Debian 12 has 3.11.2.
        tar.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    return folder / archive.name.removesuffix(".tar.gz")


def build_wheel(
    target: Target, python: Python, source: Path, work: Path, out: Path, environment: dict[str, str]
) -> None:
    """Build one wheel, with every level of kernels for the processor."""
    assert target.platform_tag is not None
    headers = copy_headers(python, work / "python" / python.name)
    defines = cmake_defines(target, compiler_of(target), source)
    suffix = target.ext_suffix(python.digits)
    defines |= {"Python_INCLUDE_DIR": str(headers), "PYTHON_MODULE_EXTENSION": suffix}
    defines |= {"PYTHON_MODULE_DEBUG_POSTFIX": "", "CMAKE_COMPILE_WARNING_AS_ERROR": "ON"}
    if python.free_threaded:
        defines["Python_FIND_ABI"] = "ANY;ANY;ANY;ON"
    defines["ATTNSCALE_WASM_MODULE"] = str(WASM_MODULE)
    # The core's objects are those of every Python; what CMake knows of the one before must not stay.
    build = work / target.triple
    (build / "CMakeCache.txt").unlink(missing_ok=True)
    settings = {"build-dir": str(build), "install.strip": "false"}
    settings["wheel.tags"] = f"{python.tag}-{target.platform_tag}"
    settings |= {f"cmake.define.{name}": value for name, value in defines.items()}
    options = [f"-C{name}={value}" for name, value in settings.items()]
    environment = {name: value for name, value in environment.items() if not name.startswith("SKBUILD_")}
    environment |= {"SETUPTOOLS_EXT_SUFFIX": suffix, "CCACHE_BASEDIR": str(source)}
    run_build("--wheel", source, out, environment, *options)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def compare(first: Path, second: Path) -> None:
    """Exit with the names of the files that differ, if any."""
    names = sorted(path.name for path in first.glob("attnscale-*"))
    different = [name for name in names if digest(first / name) != digest(second / name)]
    if different:
        sys.exit(f"built twice and not the same: {', '.join(different)}")
    print(f"built twice, bit for bit the same: {', '.join(names)}")


if __name__ == "__main__":
    main()
