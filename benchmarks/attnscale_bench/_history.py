# SPDX-License-Identifier: BSD-3-Clause
"""A history of speed: one line of JSON per run, with shares and ratios but no times."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._guard import keep
from ._report import Report

__all__ = ["append_history", "commit_of", "read_history"]

ROOT = Path(__file__).resolve().parents[2]
#: Files in which a change makes the code differ from the commit.
_SOURCES = ("python", "cpp", "cmake", "CMakeLists.txt", "benchmarks/*.py")
_MACHINE = ("cpu", "cpus", "simd_level", "num_threads", "compiler", "numpy", "torch", "version")


def append_history(report: Report, path: Path, *, commit: str | None) -> bool:
    """Append the shares and ratios of a run to a file; False if the run has none.

    Parameters
    ----------
    commit : str or None
        Commit of the measured code.
    """
    rows = {
        name: [row["unit"], _short(row["value"]), _short(row["spread"])]
        for name, row in json.loads(keep(report))["rows"].items()
    }
    if not rows:
        return False
    line = {
        "date": report.machine["date"],
        "commit": commit,
        **{name: report.machine[name] for name in _MACHINE},
        "rounds": report.settings["rounds"],
        "load_before": None if (load := report.machine["load_before"]) is None else _short(load),
        "disturbed": [row.name for row in report.rows if row.disturbed and row.name in rows],
        "rows": rows,
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return True


def read_history(path: Path) -> list[Mapping[str, Any]]:
    """Lines of a file of :func:`append_history`, the oldest first."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def commit_of(root: Path = ROOT) -> str | None:
    """The commit of a checkout, followed by + if sources have changed since; None without git."""
    try:
        found = _git(root, "rev-parse", "--short=8", "HEAD")
        return found + ("+" if _git(root, "status", "--porcelain", "--", *_SOURCES) else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(root: Path, *words: str) -> str:
    git = ("git", "-C", str(root), *words)
    return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()


def _short(value: float) -> float:
    return float(f"{value:.4g}")
