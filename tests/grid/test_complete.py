# SPDX-License-Identifier: BSD-3-Clause
"""Outcomes of the cases of a grid, for any runner."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from attnscale import SweepError, SweepInterrupted
from attnscale._grid import case, complete, errors, fields

Busy, Failure = errors.Busy, errors.Failure
CASES = case.make_cases({"n": [1, 2, 3, 4]}, None)
RUN, _ = complete.choose_runner(1, None)


def value_of(case: case.Case) -> fields.Fields:
    return {"value": fields.Field(np.array(float(case.parameters["n"])))}


def outcome_of(**kinds: str) -> Callable[[case.Case], complete.Outcome | Busy]:
    """A task in which the named cases, as in ``n2="busy"``, do not finish."""

    def task(case: case.Case) -> complete.Outcome | Busy:
        match kinds.get(f"n{case.parameters['n']}"):
            case "busy":
                return Busy()
            case "fails":
                return Failure("ValueError: no", "the traceback")
            case "stops":
                raise KeyboardInterrupt
        return value_of(case)

    return task


def run(
    task: Callable[[case.Case], complete.Outcome | Busy],
    finished: dict[case.Case, fields.Fields] | None = None,
) -> complete.Completion:
    outcomes = RUN(task, complete.missing(CASES, finished or {}))
    return complete.complete(outcomes, CASES, finished or {}, progress=False)


def require(done: complete.Completion) -> None:
    done.require(
        lambda: sorted(case.parameters["n"] for case in done.finished), "cases", "a shelf keeps them"
    )


def test_what_is_there_is_not_computed_again() -> None:
    done = run(outcome_of(n1="fails"), {CASES[0]: value_of(CASES[0])})
    require(done)
    assert set(done.finished) == set(CASES)


def test_a_failure_stops_no_other_case_and_carries_what_is_there() -> None:
    with pytest.raises(SweepError) as raised:
        require(run(outcome_of(n2="fails", n4="fails")))
    told = "2 of 4 cases failed, the first at n=2: ValueError: no (2 are finished; a shelf keeps them)"
    assert str(raised.value) == told
    assert raised.value.failures == {"n=2": "ValueError: no", "n=4": "ValueError: no"}
    assert raised.value.partial == [1, 3]
    assert "the traceback" in raised.value.__notes__[0]


def test_an_interrupt_carries_what_is_there_whatever_failed() -> None:
    with pytest.raises(SweepInterrupted, match=r"^1 of 4 cases are finished; a shelf keeps them$") as raised:
        require(run(outcome_of(n2="fails", n3="stops")))
    assert raised.value.partial == [1]
    assert raised.value.__context__ is None


def test_a_case_of_another_process_is_neither_finished_nor_failed() -> None:
    seen: list[tuple[int, int]] = []
    task = outcome_of(n3="busy")
    done = complete.complete(
        RUN(task, CASES), CASES, {}, progress=lambda now, total: seen.append((now, total))
    )
    require(done)
    assert [case.parameters["n"] for case in done.finished] == [1, 2, 4]
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_what_is_not_accepted_fails() -> None:
    def accept(case: case.Case, outcome: complete.Outcome, finished: object) -> complete.Outcome:
        return Failure("ValueError: too many", "") if case.parameters["n"] > 3 else outcome

    done = complete.complete(RUN(outcome_of(), CASES), CASES, {}, progress=False, accept=accept)
    assert list(done.failures) == [CASES[3]]
    assert CASES[3] not in done.finished
