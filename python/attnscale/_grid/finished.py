# SPDX-License-Identifier: BSD-3-Clause
"""Work item by item that reports its progress, and that Ctrl-C ends without losing finished items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from .progress import Progress, Watch, reporter

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def finished(
    items: Sequence[_Item],
    compute: Callable[[_Item], _Result],
    progress: Progress | Watch = False,
    *,
    work: Callable[[_Item], float] = lambda item: 1.0,
    name: Callable[[_Item], str] = str,
) -> tuple[dict[_Item, _Result], bool]:
    """The results of `compute` for the items, and whether Ctrl-C came before the last item.

    A :class:`Watch` as `progress` takes the `name` of each item, and its `work` in any unit, for the
    remaining time; another function takes the numbers of finished and of all items.

    Examples
    --------
    >>> finished([1, 2], lambda n: n * n)
    ({1: 1, 2: 4}, False)
    """
    found: dict[_Item, _Result] = {}
    done, total = 0.0, sum(map(work, items))
    try:
        with reporter(progress, "case", len(items)) as report:
            for item in items:
                if isinstance(progress, Watch):
                    progress(done, total, name(item))
                else:
                    report(len(found))
                found[item] = compute(item)
                done += work(item)
            if not isinstance(progress, Watch):
                report(len(found))
    except KeyboardInterrupt:
        if not found:
            raise
        return found, True
    return found, False
