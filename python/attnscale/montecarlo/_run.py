# SPDX-License-Identifier: BSD-3-Clause
"""Runs experiments: how many samples, in what pieces, Ctrl-C, and going on from a result."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

import numpy as np

from .. import _core
from .._checks import check_options, choose, number, positive_int, shown, thread_count
from .._grid.errors import SweepInterrupted
from .._grid.progress import Progress, check_progress, reporter
from .._provenance import provenance
from .._seeds import case_key, seed_sequence
from ._cost import Announce, announcement, check_announce
from ._experiment import Case, Experiment
from ._limits import check_count
from ._result import Estimate, ExperimentResult
from ._tally import Tally

__all__ = ["RunOptions", "num_threads_of", "run"]

# Operations of a piece of work: a fraction of a second, which is what Ctrl-C can lose.
_PIECE = 4e8
_MOST_ROWS = 1 << 15


class RunOptions(TypedDict, total=False):
    """Keyword options that every experiment takes besides ``samples`` and ``rng``.

    Attributes
    ----------
    target_error : float, optional
        Instead of ``samples``: draw until the standard error of the main quantity is at most this,
        for every law. It is looked at after every 256 rows of a case.
    max_samples : int, default 1000000
        The most that ``target_error`` draws for a case; the error may then be larger, and
        ``target_reached`` of the result is False there.
    progress : bool or callable, default False
        True shows a bar where standard error is a terminal and tqdm is installed. A function is
        called with (samples done, total or None) after each piece of work.
    on_interrupt : {"return", "raise"}, default "return"
        What Ctrl-C does: the result so far, with ``interrupted`` set, or
        :class:`attnscale.SweepInterrupted`, a KeyboardInterrupt that has it as ``partial``.
    resume : ExperimentResult, optional
        Go on from this result of the same experiment with the same parameters. The seed is its own,
        and the numbers are those of a run that was never interrupted, bit for bit.
    num_threads : int, optional
        At least 1; by default that of :func:`attnscale.get_num_threads`. Results do not depend on it.
    announce : callable, optional
        Called with a line of text before a run that is expected to take more than a minute: how long,
        and of how many samples. It is measured on a few rows, which are not those of the run.
    """

    target_error: float | None
    max_samples: int
    progress: Progress
    on_interrupt: Literal["return", "raise"]
    resume: ExperimentResult | None
    num_threads: int | None
    announce: Announce | None


_DEFAULTS: dict[str, Any] = {
    "target_error": None,
    "max_samples": 1_000_000,
    "progress": False,
    "on_interrupt": "return",
    "resume": None,
    "num_threads": None,
    "announce": None,
}


@dataclass(frozen=True)
class _Stopping:
    """Rows of one case: a fixed number, or enough for an error, but no more than a limit."""

    most_rows: int
    target_error: float | None

    def goal(self, experiment: Experiment, case: Case, tally: Tally) -> int:
        """Draw until there are so many rows, then ask again; done if there are."""
        errors = experiment.estimate(case, tally)[1][..., 0]
        return _core.mc_rows_wanted(tally.rows, self.most_rows, self.target_error, errors.ravel())


def num_threads_of(name: str, options: RunOptions) -> int:
    """Threads for the core (0: its default), after a check that all options exist."""
    check_options(name, options, _DEFAULTS, ("samples", "rng"))
    threads = options.get("num_threads")
    return 0 if threads is None else thread_count("num_threads", threads)


def run(experiment: Experiment, samples: Any, rng: Any, options: RunOptions) -> ExperimentResult:
    """Draw rows for every case until there are enough of them.

    Parameters
    ----------
    experiment : Experiment
    samples : int or None
        For each case; rounded up to whole rows. None is the experiment's own number.
    rng : see :func:`seed_sequence`
    options : RunOptions
    """
    chosen: dict[str, Any] = {**_DEFAULTS, **options}
    stopping = _read_stopping(experiment, samples, chosen)
    choose("on_interrupt", chosen["on_interrupt"], ("return", "raise"))
    progress, announce = check_progress(chosen["progress"]), check_announce(chosen["announce"])
    seed, tallies = _start(experiment, rng, chosen["resume"])
    if announce is not None:
        threads = num_threads_of(experiment.name, options)
        line = announcement(experiment, stopping.most_rows, stopping.target_error, tallies, threads)
        if line:
            announce(line)
    interrupted = False
    total = None
    if stopping.target_error is None:
        total = stopping.most_rows * experiment.block * len(tallies)
    drawn = sum(tally.rows for tally in tallies) * experiment.block
    try:
        with reporter(progress, "sample", total, drawn) as report:
            for index, case in enumerate(experiment.cases):
                key = case_key(seed, experiment.identity(case))
                for tally in _draw(experiment, case, key, tallies[index], stopping):
                    new = tally.rows - tallies[index].rows
                    tallies[index] = tally
                    drawn += new * experiment.block
                    report(drawn)
    except KeyboardInterrupt:
        interrupted = True
    result = _result(experiment, seed, tuple(tallies), stopping.target_error, interrupted=interrupted)
    if interrupted and chosen["on_interrupt"] == "raise":
        raise SweepInterrupted(
            f"{drawn} samples are drawn; the attribute partial has them, and resume=partial goes on",
            result,
        )
    return result


def _read_stopping(experiment: Experiment, samples: Any, chosen: dict[str, Any]) -> _Stopping:
    target = chosen["target_error"]
    if target is None:
        count = experiment.default_samples if samples is None else _read_count("samples", samples)
        return _Stopping(-(-count // experiment.block), None)
    if samples is not None:
        raise ValueError(f"samples and target_error exclude each other, got {shown(samples)} and {target!r}")
    if number("target_error", target) <= 0:
        raise ValueError(f"target_error must be greater than 0, got {shown(target)}")
    most = _read_count("max_samples", chosen["max_samples"])
    return _Stopping(-(-most // experiment.block), float(target))


def _read_count(name: str, value: Any) -> int:
    return check_count(name, positive_int(name, value))


def _start(
    experiment: Experiment, rng: Any, before: ExperimentResult | None
) -> tuple[np.random.SeedSequence, list[Tally]]:
    if before is None:
        return seed_sequence(rng), [experiment.empty_tally() for _ in experiment.cases]
    if not isinstance(before, ExperimentResult):
        raise TypeError(f"resume must be the result of an experiment, got {type(before).__name__}")
    if rng is not None:
        raise ValueError(f"resume goes on with the seed of its result; rng must be None, got {shown(rng)}")
    if before.experiment != experiment.name:
        raise ValueError(f"resume must be a result of {experiment.name}, got one of {before.experiment}")
    for name in {**experiment.parameters, **before.parameters}:
        here, there = (parameters.get(name) for parameters in (experiment.parameters, before.parameters))
        if here != there:
            raise ValueError(f"resume must have the same {name}, got {shown(here)} here and {there!r} there")
    return before._seed, list(before._tallies)


def _draw(experiment: Experiment, case: Case, key: int, tally: Tally, stopping: _Stopping) -> Iterator[Tally]:
    """The tally after each piece of work."""
    piece = int(min(max(_PIECE / case.cost, 1), _MOST_ROWS))
    while (goal := stopping.goal(experiment, case, tally)) > tally.rows:
        while tally.rows < goal:
            tally = tally.add(case.rows(key, tally.rows, min(piece, goal - tally.rows)))
            yield tally


def _result(
    experiment: Experiment,
    seed: np.random.SeedSequence,
    tallies: tuple[Tally, ...],
    target_error: float | None,
    *,
    interrupted: bool,
) -> ExperimentResult:
    axes = (*experiment.outer, *experiment.inner)
    shape = tuple(len(axis) for axis in axes if not axis.scalar)
    inner = tuple(map(len, experiment.inner))
    found = [experiment.estimate(case, tally) for case, tally in zip(experiment.cases, tallies, strict=True)]
    values, errors = (np.stack(parts) for parts in zip(*found, strict=True))
    samples = np.array([np.full(inner, tally.rows * experiment.block) for tally in tallies], np.int64)

    def shaped(array: Any, kind: Callable[[Any], Any]) -> Any:
        return array.reshape(shape) if shape else kind(array.item())

    return ExperimentResult(
        experiment=experiment.name,
        quantity=next(iter(experiment.quantities)),
        estimates={
            name: Estimate(shaped(values[..., i].copy(), float), shaped(errors[..., i].copy(), float), unit)
            for i, (name, unit) in enumerate(experiment.quantities.items())
        },
        axes={axis.name: axis.labels for axis in axes if not axis.scalar},
        samples=shaped(samples, int),
        parameters=experiment.parameters,
        interrupted=interrupted,
        target_error=target_error,
        provenance=provenance(seed),
        _betas=None if experiment.betas is None else experiment.betas.reshape(shape),
        _seed=seed,
        _tallies=tallies,
    )
