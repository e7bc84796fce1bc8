# SPDX-License-Identifier: BSD-3-Clause
"""A copy of the repository below build/, in which faults are planted."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .fault import Fault

__all__ = ["ROOT", "TREE", "is_of_core", "make_python", "make_tree", "planted"]

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "mutants"
TREE = PLACE / "tree"


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(("git", *words), cwd=folder, capture_output=True, text=True, check=True).stdout


def _place(folder: Path, name: str) -> Path:
    """Path of a file or folder of git's own."""
    return folder / _git(folder, "rev-parse", "--git-path", name).strip()


def _files_of(folder: Path) -> set[str]:
    """Existing files that git tracks or would take."""
    names = _git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    return {name for name in names if name and (folder / name).is_file()}


def _is_test(name: str) -> bool:
    """Whether a file belongs to tests of Python or C++; build files of C++ tests belong to the sources."""
    of_cpp = name.startswith("cpp/tests/") and name.endswith((".cpp", ".hpp"))
    return of_cpp or (name.startswith(("tests/", "tools/")) and not name.startswith("tools/mutants/"))


def make_tree(tests: Path | None, tree: Path = TREE) -> None:
    """Bring the copy in `tree` up to date; `tests` is another checkout whose tests it gets.

    Files that are the same stay untouched, so that builds in the copy go on where they were.
    """
    wanted = {name: ROOT / name for name in _files_of(ROOT)}
    if tests is not None:
        wanted = {name: path for name, path in wanted.items() if not _is_test(name)}
        wanted |= {name: tests / name for name in _files_of(tests) if _is_test(name)}
    if not (tree / ".git").exists():
        tree.mkdir(parents=True, exist_ok=True)
        _git(tree, "init", "-q")
        (tree / ".git" / "info" / "exclude").write_text("*.so\n")  # the module that is built for the tests
        # Commits that pages name are looked up in the history of the repository.
        (tree / ".git" / "objects" / "info" / "alternates").write_text(f"{_place(ROOT, 'objects')}\n")
        if (shallow := _place(ROOT, "shallow")).exists():
            _copy(shallow, tree / ".git" / "shallow")
    for name in _files_of(tree) - wanted.keys():
        (tree / name).unlink()
    for name, path in wanted.items():
        _copy(path, tree / name)
    _git(tree, "add", "-A")


def _copy(path: Path, to: Path) -> None:
    content = path.read_bytes()
    if not to.is_file() or to.read_bytes() != content:
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(content)
    to.chmod(path.stat().st_mode & 0o777)


def make_python() -> Path:
    """An interpreter that has this one's packages, and the copy's attnscale.

    A path in a .pth file brings packages without the .pth files beside them: an editable install of the
    working tree is not loaded.
    """
    place = PLACE / "venv"
    if not (place / "bin" / "python").exists():
        venv.create(place, symlinks=True)
    own = sysconfig.get_path("purelib", "venv", {"base": str(place), "platbase": str(place)})
    lines = (TREE / "python", sysconfig.get_path("purelib"))
    (Path(own) / "tree.pth").write_text("".join(f"{line}\n" for line in lines))
    python = place / "bin" / "python"
    where = "import importlib.util as u; print(u.find_spec('attnscale').origin)"
    seen = subprocess.run((python, "-c", where), cwd=PLACE, capture_output=True, text=True, check=True).stdout
    if not seen.startswith(str(TREE)):
        sys.exit(f"the tests would import {seen.strip()}, and not the copy")
    return python


def is_of_core(name: str) -> bool:
    """Whether a change of this file is a change of what is compiled."""
    return name.startswith(("cpp/", "cmake/", "CMake"))


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """The copy with a fault in it."""
    path = TREE / fault.file
    sound = path.read_text(encoding="utf-8")
    count = sound.count(fault.old)
    if count != 1:
        raise ValueError(f"the text of {fault.name!r} must occur once in {fault.file}, got {count} times")
    path.write_text(sound.replace(fault.old, fault.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(sound, encoding="utf-8")
