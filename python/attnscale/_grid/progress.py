# SPDX-License-Identifier: BSD-3-Clause
"""Progress of a run: reported to a user's function, or shown on a terminal as a bar or a line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from .._base.checks import shown
from .._base.text import duration

#: Seconds from which a run's duration is announced.
MINUTE = 60.0
# Seconds of work from which the remaining time can be estimated.
_TELLING = 2.0

#: False, True (a bar where there are a terminal and tqdm), or ``function(done, total)``.
Progress: TypeAlias = "bool | Callable[[int, Any], Any]"

#: Style of a bar by its unit; a bar of many short pieces disappears when they are done.
_BARS: dict[str, dict[str, Any]] = {"case": {}, "prompt": {}, "sample": {"unit_scale": True, "leave": False}}
_BARS["pair"] = _BARS["sample"]


def check_progress(progress: Any) -> Progress:
    """`progress`, checked: a boolean or a function."""
    if not isinstance(progress, bool) and not callable(progress):
        raise TypeError(f"progress must be a boolean or a function of (done, total), got {shown(progress)}")
    checked: Progress = progress
    return checked


@contextmanager
def reporter(
    progress: Progress, unit: str, total: int | None, start: int = 0
) -> Iterator[Callable[[int], Any]]:
    """A function to report the number of finished cases, prompts, samples or pairs to (the `unit`).

    The `total` may be unknown (None). The bar's speed does not count the `start` of an earlier run.
    """
    if callable(progress):
        yield lambda done: progress(done, total)
    elif progress and sys.stderr.isatty():
        with _shown(unit, total, start) as report:
            yield report
    else:
        yield lambda done: None


@contextmanager
def _shown(unit: str, total: int | None, start: int) -> Iterator[Callable[[int], Any]]:
    """A tqdm bar on a terminal; without tqdm, a line that counts."""
    try:
        from tqdm import tqdm
    except ImportError:
        of_all = "" if total is None else f" of {total}"
        with progress_line() as show:
            yield lambda done: show(f"{done}{of_all} {unit}s")
        return
    with tqdm(total=total, initial=start, unit=unit, file=sys.stderr, **_BARS[unit]) as bar:
        yield lambda done: bar.update(done - bar.n)


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """A function that replaces the shown text; it does nothing where there is no terminal."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    try:
        yield _overwrite
    finally:
        _overwrite("")


def _this_takes(seconds: float) -> str:
    return f"this takes about {duration(seconds)}"


class Watch:
    """Duration of a piece of work: a line while it runs, and an announcement if it is long.

    ``show(text)`` replaces the shown text, ``announce(text)`` prints a line that stays, from `least` seconds
    of duration on, and ``told(seconds)`` is that line. With ``first_counts=False`` the time until the first
    report, such as that of loading, is left out of the speed.

    Examples
    --------
    >>> watch = Watch(print, print)
    >>> watch.expect(150)
    <BLANKLINE>
    this takes about 2.5 minutes
    >>> watch(1, 4, "the second")
    25%: the second
    """

    def __init__(
        self,
        show: Callable[[str], object],
        announce: Callable[[str], object],
        least: float = MINUTE,
        told: Callable[[float], str] = _this_takes,
        *,
        first_counts: bool = True,
    ) -> None:
        self._show, self._announce, self._least, self._told = show, announce, least, told
        self._start = time.monotonic()
        self._from = (0.0, self._start) if first_counts else None  # what was done at which time
        self._announced = False

    def expect(self, seconds: float) -> None:
        """Announce the total duration, if it is long and none has been announced yet."""
        if seconds >= self._least and not self._announced:
            self._announced = True
            self._show("")
            self._announce(self._told(seconds))

    def __call__(self, done: float, total: float, name: str = "") -> None:
        """`done` of `total` is finished, and the piece called `name` begins."""
        now = time.monotonic()
        there, start = self._from = self._from or (done, now)
        pieces, gone = done - there, now - start
        left = gone * (total - done) / pieces if pieces and gone > _TELLING else 0.0
        if left:
            self.expect(now - self._start + left)
        rest = f", about {duration(left)} left" if left else ""
        self._show(f"{done / total:.0%}{name and f': {name}'}{rest}")


@contextmanager
def watched(*, first_counts: bool = True) -> Iterator[Watch]:
    """A watch that shows a line on a terminal, and announces long work on standard error."""
    with progress_line() as show:
        yield Watch(show, announce_on_stderr, first_counts=first_counts)


def announce_on_stderr(line: str) -> None:
    """Print how long the work takes."""
    print(f"attnscale: {line}", file=sys.stderr, flush=True)


def _overwrite(text: str) -> None:
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
