# SPDX-License-Identifier: BSD-3-Clause
"""Engines in a process of their own, which a call may end."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

import attnscale as at
import pytest

CASES = {name: at.conformance.CASES[name] for name in ("plain", "causal", "tiles", "mask of queries")}


def ending(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """Attention whose causal calls end the process; its prints must not reach the report."""
    print("an engine prints")
    if options.get("is_causal"):
        os._exit(3)
    return at.attention(query, key, value, **options)


def test_a_call_that_ends_the_process_is_an_error_of_its_case() -> None:
    report = at.conformance.check(ending, cases=CASES, seed=0, isolate=True)
    causal = [name for name, case in CASES.items() if case.options.get("is_causal")]
    assert causal == [*report.errors]
    assert {each.why for each in report.errors.values()} == {"the process ended, with status 3"}
    assert [*report.right] == [name for name in CASES if name not in causal]


def test_a_report_is_the_one_of_this_process() -> None:
    def doubled(*arrays: Any, scale: float | None = None, **options: Any) -> Any:
        scale = arrays[0].shape[-1] ** -0.5 if scale is None else scale
        rows = at.attention_statistics(*arrays, scale=2 * scale, **options)
        return {"output": rows.output, "lse": rows.lse}

    here, there = (at.conformance.check(doubled, cases=CASES, seed=0, isolate=x) for x in (False, True))
    assert not here.passed
    assert str(there) == str(here)


def test_what_an_engine_writes_is_seen_from_another_process() -> None:
    def writing(query: Any, key: Any, value: Any, **options: Any) -> Any:
        output = at.attention(query, key, value, **options)
        query *= 2
        return output

    assert "it writes into query" in at.conformance.check(writing, cases=CASES, seed=0, isolate=True).slips


def test_a_call_that_does_not_return_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is longer than the start of a process, which the test waits for."""

    def waiting(query: Any, key: Any, value: Any, **options: Any) -> Any:
        if options.get("attn_mask") is not None:
            time.sleep(600)
        return at.attention(query, key, value, **options)

    monkeypatch.setattr(sys.modules["attnscale.conformance._isolated"], "SECONDS", 8)
    report = at.conformance.check(waiting, cases=CASES, seed=0, isolate=True)
    assert {name: each.why for name, each in report.errors.items()} == {"mask of queries": "no answer in 8 s"}


def test_an_engine_whose_every_call_ends_the_process() -> None:
    """A few processes are tried, not one for each case."""

    def gone(*arrays: Any, **options: Any) -> Any:
        sys.exit(5)

    cases = {f"{name} {i}": case for i in range(3) for name, case in CASES.items()}
    report = at.conformance.check(gone, cases=cases, seed=0, isolate=True)
    assert len(report.errors) == len(cases)
    ended = [each.why for each in report.errors.values() if each.why.startswith("the process ended")]
    asked = [each.why for each in report.errors.values() if each.why.startswith("not asked")]
    assert (len(ended), len(asked)) == (4, 8)


def test_a_question_that_ends_the_process_is_an_answer() -> None:
    names = ["no_keys_boolean", "causal_fewer"]
    found = at.conformance.ask(ending, names=names, isolate=True)
    assert found["no_keys_boolean"].says == "0"
    assert found["causal_fewer"].says == "the process ended, with status 3"
    assert found["causal_fewer"].surprising


def test_what_cannot_be_sent_is_refused() -> None:
    lock = threading.Lock()

    def attend(*arrays: Any, **options: Any) -> Any:
        with lock:
            return at.attention(*arrays, **options)

    with pytest.raises(TypeError, match="engine must be a function that can be sent to another process, got"):
        at.conformance.check(attend, cases=CASES, isolate=True)
    with pytest.raises(TypeError, match="isolate must be True or False"):
        at.conformance.check(attend, cases=CASES, isolate="yes")  # type: ignore[arg-type]


def test_what_the_other_process_cannot_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def here(*arrays: Any, **options: Any) -> Any:
        return at.attention(*arrays, **options)

    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    here.__module__, here.__qualname__ = "__main__", "here"
    monkeypatch.setattr(sys.modules["__main__"], "here", here, raising=False)  # as of a script
    with pytest.raises(TypeError, match=r"sent to another process, got .*here.*: pip install cloudpickle"):
        at.conformance.check(here, cases=CASES, isolate=True)


def reading(query: Any, key: Any, value: Any, **options: Any) -> Any:
    """Attention that waits for the end of standard input."""
    sys.stdin.read()
    return at.attention(query, key, value, **options)


def test_an_engine_that_reads_finds_an_empty_input() -> None:
    assert at.conformance.check(reading, cases=CASES, isolate=True).passed
