# SPDX-License-Identifier: BSD-3-Clause
"""Computes the cases of a grid that have no result yet, and says what became of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .case import Case
from .errors import BUSY, Failure, SweepError, SweepInterrupted
from .fields import Fields
from .progress import Progress, reporter
from .runners import Outcome, Outcomes


class Amount(NamedTuple):
    """The amount that a run counts where that is not its cases: the samples of outcomes that grow.

    A case with such an outcome is run again, and may have one outcome after the other; the last one counts.
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

    def require(self, table: Callable[[], Any], noun: str, where: str) -> None:
        """Raise if the run was interrupted or cases failed; the exception carries what is there.

        Parameters
        ----------
        table : callable
            Makes the table of all that is finished; None if nothing is.
        noun : str
            What a case is called in the messages, in the plural.
        where : str
            Where the results are kept, as the end of a sentence.

        Raises
        ------
        SweepInterrupted, SweepError
        """
        done = sum(case in self.finished for case in self.wanted)
        if self.interrupted:
            raise SweepInterrupted(f"{done} of {len(self.wanted)} {noun} are finished; {where}", table())
        if self.failures:
            raise self._error(table(), noun, f"{done} are finished; {where}")

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


def complete(
    outcomes_of: Callable[[Sequence[Case]], Outcomes],
    wanted: Sequence[Case],
    finished: Mapping[Case, Fields],
    *,
    progress: Progress,
    accept: Callable[[Case, Outcome, Mapping[Case, Fields]], Outcome] | None = None,
    amount: Amount | None = None,
) -> Completion:
    """Compute the cases that are wanted and not finished; a case that fails stops no other.

    Parameters
    ----------
    outcomes_of : callable
        From cases to what comes of them, one after the other: a runner with its task.
    wanted : sequence of Case
    finished : dict of Case to Fields
        The results that are there already.
    progress : bool or callable
        Is told how many of the wanted cases have an outcome, or the amount: at the start, and after each.
    accept : callable, optional
        ``accept(case, outcome, finished)`` is called in this process with each outcome as it comes, may
        keep it, and returns what counts.
    amount : Amount, optional
        Outcomes are the beginnings of longer ones, and this is how much is in them.
    """
    done = dict(finished)
    failures: dict[Case, Failure] = {}
    size = amount.of if amount else lambda fields: 1
    count = sum(size(done[case]) for case in wanted if case in done)
    outcomes = outcomes_of([case for case in wanted if amount or case not in done])
    unit, total = (amount.unit, amount.total) if amount else ("case", len(wanted))
    try:
        with reporter(progress, unit, total, count) as report:
            report(count)
            for case, outcome in outcomes:
                if outcome == BUSY:
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
