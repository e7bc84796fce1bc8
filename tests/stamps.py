# SPDX-License-Identifier: BSD-3-Clause
"""A long test that a process of its own runs is not run again while nothing that it depends on has changed.

    stamp = Stamp("name", source)
    stamp.skip_if_unchanged(config)         # but for pytest --all
    ... a process with stamp.recording(folder) in its environment ...
    stamp.keep(folder)                      # it has passed

What it depends on: the bytes of the source, the code of all modules of this checkout that the process and its
children imported, the files of it that they opened, and the environment. A stamp has the digests of all that,
lies in build/stamps, and is gone while the test runs: one that fails has none. For whole files of tests there
is tests/unchanged.py.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from pathlib import Path

import attnscale
import pytest
from attnscale import _core
from sources import PLACE, ROOT, Sources, read, sha256, write
from unchanged import is_for_all

PACKAGE = Path(attnscale.__file__).parent
# Folders whose files may change without a change of the version of a package.
OURS = (PACKAGE, *(ROOT / each for each in ("python", "tests", "benchmarks", "notebooks", "docs")))
# Folders and devices without which some tests are skipped; some of the folders have packages.
_OPTIONAL = [
    *(f"{ROOT}/build/{each}" for each in ("attention-engines", "engines", "gcc", "peers", "vision")),
    *(f"{ROOT}/build/{each}" for each in ("wasm", "wasm-tests")),
    "/dev/nvidia0",
]
# Variables by which tests are chosen or libraries compute; as the run began, since imports set some.
_VARIABLES = {
    name: value
    for name, value in os.environ.items()
    if re.match("ATTNSCALE_|CUDA_|HF_|JAX_|LLAMA_|LANG$|LC_|MKL_|OMP_|PYTHON|TORCH|TRITON_|XLA_", name)
}
_PROGRAMS = ("chromium", "clang++", "cmake", "g++", "git", "google-chrome", "make", "nm", "node", "unshare")

# Every Python process that has the folder on its path says at its end what it has imported and opened.
RECORDER = """
import atexit, os, sys

opened = set()

def hear(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and not arguments[0].endswith(".pyc"):
        opened.add(os.path.abspath(arguments[0]))

def record():
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())} | opened
    with open(os.path.join(os.path.dirname(__file__), f"{os.getpid()}.used"), "a") as stream:
        stream.writelines(f"{file}\\n" for file in files if file)

sys.addaudithook(hear)
atexit.register(record)
"""


class Stamp:
    """Record that a test has passed, and with what.

    Parameters
    ----------
    name : str
        Name of the file.
    source : path
        What the process runs; it is no module of its own.
    place : path
        Where the file lies.
    ours : iterable of path
        Folders of the files that are looked at.
    """

    def __init__(
        self, name: str, source: Path, *, place: Path = PLACE / "processes", ours: Iterable[Path] = OURS
    ) -> None:
        self._path = place / f"{name}.json"
        self._ours = [folder.resolve() for folder in ours]
        self._source = source.resolve()

    def skip_if_unchanged(self, config: pytest.Config) -> None:
        """Skip the test if it has passed with all that there is now; else the stamp is removed."""
        if self.holds() and not is_for_all(config):
            pytest.skip("unchanged since it passed (--all runs it)")
        self._path.unlink(missing_ok=True)

    def holds(self) -> bool:
        """Whether it has passed with all that there is now."""
        kept = read(self._path)
        try:
            return bool(kept == self._state({Path(name) for name in kept["files"]}))
        except (KeyError, TypeError):
            return False

    @staticmethod
    def recording(folder: Path) -> dict[str, str]:
        """Variables with which a process, and each that it starts, writes what it uses to a folder."""
        (folder / "sitecustomize.py").write_text(RECORDER, encoding="utf-8")
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}

    def keep(self, folder: Path) -> None:
        """The test has passed; what it used is in the folder."""
        lines = {line for each in folder.glob("*.used") for line in each.read_text().splitlines()}
        assert lines, "no process has said what it used"
        used = {Path(line).resolve() for line in lines}
        files = {file for file in used if any(file.is_relative_to(ours) for ours in self._ours)}
        write(self._path, self._state({each for each in files if each.is_file()}))

    def _state(self, files: set[Path]) -> dict[str, object]:
        """Content of a stamp: nothing in it is older than this call."""
        found = {str(file): _digest(file) for file in sorted(files | {Path(__file__)} - {self._source})}
        return {"environment": environment(), "source": sha256(self._source), "files": found}


def _digest(file: Path) -> str:
    return _sources().code(file) if file.suffix == ".py" and file.is_file() else sha256(file)


@cache
def _sources() -> Sources:
    return Sources()


@cache
def environment() -> list[str]:
    """Python, packages, extension module and data of the package, and what of the machine tests look at."""
    beside = metadata.distributions(path=_OPTIONAL)
    packages = (f"{each.name} {each.version}" for each in (*metadata.distributions(), *beside))
    variables = (f"{name}={value}" for name, value in _VARIABLES.items())
    python = f"{platform.python_version()} -O{sys.flags.optimize}"
    machine = (python, platform.platform(), _core.simd_level(), str(os.cpu_count()))
    files = (f"{file} {sha256(file)}" for file in (*_data(), Path(_core.__file__), ROOT / "pyproject.toml"))
    optional = (*filter(os.path.exists, _OPTIONAL), *filter(None, map(shutil.which, _PROGRAMS)))
    found = (packages, variables, machine, files, optional)
    return [each for part in found for each in sorted(set(part))]


def _data() -> Iterator[Path]:
    """Files of the package that are no modules of this checkout: an installed copy counts whole."""
    is_here = PACKAGE.resolve() == ROOT / "python" / "attnscale"
    for file in PACKAGE.rglob("*"):
        if file.is_file() and file.suffix != ".pyc" and not (is_here and file.suffix == ".py"):
            yield file
