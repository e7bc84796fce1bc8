# SPDX-License-Identifier: BSD-3-Clause
"""Work that Ctrl-C ends without losing what is finished."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["finished"]

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def finished(
    items: Iterable[_Item], compute: Callable[[_Item], _Result]
) -> tuple[dict[_Item, _Result], bool]:
    """What `compute` makes of each item, and whether Ctrl-C ended it before the last item.

    Examples
    --------
    >>> finished([1, 2], lambda n: n * n)
    ({1: 1, 2: 4}, False)
    """
    found: dict[_Item, _Result] = {}
    try:
        for item in items:
            found[item] = compute(item)
    except KeyboardInterrupt:
        if not found:
            raise
        return found, True
    return found, False
