# SPDX-License-Identifier: BSD-3-Clause
"""The step of a training's state, read from the file that PyTorch wrote, without PyTorch."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any


class _Ignored:
    """A stand-in for every object of a state but numbers, text and their collections."""

    def __new__(cls, *_: Any) -> _Ignored:
        return object.__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Ignore the state."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Ignore an entry."""


class _Plain(pickle.Unpickler):
    """A reader that imports nothing."""

    def find_class(self, module: str, name: str) -> Any:
        return _Ignored

    def persistent_load(self, pid: Any) -> Any:
        return None


def step_of(path: Path) -> int:
    """The number of steps that the training had done; -1 if the file is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            (name,) = (each for each in archive.namelist() if each.endswith("/data.pkl"))
            with archive.open(name) as stream:
                return int(_Plain(stream).load()["step"])
    except Exception:  # a damaged archive fails in many ways
        return -1
