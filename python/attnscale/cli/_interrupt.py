# SPDX-License-Identifier: BSD-3-Clause
"""Work that reports its progress, and that Ctrl-C ends without losing finished parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from .._grid.progress import Watch, announce_on_stderr, progress_line

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@contextmanager
def watched() -> Iterator[Watch]:
    """A watch that shows a line on a terminal, and announces long work on standard error."""
    with progress_line() as show:
        yield Watch(show, announce_on_stderr)


def finished(
    items: Sequence[_Item],
    compute: Callable[[_Item], _Result],
    *,
    work: Callable[[_Item], float] = lambda item: 1.0,
    name: Callable[[_Item], str] = str,
    expected: float = 0.0,
) -> tuple[dict[_Item, _Result], bool]:
    """The results of `compute` for the items, and whether Ctrl-C came before the last item.

    `work` is that of an item, in any unit, for the remaining time; `name` is an item's while it is computed;
    `expected` are the seconds for all items, if known in advance.

    Examples
    --------
    >>> finished([1, 2], lambda n: n * n)
    ({1: 1, 2: 4}, False)
    """
    found: dict[_Item, _Result] = {}
    done, total = 0.0, sum(map(work, items))
    try:
        with watched() as watch:
            watch.expect(expected)
            for item in items:
                watch(done, total, name(item))
                found[item] = compute(item)
                done += work(item)
    except KeyboardInterrupt:
        if not found:
            raise
        return found, True
    return found, False
