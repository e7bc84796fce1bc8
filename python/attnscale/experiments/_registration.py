# SPDX-License-Identifier: BSD-3-Clause
"""Registrations: the design and the criterion of a run, and their hash, written before the run."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import subprocess
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from .._base.checks import refusal, shown
from .._base.provenance import provenance
from .._grid.describe import digest
from .._grid.files import read_json, write_json
from ._design import Design

_KIND = "attnscale registration"
_Study = TypeVar("_Study", bound=Design)


def registration_of(study: Design, seeds: list[int]) -> dict[str, Any]:
    """All that is fixed before a run, as JSON types.

    Design and criterion are included in full; code that the study imports from its own folder as a SHA-256;
    this package, which trains and judges, as its version.
    """
    fixed = {
        "experiment": study.name,
        "claim": study.claim,
        "question": study.question,
        "config": study.parameters(),
        "seeds": seeds,
        "criterion": study.criterion().to_dict(),
        "code": _code(Path(inspect.getfile(type(study)))),
        "attnscale": provenance().attnscale,
    }
    return dict(json.loads(json.dumps(fixed)))


def write_registration(path: str | os.PathLike[str], study: Design, seeds: list[int]) -> str:
    """Write a registration with the commit of the study's file, its hash, and the (unhashed) time."""
    content = registration_of(study, seeds)
    content = {**content, "commit": _commit(Path(inspect.getfile(type(study))).parent)}
    found = digest(content)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(path, _KIND, {**content, "sha256": found, "created": now})
    return found


def registered_design(path: str | os.PathLike[str], kind: type[_Study]) -> tuple[_Study, list[int]]:
    """The study and the seeds registered in a file, in the fields that the class has.

    The run itself checks the registration, by :func:`registered_hash`.
    """
    stored = read_json(path, _KIND)
    if stored.get("experiment") != kind.name:
        return kind(), [0]
    known = {each.name for each in fields(kind)} & stored["config"].keys()
    config = {name: stored["config"][name] for name in known}
    tuples = {name: tuple(value) for name, value in config.items() if isinstance(value, list)}
    return kind(**{**config, **tuples}), stored["seeds"]


def registered_hash(path: str | os.PathLike[str], content: dict[str, Any]) -> str:
    """The hash of the registration in a file, checked against `content`.

    Raises
    ------
    ValueError
        If the file was changed after it was written, or registers another run; the first difference is named.
    """
    stored = read_json(path, _KIND)
    written, _ = stored.pop("sha256", None), stored.pop("created", None)
    if digest(stored) != written:
        rule = f"must be as it was written, got {str(path)!r}, which has another hash"
        raise refusal(ValueError, "registration", rule)
    for name, wanted in content.items():
        if stored.get(name) != wanted:
            raise refusal(
                ValueError,
                "registration",
                f"must be of this run, got {str(path)!r}, whose {name} "
                f"{_difference(stored.get(name), wanted)}; {_repeat(stored)}",
            )
    return str(written)


def _repeat(stored: dict[str, Any]) -> str:
    """The commit from which a registered run can be repeated, in words."""
    if commit := stored.get("commit"):
        return f"its run can be repeated from commit {commit}"
    return (
        'it names no commit; the page "How we judge" has those of the oldest runs of attnscale\'s own studies'
    )


def _difference(seen: Any, wanted: Any) -> str:
    if isinstance(seen, dict) and isinstance(wanted, dict):
        name = next(each for each in wanted if seen.get(each) != wanted[each])
        return f"has {name!r} = {shown(seen.get(name))} and not {shown(wanted[name])}"
    return f"is {shown(seen)} and not {shown(wanted)}"


def _code(path: Path) -> str:
    """SHA-256 of a study's file and the files that it imports from its folder and below."""
    folder, total = path.parent, hashlib.sha256()
    waiting, known = [path], {path}
    while waiting:
        for each in _imported(waiting.pop(), folder) - known:
            known.add(each)
            waiting.append(each)
    for each in sorted(known):
        content = each.read_bytes()
        total.update(f"{each.relative_to(folder).as_posix()}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()


def _imported(path: Path, folder: Path) -> set[Path]:
    """The files in `folder` imported by any statement of a file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        for names, base in _bases(node, path, folder):
            module = base.joinpath(*names)
            tried = (module.with_suffix(".py"), module / "__init__.py") if names else (base / "__init__.py",)
            found |= {each for each in tried if each.is_file()}
    return found


def _bases(node: ast.AST, path: Path, folder: Path) -> list[tuple[list[str], Path]]:
    """The modules that a statement may import: parts of the name, and the starting folder."""
    if isinstance(node, ast.Import):
        return [(each.name.split("."), folder) for each in node.names]
    if not isinstance(node, ast.ImportFrom):
        return []
    base = path.parents[node.level - 1] if node.level else folder
    module = node.module.split(".") if node.module else []
    if node.level and not base.is_relative_to(folder):
        return []
    return [(module, base), *(([*module, each.name], base) for each in node.names)]


def _commit(folder: Path) -> str:
    """The commit of a folder's repository, with "+" if files differ from it; empty without one."""
    git = ["git", "-C", str(folder)]
    try:
        said = [
            subprocess.run([*git, *command], capture_output=True, text=True, check=True).stdout.strip()
            for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        ]
    except (OSError, subprocess.CalledProcessError):
        return ""
    return f"{said[0]}+" if said[1] else said[0]
