# SPDX-License-Identifier: BSD-3-Clause
"""Progress of long work, and one announcement of its time."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from attnscale._grid import progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace the clock by one that the test sets."""
    now = SimpleNamespace(seconds=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now.seconds))
    return now


def test_minutes_are_announced_once_and_what_is_left_is_shown(clock: SimpleNamespace) -> None:
    shown: list[str] = []
    announced: list[str] = []
    watch = progress.Watch(shown.append, announced.append)
    watch(0, 100, "first")
    assert (shown, announced) == (["0%: first"], [])
    clock.seconds = 1.0
    watch(1, 100)  # too early to tell
    assert announced == []
    clock.seconds = 10.0
    watch(4, 100, "second")
    assert announced == ["this takes about 4.2 minutes"]
    assert shown[-1] == "4%: second, about 4 minutes left"
    clock.seconds = 20.0
    watch(5, 100)
    assert len(announced) == 1


def test_the_first_report_may_be_left_out_of_the_speed(clock: SimpleNamespace) -> None:
    shown: list[str] = []
    announced: list[str] = []
    watch = progress.Watch(shown.append, announced.append, first_counts=False)
    clock.seconds = 50.0
    watch(3, 10)  # found, not done, and loading took 50 s
    assert shown == ["30%"]
    clock.seconds = 56.0
    watch(5, 10)
    assert (shown[-1], announced) == ("50%, about 15 seconds left", ["this takes about 71 seconds"])


def test_seconds_are_not_announced(clock: SimpleNamespace) -> None:
    announced: list[str] = []
    watch = progress.Watch(lambda text: None, announced.append)
    clock.seconds = 10.0
    watch(1, 2)
    watch.expect(59.0)
    assert announced == []


def test_a_terminal_without_tqdm_gets_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress.reporter(True, "case", 7) as report:
        report(3)
    assert "\r\x1b[K3 of 7 cases" in capsys.readouterr().err
