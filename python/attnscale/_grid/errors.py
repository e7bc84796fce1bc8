# SPDX-License-Identifier: BSD-3-Clause
"""Errors of a run whose cases are not all finished."""

from __future__ import annotations

from typing import Any, NamedTuple


class Failure(NamedTuple):
    """Reason why a case has no result.

    Processes exchange text, not exceptions: an exception whose constructor takes other arguments than its
    ``args`` cannot be unpickled, and breaks the process pool.
    """

    message: str
    traceback: str
    exception: BaseException | None = None  # only of a case that ran in this process


class Busy(NamedTuple):
    """Outcome of a case that another process is computing for the same store: neither finished nor failed."""


class SweepError(RuntimeError):
    """Some cases of a sweep, or models of an experiment, failed; all others are finished.

    Attributes
    ----------
    failures : dict of str to str
        The error of each failed case, by its parameters.
    partial : xarray.Dataset, TrainingResult, Report or None
        The results, NaN where a case failed, or without the failed layers; None if no case is finished.

    Examples
    --------
    >>> import attnscale as at
    >>> try:
    ...     at.sweep(lambda n: 1 / n, {"n": [0, 1, 2]}, progress=False)
    ... except at.SweepError as error:
    ...     print(error.failures, error.partial["value"].values)
    {'n=0': 'ZeroDivisionError: division by zero'} [nan 1.  0.5]
    """

    def __init__(self, message: str, failures: dict[str, str], partial: Any) -> None:
        super().__init__(message)
        self.failures = failures
        self.partial = partial

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.failures, self.partial)


class SweepInterrupted(KeyboardInterrupt):
    """Ctrl-C came before all cases were finished.

    Attributes
    ----------
    partial : xarray.Dataset, TrainingResult, ExperimentResult, Report or None
        The results, NaN where a case is not finished, or without the layers that are not; None if no case is.
    """

    def __init__(self, message: str, partial: Any) -> None:
        super().__init__(message)
        self.partial = partial

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.partial)
