# SPDX-License-Identifier: BSD-3-Clause
"""The newest CPython and header libraries that Debian has, unpacked into a folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tools.mutants.tree import ROOT

__all__ = ["header_options", "newest_python", "program", "unpack_newest"]

_TOOLS = ROOT / "build" / "versions-tools"


def program(name: str) -> Path:
    """A program that a package of this name on the index brings, in an environment of its own."""
    path = _TOOLS / "bin" / name
    if not path.exists():
        if not (_TOOLS / "bin" / "pip").exists():
            subprocess.run((sys.executable, "-m", "venv", _TOOLS), check=True)
        subprocess.run((_TOOLS / "bin" / "pip", "install", "-q", name), check=True)
    return path


def unpack_newest(folder: Path) -> Path | None:
    """The folder `usr` of Debian's newest packages; None where there is no apt of Debian."""
    if not (folder / "usr").exists():
        if not Path("/etc/apt/sources.list.d/debian.sources").exists():
            return None
        print(f"-- the newest Python and header libraries of Debian, into {folder}", flush=True)
        subprocess.run((ROOT / "packaging" / "unpack-packages", "newest", folder), check=True)
    return folder / "usr"


def newest_python(usr: Path) -> Path:
    """The interpreter below this folder, made to run with the C library beside it.

    The loader and the libraries of the folder are entered in the program, so that virtual environments have
    them. What this machine compiles needs an older C library, and runs with the newer one, too.
    """
    found = [path for path in (usr / "bin").iterdir() if re.fullmatch(r"python3\.\d+", path.name)]
    python = max(found, key=lambda path: int(path.name.rpartition(".")[2]))
    (libraries,) = (path.parent for path in (usr / "lib").glob("*/libc.so.6"))
    (loader,) = libraries.glob("ld-linux*.so.*")
    # Python.h reads a header of the architecture, which Debian keeps beside those of the C library.
    link = usr / "include" / python.name / libraries.name
    if not link.is_symlink():
        patch = (program("patchelf"), "--set-interpreter", loader, "--force-rpath", "--set-rpath", libraries)
        subprocess.run((*patch, python), check=True)
        link.symlink_to(os.path.join("..", libraries.name))
    return python


def header_options(usr: Path) -> list[str]:
    """Definitions for CMake that take the header libraries from this folder."""
    include = usr.parent / "include"  # without the headers of the C library
    include.mkdir(exist_ok=True)
    for name in ("xsimd", "xtl", "xtensor", "nlohmann"):
        link = include / name
        if not link.is_symlink():
            link.symlink_to(os.path.join("..", "usr", "include", name))
    return [f"ATTNSCALE_{name.upper()}_INCLUDE_DIR={include}" for name in ("xsimd", "xtl", "xtensor")]
