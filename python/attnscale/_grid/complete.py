# SPDX-License-Identifier: BSD-3-Clause
"""Computation of the cases of a grid that have no result yet, and the outcomes of all cases.

Cases run here, in joblib processes or on an executor; outcomes are taken as they finish.
"""

from __future__ import annotations

import operator
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .._base.checks import refusal, shown
from .._base.runtime import get_num_threads
from .case import Case
from .errors import Busy, Failure, SweepError, SweepInterrupted, Unstored
from .fields import Fields
from .progress import Progress, reporter

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future


# ---- runners ---------------------------------------------------------------------------------------

#: The outcome of a finished case.
Outcome = Fields | Failure | Unstored
Outcomes = Generator[tuple[Case, Outcome | Busy], None, None]
#: Turns a case into its outcome, and raises only KeyboardInterrupt.
Task = Callable[[Case], Outcome | Busy]
#: Bytes of a task from which on it is sent to a cluster once, and not with each case.
_LARGE = 1 << 20
#: Seconds between two looks whether an executor is broken.
_LOOK = 5.0
#: Runs a task on cases.
Runner = Callable[[Task, Sequence[Case]], Outcomes]


def choose_runner(n_jobs: int, executor: Executor | None) -> tuple[Runner, int | None]:
    """The runner of the cases, and the number of threads for each of its processes."""
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
        from concurrent.futures import Executor

        if not isinstance(executor, Executor):  # dask's Client and submitit's executor return other futures
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
    """Run the cases in joblib processes (or under ``joblib.parallel_config``); closures work too."""
    import joblib

    waiting = {case.index: case for case in cases}
    batches = [cases]
    try:
        parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")
    except ValueError:  # Ray's backend returns all results at the end: it gets a few cases at a time
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
    """Silence joblib's warning about replacing a worker that grew by 300 MB, as an import may cause.

    If warnings are errors, it would end the thread that manages the workers, and joblib would wait for ever.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        yield


def run_on(executor: Executor, task: Task, cases: Sequence[Case]) -> Outcomes:
    """Run the cases on any executor; a case that cannot be sent, run or returned is a failure."""
    submit = _submit_to(executor, task)
    futures: dict[Future[Outcome | Busy], Case] = {}
    refused: dict[Case, Failure] = {}
    try:
        for case in cases:
            try:
                futures[submit(case)] = case
            except Exception as error:  # a worker died meanwhile, and the executor takes no more
                refused[case] = _lost(error)
        for future in _as_completed(executor, futures):
            outcome: Outcome | Busy
            try:
                outcome = future.result()
            except Exception as error:
                outcome = _lost(error)
            yield futures[future], outcome
        yield from refused.items()
    finally:
        for future in futures:  # after Ctrl-C: cancel cases that have not begun
            future.cancel()


def _as_completed(
    executor: Executor, futures: Iterable[Future[Outcome | Busy]]
) -> Iterator[Future[Outcome | Busy]]:
    """The futures as they end; those that a broken pool of processes has forgotten are cancelled.

    A pool of CPython 3.11 that breaks while a case is handed in never ends that case's future.
    """
    from concurrent.futures import as_completed

    waiting = set(futures)
    while waiting:
        try:
            for future in as_completed(waiting, timeout=_LOOK):
                waiting.remove(future)
                yield future
        except TimeoutError:
            if getattr(executor, "_broken", False):
                for future in waiting:
                    if future.cancel():
                        future.set_running_or_notify_cancel()


def _submit_to(executor: Executor, task: Task) -> Callable[[Case], Future[Outcome | Busy]]:
    """Submission of the cases of a task; dask keeps each submission, so a large task goes to it once."""
    client = getattr(executor, "_client", None)
    if client is not None and type(executor).__module__.startswith("distributed."):
        import cloudpickle

        with suppress(Exception):  # what cannot be pickled is a failure of each case
            content = cloudpickle.dumps(task)
            if len(content) >= _LARGE:
                sent = client.scatter(content, broadcast=True)
                return lambda case: executor.submit(_run_pickled, sent, case)
    return lambda case: executor.submit(task, case)


def _run_pickled(task: bytes, case: Case) -> Outcome | Busy:
    """The outcome of a case, by a task of its own, so that no case sees what another one changed."""
    run: Task = pickle.loads(task)
    return run(case)


def _lost(error: Exception) -> Failure:
    """The failure of a case whose result did not come back: it could not be sent, or its worker died."""
    message = f"no worker returned its result: {type(error).__name__}: {error}"
    return Failure(message, "".join(traceback.format_exception(error)), error)


class _Portable:
    """A task for processes that outlive a sweep: they search this process's module path."""

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


# ---- completion ------------------------------------------------------------------------------------


class Amount(NamedTuple):
    """Unit of progress other than cases: the samples of outcomes that grow.

    A case may then have several outcomes in turn; the last one counts.
    """

    unit: str
    total: int | None  # None if it is not known before the end
    of: Callable[[Fields], int]


@dataclass(frozen=True)
class Completion:
    """Outcomes of the wanted cases."""

    wanted: Sequence[Case]
    finished: dict[Case, Fields]  # results in order of completion, possibly of cases that were not wanted too
    failures: dict[Case, Failure]
    interrupted: bool  # ctrl-C came before the end

    def require(self, table: Callable[[], Any], noun: str, where: str, after_failure: str = "") -> None:
        """Raise if the run was interrupted or cases failed; the exception has the partial results.

        `table` makes the table of all finished cases, None without any. `noun` is the cases' name in
        messages, `where` tells where results are kept, and `after_failure` is further text where cases
        failed.
        """
        done = sum(case in self.finished and case not in self.failures for case in self.wanted)
        if self.interrupted:
            raise SweepInterrupted(f"{done} of {len(self.wanted)} {noun} are finished; {where}", table())
        if self.failures:
            raise self._error(table(), noun, f"{done} are finished; {where}{after_failure}")

    def _error(self, partial: Any, noun: str, rest: str) -> SweepError:
        """One error for all failures, led by the error of the first case."""
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
    """The wanted cases without a result."""
    return [case for case in wanted if case not in finished]


def complete(
    outcomes: Outcomes,
    wanted: Sequence[Case],
    finished: Mapping[Case, Fields],
    *,
    progress: Progress,
    accept: Callable[[Case, Fields, Mapping[Case, Fields]], Outcome] | None = None,
    amount: Amount | None = None,
) -> Completion:
    """Take outcomes until all wanted cases have a result; a failed case does not stop the others.

    `outcomes` is a runner's generator, closed at the end; `finished` are the existing results. `progress` is
    told the number of wanted cases with an outcome, or the `amount`, at the start and after each.
    ``accept(case, fields, finished)`` runs in this process with each result as it comes; it may store it, and
    returns the outcome to use.
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
                if accept is not None and not isinstance(outcome, (Failure, Unstored)):
                    outcome = accept(case, outcome, done)
                if isinstance(outcome, Unstored):
                    outcome, failures[case] = outcome
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
    """The beginning of a message: an exception may print whole arrays."""
    line = " ".join(message.split())
    return line if len(line) <= 1000 else f"{line[:1000]}..."
