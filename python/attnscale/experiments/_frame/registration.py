# SPDX-License-Identifier: BSD-3-Clause
"""Registrations: the design and the criterion of a run, and their hash, written before the run."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..._checks import shown
from ..._grid.describe import digest
from ..._grid.files import read_json, write_json
from .experiment import Experiment

__all__ = ["registered_hash", "registration_of", "write_registration"]

_KIND = "attnscale registration"
_PACKAGE = Path(__file__).parents[1]  # attnscale.experiments


def registration_of(experiment: Experiment, config: Any, seeds: list[int]) -> dict[str, Any]:
    """All that is fixed before a run, in types that JSON has.

    Design and criterion are there in full. The code of :mod:`attnscale.experiments`, which trains, measures
    and judges, is there as its SHA-256.
    """
    fixed = {
        "experiment": experiment.name,
        "claim": experiment.claim,
        "question": experiment.question,
        "config": dataclasses.asdict(config),
        "seeds": seeds,
        "criterion": experiment.criterion(config).to_dict(),
        "code": _code(),
    }
    return dict(json.loads(json.dumps(fixed)))


def write_registration(path: str | os.PathLike[str], content: dict[str, Any]) -> str:
    """Write a registration with its hash, and with the time, which the hash leaves out."""
    found = digest(content)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(path, _KIND, {**content, "sha256": found, "created": now})
    return found


def registered_hash(path: str | os.PathLike[str], content: dict[str, Any]) -> str:
    """The hash of the registration in a file, which must be that of `content`.

    Raises
    ------
    ValueError
        The file was changed after it was written, or registers another run; the first difference is named.
    """
    stored = read_json(path, _KIND)
    written, _ = stored.pop("sha256", None), stored.pop("created", None)
    if digest(stored) != written:
        raise ValueError(f"registration must be as it was written, got {str(path)!r}, which has another hash")
    for name, wanted in content.items():
        if stored.get(name) != wanted:
            raise ValueError(
                f"registration must be of this run, got {str(path)!r}, whose {name} "
                f"{_difference(stored.get(name), wanted)}"
            )
    return str(written)


def _difference(seen: Any, wanted: Any) -> str:
    if isinstance(seen, dict) and isinstance(wanted, dict):
        name = next(each for each in wanted if seen.get(each) != wanted[each])
        return f"has {name!r} = {shown(seen.get(name))} and not {shown(wanted[name])}"
    return f"is {shown(seen)} and not {shown(wanted)}"


def _code() -> str:
    """SHA-256 of all files of the package of experiments, by name."""
    total = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*.py")):
        content = path.read_bytes()
        total.update(f"{path.relative_to(_PACKAGE).as_posix()}\0{len(content)}\0".encode())
        total.update(content)
    return total.hexdigest()
