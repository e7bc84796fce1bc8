# SPDX-License-Identifier: BSD-3-Clause
"""Versions of CPython that wheels are built for here, and the headers of each.

A wheel needs no more of a Python than its headers. Those of the Python that runs are there; those of later
ones come with Debian's packages (packaging/unpack-packages, into build/python3.X). Debian has none of 3.12,
whose wheels cibuildwheel builds. A free-threaded Python has the headers of the usual one, and one macro more.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from zig_targets import ROOT

#: Versions whose headers and programs packaging/unpack-packages finds.
UNPACKED = ("3.13", "3.14", "3.15")


@dataclass(frozen=True)
class Python:
    """A CPython with the names that it has in wheels and extension modules."""

    version: str
    free_threaded: bool = False

    @property
    def name(self) -> str:
        """The version, with a t where it is free-threaded."""
        return f"{self.version}{'t' if self.free_threaded else ''}"

    @property
    def digits(self) -> str:
        """The name as file names have it, such as 314t."""
        return self.name.replace(".", "")

    @property
    def tag(self) -> str:
        """The interpreter and the ABI in the name of a wheel."""
        return f"cp{self.digits.removesuffix('t')}-cp{self.digits}"

    @property
    def root(self) -> Path | None:
        """The folder with Debian's packages of it, or None for the Python that runs."""
        return None if self == RUNNING else ROOT / "build" / f"python{self.version}"


RUNNING = Python("{}.{}".format(*sys.version_info[:2]))
#: Pythons of the wheels, the free-threaded ones last. The first of these that NumPy has wheels for is 3.14t.
PYTHONS = (
    RUNNING,
    *(Python(version) for version in UNPACKED if version != RUNNING.version),
    *(Python(version, free_threaded=True) for version in UNPACKED[1:]),
)


def copy_headers(python: Python, folder: Path) -> Path:
    """Copy Python's headers with the pyconfig.h of this machine, and no other system header.

    Debian keeps that file in a folder of the architecture.
    """
    include = Path(sysconfig.get_path("include"))
    multiarch = str(sysconfig.get_config_var("MULTIARCH"))
    if python.root:
        include = python.root / "usr" / "include" / f"python{python.version}"
        multiarch = "x86_64-linux-gnu"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(include, folder)
    config = folder / "pyconfig.h"
    of_the_architecture = include.parent / multiarch / include.name / "pyconfig.h"
    if of_the_architecture.exists():
        shutil.copyfile(of_the_architecture, config)
    if python.free_threaded:
        text = config.read_text().replace("/* #undef Py_GIL_DISABLED */", "#define Py_GIL_DISABLED 1")
        assert "#define Py_GIL_DISABLED 1" in text
        config.write_text(text)
    return folder
