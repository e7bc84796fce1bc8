# SPDX-License-Identifier: BSD-3-Clause
"""The task of one unit of a study, a cell and a seed: train, measure and store, in any process."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .._grid.case import Case
from .._grid.errors import Busy, Failure
from .._grid.fields import Field, Fields
from .._grid.files import locked
from .._grid.progress import MINUTE, Watch
from .._grid.store import Store
from .._provenance import provenance
from .._runtime import threads_within
from .._tables.text import counted, duration
from ._checkpoint import Checkpoints
from ._design import Design
from ._training import Training

#: Names of the two stored arrays of a unit that are JSON text.
PROVENANCE, FACTS = "_provenance", "_facts"


@dataclass(frozen=True)
class UnitTask:
    """All that a process needs to run a unit; a call with the case of the grid runs it.

    Attributes
    ----------
    study : Design
    store : Path or None
        Directory of the store.
    num_threads : int
        Threads of PyTorch and of this package.
    checkpoint_seconds : float
    watch, announce : callable or None
        Called with lines of progress, and once with how long a training takes; None in another process.
    models : int
        The number of units that are to be run.
    """

    study: Design
    store: Path | None
    num_threads: int
    checkpoint_seconds: float
    watch: Callable[[str], object] | None = None
    announce: Callable[[str], object] | None = None
    models: int = 1

    def __call__(self, case: Case) -> Fields | Failure | Busy:
        """The arrays of a unit; a failure in words if an exception was raised."""
        try:
            with _threads(self.num_threads), self._claimed(case) as free:
                if not free:
                    return Busy()
                return self._stored(case) or self._measure(case)
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            return Failure(f"{type(error).__name__}: {error}", trace, error if self.watch else None)

    def _measure(self, case: Case) -> Fields:
        cell = dict(case.parameters)
        seed = cell.pop("seed")
        directory = None if self.store is None else self.store / "checkpoints"
        checkpoints = Checkpoints(directory, case.digest[:32], self.checkpoint_seconds)
        place = getattr(self.study, "device", "cpu"), getattr(self.study, "dtype", "float32")
        training = Training(seed, *place, checkpoints, self._watch_of(case))
        start = time.perf_counter()
        found = self.study.measure(cell, seed, training)
        record = self._provenance(training, time.perf_counter() - start)
        fields = self._checked(found)
        fields[PROVENANCE] = Field(np.array(json.dumps(record)))
        fields[FACTS] = Field(np.array(json.dumps(training.facts)))
        if self.store is not None:
            Store(self.store, "train", "training").write(case, fields)
        checkpoints.clear()
        return fields

    def _checked(self, found: Mapping[str, Any]) -> Fields:
        """The measured arrays, whose names and shapes must be those that the study declares."""
        variables = self.study.variables()
        if found.keys() != variables.keys():
            raise ValueError(f"measure must return {sorted(variables)}, got {sorted(found)}")
        fields: Fields = {}
        for name, variable in variables.items():
            values = np.asarray(found[name], np.float64)
            if values.shape != variable.shape:
                raise ValueError(f"{name} must have shape {variable.shape}, got {values.shape}")
            fields[name] = Field(values, variable.dims)
        return fields

    def _provenance(self, training: Training, seconds: float) -> dict[str, Any]:
        record = provenance().to_dict()
        device = training.device
        kind = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        kept = {name: record[name] for name in ("attnscale", "numpy", "simd_level", "num_threads", "created")}
        return {**kept, "torch": str(torch.__version__), "device": kind, "seconds": round(seconds, 1)}

    def _stored(self, case: Case) -> Fields | None:
        return None if self.store is None else Store(self.store, "train", "training").read(case)

    def _watch_of(self, case: Case) -> Callable[[int], Watch] | None:
        """What each training of the unit, of so many steps, tells of its progress."""
        show, announce = self.watch, self.announce
        if show is None or announce is None:
            return None

        def watch(steps: int) -> Watch:
            def told(seconds: float) -> str:
                of_one = f"a training of {steps} steps takes about {duration(seconds)}"
                return f"{of_one}, and {counted(self.models, 'model')} are to be trained"

            return Watch(lambda line: show(f"{case}: {line}"), announce, MINUTE / self.models, told)

        return watch

    @contextmanager
    def _claimed(self, case: Case) -> Iterator[bool]:
        """Whether this process may run the unit, as no other one runs it; a process that dies lets go."""
        if self.store is None:
            yield True
            return
        with locked(self.store / "checkpoints" / f"{case.digest[:32]}.lock", wait=False) as free:
            yield free


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """A context with `number` threads: PyTorch's sums depend on the number, this package's do not."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        with threads_within(number):
            yield
    finally:
        torch.set_num_threads(before)
