# SPDX-License-Identifier: BSD-3-Clause
"""What the units of a store keep on the disk: where a training is, and data that all of them need."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..._grid.files import locked, write_whole

__all__ = ["Checkpoints"]


class Checkpoints:
    """The states of the trainings of one unit, one file each, which is replaced as a whole.

    Parameters
    ----------
    directory : Path or None
        None keeps nothing.
    unit : str
        Begins the names of the files.
    seconds : float
        A state is due so long after the last one.
    """

    def __init__(self, directory: Path | None, unit: str = "", seconds: float = 30.0) -> None:
        self._directory = directory
        self._unit = unit
        self._seconds = seconds
        self._last = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time to write."""
        return self._directory is not None and time.monotonic() - self._last >= self._seconds

    def read(self, name: str) -> dict[str, Any] | None:
        """The state of this training; None if there is none."""
        if self._directory is None or not self._path(name).exists():
            return None
        state: dict[str, Any] = torch.load(self._path(name), map_location="cpu", weights_only=True)
        return state

    def write(self, name: str, state: dict[str, Any]) -> None:
        """Keep a state; when this returns it is on the disk."""
        if self._directory is None:
            return
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self._directory.mkdir(parents=True, exist_ok=True)
        write_whole(self._path(name), buffer.getvalue())
        self._last = time.monotonic()

    def clear(self) -> None:
        """The unit is finished: its states are of no use."""
        if self._directory is not None and self._directory.exists():
            for path in self._directory.glob(f"{self._unit}-*"):
                path.unlink()

    def cached(self, name: str, make: Callable[[], Mapping[str, NDArray[Any]]]) -> dict[str, NDArray[Any]]:
        """Arrays that are the same for all units of the store: one of them makes them, others wait."""
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
