# SPDX-License-Identifier: BSD-3-Clause
"""How far a run is: told to a function of the user's, or shown on a terminal as a bar or a line of text."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from .._base.checks import shown
from .._base.text import duration

#: Seconds of a run that is announced.
MINUTE = 60.0
# Seconds of work after which the rest can be told from them.
_TELLING = 2.0

#: False, True (a bar where there are a terminal and tqdm), or ``function(done, total)``.
Progress: TypeAlias = "bool | Callable[[int, Any], Any]"

#: How a bar counts. A bar of many short pieces goes away when they are done.
_BARS: dict[str, dict[str, Any]] = {"case": {}, "sample": {"unit_scale": True, "leave": False}}
_BARS["pair"] = _BARS["sample"]


def check_progress(progress: Any) -> Progress:
    """`progress`, if it is a boolean or can be called."""
    if not isinstance(progress, bool) and not callable(progress):
        raise TypeError(f"progress must be a boolean or a function of (done, total), got {shown(progress)}")
    checked: Progress = progress
    return checked


@contextmanager
def reporter(
    progress: Progress, unit: str, total: int | None, start: int = 0
) -> Iterator[Callable[[int], Any]]:
    """A function that is to be told how many cases or samples are done.

    Parameters
    ----------
    progress : see :data:`Progress`
    unit : {"case", "sample", "pair"}
        What is counted.
    total : int or None
        None where it is not known.
    start : int
        Done by an earlier run: they do not count for the speed that a bar shows.
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
    """A bar of tqdm on a terminal; without tqdm, which is no reason to fail, a line that counts."""
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
    """A function that shows a text in the place of the one before; it does nothing where nobody watches."""
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
    """How long a piece of work takes: a line while it lasts, and one announcement if that is long.

    Parameters
    ----------
    show : callable
        ``show(text)`` puts a text in the place of the one before.
    announce : callable
        ``announce(text)`` tells a line that stays.
    least : float
        Seconds from which the time is announced.
    told : callable
        ``told(seconds)`` is the line that is announced.

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
    ) -> None:
        self._show, self._announce, self._least, self._told = show, announce, least, told
        self._start = time.monotonic()
        self._announced = False

    def expect(self, seconds: float) -> None:
        """Announce the time that all of it takes, if that is long and nothing is announced yet."""
        if seconds >= self._least and not self._announced:
            self._announced = True
            self._show("")
            self._announce(self._told(seconds))

    def __call__(self, done: float, total: float, name: str = "") -> None:
        """`done` of `total` is finished, and what is called `name` begins."""
        gone = time.monotonic() - self._start
        left = gone * (total - done) / done if done and gone > _TELLING else 0.0
        if left:
            self.expect(gone + left)
        rest = f", about {duration(left)} left" if left else ""
        self._show(f"{done / total:.0%}{name and f': {name}'}{rest}")


def announce_on_stderr(line: str) -> None:
    """Print a line that tells a user how long the work takes."""
    print(f"attnscale: {line}", file=sys.stderr, flush=True)


def _overwrite(text: str) -> None:
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
