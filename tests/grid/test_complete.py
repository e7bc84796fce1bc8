# SPDX-License-Identifier: BSD-3-Clause
"""What becomes of the cases of a grid, whoever runs them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from attnscale._grid.case import Case, make_cases
from attnscale._grid.complete import Completion, Outcome, choose_runner, complete, missing
from attnscale._grid.errors import Busy, Failure, SweepError, SweepInterrupted
from attnscale._grid.fields import Field, Fields

CASES = make_cases({"n": [1, 2, 3, 4]}, None)
RUN, _ = choose_runner(1, None)


def fields(case: Case) -> Fields:
    return {"value": Field(np.array(float(case.parameters["n"])))}


def outcome_of(**kinds: str) -> Callable[[Case], Outcome | Busy]:
    """A task in which the cases named, as in ``n2="busy"``, do not finish."""

    def task(case: Case) -> Outcome | Busy:
        match kinds.get(f"n{case.parameters['n']}"):
            case "busy":
                return Busy()
            case "fails":
                return Failure("ValueError: no", "the traceback")
            case "stops":
                raise KeyboardInterrupt
        return fields(case)

    return task


def run(task: Callable[[Case], Outcome | Busy], finished: dict[Case, Fields] | None = None) -> Completion:
    outcomes = RUN(task, missing(CASES, finished or {}))
    return complete(outcomes, CASES, finished or {}, progress=False)


def require(done: Completion) -> None:
    done.require(
        lambda: sorted(case.parameters["n"] for case in done.finished), "cases", "a shelf keeps them"
    )


def test_what_is_there_is_not_computed_again() -> None:
    done = run(outcome_of(n1="fails"), {CASES[0]: fields(CASES[0])})
    require(done)
    assert set(done.finished) == set(CASES)


def test_a_failure_stops_no_other_case_and_carries_what_is_there() -> None:
    with pytest.raises(SweepError) as raised:
        require(run(outcome_of(n2="fails", n4="fails")))
    assert str(raised.value) == (
        "2 of 4 cases failed, the first at n=2: ValueError: no (2 are finished; a shelf keeps them)"
    )
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
    done = complete(RUN(task, CASES), CASES, {}, progress=lambda now, total: seen.append((now, total)))
    require(done)
    assert [case.parameters["n"] for case in done.finished] == [1, 2, 4]
    assert seen == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_what_is_not_accepted_fails() -> None:
    def accept(case: Case, outcome: Outcome, finished: object) -> Outcome:
        return Failure("ValueError: too many", "") if case.parameters["n"] > 3 else outcome

    done = complete(RUN(outcome_of(), CASES), CASES, {}, progress=False, accept=accept)
    assert list(done.failures) == [CASES[3]]
    assert CASES[3] not in done.finished
