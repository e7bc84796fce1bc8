# SPDX-License-Identifier: BSD-3-Clause
"""Telling how far a run is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from .._checks import shown

__all__ = ["Progress", "check_progress", "reporting"]

#: False, True (a bar where there is a terminal and tqdm), or ``function(done, total)``.
Progress: TypeAlias = "bool | Callable[[int, int | None], Any]"


def check_progress(progress: Any) -> Progress:
    """`progress`, if it is a boolean or can be called."""
    if not isinstance(progress, bool) and not callable(progress):
        raise TypeError(f"progress must be a boolean or a function of (done, total), got {shown(progress)}")
    checked: Progress = progress
    return checked


@contextmanager
def reporting(progress: Progress, total: int | None, start: int) -> Iterator[Callable[[int], None]]:
    """A function that is told each number of new samples; ``total`` is None where it is not known."""
    if callable(progress):
        yield _counter(progress, total, start)
    elif progress and (bar := _bar(total, start)) is not None:
        with bar:
            yield bar.update
    else:
        yield lambda _: None


def _counter(
    function: Callable[[int, int | None], Any], total: int | None, start: int
) -> Callable[[int], None]:
    done = start

    def update(count: int) -> None:
        nonlocal done
        done += count
        function(done, total)

    return update


def _bar(total: int | None, start: int) -> Any:
    """A tqdm bar; None where there is no tqdm or nobody to watch it."""
    if not sys.stderr.isatty():
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, initial=start, unit="sample", unit_scale=True, leave=False)
