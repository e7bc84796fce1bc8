# SPDX-License-Identifier: BSD-3-Clause
"""Runs of the units of a study, cells times seeds, that the store lacks, in any process."""

from __future__ import annotations

import dataclasses
import json
import operator
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch

from .._base.checks import number, refusal, shown, thread_count
from .._base.hints import check_options
from .._base.provenance import provenance
from .._base.runtime import threads_within
from .._base.text import counted, duration
from .._grid.case import Axes, Case, describe_axes, make_cases
from .._grid.complete import Outcome, choose_runner, complete, missing
from .._grid.describe import describe
from .._grid.errors import Busy, Failure, SweepInterrupted, Unstored
from .._grid.fields import Field, Fields
from .._grid.files import locked
from .._grid.part import Part
from .._grid.progress import MINUTE, Progress, Watch, check_progress
from .._grid.store import Store
from ..torch._base.device import device_named
from ._design import Design
from ._registration import registered_hash, registration_of
from ._result import TrainingResult
from ._training import Checkpoints, Training

# ---- the task of one unit: train, measure and store ----------------------------------------------


#: Names of the two stored arrays of a unit that are JSON text.
PROVENANCE, FACTS = "_provenance", "_facts"


@dataclass(frozen=True)
class UnitTask:
    """All that a process needs to run a unit; it is called with the case of the grid."""

    study: Design
    store: Path | None  # directory of the store
    num_threads: int  # threads of PyTorch and of this package
    checkpoint_seconds: float
    #: Called with lines of progress, and once with the duration of a training; None in other processes.
    watch: Callable[[str], object] | None = None
    announce: Callable[[str], object] | None = None
    models: int = 1  # number of units to run

    def __call__(self, case: Case) -> Outcome | Busy:
        """The arrays of a unit; after an exception, a failure in words."""
        try:
            with _threads(self.num_threads), self._claimed(case) as free:
                if not free:
                    return Busy()
                return self._stored(case) or self._measure(case)
        except Exception as error:
            trace = "".join(traceback.format_exception(error))
            return Failure(f"{type(error).__name__}: {error}", trace, error if self.watch else None)

    def _measure(self, case: Case) -> Fields | Unstored:
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
        outcome = fields if self.store is None else Store(self.store, "train").keep(case, fields)
        if not isinstance(outcome, Unstored):  # else the state of the training remains
            checkpoints.clear()
        return outcome

    def _checked(self, found: Mapping[str, Any]) -> Fields:
        """The measured arrays, with the names and shapes that the study declares."""
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
        return None if self.store is None else Store(self.store, "train").read(case)

    def _watch_of(self, case: Case) -> Callable[[int], Watch] | None:
        """The progress reporter of a training of the unit, by its number of steps."""
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
        """Whether this process may run the unit because no other does; a dead process releases its claim."""
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


# ---- all units -----------------------------------------------------------------------------------


class RunOptions(TypedDict, total=False):
    """Keyword options of :meth:`Study.run`, which also takes ``seeds``.

    Attributes
    ----------
    store : path, optional
        Directory that keeps each finished model's measurements, and the state of trainings. Several
        processes, also on several machines, may share it: each model is trained by one of them.
    only : str or sequence of str, optional
        Models to train: "variant=dot,seed=0" for those with these labels; a sequence for several selections.
        The result has all models of the store.
    part : str or pair of int, optional
        "k/N" or (k, N): train only the k-th of N parts of these models, counted from 1, into a store that the
        parts share. The part that ends last, and the same call without `part`, have the whole result.
    registration : path, optional
        File of :meth:`Study.register`, for this design, these seeds and this code. The result carries its
        hash, and its verdicts count as registered. A store begun without it is refused.
    n_jobs : int, default 1
        Number of joblib processes; -1 is one for each core.
    num_threads : int, default 1
        Threads of each process. The last bits of PyTorch's sums, and so of results, depend on it.
    checkpoint_seconds : float, default 30
        Seconds between stored states of a training.
    progress : bool or callable, default True
        True: a bar, if standard error is a terminal and tqdm is installed. A callable gets
        ``progress(finished, total)`` after each model.
    watch : callable, optional
        ``watch(line)`` receives the progress of a training, as text, several times a second; with one process
        only.
    announce : callable, optional
        Called once with a line of text, if the first training shows that all models take more than a minute:
        the duration of that training, and the number of models; with one process only.
    """

    store: str | os.PathLike[str] | None
    only: str | Sequence[str] | None
    part: str | tuple[int, int] | None
    registration: str | os.PathLike[str] | None
    n_jobs: int
    num_threads: int
    checkpoint_seconds: float
    progress: Progress
    watch: Callable[[str], object] | None
    announce: Callable[[str], object] | None


_DEFAULTS: dict[str, Any] = {
    "store": None,
    "only": None,
    "part": None,
    "registration": None,
    "n_jobs": 1,
    "num_threads": 1,
    "checkpoint_seconds": 30.0,
    "progress": True,
    "watch": None,
    "announce": None,
}


def run(study: Design, seeds: Any, options: RunOptions) -> TrainingResult:
    """Train and measure the wanted units that the store lacks, for :meth:`Study.run`."""
    check_options(study.name, options, _DEFAULTS, ("seeds",))
    chosen = {**_DEFAULTS, **options}
    axes, cases = units(study, seeds)
    wanted = choose(cases, chosen["only"])
    part = Part.read(chosen["part"], chosen["store"])
    wanted = wanted if part is None else part.choose(wanted)
    hashed = ""
    if chosen["registration"] is not None:
        hashed = registered_hash(chosen["registration"], registration_of(study, axes["seed"]))
    store = None if chosen["store"] is None else Store(chosen["store"], "train")
    if store is not None:
        _open(store, study, hashed)
    threads = thread_count("num_threads", chosen["num_threads"])
    pause = number("checkpoint_seconds", chosen["checkpoint_seconds"])
    runner, _ = choose_runner(chosen["n_jobs"], None)
    finished = {} if store is None else store.finished(cases)
    left = missing(wanted, finished)
    _check_place(study, store, left)
    here = chosen["n_jobs"] == 1
    watch, announce = (chosen["watch"] or _silence, _once(chosen["announce"])) if here else (None, None)
    directory = None if store is None else store.directory
    task = UnitTask(study, directory, threads, pause, watch, announce, len(left))
    done = complete(runner(task, left), wanted, finished, progress=check_progress(chosen["progress"]))

    def table() -> TrainingResult | None:
        there = done.finished if store is None else store.with_others(done.finished, cases)
        if not there:
            return None
        found = _result(study, axes, there, interrupted=done.interrupted)
        return dataclasses.replace(found, registration=hashed)

    try:
        done.require(table, "models", _where(store))
    except SweepInterrupted as interrupt:
        if interrupt.partial is None:
            raise
    result = table()
    assert result is not None
    return result


def units(study: Design, seeds: Any) -> tuple[Axes, list[Case]]:
    """The axes of the study, the last of them "seed", and all their points."""
    axes: Axes = {name: list(labels) for name, labels in study.cells().items()}
    axes["seed"] = read_seeds(seeds)
    return axes, make_cases(axes, describe_axes(axes))


def read_seeds(seeds: Any) -> list[int]:
    """The seeds as a list: 0 ... seeds - 1 for a number, the integers themselves for a sequence."""
    try:
        return list(range(_at_least_one(operator.index(seeds))))
    except TypeError:
        pass
    try:
        found = [operator.index(each) for each in seeds]
    except TypeError:
        raise TypeError(f"seeds must be their number or a sequence of integers, got {shown(seeds)}") from None
    if not found or len(set(found)) < len(found) or min(found) < 0:
        raise ValueError(f"seeds must be distinct integers of at least 0, got {shown(seeds)}")
    return found


def _at_least_one(seeds: int) -> int:
    if seeds < 1:
        raise refusal(ValueError, "seeds", f"must be at least 1, got {seeds}")
    return seeds


def choose(cases: list[Case], only: Any) -> list[Case]:
    """The units that `only` selects; None selects all."""
    if only is None:
        return cases
    patterns = [_read_pattern(cases[0], each) for each in ([only] if isinstance(only, str) else only)]
    for pattern in patterns:
        if not any(_matches(case, pattern) for case in cases):
            first = ", ".join(f"{name}={label}" for name, label in pattern.items())
            raise refusal(
                ValueError, "only", f"must name models of the experiment, got {shown(first)}: there is none"
            )
    return [case for case in cases if any(_matches(case, pattern) for pattern in patterns)]


def _read_pattern(case: Case, text: Any) -> dict[str, str]:
    pattern = {}
    for part in str(text).split(","):
        name, equals, label = part.partition("=")
        if not equals or name.strip() not in case.parameters:
            axes = ", ".join(case.parameters)
            raise refusal(
                ValueError, "only", f"must be written AXIS=LABEL,... with axes {axes}, got {shown(text)}"
            )
        pattern[name.strip()] = label.strip()
    return pattern


def _matches(case: Case, pattern: Mapping[str, str]) -> bool:
    return all(str(case.parameters[name]) == label for name, label in pattern.items())


def _open(store: Store, study: Design, registration: str) -> None:
    """Check that the store belongs to this study and registration, or mark a new store."""
    fields = {each.name: getattr(study, each.name) for each in dataclasses.fields(study)}
    if fields.get("dtype") == "float32":
        del fields["dtype"]  # stores of float32 may be older than the field
    identity = {
        "experiment": study.name,
        "config": {name: describe(f"config.{name}", value) for name, value in fields.items()},
        "registration": registration or None,
    }
    with store.locked(wait=True):
        store.claim(identity)


def _check_place(study: Design, store: Store | None, left: list[Case]) -> None:
    """Refuse to train units on an absent device, or where their results cannot be stored."""
    if store is not None:
        store.check_room_for(left)
    if left:  # results from a GPU are read anywhere
        device_named(getattr(study, "device", "cpu"))


def _where(store: Store | None) -> str:
    return "store=DIR keeps them" if store is None else f"{str(store)!r} keeps them, and where a training was"


def _silence(line: str) -> None:
    """Ignore a line of progress."""


def _once(announce: Callable[[str], object] | None) -> Callable[[str], object]:
    """A function that passes only its first line to `announce`."""
    told: list[str] = []

    def tell(line: str) -> None:
        if announce is not None and not told:
            announce(line)
        told.append(line)

    return tell


def _result(
    study: Design, axes: Axes, finished: Mapping[Case, Fields], *, interrupted: bool
) -> TrainingResult:
    """The result with the arrays of all finished units; NaN elsewhere."""
    criterion = study.criterion()
    lead = tuple(map(len, axes.values()))
    variables = dict(study.variables())
    arrays = {name: np.full((*lead, *variable.shape), np.nan) for name, variable in variables.items()}
    records: dict[str, dict[str, Any]] = {}
    facts: dict[str, Any] = {}
    for case, fields in finished.items():
        for name, array in arrays.items():
            array[case.index] = fields[name].values
        facts |= json.loads(str(fields[FACTS].values))
        _count(records, json.loads(str(fields[PROVENANCE].values)))
    return TrainingResult(
        experiment=study.name,
        claim=study.claim,
        question=study.question,
        refuted_if=criterion.sentence,
        criterion=criterion,
        axes={name: tuple(labels) for name, labels in axes.items()},
        variables=variables,
        arrays=arrays,
        parameters=study.parameters(),
        facts=facts,
        provenance=list(records.values()),
        interrupted=interrupted,
        reduced=study.is_reduced(),
    )


def _count(records: dict[str, dict[str, Any]], record: dict[str, Any]) -> None:
    """Count a unit's record with records that differ only in the time."""
    seconds, created = record.pop("seconds"), record.pop("created")
    kept = records.setdefault(json.dumps(record), {**record, "models": 0, "seconds": 0.0, "created": created})
    kept["models"] += 1
    kept["seconds"] = round(kept["seconds"] + seconds, 1)
    kept["created"] = max(kept["created"], created)
