# SPDX-License-Identifier: BSD-3-Clause
"""Runs of experiments: number of samples, pieces of work, interruption, and continuation."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from time import perf_counter
from typing import Any, Literal, TypedDict

import numpy as np

from .._base.checks import choose, number, positive_int, refusal, shown, thread_count
from .._base.hints import check_options
from .._base.provenance import provenance
from .._base.runtime import get_num_threads
from .._base.seeds import case_key, seed_from_json, seed_sequence, seed_to_json
from .._base.spelling import as_number
from .._base.text import duration
from .._core import __version__, mc_rows_wanted
from .._grid.case import Case, describe_axes, make_cases
from .._grid.complete import Amount, Outcomes, complete
from .._grid.errors import Failure, SweepInterrupted, Unstored
from .._grid.fields import Fields
from .._grid.part import Part
from .._grid.progress import MINUTE, Progress, check_progress
from .._grid.store import Store
from ._experiment import Declaration, Draws, Prepared
from ._parameters import check_count
from ._result import Estimate, ExperimentResult
from ._tally import Tally

#: Default limit of samples that a target error draws for a case.
MOST_SAMPLES = 1_000_000

# Operations of a piece of work: a fraction of a second, the most that Ctrl-C can lose.
_PIECE = 4e8
_MOST_ROWS = 1 << 15
#: A running case is kept in the store this often; a killed process loses no more.
_KEEP_SECONDS = 30.0


class RunOptions(TypedDict, total=False):
    """Keyword options of every experiment besides ``samples`` and ``rng``.

    Attributes
    ----------
    target_error : float, optional
        In place of ``samples``: draw until the standard error of the main quantity is at most this, for every
        law. It is checked after every 256 rows of a case.
    max_samples : int, default 1000000
        Largest number that ``target_error`` draws for a case; where the error is then larger,
        ``target_reached`` of the result is False.
    progress : bool or callable, default False
        True shows a bar where standard error is a terminal and tqdm is installed. A function is
        called with (samples done, total or None) at the start and after each piece of work.
    on_interrupt : {"return", "raise"}, default "return"
        Result of Ctrl-C: the partial result, with ``interrupted`` set, or
        :class:`attnscale.SweepInterrupted`, a KeyboardInterrupt with the result as ``partial``.
    resume : ExperimentResult, optional
        Continue this result of the same experiment with the same parameters, with its seed; the numbers are
        those of an uninterrupted run, bit for bit.
    store : path, optional
        Directory that keeps each finished case, and the state of interrupted ones. A run of the same
        experiment with the same parameters continues from it, with the store's seed if ``rng`` is None.
    part : str or pair of int, optional
        "k/N" or (k, N): draw only the k-th of N parts of the cases, counted from 1, into a store that the
        parts share. The result has all cases of the store, NaN elsewhere: the part that ends last, and the
        same call without `part`, have all of them, bit for bit.
    num_threads : int, optional
        At least 1; :func:`attnscale.get_num_threads` by default. Results do not depend on it.
    announce : callable, optional
        Called with a line of text before a run of more than about a minute: its expected duration and number
        of samples, measured on a few rows that are not those of the run.
    """

    target_error: float | None
    max_samples: int
    progress: Progress
    on_interrupt: Literal["return", "raise"]
    resume: ExperimentResult | None
    store: str | os.PathLike[str] | None
    part: str | tuple[int, int] | None
    num_threads: int | None
    announce: Announce | None


_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(RunOptions.__annotations__),
    "max_samples": MOST_SAMPLES,
    "progress": False,
    "on_interrupt": "return",
}


@dataclass(frozen=True)
class _Stopping:
    """The end of a case: a fixed number of rows, or an error with a limit of rows."""

    most_rows: int
    target_error: float | None

    def goal(self, experiment: Prepared, case: Draws, tally: Tally) -> int:
        """Number of rows to draw before the next check; a case with that many is done."""
        errors = experiment.estimate(case, tally)[1][..., 0]
        return mc_rows_wanted(tally.rows, self.most_rows, self.target_error, errors.ravel())


def num_threads_of(declared: Declaration, options: RunOptions) -> int:
    """Threads for the core (0: its default), after a check of the options' names."""
    check_options(declared.name, options, _DEFAULTS, signature(declared.function).parameters)
    threads = options.get("num_threads")
    return 0 if threads is None else thread_count("num_threads", threads)


def run(experiment: Prepared, samples: Any, rng: Any, options: RunOptions) -> ExperimentResult:
    """Draw rows for every case until there are `samples`, rounded up to whole rows; None is the default."""
    chosen: dict[str, Any] = {**_DEFAULTS, **options}
    stopping = _read_stopping(experiment, samples, chosen)
    choose("on_interrupt", chosen["on_interrupt"], ("return", "raise"))
    check_progress(chosen["progress"])
    check_announce(chosen["announce"])
    part = Part.read(chosen["part"], chosen["store"])
    seed, tallies = _start(experiment, rng, chosen["resume"])
    axes = {axis.name: list(axis.labels) for axis in experiment.outer}
    if chosen["store"] is None:
        cases = make_cases(axes, None)
        there = {case: tally.to_fields() for case, tally in zip(cases, tallies, strict=True) if tally.rows}
        return _Run(experiment, stopping, seed, cases, there).draw(chosen)
    if chosen["resume"] is not None:
        raise ValueError("store and resume exclude each other: a store resumes from its own cases")
    store = Store(chosen["store"], "mc")
    cases = make_cases(axes, describe_axes(axes))
    wanted = cases if part is None else part.choose(cases)
    with store.locked(part):
        seed = _claim(store, experiment, seed, part, any_seed=rng is None)
        return _Run(experiment, stopping, seed, cases, store.finished(wanted), store, wanted).draw(chosen)


def _claim(
    store: Store, experiment: Prepared, seed: np.random.SeedSequence, part: Part | None, *, any_seed: bool
) -> np.random.SeedSequence:
    """Check that the store belongs to this experiment, and return the seed to use."""
    identity = {
        "attnscale": __version__,
        "experiment": experiment.declared.name,
        "parameters": experiment.parameters,
        "seed": seed_to_json(seed),
    }
    return seed_from_json(store.claim(identity, any_seed=any_seed, part=part)["seed"])


@dataclass(frozen=True, eq=False)
class _Run:
    """An experiment with its seed, its ordered cases and the existing tallies; draws the `wanted` cases."""

    experiment: Prepared
    stopping: _Stopping
    seed: np.random.SeedSequence
    cases: list[Case]
    before: Mapping[Case, Fields]
    store: Store | None = None
    part: list[Case] | None = None

    @property
    def wanted(self) -> list[Case]:
        return self.cases if self.part is None else self.part

    def draw(self, chosen: dict[str, Any]) -> ExperimentResult:
        """Draw the missing rows; returns the result, unless an interruption is to be raised."""
        if chosen["announce"] is not None:
            target, threads = self.stopping.target_error, chosen["num_threads"] or 0
            tallies = self._tallies(self.before, self.wanted)
            places = (self.cases.index(case) for case in self.wanted)
            these = replace(self.experiment, cases=[self.experiment.cases[place] for place in places])
            line = announcement(these, self.stopping.most_rows, target, tallies, threads)
            if line:
                chosen["announce"](line)
        if self.store is not None:
            self.store.check_room_for(self._unfinished())
        done = complete(
            self._outcomes(self.wanted),
            self.wanted,
            self.before,
            progress=chosen["progress"],
            amount=Amount("sample", self._total(), self._samples),
        )
        there = done.finished if self.store is None else self.store.with_others(done.finished, self.cases)
        result = _result(self, tuple(self._tallies(there)), interrupted=done.interrupted)
        failures = done.failures | (self._keep(done.finished) if done.interrupted else {})
        if failures:  # of writing alone: the result has these cases
            unkept = replace(done, failures=failures, interrupted=False)
            unkept.require(lambda: result, "cases", f"{str(self.store)!r} keeps them")
        if done.interrupted and chosen["on_interrupt"] == "raise":
            drawn = sum(map(self._samples, done.finished.values()))
            where = "resume=partial" if self.store is None else "the same call"
            raise SweepInterrupted(
                f"{drawn} samples are drawn; the attribute partial has them, and {where} goes on", result
            )
        return result

    def _outcomes(self, cases: Sequence[Case]) -> Outcomes:
        """The tally of each case after each piece of work; the store keeps one now and then, and the last.

        Only the last one that cannot be stored is a failure.
        """
        kept = perf_counter()
        places = {case: place for place, case in enumerate(self.cases)}
        for case in cases:
            draws = self.experiment.cases[places[case]]
            key = case_key(self.seed, self.experiment.identity(draws))
            (tally,) = self._tallies(self.before, [case])
            piece = int(min(max(_PIECE / draws.cost, 1), _MOST_ROWS))
            first = tally.rows
            while (goal := self.stopping.goal(self.experiment, draws, tally)) > tally.rows:
                while tally.rows < goal:
                    tally = tally.add(
                        draws.rows(key=key, first=tally.rows, count=min(piece, goal - tally.rows))
                    )
                    yield case, tally.to_fields()
                    if self.store is not None and perf_counter() - kept >= _KEEP_SECONDS:
                        self.store.keep(case, tally.to_fields())
                        kept = perf_counter()
            if self.store is not None and tally.rows > first:
                last = self.store.keep(case, tally.to_fields())
                if isinstance(last, Unstored):
                    yield case, last

    def _unfinished(self) -> list[Case]:
        """The wanted cases that lack rows."""
        drawn = zip(self.wanted, self._tallies(self.before, self.wanted), strict=True)
        places = {case: place for place, case in enumerate(self.cases)}
        return [
            case
            for case, tally in drawn
            if self.stopping.goal(self.experiment, self.experiment.cases[places[case]], tally) > tally.rows
        ]

    def _keep(self, finished: Mapping[Case, Fields]) -> dict[Case, Failure]:
        """Write the results of an interrupted run that the store lacks; returns those that were refused."""
        refused = {}
        for case, fields in finished.items():
            if self.store is not None and fields is not self.before.get(case):
                outcome = self.store.keep(case, fields)
                if isinstance(outcome, Unstored):
                    refused[case] = outcome.failure
        return refused

    def _tallies(self, there: Mapping[Case, Fields], cases: Sequence[Case] | None = None) -> list[Tally]:
        """The tallies of these cases, all by default; empty ones where there are none."""
        empty = self.experiment.empty_tally()
        return [Tally.of(there[case]) if case in there else empty for case in cases or self.cases]

    def _samples(self, fields: Fields) -> int:
        return Tally.of(fields).rows * self.experiment.declared.block

    def _total(self) -> int | None:
        """Number of samples of all cases; None under a target error."""
        if self.stopping.target_error is not None:
            return None
        return self.stopping.most_rows * self.experiment.declared.block * len(self.wanted)


def _read_stopping(experiment: Prepared, samples: Any, chosen: dict[str, Any]) -> _Stopping:
    target, block = chosen["target_error"], experiment.declared.block
    if target is None:
        count = experiment.declared.samples if samples is None else _read_count("samples", samples)
        return _Stopping(-(-count // block), None)
    if samples is not None:
        rule = f"exclude each other, got {shown(samples)} and {target!r}"
        raise refusal(ValueError, ("samples", "target_error"), rule)
    if number("target_error", target) <= 0:
        raise refusal(ValueError, "target_error", f"must be greater than 0, got {shown(target)}")
    most = _read_count("max_samples", chosen["max_samples"])
    return _Stopping(-(-most // block), float(target))


def _read_count(name: str, value: Any) -> int:
    return check_count(name, positive_int(name, value))


def _start(
    experiment: Prepared, rng: Any, before: ExperimentResult | None
) -> tuple[np.random.SeedSequence, list[Tally]]:
    name = experiment.declared.name
    if before is None:
        return seed_sequence(rng), [experiment.empty_tally() for _ in experiment.cases]
    if not isinstance(before, ExperimentResult):
        raise TypeError(f"resume must be the result of an experiment, got {type(before).__name__}")
    if rng is not None:
        raise ValueError(f"resume uses the seed of its result; rng must be None, got {shown(rng)}")
    if before.experiment != name:
        raise ValueError(f"resume must be a result of {name}, got one of {before.experiment}")
    for name in {**experiment.parameters, **before.parameters}:
        here, there = (parameters.get(name) for parameters in (experiment.parameters, before.parameters))
        if here != there:
            raise ValueError(f"resume must have the same {name}, got {shown(here)} here and {there!r} there")
    return before._seed, list(before._tallies)


def _result(run: _Run, tallies: tuple[Tally, ...], *, interrupted: bool) -> ExperimentResult:
    experiment, declared = run.experiment, run.experiment.declared
    axes = (*experiment.outer, *experiment.inner)
    shape = tuple(len(axis) for axis in axes if not axis.scalar)
    inner = tuple(map(len, experiment.inner))
    found = [experiment.estimate(case, tally) for case, tally in zip(experiment.cases, tallies, strict=True)]
    values, errors = (np.stack(parts) for parts in zip(*found, strict=True))
    samples = np.array([np.full(inner, tally.rows * declared.block) for tally in tallies], np.int64)

    def shaped(array: Any, kind: Callable[[Any], Any] = float) -> Any:
        return array.reshape(shape) if shape else kind(array.item())

    return ExperimentResult(
        experiment=declared.name,
        quantity=next(iter(declared.quantities)),
        estimates={
            name: Estimate(shaped(values[..., i].copy()), shaped(errors[..., i].copy()), each.unit)
            for i, (name, each) in enumerate(declared.quantities.items())
        },
        axes={axis.name: axis.labels for axis in axes if not axis.scalar},
        samples=shaped(samples, int),
        parameters=experiment.parameters,
        interrupted=interrupted,
        target_error=run.stopping.target_error,
        provenance=provenance(run.seed),
        _betas=None if experiment.betas is None else experiment.betas.reshape(shape),
        _seed=run.seed,
        _tallies=tallies,
        missing=sum(
            run.stopping.goal(experiment, case, tally) > tally.rows
            for case, tally in zip(experiment.cases, tallies, strict=True)
        ),
    )


#: A function of a line of text.
Announce = Callable[[str], Any]

# Operations a second, in the unit of `Draws.cost`: fewer than any machine, and roughly those of a thread.
_LEAST_RATE = 1e7
_USUAL_RATE = 1e10
# Operations of a trial (milliseconds) and of a case's first rows (seconds at most), and number of these rows.
_TRIAL, _PILOT, _PILOT_ROWS = 4e7, 4e9, 256


def check_announce(announce: Any) -> Announce | None:
    """`announce`, checked: None or a function."""
    if announce is not None and not callable(announce):
        raise TypeError(f"announce must be None or a function of a text, got {shown(announce)}")
    checked: Announce | None = announce
    return checked


def announcement(
    experiment: Prepared, most_rows: int, target: float | None, tallies: Sequence[Tally], threads: int
) -> str:
    """The expected duration of a run and its samples, as text, if more than a minute; else empty.

    The speed is measured on the first rows of the cheapest case, or assumed if one row takes long. For a
    target error, the spread of the first rows gives the expected number of rows.
    """
    left = [max(most_rows - tally.rows, 0) for tally in tallies]
    costs = [case.cost for case in experiment.cases]
    if float(np.dot(left, costs)) < MINUTE * _LEAST_RATE:
        return ""
    rate = _rate(min(experiment.cases, key=lambda case: case.cost), threads)
    wanted = None if target is None else _rows_for(experiment, target, rate)
    if wanted is not None:
        left = [max(min(most_rows, wanted) - tally.rows, 0) for tally in tallies]
    seconds = float(np.dot(left, costs)) / rate
    if seconds < MINUTE:
        return ""
    told = f"this takes about {duration(seconds)}: {_count(max(left) * experiment.declared.block)} samples"
    told += f" for each of {len(costs)} cases" if len(costs) > 1 else ""
    aim = "" if target is None else f"target error {as_number(target)}"
    if wanted is None:
        return told + (f", unless the {aim} is reached before" if aim else "")
    needed = _count(wanted * experiment.declared.block)
    if wanted > most_rows:
        return f"{told}, and the {aim} needs about {needed}: it will not be reached"
    return f"{told}, which the {aim} needs"


def _rate(case: Draws, threads: int) -> float:
    """Operations a second, from a trial if a row is short enough for one."""
    if case.cost > _TRIAL:
        return _USUAL_RATE * (threads or get_num_threads())
    count = max(int(min(_TRIAL / case.cost, 1024)), 1)
    case.rows(key=0, first=0, count=1)  # the first call does some one-time work
    start = perf_counter()
    case.rows(key=0, first=0, count=count)
    return count * case.cost / max(perf_counter() - start, 1e-6)


def _rows_for(experiment: Prepared, target: float, rate: float) -> int | None:
    """Rows that the target error needs in the case with the largest spread among those tried."""
    found = []
    for case in experiment.cases:
        if _PILOT_ROWS * case.cost > min(_PILOT, rate):
            continue
        tally = experiment.empty_tally().add(case.rows(key=0, first=0, count=_PILOT_ROWS))
        error = float(np.max(experiment.estimate(case, tally)[1][..., 0]))
        if math.isfinite(error):
            found.append(math.ceil(_PILOT_ROWS * min((error / target) ** 2, 1e300)))
    return max(found) if found else None


def _count(value: float) -> str:
    return str(int(value)) if value < 1e7 else f"{value:.2g}"
