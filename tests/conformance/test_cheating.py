# SPDX-License-Identifier: BSD-3-Clause
"""Adapters that answer without computing, and the checks that they must not pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attnscale as at
import numpy as np
import pytest

SEEDS = range(20)
Attend = Callable[..., Any]


def ours(*arrays: Any, **options: Any) -> Any:
    return at.attention(*arrays, **options)


def zeros(query: Any, key: Any, value: Any, **options: Any) -> Any:
    return np.zeros_like(ours(query, key, value, **options))


class Kept:
    """The first answer to calls that look alike, by storage or by shape."""

    def __init__(self, of: Callable[[Any], Any]) -> None:
        self.of, self.answers = of, {}  # type: ignore[var-annotated]

    def __call__(self, *arrays: Any, **options: Any) -> Any:
        at_place = (*map(self.of, arrays), repr(sorted(options.items(), key=str)))
        if at_place not in self.answers:
            self.answers[at_place] = ours(*arrays, **options)
        return self.answers[at_place].copy()


class Known:
    """Answers to the public numbers of every call, prepared before."""

    def __init__(self, seed: int = 0) -> None:
        self.answers: dict[bytes, Any] = {}

        def keep(*arrays: Any, **options: Any) -> Any:
            self.answers[self.at(arrays)] = answer = ours(*arrays, **options)
            return answer

        at.conformance.check(keep, seed=seed)
        for case in at.conformance.CASES.values():
            if case.value is not None:
                keep(*(x.astype(np.float32) for x in case.arrays()), **case.options)

    @staticmethod
    def at(arrays: Any) -> bytes:
        return b"".join(repr(x.shape).encode() + x.tobytes() for x in arrays)

    def __call__(self, *arrays: Any, **options: Any) -> Any:
        known = self.answers.get(self.at(arrays))
        return zeros(*arrays, **options) if known is None else known.copy()


def rounding(*arrays: Any, **options: Any) -> Any:
    """Numbers of the public cases are exact in bfloat16, so that this rounding is not seen in them."""
    bits = [(x.view(np.uint32) + np.uint32(0x8000)) & np.uint32(0xFFFF0000) for x in arrays]
    return ours(*(x.view(np.float32) for x in bits), **options)


CHEATING: dict[str, Callable[[], Attend]] = {
    "zeros": lambda: zeros,
    "by storage": lambda: Kept(lambda x: x.ctypes.data),
    "by shape": lambda: Kept(lambda x: x.shape),
    "rounding": lambda: rounding,
}


@pytest.mark.parametrize("name", CHEATING)
def test_an_engine_that_does_not_compute_fails(name: str) -> None:
    """Each seed; a check takes a fifth of a second, and its explanation more."""
    for seed in SEEDS:
        report = at.conformance.check(CHEATING[name](), seed=seed, cases=few(seed))
        assert len(report.wrong) >= len(report.outcomes) / 2, (seed, report)


def few(seed: int) -> dict[str, at.conformance.Case]:
    """Some of the calls of a seed."""
    cases = at.conformance.draw_cases(seed)
    return {name: cases[name] for name in list(cases)[::20]}


def test_answers_to_known_numbers_fail_under_every_other_seed() -> None:
    known = Known(seed=0)
    assert not at.conformance.check(known, seed=0).wrong
    for seed in SEEDS[1:]:
        report = at.conformance.check(known, seed=seed, cases=few(seed))
        assert len(report.wrong) > len(report.outcomes) / 2, (seed, report)
    fresh = [at.conformance.check(known, cases=few(0)) for _ in range(2)]
    assert fresh[0].seed != fresh[1].seed
    assert all(each.wrong for each in fresh)


def test_the_names_of_engines_that_do_not_compute() -> None:
    says = {
        "zeros": "the output is zeros",
        "by storage": "an earlier answer is repeated",
        "by shape": "an earlier answer is repeated",
        "rounding": "numbers are rounded to bfloat16",
    }
    for name, make in CHEATING.items():
        assert says[name] in at.conformance.check(make(), seed=1, cases=few(1)).slips, name


@pytest.mark.levels
def test_our_own_functions_pass_under_every_seed() -> None:
    for seed in SEEDS:
        report = at.conformance.check(ours, seed=seed)
        assert len(report.right) == len(report.outcomes) > 200, (seed, report)


def test_arrays_of_one_shape_differ() -> None:
    """Or values that are keys would not be seen."""
    shape = (1, 1, 4, 8)
    query, key, value = at.conformance.Case({}, shape, shape, shape).arrays()
    assert not (query == key).any()
    assert not (query == value).any()
    assert not (key == value).any()


def test_a_seed_repeats_a_check() -> None:
    seen: list[list[bytes]] = []
    for _ in range(2):
        calls: list[bytes] = []

        def attend(*arrays: Any, calls: list[bytes] = calls, **options: Any) -> Any:
            calls.append(Known.at(arrays))
            return ours(*arrays, **options)

        at.conformance.check(attend, seed=7)
        seen.append(calls)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) > 0.9 * len(seen[0])


def writing(query: Any, key: Any, value: Any, **options: Any) -> Any:
    output = ours(query, key, value, **options)
    query += 1
    return output


def in_place(query: Any, key: Any, value: Any, **options: Any) -> Any:
    output = ours(query, key, value, **options)
    if output.shape != value.shape:
        return output
    value[...] = output
    return value


class Reusing:
    """One buffer for all outputs of a size."""

    def __init__(self) -> None:
        self.buffers: dict[Any, Any] = {}

    def __call__(self, *arrays: Any, **options: Any) -> Any:
        output = ours(*arrays, **options)
        buffer = self.buffers.setdefault(output.shape, np.empty_like(output))
        buffer[...] = output
        return buffer


def test_inputs_and_earlier_outputs_are_left_alone() -> None:
    cases = {name: at.conformance.CASES[name] for name in ("plain", "causal", "tiles")}
    assert at.conformance.check(writing, cases=cases).slips == ("it writes into query",)
    found = at.conformance.check(in_place, cases=cases).wrong["tiles"]
    assert "its output is a view of value" in found.slips
    assert "it writes into value" in found.slips
    report = at.conformance.check(Reusing(), cases=cases)
    assert report.slips == ("a later call changes an earlier output",)


def test_a_mask_that_is_written_into_is_named() -> None:
    def attend(*arrays: Any, **options: Any) -> Any:
        output = ours(*arrays, **options)
        options["attn_mask"][...] = True
        return output

    mask = np.tri(7, 9, dtype=bool)
    cases = {"mask": at.conformance.CASES["plain"]._replace(options={"attn_mask": mask})}
    assert "it writes into attn_mask" in at.conformance.check(attend, cases=cases).slips


def test_numbers_of_another_type_may_be_passed() -> None:
    kinds = set()

    def attend(*arrays: Any, **options: Any) -> Any:
        kinds.update(x.dtype for x in arrays)
        exact = [x.view(np.uint32) & np.uint32(0xFFFF) for x in arrays if x.size]
        assert not any(x.any() for x in exact if not np.isnan(x.view(np.float32)).any())
        return ours(*arrays, **options)

    pytest.importorskip("ml_dtypes")
    report = at.conformance.check(attend, dtype="bfloat16", passed_as="float32", seed=2, cases=few(2))
    assert kinds == {np.dtype(np.float32)}
    assert not report.wrong
    assert not report.errors
