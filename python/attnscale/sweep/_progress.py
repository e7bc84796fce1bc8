# SPDX-License-Identifier: BSD-3-Clause
"""How far a sweep is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Progress", "reporter"]

#: Called as progress(finished, total): at the start, and after each case.
Progress = Callable[[int, int], object]


@contextmanager
def reporter(progress: bool | Progress) -> Iterator[Progress]:
    """What to call: the user's function, tqdm's bar on a terminal, or nothing."""
    if callable(progress):
        yield progress
    elif progress and sys.stderr.isatty():
        with _bar() as report:
            yield report
    else:
        yield _silence


@contextmanager
def _bar() -> Iterator[Progress]:
    try:
        from tqdm import tqdm
    except ImportError:  # a bar is no reason to fail
        yield _silence
        return
    with tqdm(unit="case", file=sys.stderr) as bar:

        def report(done: int, total: int) -> None:
            if bar.total is None:  # cases of an earlier run do not count for the speed
                bar.reset(total)
                bar.initial = bar.n = done
                bar.refresh()
            else:
                bar.update(done - bar.n)

        yield report


def _silence(done: int, total: int) -> None:
    """Nobody watches."""
