# SPDX-License-Identifier: BSD-3-Clause
"""Computes the cases of a grid that have no result yet, and says what became of all of them.

Cases are run here, in processes by joblib, or by an executor; outcomes come as they finish.
"""

from __future__ import annotations

import operator
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .._base.checks import refusal, shown
from .._base.runtime import get_num_threads
from .case import Case
from .errors import Busy, Failure, SweepError, SweepInterrupted
from .fields import Fields
from .progress import Progress, reporter

if TYPE_CHECKING:
    from concurrent.futures import Executor


# ---- what runs the cases ---------------------------------------------------------------------------

#: What came of a case.
Outcome = Fields | Failure
Outcomes = Generator[tuple[Case, Outcome | Busy], None, None]
#: Turns a case into its outcome, and raises nothing but KeyboardInterrupt.
Task = Callable[[Case], Outcome | Busy]
#: Runs a task on cases.
Runner = Callable[[Task, Sequence[Case]], Outcomes]


def choose_runner(n_jobs: int, executor: Executor | None) -> tuple[Runner, int | None]:
    """What runs the cases, and how many threads each of its processes may use."""
    try:
        n_jobs = operator.index(n_jobs)
    except TypeError:
        raise refusal(TypeError, "n_jobs", f"must be an integer, got {shown(n_jobs)}") from None
    if n_jobs == 0:
        raise refusal(
            ValueError, "n_jobs", "must be at least 1, or negative to count from all cores down, got 0"
        )
    if executor is not None:
        if n_jobs != 1:
            raise ValueError(f"n_jobs={n_jobs} and executor= were both given. Pass one of them.")
        if not callable(getattr(executor, "submit", None)):
            raise TypeError(f"executor must be a concurrent.futures.Executor, got {shown(executor)}")
        return partial(run_on, executor), None
    if n_jobs == 1:
        return run_here, None
    try:
        import cloudpickle  # noqa: F401 - the processes get their task by it
        import joblib
    except ImportError:
        raise ImportError('n_jobs needs joblib and cloudpickle: pip install "attnscale[sweep]"') from None
    workers = joblib.effective_n_jobs(n_jobs)
    return partial(run_with_joblib, n_jobs), max(1, get_num_threads() // workers)


def run_here(task: Task, cases: Sequence[Case]) -> Outcomes:
    """Run the cases one after the other, in this thread."""
    for case in cases:
        yield case, task(case)


def run_with_joblib(n_jobs: int, task: Task, cases: Sequence[Case]) -> Outcomes:
    """Run the cases in processes of joblib (or as ``joblib.parallel_config`` says); closures work too."""
    import joblib

    waiting = {case.index: case for case in cases}
    batches = [cases]
    try:
        parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")
    except ValueError:  # a backend that brings all results at the end, as Ray's: it gets some cases at a time
        parallel = joblib.Parallel(n_jobs=n_jobs)
        size = 4 * joblib.effective_n_jobs(n_jobs)
        batches = [cases[start : start + size] for start in range(0, len(cases), size)]
    try:
        run = joblib.delayed(_Portable(task))
        with _growing_workers():
            for batch in batches:
                for index, outcome in parallel(run(case) for case in batch):
                    yield waiting.pop(index), outcome
    except Exception as error:  # a worker died, or the task cannot be pickled
        failure = _lost(error)
        for case in waiting.values():
            yield case, failure


@contextmanager
def _growing_workers() -> Iterator[None]:
    """Silence the warning that joblib replaces a worker which grew by 300 MB, as an import may make it do.

    Where warnings are errors, it would end the thread that manages the workers, and joblib would wait
    for it for ever.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        yield


def run_on(executor: Executor, task: Task, cases: Sequence[Case]) -> Outcomes:
    """Run the cases by any executor; what it cannot send, run or bring back is a failure of that case."""
    from concurrent.futures import as_completed

    futures = {executor.submit(task, case): case for case in cases}
    try:
        for future in as_completed(futures):
            outcome: Outcome | Busy
            try:
                outcome = future.result()
            except Exception as error:
                outcome = _lost(error)
            yield futures[future], outcome
    finally:
        for future in futures:  # after Ctrl-C: cases that have not begun need not begin
            future.cancel()


def _lost(error: Exception) -> Failure:
    """The failure of a case that could not be sent, whose worker died, or whose result did not come back."""
    message = f"no worker brought its result back: {type(error).__name__}: {error}"
    return Failure(message, "".join(traceback.format_exception(error)), error)


class _Portable:
    """A task for processes that outlive a sweep: they look for modules where this process does now."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __call__(self, case: Case) -> tuple[tuple[int, ...], Outcome | Busy]:
        return case.index, self._task(case)

    def __reduce__(self) -> tuple[Callable[..., _Portable], tuple[list[str], bytes]]:
        import cloudpickle

        return _unpack, (list(sys.path), cloudpickle.dumps(self._task))


def _unpack(path: list[str], task: bytes) -> _Portable:
    sys.path[:] = path
    return _Portable(pickle.loads(task))


# ---- until all are finished ------------------------------------------------------------------------


class Amount(NamedTuple):
    """What a run counts, where that is not its cases: the samples of outcomes that grow.

    A case may then have one outcome after the other; the last one counts.
    """

    unit: str
    total: int | None  # None where nobody knows it before the end
    of: Callable[[Fields], int]


@dataclass(frozen=True)
class Completion:
    """What became of the cases that were wanted.

    Attributes
    ----------
    wanted : sequence of Case
    finished : dict of Case to Fields
        Results in the order in which they were finished, perhaps of cases that nobody wanted too.
    failures : dict of Case to Failure
    interrupted : bool
        Ctrl-C came before the end.
    """

    wanted: Sequence[Case]
    finished: dict[Case, Fields]
    failures: dict[Case, Failure]
    interrupted: bool

    def require(self, table: Callable[[], Any], noun: str, where: str, after_failure: str = "") -> None:
        """Raise if the run was interrupted or cases failed; the exception carries what is there.

        Parameters
        ----------
        table : callable
            Makes the table of all that is finished; None if nothing is.
        noun : str
            What a case is called in the messages, in the plural.
        where : str
            Where the results are kept, as the end of a sentence.
        after_failure : str
            What is said after that where cases failed.

        Raises
        ------
        SweepInterrupted, SweepError
        """
        done = sum(case in self.finished for case in self.wanted)
        if self.interrupted:
            raise SweepInterrupted(f"{done} of {len(self.wanted)} {noun} are finished; {where}", table())
        if self.failures:
            raise self._error(table(), noun, f"{done} are finished; {where}{after_failure}")

    def _error(self, partial: Any, noun: str, rest: str) -> SweepError:
        """One error for all failures, with that of the first case in front."""
        listed = {case: self.failures[case] for case in self.wanted if case in self.failures}
        case, first = next(iter(listed.items()))
        error = SweepError(
            f"{len(listed)} of {len(self.wanted)} {noun} failed, the first at {case}: "
            f"{_one_line(first.message)} ({rest})",
            {str(each): failure.message for each, failure in listed.items()},
            partial,
        )
        error.__cause__ = first.exception
        if first.exception is None:
            error.add_note(f"In another process:\n{first.traceback}")
        return error


def missing(wanted: Sequence[Case], finished: Mapping[Case, Fields]) -> list[Case]:
    """The cases that are wanted and have no result."""
    return [case for case in wanted if case not in finished]


def complete(
    outcomes: Outcomes,
    wanted: Sequence[Case],
    finished: Mapping[Case, Fields],
    *,
    progress: Progress,
    accept: Callable[[Case, Outcome, Mapping[Case, Fields]], Outcome] | None = None,
    amount: Amount | None = None,
) -> Completion:
    """Take what comes of cases until all that are wanted have a result; a case that fails stops no other.

    Parameters
    ----------
    outcomes : generator
        What comes of cases, one after the other, as a runner gives it; closed at the end.
    wanted : sequence of Case
    finished : dict of Case to Fields
        The results that are there already.
    progress : bool or callable
        Is told how many of the wanted cases have an outcome, or the amount: at the start, and after each.
    accept : callable, optional
        ``accept(case, outcome, finished)`` is called in this process with each outcome as it comes, may
        keep it, and returns what counts.
    amount : Amount, optional
        What is counted; the cases by default.
    """
    done = dict(finished)
    failures: dict[Case, Failure] = {}
    unit, total, size = amount or Amount("case", len(wanted), lambda fields: 1)
    count = sum(size(done[case]) for case in wanted if case in done)
    try:
        with reporter(progress, unit, total, count) as report:
            report(count)
            for case, outcome in outcomes:
                if isinstance(outcome, Busy):
                    continue
                if accept is not None:
                    outcome = accept(case, outcome, done)
                if isinstance(outcome, Failure):
                    failures[case] = outcome
                    count += 1
                else:
                    count += size(outcome) - (size(done[case]) if case in done else 0)
                    done[case] = outcome
                report(count)
    except KeyboardInterrupt:
        return Completion(wanted, done, failures, interrupted=True)
    finally:
        outcomes.close()
    return Completion(wanted, done, failures, interrupted=False)


def _one_line(message: str) -> str:
    """The beginning of a message; an exception may print whole arrays."""
    line = " ".join(message.split())
    return line if len(line) <= 1000 else f"{line[:1000]}..."
