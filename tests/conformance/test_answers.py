# SPDX-License-Identifier: BSD-3-Clause
"""Answers of engines that are no arrays of numbers, and how check reports them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attnscale as at
import numpy as np
import pytest

Attend = Callable[..., Any]
CASES = {name: at.conformance.CASES[name] for name in ("plain", "causal")}


class Unprintable(Exception):
    """An error whose message cannot be read."""

    def __str__(self) -> str:
        raise ValueError


def ours(*arrays: Any, **options: Any) -> Any:
    return at.attention(*arrays, **options)


def returning(change: Callable[[Any], Any]) -> Attend:
    return lambda *arrays, **options: change(ours(*arrays, **options))


def raising(error: BaseException) -> Attend:
    def attend(*_: Any, **__: Any) -> Any:
        raise error

    return attend


NO_NUMBERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "None": (lambda _: None, "InputError: the output must be real numbers, got None"),
    "text": (lambda _: "a", "InputError: the output must be real numbers, got <U1"),
    "numbers as text": (lambda x: x.astype(str), "InputError: the output must be real numbers, got <U32"),
    "complex": (lambda x: x + 1j, "InputError: the output must be real numbers, got complex64"),
    "objects": (lambda _: object(), "InputError: the output must be real numbers, got object"),
    "ragged": (lambda _: np.array([[1], [1, 2]], object), "InputError: the output must be real numbers, got"),
    "nothing": (lambda _: (), "InputError: the output must be real numbers, got an empty sequence"),
    "no output": (lambda x: {"lse": x}, "InputError: the returned mapping must have 'output', and may have"),
    "a name that is not known": (lambda x: {"output": x, "entropies": x}, "; got 'entropies'"),
    "masked": (lambda x: np.ma.masked_array(x), "TypeError: the output is a masked array"),
}


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_an_output_that_is_no_array_of_numbers_is_an_error_of_each_case(name: str) -> None:
    change, says = NO_NUMBERS[name]
    report = at.conformance.check(returning(change), cases=CASES)
    assert len(report.errors) == len(CASES), report
    for each in report.errors.values():
        assert says in each.why
        assert "\n" not in each.why


def test_an_lse_that_is_no_array_of_numbers_fits_no_convention() -> None:
    for lse in ("a", object(), np.ones(3) + 1j, np.ones(3)):
        report = at.conformance.check(returning(lambda x, lse=lse: (x, lse)), cases=CASES)
        assert len(report.right) == 2
        assert all(each.lse_is_wrong for each in report.outcomes.values())


@pytest.mark.parametrize("name", ["weights", "scores", "max_score", "n_visible", "entropy"])
def test_complex_statistics_are_wrong(name: str) -> None:
    def attend(*arrays: Any, **options: Any) -> Any:
        rows = at.reference.attention_statistics(*arrays[:2], **options)
        found = rows.p if name == "weights" else getattr(rows, name, rows.p)
        return {"output": ours(*arrays, **options), name: found + 1j}

    report = at.conformance.check(attend, cases=CASES)
    says = {each.statistics[name].says for each in report.outcomes.values()}
    assert says == {f"TypeError: {name} must be numbers, got complex128"}


def test_errors_are_one_line_and_stops_go_through() -> None:
    says = {
        "ValueError: a b": ValueError("a\n  b"),
        "ValueError": ValueError(),
        "Unprintable": Unprintable(),
        "MemoryError": MemoryError(),
    }
    for line, error in says.items():
        report = at.conformance.check(raising(error), cases=CASES)
        assert {each.why for each in report.errors.values()} == {line}
    for stop in (KeyboardInterrupt(), SystemExit(3)):
        with pytest.raises(type(stop)):
            at.conformance.check(raising(stop), cases=CASES)


def test_a_refusal_of_the_second_call_is_wrong() -> None:
    seen = set()

    def attend(*arrays: Any, **options: Any) -> Any:
        at_call = tuple(options)
        if at_call in seen:
            raise NotImplementedError
        seen.add(at_call)
        return ours(*arrays, **options)

    report = at.conformance.check(attend, cases=CASES)
    assert {each.why for each in report.wrong.values()} == {"it refuses a call that it served before"}
    assert len(report.wrong) == 2


def test_inputs_of_earlier_calls_are_left_alone() -> None:
    earlier: list[Any] = []

    def attend(query: Any, *arrays: Any, **options: Any) -> Any:
        output = ours(query, *arrays, **options)
        if earlier and earlier[-1] is not query:
            earlier[-1][...] = 7
        earlier.append(query)
        return output

    report = at.conformance.check(attend, cases=CASES)
    assert report.slips == ("a later call writes into an earlier query",)


def test_a_mask_that_an_engine_wrote_into_is_as_before_in_the_next_call() -> None:
    mask = np.tri(7, 9, dtype=bool)
    seen = []

    def attend(*arrays: Any, **options: Any) -> Any:
        seen.append(options["attn_mask"].copy())
        output = ours(*arrays, **options)
        options["attn_mask"][...] = True
        return output

    at.conformance.check(attend, cases={"mask": CASES["plain"]._replace(options={"attn_mask": mask})})
    assert len(seen) == 2
    np.testing.assert_array_equal(seen[1], np.tri(7, 9, dtype=bool))
    np.testing.assert_array_equal(mask, np.tri(7, 9, dtype=bool))
