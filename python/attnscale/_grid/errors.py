# SPDX-License-Identifier: BSD-3-Clause
"""Errors of a run whose cases are not all finished."""

from __future__ import annotations

from typing import Any, NamedTuple

from .fields import Fields


class Failure(NamedTuple):
    """Reason why a case has no result.

    Processes exchange text, not exceptions: an exception whose constructor takes other arguments than its
    ``args`` cannot be unpickled, and breaks the process pool.
    """

    message: str
    traceback: str
    exception: BaseException | None = None  # only of a case that ran in this process


class Unstored(NamedTuple):
    """Outcome of a case that is finished, and whose result could not be stored."""

    fields: Fields
    failure: Failure


def unstored(fields: Fields, error: OSError) -> Unstored:
    """The outcome of a case after a failed write, such as one on a full disk."""
    return Unstored(fields, Failure(f"its result could not be stored: {error}", "", error))


class Busy(NamedTuple):
    """Outcome of a case that another process is computing for the same store: neither finished nor failed."""


class SweepError(RuntimeError):
    """Some cases of a sweep or an experiment, or models of a study, failed; all others are finished.

    A case whose result could not be stored, as on a full disk, counts as failed; `partial` has its result.

    Attributes
    ----------
    failures : dict of str to str
        The error of each failed case, by its parameters.
    partial : xarray.Dataset, TrainingResult, ExperimentResult, Report or None
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
