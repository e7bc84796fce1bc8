# SPDX-License-Identifier: BSD-3-Clause
"""Builds in the copy, and steps that are run there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from .fault import Step
from .tree import TREE

__all__ = ["BuildError", "Steps"]

# Seconds after which a step has failed: far more than any takes.
_LONGEST = 1200
_TARGETS = {"pytest": "_core", "cpp": "attnscale_tests", "asan": "attnscale_tests"}


class BuildError(Exception):
    """The copy does not compile."""


class Steps:
    """Runs steps on the copy as it is; what is compiled is built when a step needs it.

    Parameters
    ----------
    python : path
        The interpreter of the tests.
    """

    def __init__(self, python: Path) -> None:
        self._python = python
        self._built: set[tuple[str, str]] = set()  # preset and target
        self._environment = {
            "CMAKE_BUILD_PARALLEL_LEVEL": str(os.cpu_count() or 1),
            "CMAKE_CXX_COMPILER_LAUNCHER": shutil.which("ccache") or "",
            **os.environ,
            # Settings of ccache as in the Makefile, to share what both compile.
            "CCACHE_BASEDIR": str(TREE / "cpp"),
            "CCACHE_NOHASHDIR": "1",
            "PATH": f"{os.environ['PATH']}{os.pathsep}{Path(sys.executable).parent}",
        }
        self._environment.pop("ATTNSCALE_SIMD", None)
        self._levels: list[str] = []

    def core_has_changed(self) -> None:
        """Mark what was compiled as out of date."""
        self._built.clear()

    def is_possible(self, step: Step) -> bool:
        """Whether this machine has the step's level."""
        if not step.level:
            return True
        if not self._levels:
            self._build("gcc", "_core")
            code = "from attnscale import _core; print(*_core.available_simd_levels())"
            self._levels = self._output((str(self._python), "-c", code), self._environment).split()
        return step.level in self._levels

    def run(self, step: Step) -> tuple[bool, str]:
        """Whether the step passes, and the end of what it printed."""
        if step.kind in _TARGETS:
            self._build("asan" if step.kind == "asan" else "gcc", _TARGETS[step.kind])
        elif step.words[0] == "sphinx":
            self._build("gcc", "_core")
        forced = {"ATTNSCALE_SIMD": step.level} if step.level else {}
        with tempfile.TemporaryFile("w+", errors="replace") as printed:
            try:
                status = subprocess.run(
                    self._command(step),
                    cwd=TREE,
                    env=self._environment | forced,
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    timeout=_LONGEST,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                return False, f"no answer within {_LONGEST} s"
            printed.seek(0)
            return status == 0, printed.read()[-4000:]

    def _command(self, step: Step) -> tuple[str, ...]:
        python, words = str(self._python), step.words
        if step.kind == "pytest":
            return (python, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", *words)
        if step.kind in ("cpp", "asan"):
            folder = TREE / "build" / ("asan" if step.kind == "asan" else "gcc")
            cases = [f"--test-case={case}".replace(",", "?") for case in words[1:]]  # a comma begins another
            return (str(folder / "cpp" / "tests" / "attnscale_tests"), f"--source-file=*{words[0]}*", *cases)
        beside = Path(sys.executable).parent  # where the tools of `make lint` are
        if words[0] == "sphinx":
            pages = ("docs", "docs/_build/html")
            return (python, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", *pages)
        if words[0] == "ruff":
            return (str(beside / "ruff"), "check", ".")
        return (str(beside / words[0]), *words[1:])

    def _build(self, preset: str, target: str) -> None:
        if (preset, target) in self._built:
            return
        folder = TREE / "build" / preset
        if not (folder / "cmake_install.cmake").exists():
            self._configure(preset)
        self._output(("cmake", "--build", str(folder), "--target", target), self._environment)
        if target == "_core":
            for old in (TREE / "python" / "attnscale").glob("_core*.so"):
                old.unlink()
            (module,) = (folder / "cpp" / "bindings").glob("_core*.so")
            shutil.copy2(module, TREE / "python" / "attnscale")
        self._built.add((preset, target))

    def _configure(self, preset: str) -> None:
        where = (sys.executable, "-m", "pybind11", "--cmakedir")
        found = subprocess.run(where, capture_output=True, text=True, check=True).stdout.strip()
        python = (f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={found}")
        with_module = ("-DATTNSCALE_BUILD_PYTHON=ON", *python) if preset == "gcc" else ()
        self._output(("cmake", "--preset", preset, *with_module), self._environment)

    @staticmethod
    def _output(command: tuple[str, ...], environment: dict[str, str]) -> str:
        done = subprocess.run(command, cwd=TREE, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError((done.stdout + done.stderr)[-4000:])
        return done.stdout
