# SPDX-License-Identifier: BSD-3-Clause
"""Files that the units of a store keep: the state of each training, and data that all units need."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._grid.files import locked, write_whole


class Checkpoints:
    """The states of the trainings of one unit, one file each; a file is replaced as a whole.

    Parameters
    ----------
    directory : Path or None
        Where the files lie; with None nothing is kept.
    unit : str
        Name of the unit, with which the names of its files begin.
    seconds : float
        Time after which the next state is due.
    """

    def __init__(self, directory: Path | None, unit: str = "", seconds: float = 30.0) -> None:
        self._directory = directory
        self._unit = unit
        self._seconds = seconds
        self._last = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time to write a state."""
        return self._directory is not None and time.monotonic() - self._last >= self._seconds

    def read(self, name: str) -> dict[str, Any] | None:
        """The state of the training `name`; None if no state is kept."""
        if self._directory is None or not self._path(name).exists():
            return None
        state: dict[str, Any] = torch.load(self._path(name), map_location="cpu", weights_only=True)
        return state

    def write(self, name: str, state: dict[str, Any]) -> None:
        """Write the state of the training `name`; on return the state is on the disk."""
        if self._directory is None:
            return
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self._directory.mkdir(parents=True, exist_ok=True)
        write_whole(self._path(name), buffer.getvalue())
        self._last = time.monotonic()

    def clear(self) -> None:
        """Delete the states of the unit, which are of no use when it is finished."""
        if self._directory is not None and self._directory.exists():
            for path in self._directory.glob(f"{self._unit}-*"):
                path.unlink()

    def cached(self, name: str, make: Callable[[], Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
        """Arrays that are the same for all units of the store: one unit makes them while others wait."""
        if self._directory is None:
            return dict(make())
        path = self._directory / f"{name}.npz"
        with locked(self._directory / f"{name}.lock", wait=True):
            if not path.exists():
                buffer = io.BytesIO()
                np.savez(buffer, **make())  # type: ignore[arg-type]
                write_whole(path, buffer.getvalue())
        with np.load(path, allow_pickle=False) as kept:
            return dict(kept)

    def _path(self, name: str) -> Path:
        assert self._directory is not None
        return self._directory / f"{self._unit}-{name}.pt"
