# SPDX-License-Identifier: BSD-3-Clause
"""A long test that a process of its own runs is not run again while nothing that it depends on has changed.

    stamp = Stamp("name", source)
    stamp.skip_if_unchanged(config)         # but for pytest --all
    ... a process with stamp.recording(folder) in its environment ...
    stamp.keep(folder)                      # it has passed

What it depends on: the source, all modules of this checkout that the process and its children imported, the
extension module, the data of the package, the installed packages and the environment. A stamp has the digests
of all that, lies in build/stamps, and is gone while the test runs: one that fails has none.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterable
from functools import cache
from importlib import metadata
from pathlib import Path

import attnscale
import pytest
from attnscale import _core

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build" / "stamps"
PACKAGE = Path(attnscale.__file__).parent
# Folders whose modules may change without a change of the version of a package.
OURS = (PACKAGE, ROOT / "python", ROOT / "tests", ROOT / "benchmarks", ROOT / "notebooks")

# Every Python process that has the folder on its path says at its end what it has imported.
RECORDER = """
import atexit, os, sys

def record():
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    with open(os.path.join(os.path.dirname(__file__), f"{os.getpid()}.imported"), "a") as stream:
        stream.writelines(f"{file}\\n" for file in files if file)

atexit.register(record)
"""


class Stamp:
    """That a test has passed, and with what.

    Parameters
    ----------
    name : str
        Of the file.
    source : path
        What the process runs; it is no module of its own.
    place : path
        Where the file lies.
    ours : iterable of path
        Folders of the modules that are looked at.
    always : iterable of path, optional
        Files that the test depends on, imported or not; by default the extension module, the data of the
        package, and this file.
    """

    def __init__(
        self,
        name: str,
        source: Path,
        *,
        place: Path = PLACE,
        ours: Iterable[Path] = OURS,
        always: Iterable[Path] | None = None,
    ) -> None:
        self._path = place / f"{name}.json"
        self._ours = [folder.resolve() for folder in ours]
        self._always = {source, *(_always() if always is None else always)}

    def skip_if_unchanged(self, config: pytest.Config) -> None:
        """Skip the test if it has passed with all that there is now; else the stamp is removed."""
        if self.holds() and not config.getoption("--all"):
            pytest.skip("unchanged since it passed (--all runs it)")
        self._path.unlink(missing_ok=True)

    def holds(self) -> bool:
        """Whether it has passed with all that there is now."""
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            files = {Path(name) for name in kept["files"]}
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return bool(kept == _state(files | self._always))

    @staticmethod
    def recording(folder: Path) -> dict[str, str]:
        """Variables with which a process, and each process that it starts, writes its imports to a folder."""
        (folder / "sitecustomize.py").write_text(RECORDER, encoding="utf-8")
        return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}

    def keep(self, folder: Path) -> None:
        """The test has passed; what it imported is in the folder."""
        lines = {line for each in folder.glob("*.imported") for line in each.read_text().splitlines()}
        assert lines, "no process has said what it imported"
        imported = {Path(line).resolve() for line in lines}
        files = {file for file in imported if any(file.is_relative_to(ours) for ours in self._ours)}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_state(files | self._always), indent=1)
        self._path.write_text(text + "\n", encoding="utf-8")


def _state(files: Iterable[Path]) -> dict[str, object]:
    """What a stamp has: nothing in it is older than this call."""
    return {"environment": _environment(), "files": {str(file): _digest(file) for file in sorted(files)}}


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return "not there"


@cache
def _environment() -> list[str]:
    """Python, all installed packages, and what of the environment attnscale looks at."""
    packages = {f"{each.name} {each.version}" for each in metadata.distributions()}
    variables = {f"{name}={value}" for name, value in os.environ.items() if name.startswith("ATTNSCALE_")}
    machine = {platform.python_version(), platform.platform(), _core.simd_level(), str(os.cpu_count())}
    return sorted(packages) + sorted(variables) + sorted(machine)


@cache
def _always() -> frozenset[Path]:
    data = {file for file in (PACKAGE / "data").rglob("*") if file.is_file() and file.suffix != ".pyc"}
    return frozenset({Path(_core.__file__), Path(__file__), *data})
