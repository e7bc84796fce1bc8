# SPDX-License-Identifier: BSD-3-Clause
"""How far a run is: told to a function of the user's, or shown on a terminal as a bar or a line of text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from .._checks import shown

__all__ = ["Progress", "check_progress", "progress_line", "reporter"]

#: False, True (a bar where there are a terminal and tqdm), or ``function(done, total)``.
Progress: TypeAlias = "bool | Callable[[int, Any], Any]"

#: How a bar counts. A bar of many short pieces goes away when they are done.
_BARS: dict[str, dict[str, Any]] = {"case": {}, "sample": {"unit_scale": True, "leave": False}}


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
    unit : {"case", "sample"}
        What is counted.
    total : int or None
        None where it is not known.
    start : int
        Done by an earlier run: they do not count for the speed that a bar shows.
    """
    if callable(progress):
        yield lambda done: progress(done, total)
    elif progress and (bar := _bar(unit, total, start)) is not None:
        with bar:
            yield lambda done: bar.update(done - bar.n)
    else:
        yield lambda done: None


def _bar(unit: str, total: int | None, start: int) -> Any:
    """A bar of tqdm; None where nobody watches, or without tqdm, which is no reason to fail."""
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, initial=start, unit=unit, file=sys.stderr, **_BARS[unit])


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


def _overwrite(text: str) -> None:
    print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
