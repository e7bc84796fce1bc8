# SPDX-License-Identifier: BSD-3-Clause
"""Running the cases: here, in processes by joblib, or by an executor. Outcomes come as they finish."""

from __future__ import annotations

import operator
import pickle
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from .._checks import shown
from .._runtime import get_num_threads
from .case import Case
from .errors import Failure
from .fields import Fields

if TYPE_CHECKING:
    from concurrent.futures import Executor

#: What came of a case.
Outcome = Fields | Failure
Outcomes = Generator[tuple[Case, Outcome], None, None]
#: Turns a case into its outcome, and raises nothing but KeyboardInterrupt.
Task = Callable[[Case], Outcome]
#: Runs a task on cases.
Runner = Callable[[Task, Sequence[Case]], Outcomes]


def choose_runner(n_jobs: int, executor: Executor | None) -> tuple[Runner, int | None]:
    """What runs the cases, and how many threads each of its processes may use."""
    try:
        n_jobs = operator.index(n_jobs)
    except TypeError:
        raise TypeError(f"n_jobs must be an integer, got {shown(n_jobs)}") from None
    if n_jobs == 0:
        raise ValueError("n_jobs must be at least 1, or negative to count from all cores down, got 0")
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
    parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")
    try:
        run = joblib.delayed(_Portable(task))
        with _growing_workers():
            for index, outcome in parallel(run(case) for case in cases):
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

    def __call__(self, case: Case) -> tuple[tuple[int, ...], Outcome]:
        return case.index, self._task(case)

    def __reduce__(self) -> tuple[Callable[..., _Portable], tuple[list[str], bytes]]:
        import cloudpickle

        return _unpack, (list(sys.path), cloudpickle.dumps(self._task))


def _unpack(path: list[str], task: bytes) -> _Portable:
    sys.path[:] = path
    return _Portable(pickle.loads(task))
